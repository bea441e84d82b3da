package offloaderd.pulsar;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.okhttp.OkHttpServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.UnaryOperator;
import offloaderd.v1.Broker.OffloadedLedger;
import offloaderd.v1.Broker.ReadLedgerRequest;
import offloaderd.v1.BrokerServiceGrpc;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Read.ReadResponse;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** A ledger's read handle over a daemon that answers in small batches, breaks off, or says nothing. */
public class TieredLedgerTest {
    private static final int ENTRIES = 1_000;
    private static final int BATCH = 7;

    private final AtomicInteger calls = new AtomicInteger();
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicLong sent = new AtomicLong();
    private volatile Status refusal = Status.UNAVAILABLE;
    private volatile boolean silent;
    private volatile String padding = "";
    private volatile boolean framed = true;
    private volatile UnaryOperator<ReadResponse> spoil = answer -> answer;
    private final Daemons daemons = new Daemons();
    private Server server;

    /** A daemon whose entries are their own numbers; it breaks off `failures` times, in the middle of an answer. */
    private final class Daemon extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public void readLedger(ReadLedgerRequest request, StreamObserver<ReadResponse> answers) {
            calls.incrementAndGet();
            if (silent) {
                return;
            }
            ServerCallStreamObserver<ReadResponse> call = (ServerCallStreamObserver<ReadResponse>) answers;
            boolean breaks = failures.getAndUpdate(left -> Math.max(0, left - 1)) > 0;
            AtomicLong next = new AtomicLong(request.getFirstEntryId());
            call.setOnCancelHandler(() -> { });
            call.setOnReadyHandler(() -> {
                while (call.isReady() && next.get() <= request.getLastEntryId()) {
                    EntryBatch.Builder batch = EntryBatch.newBuilder().setLedgerId(5).setFirstEntryId(next.get());
                    for (int i = 0; i < BATCH && next.get() <= request.getLastEntryId(); i++) {
                        batch.addPayloads(ByteString.copyFromUtf8(next.getAndIncrement() + padding));
                    }
                    sent.addAndGet(batch.getPayloadsCount());
                    ReadResponse answer = ReadResponse.newBuilder().setBatch(batch).build();
                    call.onNext(request.getFramed() && framed ? spoil.apply(framed(answer)) : answer);
                    if (breaks) {
                        next.set(Long.MAX_VALUE);
                        call.onError(refusal.asRuntimeException());
                        return;
                    }
                }
                if (next.get() == request.getLastEntryId() + 1) {
                    next.set(Long.MAX_VALUE);
                    call.onCompleted();
                }
            });
        }
    }

    /** Returns an answer as a daemon sends what lies in the bucket. */
    private static ReadResponse framed(ReadResponse answer) {
        EntryBatch batch = answer.getBatch();
        ByteString frames = ByteString.EMPTY;
        long entryId = batch.getFirstEntryId();
        for (ByteString payload : batch.getPayloadsList()) {
            ByteBuffer head = ByteBuffer.allocate(12).putInt(payload.size()).putLong(entryId++).flip();
            frames = frames.concat(ByteString.copyFrom(head)).concat(payload);
        }
        return ReadResponse.newBuilder()
                .setBatch(batch.toBuilder().clearPayloads())
                .setEntries(batch.getPayloadsCount())
                .setFrames(frames)
                .build();
    }

    @Before
    public void serve() throws IOException {
        server = OkHttpServerBuilder.forPort(0, InsecureServerCredentials.create())
                .addService(new Daemon())
                .build()
                .start();
    }

    @After
    public void end() {
        daemons.close();
        server.shutdownNow();
    }

    private TieredLedger ledger(String... settings) throws IOException {
        Map<String, String> said = new java.util.HashMap<>(Map.of("Address", "127.0.0.1:" + server.getPort()));
        for (int i = 0; i < settings.length; i += 2) {
            said.put(settings[i], settings[i + 1]);
        }
        OffloadedLedger named = OffloadedLedger.newBuilder().setTopic("t").setLedgerId(5).build();
        LedgerOffloaderStats stats = LedgerOffloaderStats.create(false, false, null, 0);
        return new TieredLedger(daemons, Settings.read(said, Map.of()), stats, named, ENTRIES - 1, 2890);
    }

    private void holds(CompletableFuture<LedgerEntries> read, long first, long last) throws Exception {
        try (LedgerEntries entries = read.get(30, TimeUnit.SECONDS)) {
            long expected = first;
            for (LedgerEntry entry : entries) {
                assertEquals(expected, entry.getEntryId());
                assertArrayEquals((expected + padding).getBytes(), entry.getEntryBytes());
                assertTrue(entry.getEntryBuffer().isDirect());
                expected++;
            }
            assertEquals(last + 1, expected);
        }
    }

    @Test
    public void readsThatFollowEachOtherShareOneStream() throws Exception {
        TieredLedger ledger = ledger();
        for (long first = 0; first < ENTRIES; first += 100) {
            holds(ledger.readAsync(first, first + 99), first, first + 99);
        }
        assertEquals(1, calls.get());
        assertEquals(0, ledger.getPendingRead());
        assertEquals(ENTRIES - 1, ledger.getLastAddConfirmed());
        assertTrue(ledger.isClosed());
    }

    @Test
    public void readersAtDifferentPlacesDoNotDisturbEachOther() throws Exception {
        TieredLedger ledger = ledger("ReadAheadBytes", "0");
        for (int step = 0; step < 20; step++) {
            CompletableFuture<LedgerEntries> low = ledger.readAsync(step * 10L, step * 10L + 9);
            CompletableFuture<LedgerEntries> high = ledger.readUnconfirmedAsync(500 + step * 10L, 509 + step * 10L);
            holds(low, step * 10L, step * 10L + 9);
            holds(high, 500 + step * 10L, 509 + step * 10L);
        }
        assertTrue("streams: " + calls.get(), calls.get() <= 4);
        holds(ledger.readAsync(999, 999), 999, 999);
        holds(ledger.readAsync(3, 3), 3, 3);
    }

    @Test
    public void nothingIsReadAheadOfWhoLooksUpSingleEntries() throws Exception {
        padding = ".".repeat(100_000);
        TieredLedger ledger = ledger();
        holds(ledger.readAsync(0, 0), 0, 0);
        Thread.sleep(500);
        assertTrue("sent for one: " + sent.get(), sent.get() < 60); // what is on its way: no more than its window
        holds(ledger.readAsync(1, 100), 1, 100);
        for (int tries = 0; tries < 100 && sent.get() < 180; tries++) {
            Thread.sleep(50);
        }
        assertTrue("sent ahead: " + sent.get(), sent.get() >= 180); // 8 MiB are 83 of them
        assertEquals(1, calls.get());
    }

    @Test
    public void aStreamThatBreaksGoesOnWhereItWas() throws Exception {
        failures.set(3);
        holds(ledger().readAsync(0, ENTRIES - 1), 0, ENTRIES - 1);
        assertEquals(4, calls.get());
    }

    @Test
    public void aDaemonOfAnOlderVersionSendsPayloads() throws Exception {
        framed = false;
        failures.set(1);
        holds(ledger().readAsync(0, ENTRIES - 1), 0, ENTRIES - 1);
        assertEquals(2, calls.get());
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
            spoil = answer -> answer.toBuilder().setFrames(change.apply(answer.getFrames())).build();
            CompletableFuture<LedgerEntries> read = ledger("ReadTimeoutSeconds", "1").readAsync(0, 50);
            assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
        }
        AtomicInteger left = new AtomicInteger(2);
        spoil = answer -> left.getAndDecrement() > 0 ? answer.toBuilder().setEntries(6).build() : answer;
        holds(ledger().readAsync(0, ENTRIES - 1), 0, ENTRIES - 1);
    }

    @Test
    public void whatIsGoneForGoodIsToldAtOnce() throws Exception {
        refusal = Status.DATA_LOSS.withDescription("a flipped bit");
        failures.set(1);
        CompletableFuture<LedgerEntries> read = ledger().readAsync(0, 50);
        ExecutionException error = assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause().toString(), error.getCause() instanceof ManagedLedgerException);
        assertTrue(error.getMessage(), error.getMessage().contains("a flipped bit"));
        assertEquals(1, calls.get());
    }

    @Test
    public void aDaemonThatSaysNothingIsWaitedForOnlySoLong() throws Exception {
        silent = true;
        CompletableFuture<LedgerEntries> read = ledger("ReadTimeoutSeconds", "1").readAsync(0, 1);
        ExecutionException error = assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
        assertTrue(error.getMessage(), error.getMessage().contains("no answer within 1 s"));
    }

    @Test
    public void closingLetsReadsFinishTakesNoMoreAndMayBeRepeated() throws Exception {
        failures.set(1); // so that the reads wait while it is closed
        TieredLedger ledger = ledger();
        CompletableFuture<LedgerEntries> low = ledger.readAsync(0, 50);
        CompletableFuture<LedgerEntries> high = ledger.readAsync(500, 550);
        ledger.closeAsync().get();
        ledger.closeAsync().get();
        holds(low, 0, 50);
        holds(high, 500, 550);
        CompletableFuture<LedgerEntries> late = ledger.readAsync(0, 1);
        ExecutionException error = assertThrows(ExecutionException.class, () -> late.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause() instanceof ManagedLedgerException.OffloadReadHandleClosedException);
    }

    @Test
    public void aRangeThatIsNoneIsRefused() throws Exception {
        TieredLedger ledger = ledger();
        for (long[] range : new long[][] {{-1, 3}, {4, 3}, {0, ENTRIES}}) {
            assertTrue(ledger.readAsync(range[0], range[1]).isCompletedExceptionally());
        }
        assertEquals(0, calls.get());
    }
}
