package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.PooledByteBufAllocator;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;

/**
 * Entries that a read has got so far, in the broker's own direct buffers: each entry has one of its own, so that one which
 * stays in the broker's cache holds nothing else. The broker releases what was handed out.
 */
final class Entries {
    private final long ledgerId;
    private final List<LedgerEntry> entries = new ArrayList<>();
    private long bytes;

    Entries(long ledgerId) {
        this.ledgerId = ledgerId;
    }

    void add(long entryId, ByteString payload) {
        ByteBuf buffer = PooledByteBufAllocator.DEFAULT.directBuffer(payload.size(), payload.size());
        buffer.writeBytes(payload.asReadOnlyByteBuffer());
        entries.add(LedgerEntryImpl.create(ledgerId, entryId, payload.size(), buffer));
        bytes += payload.size();
    }

    long bytes() {
        return bytes;
    }

    LedgerEntries handedOut() {
        return LedgerEntriesImpl.create(entries);
    }

    void release() {
        entries.forEach(LedgerEntry::close);
        entries.clear();
    }
}
