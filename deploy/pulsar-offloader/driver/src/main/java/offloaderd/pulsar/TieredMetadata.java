package offloaderd.pulsar;

import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;

/** What BookKeeper would say of a ledger that no bookie holds. */
record TieredMetadata(long ledgerId, long lastEntryId, long length) implements LedgerMetadata {
    private static final int FORMAT_VERSION = 2;

    @Override
    public long getLedgerId() {
        return ledgerId;
    }

    @Override
    public long getLastEntryId() {
        return lastEntryId;
    }

    @Override
    public long getLength() {
        return length;
    }

    @Override
    public boolean isClosed() {
        return true;
    }

    @Override
    public State getState() {
        return State.CLOSED;
    }

    @Override
    public int getEnsembleSize() {
        return 0;
    }

    @Override
    public int getWriteQuorumSize() {
        return 0;
    }

    @Override
    public int getAckQuorumSize() {
        return 0;
    }

    @Override
    public List<BookieId> getEnsembleAt(long entryId) {
        return List.of();
    }

    @Override
    public NavigableMap<Long, ? extends List<BookieId>> getAllEnsembles() {
        return Collections.emptyNavigableMap();
    }

    @Override
    public boolean hasPassword() {
        return false;
    }

    @Override
    public byte[] getPassword() {
        return new byte[0];
    }

    @Override
    public DigestType getDigestType() {
        return DigestType.CRC32C;
    }

    @Override
    public long getCtime() {
        return -1;
    }

    @Override
    public Map<String, byte[]> getCustomMetadata() {
        return Map.of();
    }

    @Override
    public int getMetadataFormatVersion() {
        return FORMAT_VERSION;
    }

    @Override
    public long getCToken() {
        return 0;
    }

    @Override
    public String toSafeString() {
        return toString();
    }
}
