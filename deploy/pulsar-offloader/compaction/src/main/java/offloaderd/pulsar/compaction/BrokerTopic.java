package offloaderd.pulsar.compaction;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.common.naming.TopicName;

/** A topic of a broker. */
record BrokerTopic(PulsarService pulsar, String topic) implements CompactedTier.Topic {
    /**
     * Returns the offloader of the topic's own ledgers, which the broker replaces when policies change. While the topic is
     * being loaded it cannot be had, and another one is made, as the broker makes one for each call.
     */
    @Override
    public CompletableFuture<LedgerOffloader> offloader() {
        return loaded().map(found -> CompletableFuture.completedFuture(found.getManagedLedger().getConfig()))
                .orElseGet(() -> pulsar.getBrokerService().getManagedLedgerConfig(TopicName.get(topic)))
                .thenApply(ManagedLedgerConfig::getLedgerOffloader);
    }

    @Override
    public boolean has(CompactedTier tier) {
        return loaded().map(PersistentTopic::getTopicCompactionService)
                .filter(one -> one instanceof TieredCompactionFactory.Service service && service.tier() == tier)
                .isPresent();
    }

    private Optional<PersistentTopic> loaded() {
        return pulsar.getBrokerService()
                .getTopicReference(topic)
                .filter(PersistentTopic.class::isInstance)
                .map(PersistentTopic.class::cast);
    }
}
