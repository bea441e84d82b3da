package offloaderd.pulsar.compaction;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.compaction.CompactedTopicContext;
import org.apache.pulsar.compaction.CompactedTopicImpl;

/**
 * Pulsar's compacted topic, whose ledger is opened again after it could not be opened: Pulsar's own remembers the failure
 * until the topic is unloaded. A next ledger that cannot be opened leaves the one before in its place, as the cursor does.
 * What metrics ask of it is answered at once, without a ledger that is not open yet: Pulsar's own waits half a minute.
 */
final class ReopenedTopic extends CompactedTopicImpl {
    private final CompactedTopicImpl topic;
    private final CompactedTier.Time time;
    private Named named;
    private long openedMs;

    /** A compacted ledger, and the position up to which it has the topic's messages. */
    private record Named(Position position, long ledgerId) {}

    /** Of the same client as {@code topic}, which reads. */
    ReopenedTopic(BookKeeper client, CompactedTopicImpl topic, CompactedTier.Time time) {
        super(client);
        this.topic = topic;
        this.time = time;
    }

    /** Opens the ledger again if it could not be opened, at most every few seconds. */
    void reopen() {
        reopen(CompactedTier.RETRY_MS);
    }

    private synchronized void reopen(long pauseMs) {
        CompletableFuture<CompactedTopicContext> context = topic.getCompactedTopicContextFuture();
        boolean failed = named != null && context != null && context.isCompletedExceptionally();
        if (failed && time.nowMs() - openedMs >= pauseMs) {
            open(named);
        }
    }

    private CompletableFuture<CompactedTopicContext> open(Named one) {
        named = one;
        openedMs = time.nowMs();
        return topic.newCompactedLedger(one.position, one.ledgerId);
    }

    /** Opens the next ledger, and the one before if that is not open: else nobody would record that it is replaced. */
    @Override
    public synchronized CompletableFuture<CompactedTopicContext> newCompactedLedger(Position position, long ledgerId) {
        reopen(0);
        Named before = named;
        Named next = new Named(position, ledgerId);
        return open(next).whenComplete((previous, error) -> {
            if (error != null) {
                goBack(next, before);
            }
        });
    }

    private synchronized void goBack(Named next, Named before) {
        if (named == next && before != null) {
            open(before);
        }
    }

    @Override
    public CompletableFuture<Void> deleteCompactedLedger(long ledgerId) {
        return topic.deleteCompactedLedger(ledgerId);
    }

    @Override
    public Optional<CompactedTopicContext> getCompactedTopicContext() {
        CompletableFuture<CompactedTopicContext> context = topic.getCompactedTopicContextFuture();
        boolean open = context != null && context.isDone() && !context.isCompletedExceptionally();
        return open ? Optional.of(context.join()) : Optional.empty();
    }

    @Override
    public CompletableFuture<CompactedTopicContext> getCompactedTopicContextFuture() {
        return topic.getCompactedTopicContextFuture();
    }

    @Override
    public CompletableFuture<Entry> readLastEntryOfCompactedLedger() {
        return topic.readLastEntryOfCompactedLedger();
    }

    @Override
    public Optional<Position> getCompactionHorizon() {
        return topic.getCompactionHorizon();
    }

    @Override
    public synchronized void reset() {
        named = null;
        topic.reset();
    }
}
