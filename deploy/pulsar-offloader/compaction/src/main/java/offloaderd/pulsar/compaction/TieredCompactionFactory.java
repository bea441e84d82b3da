package offloaderd.pulsar.compaction;

import java.io.IOException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.bookkeeper.client.CompactedBookKeeper;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.PulsarServerException;
import org.apache.pulsar.common.naming.SystemTopicNames;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.compaction.CompactedTopicImpl;
import org.apache.pulsar.compaction.Compactor;
import org.apache.pulsar.compaction.PulsarCompactionServiceFactory;
import org.apache.pulsar.compaction.PulsarTopicCompactionService;
import org.apache.pulsar.compaction.TopicCompactionService;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Pulsar's own compaction, whose compacted ledgers are offloaded, and read from the tier once BookKeeper has them no more:
 * {@code compactionServiceFactoryClassName} in broker.conf (PIP-278). Everything else is Pulsar's: who compacts, when, and
 * how readers get to the compacted ledger ({@code PersistentTopic} knows {@code PulsarTopicCompactionService} by its class).
 * Pulsar's own topics keep their compacted ledgers in BookKeeper: a broker reads the policies of topics out of one, and so
 * before it knows any offloader.
 */
public final class TieredCompactionFactory extends PulsarCompactionServiceFactory {
    private static final Logger LOG = LoggerFactory.getLogger(TieredCompactionFactory.class);

    @Override
    public CompletableFuture<TopicCompactionService> newTopicCompactionService(String topic) {
        if (SystemTopicNames.isSystemTopic(TopicName.get(topic))) {
            return super.newTopicCompactionService(topic);
        }
        CompactedTier.Time time = new BrokerTime(getPulsarService().getExecutor());
        CompactedTier tier = new CompactedTier(new BrokerTopic(getPulsarService(), topic), time, topic);
        CompactedBookKeeper ledgers = new CompactedBookKeeper(getPulsarService().getBookKeeperClient(), tier);
        return CompletableFuture.completedFuture(new Service(topic, tier, time, ledgers, this::compactor));
    }

    private Compactor compactor() {
        try {
            return getCompactor();
        } catch (PulsarServerException error) {
            throw new CompletionException(error);
        }
    }

    private record BrokerTime(ScheduledExecutorService executor) implements CompactedTier.Time {
        @Override
        public long nowMs() {
            return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
        }

        @Override
        public void later(Runnable step, long pauseMs) {
            try {
                executor.schedule(step, pauseMs, TimeUnit.MILLISECONDS);
            } catch (RejectedExecutionException end) {
                LOG.debug("The broker ends", end);
            }
        }
    }

    static final class Service extends PulsarTopicCompactionService {
        private final CompactedTier tier;
        private final ReopenedTopic reopened;

        Service(
                String topic,
                CompactedTier tier,
                CompactedTier.Time time,
                CompactedBookKeeper ledgers,
                Supplier<Compactor> compactor) {
            super(topic, ledgers, compactor);
            this.tier = tier;
            this.reopened = new ReopenedTopic(ledgers, super.getCompactedTopic(), time);
        }

        CompactedTier tier() {
            return tier;
        }

        @Override
        public CompactedTopicImpl getCompactedTopic() {
            return reopened;
        }

        /** Every read asks for this first. */
        @Override
        public CompletableFuture<Position> getLastCompactedPosition() {
            reopened.reopen();
            return super.getLastCompactedPosition();
        }

        /** The topic is unloaded: its next broker has a service of its own. */
        @Override
        public void close() throws IOException {
            tier.close();
            super.close();
        }
    }
}
