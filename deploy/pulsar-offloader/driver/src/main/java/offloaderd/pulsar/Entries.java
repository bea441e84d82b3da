package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.mledger.ManagedLedgerException;

/**
 * Entries that a read has got so far, in the broker's own buffers: each entry has one of its own, so that one which stays
 * in the broker's cache holds nothing else. The broker releases what was handed out.
 */
final class Entries {
    private final ByteBufAllocator allocator;
    private final long ledgerId;
    private final long first;
    private final long last;
    private final List<LedgerEntry> entries = new ArrayList<>();
    private long bytes;

    Entries(ByteBufAllocator allocator, long ledgerId, long first, long last) {
        this.allocator = allocator;
        this.ledgerId = ledgerId;
        this.first = first;
        this.last = last;
    }

    /** Copies an entry; when there is no memory for it, nothing has changed. */
    void add(long entryId, ByteString payload) {
        ByteBuf buffer = allocator.buffer(payload.size(), payload.size());
        try {
            buffer.writeBytes(payload.asReadOnlyByteBuffer());
            entries.add(LedgerEntryImpl.create(ledgerId, entryId, payload.size(), buffer));
        } catch (Throwable error) {
            buffer.release();
            throw error;
        }
        bytes += payload.size();
    }

    /** Returns the id of the entry that is to be added next. */
    long wanted() {
        return first + entries.size();
    }

    boolean whole() {
        return wanted() > last;
    }

    long bytes() {
        return bytes;
    }

    /**
     * Returns the entries, which are the caller's then. A broker counts nothing: it goes on behind the last entry that it
     * asked for, and a consumer would never see one that lacks here.
     *
     * @throws ManagedLedgerException if they are not exactly those that were asked for
     */
    LedgerEntries handedOut() throws ManagedLedgerException {
        long expected = first;
        for (LedgerEntry entry : entries) {
            if (entry.getEntryId() != expected) {
                break;
            }
            expected++;
        }
        if (expected != last + 1 || entries.size() != last - first + 1) {
            throw new ManagedLedgerException("entries " + first + " to " + last + " of ledger " + ledgerId + " were asked for: "
                    + entries.size() + " came, and entry " + expected + " is not in its place");
        }
        return LedgerEntriesImpl.create(entries);
    }

    void release() {
        entries.forEach(LedgerEntry::close);
        entries.clear();
    }
}
