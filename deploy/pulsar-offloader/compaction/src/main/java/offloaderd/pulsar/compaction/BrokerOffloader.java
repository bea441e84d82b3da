package offloaderd.pulsar.compaction;

import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.common.naming.TopicName;

/** The offloader that a topic has by its policies at the moment, as its broker makes it. */
record BrokerOffloader(PulsarService pulsar, String topic) implements Supplier<CompletableFuture<LedgerOffloader>> {
    @Override
    public CompletableFuture<LedgerOffloader> get() {
        return pulsar.getBrokerService()
                .getManagedLedgerConfig(TopicName.get(topic))
                .thenApply(ManagedLedgerConfig::getLedgerOffloader);
    }
}
