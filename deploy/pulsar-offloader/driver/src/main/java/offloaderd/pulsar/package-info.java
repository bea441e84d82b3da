/**
 * A LedgerOffloader that leaves everything to offloaderd: when a broker offloads a closed ledger, the daemon has it in the
 * bucket already, or takes what is missing; when a broker reads one, the daemon reads it.
 *
 * <p>Nothing here decides what is offloaded, deleted or read from where: the broker does, by its policies. No thread of
 * the broker waits for anything.
 */
package offloaderd.pulsar;
