package offloaderd.pulsar;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.Broker.OffloadedLedger;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.OffloadedLedgerHandle;

/**
 * An offloaded ledger. Reads that follow each other share a stream from the daemon, which is read ahead of them; readers at
 * different places have one each, {@value #LANES_MAX} at most. One handle may be used by any number of threads.
 */
final class TieredLedger implements ReadHandle, OffloadedLedgerHandle {
    static final int LANES_MAX = 4;

    private final OffloadedLedger ledger;
    private final long lastEntryId;
    private final LedgerMetadata metadata;
    private final LaneMaker lanesMaker;
    private final LedgerOffloaderStats stats;
    private final List<Lane> lanes = new ArrayList<>();
    private volatile long accessedMs = System.currentTimeMillis();
    private boolean closed;

    private interface LaneMaker {
        Lane make();
    }

    TieredLedger(
            Daemons daemons,
            Settings settings,
            LedgerOffloaderStats stats,
            OffloadedLedger ledger,
            long lastEntryId,
            long lengthBytes) {
        this.ledger = ledger;
        this.lastEntryId = lastEntryId;
        this.metadata = new TieredMetadata(ledger.getLedgerId(), lastEntryId, lengthBytes);
        this.stats = stats;
        this.lanesMaker = () -> new Lane(daemons, settings, ledger, lastEntryId);
    }

    @Override
    public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
        accessedMs = System.currentTimeMillis();
        if (first < 0 || first > last || last > lastEntryId) {
            return CompletableFuture.failedFuture(new ManagedLedgerException("ledger " + ledger.getLedgerId() + " has entries 0 to "
                    + lastEntryId + ", not " + first + " to " + last));
        }
        Lane lane;
        synchronized (this) {
            if (closed) {
                return CompletableFuture.failedFuture(new ManagedLedgerException.OffloadReadHandleClosedException());
            }
            lane = laneFor(first);
        }
        long began = System.nanoTime();
        return lane.read(first, last).handle((entries, error) -> {
            accessedMs = System.currentTimeMillis();
            if (error != null) {
                stats.recordReadOffloadError(ledger.getTopic());
                throw FutureFailure.of(Failures.of(error, "cannot read ledger " + ledger.getLedgerId()));
            }
            stats.recordReadLedgerLatency(ledger.getTopic(), System.nanoTime() - began, TimeUnit.NANOSECONDS);
            stats.recordReadOffloadBytes(ledger.getTopic(), entries.bytes());
            return entries.handedOut();
        });
    }

    /** Returns the stream that comes to an entry next, else one that nobody waits for. */
    private Lane laneFor(long first) {
        for (Lane lane : lanes) {
            if (lane.leadsTo(first)) {
                return lane;
            }
        }
        Lane idlest = lanes.stream().min(Comparator.comparingInt(Lane::waiting)).orElse(null);
        if (idlest == null || (lanes.size() < LANES_MAX && idlest.waiting() > 0)) {
            idlest = lanesMaker.make();
            lanes.add(idlest);
        }
        return idlest;
    }

    @Override
    public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
        return readAsync(first, last);
    }

    @Override
    public synchronized CompletableFuture<Void> closeAsync() {
        closed = true;
        lanes.forEach(Lane::close);
        lanes.clear();
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public long lastAccessTimestamp() {
        return accessedMs;
    }

    @Override
    public synchronized int getPendingRead() {
        return lanes.stream().mapToInt(Lane::waiting).sum();
    }

    @Override
    public long getId() {
        return ledger.getLedgerId();
    }

    @Override
    public LedgerMetadata getLedgerMetadata() {
        return metadata;
    }

    @Override
    public long getLastAddConfirmed() {
        return lastEntryId;
    }

    @Override
    public long getLength() {
        return metadata.getLength();
    }

    @Override
    public boolean isClosed() {
        return true;
    }

    @Override
    public CompletableFuture<Long> readLastAddConfirmedAsync() {
        return CompletableFuture.completedFuture(lastEntryId);
    }

    @Override
    public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
        return CompletableFuture.completedFuture(lastEntryId);
    }

    @Override
    public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(
            long entryId, long timeOutInMillis, boolean parallel) {
        return CompletableFuture.failedFuture(new UnsupportedOperationException("an offloaded ledger gets no entries"));
    }
}
