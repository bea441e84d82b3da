package offloaderd.pulsar;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.LedgerEntries;

/** A read that waits for its entries, and what becomes of it. */
final class Waiting {
    final long last;
    final Entries entries;
    final CompletableFuture<LedgerEntries> done = new CompletableFuture<>();
    private final Lane.Source source;
    private final long beganNs = System.nanoTime();

    Waiting(Lane.Source source, long first, long last) {
        this.source = source;
        this.last = last;
        this.entries = new Entries(
                source.daemons().memory().allocator(), source.ledger().getLedgerId(), first, last);
    }

    /** Returns for how long it may wait on; nothing or less if its time is up. */
    long leftNs() {
        return source.settings().readTimeout().toNanos() - (System.nanoTime() - beganNs);
    }

    /** Hands the entries out. What nobody waits for any more is released. */
    boolean succeed() {
        LedgerEntries found;
        try {
            found = entries.handedOut();
        } catch (Throwable error) {
            fail(error);
            return false;
        }
        source.pending().decrementAndGet();
        source.stats().count(stats -> {
            stats.recordReadOffloadDataLatency(topic(), System.nanoTime() - beganNs, TimeUnit.NANOSECONDS);
            stats.recordReadOffloadBytes(topic(), entries.bytes());
        });
        if (!done.complete(found)) {
            found.close();
        }
        return true;
    }

    void fail(Throwable error) {
        source.pending().decrementAndGet();
        entries.release();
        source.stats().count(stats -> stats.recordReadOffloadError(topic()));
        done.completeExceptionally(Failures.of(error, "cannot read ledger " + source.ledger().getLedgerId()));
    }

    private String topic() {
        return source.ledger().getTopic();
    }
}
