package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.UnaryOperator;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Read.ReadResponse;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.junit.After;
import org.junit.Rule;
import org.junit.Test;

/** A ledger's read handle over a daemon that answers in small batches, breaks off, or says nothing. */
public class TieredLedgerTest {
    @Rule
    public final ReadDaemon daemon = new ReadDaemon();

    private final Daemons daemons = new Daemons();

    @After
    public void end() {
        daemons.close();
    }

    private TieredLedger ledger(String... settings) throws IOException {
        return daemon.ledger(daemons, settings);
    }

    @Test
    public void readsThatFollowEachOtherShareOneStream() throws Exception {
        TieredLedger ledger = ledger();
        for (long first = 0; first < ReadDaemon.ENTRIES; first += 100) {
            daemon.holds(ledger.readAsync(first, first + 99), first, first + 99);
        }
        assertEquals(1, daemon.calls.get());
        assertEquals(0, ledger.getPendingRead());
        assertEquals(ReadDaemon.ENTRIES - 1, ledger.getLastAddConfirmed());
        assertTrue(ledger.isClosed());
    }

    @Test
    public void aStreamThatBreaksGoesOnWhereItWas() throws Exception {
        daemon.failures.set(3);
        daemon.holds(ledger().readAsync(0, ReadDaemon.ENTRIES - 1), 0, ReadDaemon.ENTRIES - 1);
        assertEquals(4, daemon.calls.get());
    }

    @Test
    public void aStreamThatEndsBeforeTheLastEntryGoesOnWhereItWas() throws Exception {
        daemon.refusal = Status.OK;
        daemon.failures.set(2);
        daemon.holds(ledger().readAsync(0, ReadDaemon.ENTRIES - 1), 0, ReadDaemon.ENTRIES - 1);
        assertEquals(3, daemon.calls.get());
    }

    @Test
    public void aDaemonOfAnOlderVersionSendsPayloads() throws Exception {
        daemon.framed = false;
        daemon.failures.set(1);
        daemon.holds(ledger().readAsync(0, ReadDaemon.ENTRIES - 1), 0, ReadDaemon.ENTRIES - 1);
        assertEquals(2, daemon.calls.get());
    }

    @Test
    public void framesThatAreNotRightAreNeverHandedOut() throws Exception {
        List<UnaryOperator<ByteString>> changes = List.of(
                frames -> frames.substring(0, frames.size() - 1),
                frames -> frames.concat(ByteString.copyFromUtf8("x")),
                frames -> frames.substring(frames.byteAt(3) + 12),
                frames -> ByteString.copyFrom(new byte[] {-1}).concat(frames.substring(1)),
                frames -> ByteString.copyFrom(new byte[] {9}).concat(frames.substring(1)),
                frames -> frames.substring(0, 5),
                frames -> ByteString.EMPTY);
        for (UnaryOperator<ByteString> change : changes) {
            spoilOnce(answer -> answer.toBuilder().setFrames(change.apply(answer.getFrames())).build());
        }
        spoilOnce(answer -> answer.toBuilder().setEntries(6).build());
    }

    @Test
    public void entriesOfAnotherPlaceAreNeverHandedOut() throws Exception {
        daemon.framed = false;
        for (UnaryOperator<EntryBatch.Builder> change : List.<UnaryOperator<EntryBatch.Builder>>of(
                batch -> batch.setFirstEntryId(batch.getFirstEntryId() + 1),
                batch -> batch.setFirstEntryId(batch.getFirstEntryId() - 1),
                batch -> batch.setLedgerId(6))) {
            spoilOnce(answer -> {
                EntryBatch.Builder moved = change.apply(answer.getBatch().toBuilder());
                return answer.toBuilder().setBatch(moved.setPayloads(0, ByteString.copyFromUtf8("of elsewhere"))).build();
            });
        }
    }

    /** Checks that a read asks again for an answer that cannot be right, and gets its entries. */
    private void spoilOnce(UnaryOperator<ReadResponse> change) throws Exception {
        daemon.calls.set(0);
        AtomicInteger left = new AtomicInteger(1);
        daemon.spoil = answer -> answer.getBatch().getFirstEntryId() == 0 && left.getAndDecrement() > 0
                ? change.apply(answer) : answer; // of this stream: earlier ones are further on
        daemon.holds(ledger().readAsync(0, 50), 0, 50);
        assertEquals(2, daemon.calls.get());
    }

    @Test
    public void whatIsGoneForGoodIsToldAtOnce() throws Exception {
        daemon.refusal = Status.DATA_LOSS.withDescription("a flipped bit");
        daemon.failures.set(1);
        CompletableFuture<LedgerEntries> read = ledger().readAsync(0, 50);
        ExecutionException error = assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause().toString(), error.getCause() instanceof ManagedLedgerException);
        assertTrue(error.getMessage(), error.getMessage().contains("a flipped bit"));
        assertEquals(1, daemon.calls.get());
    }

    @Test
    public void aDaemonThatSaysNothingIsWaitedForOnlySoLong() throws Exception {
        daemon.silent = true;
        CompletableFuture<LedgerEntries> read = ledger("ReadTimeoutSeconds", "1").readAsync(0, 1);
        ExecutionException error = assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
        assertTrue(error.getMessage(), error.getMessage().contains("no answer within 1 s"));
    }

    @Test
    public void closingLetsReadsFinishTakesNoMoreAndMayBeRepeated() throws Exception {
        daemon.failures.set(1); // so that the reads wait while it is closed
        TieredLedger ledger = ledger();
        CompletableFuture<LedgerEntries> low = ledger.readAsync(0, 50);
        CompletableFuture<LedgerEntries> high = ledger.readAsync(500, 550);
        ledger.closeAsync().get();
        ledger.closeAsync().get();
        daemon.holds(low, 0, 50);
        daemon.holds(high, 500, 550);
        CompletableFuture<LedgerEntries> late = ledger.readAsync(0, 1);
        ExecutionException error = assertThrows(ExecutionException.class, () -> late.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause() instanceof ManagedLedgerException.OffloadReadHandleClosedException);
    }

    @Test
    public void aReadThatWaitsHearsOfTheBrokersEnd() throws Exception {
        daemon.failures.set(Integer.MAX_VALUE);
        TieredLedger ledger = ledger();
        CompletableFuture<LedgerEntries> read = ledger.readAsync(0, 50);
        ReadDaemon.until("nothing was asked for", () -> daemon.calls.get() > 0);
        daemons.close();
        ExecutionException error = assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause() instanceof ManagedLedgerException);
        CompletableFuture<LedgerEntries> late = ledger.readAsync(500, 550);
        assertThrows(ExecutionException.class, () -> late.get(30, TimeUnit.SECONDS));
        assertEquals(0, ledger.getPendingRead());
    }

    @Test
    public void aRangeThatIsNoneIsRefused() throws Exception {
        TieredLedger ledger = ledger();
        for (long[] range : new long[][] {{-1, 3}, {4, 3}, {0, ReadDaemon.ENTRIES}}) {
            assertTrue(ledger.readAsync(range[0], range[1]).isCompletedExceptionally());
        }
        assertEquals(0, daemon.calls.get());
    }
}
