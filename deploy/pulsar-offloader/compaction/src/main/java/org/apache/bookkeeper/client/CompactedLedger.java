package org.apache.bookkeeper.client;

import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import offloaderd.pulsar.compaction.CompactedTier;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A compacted ledger, closed, that is read from BookKeeper, and from the tier once BookKeeper has it no more, whoever deleted
 * it. Its number, last entry and length are the same in both.
 */
public final class CompactedLedger extends LedgerHandle implements CompactedTier.Ledger {
    private static final Logger LOG = LoggerFactory.getLogger(CompactedLedger.class);

    private final CompactedTier tier;
    private final long last;
    private final long bytes;
    /** Of BookKeeper; null where it was opened in the tier. */
    private final ReadHandle stored;
    /** In the tier; null while nobody reads it there. */
    private CompletableFuture<ReadHandle> inTier;

    private CompactedLedger(BookKeeper client, ReadHandle source, CompactedTier tier) throws GeneralSecurityException {
        super(client.getClientCtx(), source.getId(), new Versioned<>(described(source), Version.NEW),
                BookKeeper.DigestType.CRC32, new byte[0], WriteFlag.NONE);
        this.tier = tier;
        this.last = source.getLastAddConfirmed();
        this.bytes = source.getLength();
        boolean tiered = !(source instanceof LedgerHandle);
        this.stored = tiered ? null : source;
        this.inTier = tiered ? CompletableFuture.completedFuture(source) : null;
    }

    /** Returns the ledger that reads what was opened; null, and an error in the log, where it cannot be made. */
    static CompactedLedger of(BookKeeper client, ReadHandle source, CompactedTier tier) {
        try {
            return new CompactedLedger(client, source, tier);
        } catch (GeneralSecurityException | RuntimeException error) {
            LOG.error("Compacted ledger {} cannot be tiered", source.getId(), error);
            return null;
        }
    }

    /** What BookKeeper's own handle wants to know of any ledger; one in the tier has a bookie that is asked for nothing. */
    private static LedgerMetadata described(ReadHandle source) {
        return source instanceof LedgerHandle ? source.getLedgerMetadata() : LedgerMetadataBuilder.create()
                .withId(source.getId())
                .withClosedState()
                .withLastEntryId(source.getLastAddConfirmed())
                .withLength(source.getLength())
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32)
                .withPassword(new byte[0])
                .withEnsembleSize(1)
                .withWriteQuorumSize(1)
                .withAckQuorumSize(1)
                .newEnsembleEntry(0, List.of(BookieId.parse("tier:0")))
                .build();
    }

    /** Says whether BookKeeper does not have a ledger, or lost it since it was opened. */
    static boolean missing(int code) {
        return code == BKException.Code.NoSuchLedgerExistsException
                || code == BKException.Code.NoSuchLedgerExistsOnMetadataServerException;
    }

    @Override
    public ReadHandle inBookKeeper() {
        return stored;
    }

    @Override
    public synchronized CompletableFuture<ReadHandle> toTier() {
        if (inTier == null || inTier.isCompletedExceptionally()) {
            inTier = tier.open(getId());
        }
        return inTier;
    }

    private synchronized boolean isInTier() {
        return stored == null || (inTier != null && inTier.isDone() && !inTier.isCompletedExceptionally());
    }

    @Override
    public synchronized void release() {
        if (inTier != null) {
            inTier.thenAccept(ReadHandle::closeAsync);
        }
        inTier = null;
    }

    @Override
    public void asyncReadEntries(long from, long to, AsyncCallback.ReadCallback callback, Object context) {
        readAsync(from, to).whenComplete((entries, error) -> {
            if (error != null) {
                callback.readComplete(code(error), this, null, context);
            } else {
                callback.readComplete(BKException.Code.OK, this, enumerated(entries), context);
            }
        });
    }

    /** Reads; what BookKeeper lacks of an entry that it confirmed is read from the tier. */
    @Override
    public CompletableFuture<LedgerEntries> readAsync(long from, long to) {
        if (isInTier()) {
            return fromTier(from, to);
        }
        return stored.readAsync(from, to).handle((entries, error) -> {
            int code = error == null ? BKException.Code.OK : code(error);
            boolean lacks = missing(code) || code == BKException.Code.NoSuchEntryException;
            if (lacks) {
                return fromTier(from, to);
            }
            return error == null
                    ? CompletableFuture.completedFuture(entries)
                    : CompletableFuture.<LedgerEntries>failedFuture(cause(error));
        }).thenCompose(read -> read);
    }

    private CompletableFuture<LedgerEntries> fromTier(long from, long to) {
        return toTier().thenCompose(handle -> handle.readAsync(from, to));
    }

    private static Enumeration<LedgerEntry> enumerated(LedgerEntries entries) {
        List<LedgerEntry> found = new ArrayList<>();
        for (org.apache.bookkeeper.client.api.LedgerEntry one : entries) {
            found.add(new LedgerEntry((LedgerEntryImpl) one)); // which retains its buffer
        }
        entries.close();
        return Collections.enumeration(found);
    }

    static int code(Throwable error) {
        return cause(error) instanceof BKException known ? known.getCode() : BKException.Code.ReadException;
    }

    private static Throwable cause(Throwable error) {
        Throwable cause = error;
        while (cause instanceof CompletionException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }

    @Override
    public synchronized long getLastAddConfirmed() {
        return last;
    }

    @Override
    public synchronized long getLength() {
        return bytes;
    }

    @Override
    public synchronized boolean isClosed() {
        return true;
    }

    /** Nothing of it is written, so nothing is to be closed in BookKeeper. */
    @Override
    public void asyncClose(AsyncCallback.CloseCallback callback, Object context) {
        callback.closeComplete(BKException.Code.OK, this, context);
    }
}
