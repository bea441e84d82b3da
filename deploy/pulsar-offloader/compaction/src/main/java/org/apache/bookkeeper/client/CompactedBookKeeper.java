package org.apache.bookkeeper.client;

import java.util.concurrent.CompletableFuture;
import offloaderd.pulsar.compaction.CompactedTier;

/**
 * The broker's client of BookKeeper, as the compacted ledgers of one topic are opened and deleted with it ({@code
 * CompactedTopicImpl}, which takes nothing else for it, and calls nothing else of it). In this package, because neither
 * that class nor a ledger's handle can be extended elsewhere.
 */
public final class CompactedBookKeeper extends BookKeeper {
    private final BookKeeper client;
    private final CompactedTier tier;

    public CompactedBookKeeper(BookKeeper client, CompactedTier tier) {
        this.client = client;
        this.tier = tier;
    }

    @Override
    public void asyncOpenLedger(
            long ledgerId, DigestType digest, byte[] password, AsyncCallback.OpenCallback callback, Object context) {
        client.asyncOpenLedger(ledgerId, digest, password, tiered(ledgerId, callback), context);
    }

    /** What Pulsar 4.2 calls, of a client that 4.0 does not have: so it is found by its name, and overrides nothing here. */
    public void asyncOpenLedger(
            long ledgerId,
            DigestType digest,
            byte[] password,
            AsyncCallback.OpenCallback callback,
            Object context,
            boolean keepUpdateMetadata) {
        try {
            BookKeeper.class
                    .getMethod("asyncOpenLedger", long.class, DigestType.class, byte[].class,
                            AsyncCallback.OpenCallback.class, Object.class, boolean.class)
                    .invoke(client, ledgerId, digest, password, tiered(ledgerId, callback), context, keepUpdateMetadata);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("BookKeeper's client has another form than Pulsar's caller", error);
        }
    }

    /** Returns what answers with a ledger of the tier where BookKeeper has none. */
    private AsyncCallback.OpenCallback tiered(long ledgerId, AsyncCallback.OpenCallback callback) {
        return (code, handle, context) -> {
            if (code == BKException.Code.OK) {
                answer(CompactedLedger.of(client, handle, tier), handle, callback, context);
            } else if (CompactedLedger.missing(code)) {
                tier.open(ledgerId).whenComplete((found, error) -> {
                    if (error == null) {
                        answer(CompactedLedger.of(client, found, tier), null, callback, context);
                    } else {
                        callback.openComplete(CompactedLedger.code(error), null, context);
                    }
                });
            } else {
                callback.openComplete(code, null, context);
            }
        };
    }

    /** Answers with a ledger; one that cannot be tiered is read as Pulsar's own compaction reads it. */
    private void answer(
            CompactedLedger ledger, LedgerHandle stored, AsyncCallback.OpenCallback callback, Object context) {
        if (ledger != null) {
            tier.opened(ledger, stored != null, this::delete);
            callback.openComplete(BKException.Code.OK, ledger, context);
        } else if (stored != null) {
            callback.openComplete(BKException.Code.OK, stored, context);
        } else {
            callback.openComplete(BKException.Code.UnexpectedConditionException, null, context);
        }
    }

    @Override
    public void asyncDeleteLedger(long ledgerId, AsyncCallback.DeleteCallback callback, Object context) {
        tier.deleted(ledgerId, this::delete)
                .whenComplete((nothing, error) -> callback.deleteComplete(
                        error == null ? BKException.Code.OK : CompactedLedger.code(error), context));
    }

    private CompletableFuture<Void> delete(long ledgerId) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        client.asyncDeleteLedger(ledgerId, (code, same) -> {
            if (code == BKException.Code.OK || CompactedLedger.missing(code)) {
                done.complete(null);
            } else {
                done.completeExceptionally(BKException.create(code));
            }
        }, null);
        return done;
    }
}
