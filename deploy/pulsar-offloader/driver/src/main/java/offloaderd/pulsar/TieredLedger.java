package offloaderd.pulsar;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import offloaderd.v1.Broker.OffloadedLedger;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.OffloadedLedgerHandle;

/**
 * An offloaded ledger. Reads that follow each other share a stream from the daemon, which is read ahead of them; readers at
 * different places have one each, {@value #LANES_MAX} at most. A single entry that is no reader's next one has a call of
 * its own. One handle may be used by any number of threads, and none of its calls throws or waits.
 */
final class TieredLedger implements ReadHandle, OffloadedLedgerHandle {
    static final int LANES_MAX = 32;
    private static final int LOOKUPS_MAX = 128;

    private final OffloadedLedger ledger;
    private final long lastEntryId;
    private final LedgerMetadata metadata;
    private final Lane.Source source;
    /** By the entry that a read has to begin with to go on with it; the one used longest ago comes first. */
    private final List<Place> lanes = new ArrayList<>();
    /** What a read has to begin with to go on with one of the last lookups. */
    private final Set<Long> lookups = new LinkedHashSet<>();
    private volatile long accessedMs = System.currentTimeMillis();
    private boolean closed;

    private record Place(Lane lane, long next) {}

    TieredLedger(
            Daemons daemons,
            Settings settings,
            Statistics stats,
            OffloadedLedger ledger,
            long lastEntryId,
            long lengthBytes) {
        this.ledger = ledger;
        this.lastEntryId = lastEntryId;
        this.metadata = new TieredMetadata(ledger.getLedgerId(), lastEntryId, lengthBytes);
        this.source = new Lane.Source(daemons, settings, stats, ledger, new AtomicInteger());
    }

    @Override
    public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
        try {
            accessedMs = System.currentTimeMillis();
            if (first < 0 || first > last || last > lastEntryId) {
                return CompletableFuture.failedFuture(new ManagedLedgerException("ledger " + ledger.getLedgerId()
                        + " has entries 0 to " + lastEntryId + ", not " + first + " to " + last));
            }
            Lane lane;
            CompletableFuture<LedgerEntries> read;
            synchronized (this) {
                if (closed) {
                    return CompletableFuture.failedFuture(new ManagedLedgerException.OffloadReadHandleClosedException());
                }
                lane = laneFor(first, last);
                read = lane.read(first, last);
            }
            lane.go();
            read.whenComplete((entries, error) -> accessedMs = System.currentTimeMillis());
            return read; // itself: entries that nobody waits for any more are released
        } catch (Throwable error) { // of a lack of memory
            return CompletableFuture.failedFuture(Failures.of(error, "cannot read ledger " + ledger.getLedgerId()));
        }
    }

    /** Returns the lane whose readers go on with a read, or one that is made for it. */
    private Lane laneFor(long first, long last) {
        lanes.removeIf(place -> place.lane.over());
        Place found = null;
        for (Place place : lanes) {
            boolean here = place.next == first || (first < last && place.next < first && first < place.lane.readyTo());
            if (here && (found == null || place.next > found.next)) {
                found = place;
            }
        }
        if (found != null) {
            lanes.remove(found);
        } else if (first == last && !lookups.remove(first)) {
            return lookup(first);
        } else if (lanes.size() == LANES_MAX) {
            Lane oldest = lanes.remove(0).lane;
            oldest.close();
            oldest.go();
        }
        Lane lane = found != null ? found.lane : new Lane(source, lastEntryId);
        lanes.add(new Place(lane, last + 1));
        return lane;
    }

    /** Returns the id behind the last entry that is here for readers who go on with one; that one's own id for nothing. */
    synchronized long readyTo(long next) {
        return lanes.stream().filter(place -> place.next == next).mapToLong(place -> place.lane.readyTo()).max().orElse(next);
    }

    /** Returns a lane that ends with the one entry; who reads the next one as well reads on and looks nothing up. */
    private Lane lookup(long entryId) {
        if (lookups.size() == LOOKUPS_MAX) {
            lookups.remove(lookups.iterator().next());
        }
        lookups.add(entryId + 1);
        return new Lane(source, entryId);
    }

    @Override
    public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
        return readAsync(first, last);
    }

    @Override
    public synchronized CompletableFuture<Void> closeAsync() {
        closed = true;
        for (Place place : lanes) {
            place.lane.close();
            place.lane.go();
        }
        lanes.clear();
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public long lastAccessTimestamp() {
        return accessedMs;
    }

    @Override
    public int getPendingRead() {
        return source.pending().get();
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
