package offloaderd.pulsar;

import java.util.function.Consumer;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Pulsar's own statistics: whatever they throw, in whichever version, what they count is done all the same. */
record Statistics(LedgerOffloaderStats stats) {
    private static final Logger LOG = LoggerFactory.getLogger(Statistics.class);

    void count(Consumer<LedgerOffloaderStats> event) {
        try {
            event.accept(stats);
        } catch (Throwable error) {
            LOG.warn("Pulsar's statistics fail", error);
        }
    }
}
