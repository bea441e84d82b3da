package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.okhttp.OkHttpServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;
import java.util.function.LongToIntFunction;
import offloaderd.v1.Broker.EnsureLedgerRequest;
import offloaderd.v1.Broker.EnsureLedgerResponse;
import offloaderd.v1.Broker.EnsureState;
import offloaderd.v1.Broker.OpenLedgerRequest;
import offloaderd.v1.Broker.OpenLedgerResponse;
import offloaderd.v1.BrokerServiceGrpc;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Common.Position;
import offloaderd.v1.Offload.OfferResult;
import offloaderd.v1.Offload.StreamingOffloadRequest;
import offloaderd.v1.Offload.StreamingOffloadResponse;
import offloaderd.v1.OffloadServiceGrpc;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.junit.After;
import org.junit.Test;

/** Ledgers on their way to a daemon that lets them wait, is of an older version, wants their entries, or breaks. */
public class OffloadTest {
    private static final int CALLS_MAX = 256; // of a connection, as a daemon serves them
    private static final long LEDGER = 5;

    private final Daemons daemons = new Daemons();
    private final Queue<StreamObserver<EnsureLedgerResponse>> held = new ConcurrentLinkedQueue<>();
    private final AtomicInteger asked = new AtomicInteger();
    private final Set<String> topics = ConcurrentHashMap.newKeySet();
    private final AtomicInteger heldMost = new AtomicInteger();
    private final List<EntryBatch> batches = new CopyOnWriteArrayList<>();
    private final List<String> counted = new CopyOnWriteArrayList<>();
    private final AtomicInteger readMost = new AtomicInteger();
    private final AtomicInteger pushes = new AtomicInteger();
    private final AtomicInteger stopped = new AtomicInteger();
    private volatile boolean silent;
    private volatile EnsureLedgerResponse answer;
    private volatile int messageBytesMax = 4 << 20;
    private volatile long lastPushed = -1;
    private volatile Position offered;
    private Server server;

    /** A daemon that holds the question as long as it has no answer. */
    private final class Daemon extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public void ensureLedger(EnsureLedgerRequest request, StreamObserver<EnsureLedgerResponse> reports) {
            asked.incrementAndGet();
            topics.add(request.getTopic());
            synchronized (held) {
                if (answer == null) {
                    held.add(reports);
                    heldMost.accumulateAndGet(held.size(), Math::max);
                    return;
                }
            }
            reports.onNext(answer);
            reports.onCompleted();
        }

        @Override
        public void openLedger(OpenLedgerRequest request, StreamObserver<OpenLedgerResponse> found) {
            found.onNext(OpenLedgerResponse.newBuilder().setLastEntryId(9).build());
            found.onCompleted();
        }
    }

    /** A daemon that takes what is pushed, and has it covered with the last entry. */
    private final class Taking extends OffloadServiceGrpc.OffloadServiceImplBase {
        @Override
        public StreamObserver<StreamingOffloadRequest> streamingOffload(StreamObserver<StreamingOffloadResponse> answers) {
            ((ServerCallStreamObserver<StreamingOffloadResponse>) answers).setOnCancelHandler(stopped::incrementAndGet);
            pushes.incrementAndGet();
            return new StreamObserver<>() {
                @Override
                public void onNext(StreamingOffloadRequest request) {
                    if (silent) {
                        return;
                    }
                    StreamingOffloadResponse.Builder said = StreamingOffloadResponse.newBuilder();
                    if (request.hasOpen()) {
                        StreamingOffloadResponse.Opened.Builder opened =
                                StreamingOffloadResponse.Opened.newBuilder().setPushOnly(true);
                        said.setOpened(offered == null ? opened : opened.setLastOffered(offered));
                    } else {
                        EntryBatch batch = request.getBatch();
                        if (batch.getSerializedSize() > messageBytesMax) { // as gRPC of a daemon does
                            answers.onError(Status.RESOURCE_EXHAUSTED
                                    .withDescription("SERVER: Received message larger than max").asException());
                            return;
                        }
                        batches.add(batch);
                        long last = batch.getFirstEntryId() + batch.getPayloadsCount() - 1;
                        said.setOffered(StreamingOffloadResponse.Offered.newBuilder()
                                .setResult(OfferResult.OFFER_RESULT_ACCEPTED)
                                .setLastOffered(Position.newBuilder().setLedgerId(LEDGER).setEntryId(last)));
                        answer = last == lastPushed ? state(EnsureState.ENSURE_STATE_COVERED) : answer;
                    }
                    answers.onNext(said.build());
                }

                @Override
                public void onError(Throwable error) {}

                @Override
                public void onCompleted() {
                    answers.onCompleted();
                }
            };
        }
    }

    private static EnsureLedgerResponse state(EnsureState state) {
        return EnsureLedgerResponse.newBuilder().setState(state).setSegments(1).setMessage("because").build();
    }

    /** Gives all that wait an answer, and those who ask later. */
    private void say(EnsureLedgerResponse now) {
        List<StreamObserver<EnsureLedgerResponse>> waiting;
        synchronized (held) {
            answer = now;
            waiting = new ArrayList<>(held);
            held.clear();
        }
        for (StreamObserver<EnsureLedgerResponse> one : waiting) {
            try {
                one.onNext(now);
                one.onCompleted();
            } catch (RuntimeException gone) {
                // its caller asked again instead
            }
        }
    }

    @After
    public void end() {
        daemons.close();
        if (server != null) {
            server.shutdownNow();
        }
    }

    private Driver driver(String... settings) throws Exception {
        if (server == null) {
            server = OkHttpServerBuilder.forPort(0, InsecureServerCredentials.create())
                    .addService(new Daemon())
                    .addService(new Taking())
                    .maxConcurrentCallsPerConnection(CALLS_MAX)
                    .build()
                    .start();
        }
        Map<String, String> said = new java.util.HashMap<>(Map.of("Address", "127.0.0.1:" + server.getPort()));
        for (int i = 0; i < settings.length; i += 2) {
            said.put(settings[i], settings[i + 1]);
        }
        LedgerOffloaderStats stats = (LedgerOffloaderStats) Proxy.newProxyInstance(
                getClass().getClassLoader(), new Class<?>[] {LedgerOffloaderStats.class}, (self, method, arguments) -> {
                    counted.add(method.getName());
                    return null;
                });
        return new Driver(Settings.read(said, Map.of()), new OffloadPoliciesImpl(), daemons, stats);
    }

    /** Returns a closed ledger; `read` gives what BookKeeper answers for a range. */
    private static ReadHandle ledger(long entries, BiFunction<Long, Long, CompletableFuture<LedgerEntries>> read) {
        return (ReadHandle) Proxy.newProxyInstance(
                OffloadTest.class.getClassLoader(), new Class<?>[] {ReadHandle.class}, (self, method, arguments) ->
                        switch (method.getName()) {
                            case "getId" -> LEDGER;
                            case "getLastAddConfirmed" -> entries - 1;
                            case "getLength" -> entries * 10;
                            case "isClosed" -> true;
                            case "readAsync" -> read.apply((Long) arguments[0], (Long) arguments[1]);
                            default -> throw new UnsupportedOperationException(method.getName());
                        });
    }

    private static ReadHandle ledger() {
        return ledger(10, (first, last) -> CompletableFuture.failedFuture(new IllegalStateException("nobody asked")));
    }

    /** Returns a ledger by the sizes of its entries, and notes how many bytes were read at once. */
    private ReadHandle ledger(long entries, LongToIntFunction size) {
        return ledger(entries, (first, last) -> {
            List<LedgerEntry> found = new ArrayList<>();
            int bytes = 0;
            for (long id = first; id <= last; id++) {
                bytes += size.applyAsInt(id);
                found.add(entry(id, size.applyAsInt(id)));
            }
            readMost.accumulateAndGet(bytes, Math::max);
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(found));
        });
    }

    private static LedgerEntry entry(long id, int bytes) {
        ByteBuf payload = Unpooled.wrappedBuffer(new byte[bytes]);
        return LedgerEntryImpl.create(LEDGER, id, bytes, payload);
    }

    private static CompletableFuture<Void> offloaded(Driver driver, ReadHandle ledger) {
        return driver.offload(ledger, UUID.randomUUID(), Map.of("ManagedLedgerName", "public/default/persistent/t"));
    }

    private static ManagedLedgerException failure(CompletableFuture<Void> offload) {
        ExecutionException error = assertThrows(ExecutionException.class, () -> offload.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause().toString(), error.getCause() instanceof ManagedLedgerException);
        return (ManagedLedgerException) error.getCause();
    }

    @Test
    public void topicsThatWaitBlockNoRead() throws Exception {
        Driver driver = driver();
        List<CompletableFuture<Void>> waiting = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            waiting.add(offloaded(driver, ledger()));
        }
        while (held.size() < 64) {
            Thread.sleep(1);
        }
        driver.readOffloaded(LEDGER, UUID.randomUUID(), Map.of("ManagedLedgerName", "public/default/persistent/t"))
                .get(30, TimeUnit.SECONDS);
        assertEquals(64, heldMost.get());
        say(state(EnsureState.ENSURE_STATE_COVERED));
        for (CompletableFuture<Void> one : waiting) {
            one.get(30, TimeUnit.SECONDS);
        }
        assertEquals(300, asked.get());
    }

    @Test
    public void aDaemonOfAnOlderVersionIsNotWaitedForInItsCall() throws Exception {
        CompletableFuture<Void> offload = offloaded(driver(), ledger());
        while (asked.get() < 2) { // it reports every second, and would do so for an hour
            for (StreamObserver<EnsureLedgerResponse> one : held) {
                try {
                    one.onNext(state(EnsureState.ENSURE_STATE_WAITING));
                } catch (RuntimeException gone) {
                    held.remove(one);
                }
            }
            Thread.sleep(20);
        }
        assertFalse(offload.isDone());
        say(state(EnsureState.ENSURE_STATE_COVERED));
        offload.get(30, TimeUnit.SECONDS);
    }

    @Test
    public void anAddressThatIsNoneFailsTheOffload() throws Exception {
        answer = EnsureLedgerResponse.newBuilder()
                .setState(EnsureState.ENSURE_STATE_ELSEWHERE).setOwnerAddress("of_floaderd:not a port").build();
        ManagedLedgerException error = failure(offloaded(driver(), ledger()));
        assertTrue(error.getMessage(), error.getMessage().contains("is not offloaded"));
    }

    @Test
    public void whatIsThrownOnTheTimersThreadFailsTheOffload() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_WAITING);
        AtomicInteger left = new AtomicInteger(3);
        ReadHandle broken = (ReadHandle) Proxy.newProxyInstance(
                OffloadTest.class.getClassLoader(), new Class<?>[] {ReadHandle.class}, (self, method, arguments) ->
                        switch (method.getName()) {
                            case "getId" -> LEDGER;
                            case "isClosed" -> true;
                            case "getLastAddConfirmed" -> 9L;
                            case "getLength" -> {
                                if (left.getAndDecrement() <= 0) {
                                    throw new IllegalStateException("the client is closed");
                                }
                                yield 100L;
                            }
                            default -> throw new UnsupportedOperationException(method.getName());
                        });
        assertTrue(failure(offloaded(driver(), broken)).getMessage().contains("the client is closed"));
    }

    @Test
    public void anErrorInTheMiddleOfAPushFailsTheOffloadAndGivesItsPlaceBack() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        Driver driver = driver();
        for (int i = 0; i < 20; i++) { // more than there are places
            ReadHandle broken = ledger(10, (first, last) -> {
                throw new OutOfMemoryError("no direct memory");
            });
            assertTrue(failure(offloaded(driver, broken)).getMessage().contains("no direct memory"));
        }
    }

    @Test
    public void anOffloadThatTakesTooLongFailsWithWhatHindersIt() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_WAITING);
        ManagedLedgerException error = failure(offloaded(driver("OffloadTimeoutSeconds", "1"), ledger()));
        assertTrue(error.getMessage(), error.getMessage().contains("not offloaded within 1 s: because"));
    }

    @Test
    public void messagesAreBoundedByBytesWhateverTheAverageIs() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        lastPushed = 299;
        offloaded(driver(), ledger(300, (long id) -> id < 150 ? 10 : id % 7 == 0 ? 3 << 20 : 300_000))
                .get(30, TimeUnit.SECONDS);
        long next = 0;
        for (EntryBatch batch : batches) {
            assertEquals(next, batch.getFirstEntryId());
            next += batch.getPayloadsCount();
            long bytes = batch.getPayloadsList().stream().mapToLong(one -> one.size()).sum();
            assertTrue("message of " + bytes, bytes <= 1 << 20 || batch.getPayloadsCount() == 1);
        }
        assertEquals(300, next);
        assertTrue("read at once: " + readMost.get(), readMost.get() <= 100 * (3 << 20));
    }

    @Test
    public void largeEntriesAreReadOneByOneOnceTheyAreKnownToBeLarge() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        lastPushed = 104;
        offloaded(driver(), ledger(105, (long id) -> 1 << 20)).get(30, TimeUnit.SECONDS); // of ten bytes by the average
        assertEquals(1 << 20, readMost.get());
        assertEquals(105, batches.size());
        assertEquals(105, counted.stream().filter("recordReadLedgerLatency"::equals).count());
    }

    @Test
    public void whatTheDaemonHasIsNotPushedAgain() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        lastPushed = 9;
        offered = Position.newBuilder().setLedgerId(LEDGER).setEntryId(4).build();
        offloaded(driver(), ledger(10, (long id) -> 10)).get(30, TimeUnit.SECONDS);
        assertEquals(5, batches.get(0).getFirstEntryId());
        assertEquals(5, batches.stream().mapToInt(EntryBatch::getPayloadsCount).sum());
    }

    @Test
    public void whatWouldBeOutOfOrderIsNotPushed() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        offered = Position.newBuilder().setLedgerId(LEDGER + 1).setEntryId(0).build();
        assertTrue(failure(offloaded(driver(), ledger(10, (long id) -> 10))).getMessage().contains("later ledgers (6:0)"));
        offered = null;
        ReadHandle gaping = ledger(10, (first, last) -> CompletableFuture.completedFuture(
                LedgerEntriesImpl.create(new ArrayList<>(List.of(entry(first + 1, 10))))));
        assertTrue(failure(offloaded(driver(), gaping)).getMessage().contains("where entry 0 was to come"));
        assertEquals(List.of(), batches);
    }

    @Test
    public void anEntryThatNoMessageHoldsIsNamed() throws Exception {
        messageBytesMax = 2 << 20;
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        ManagedLedgerException error = failure(offloaded(driver(), ledger(3, (long id) -> id == 1 ? 3 << 20 : 10)));
        assertTrue(error.getMessage(), error.getMessage().contains("entry 5:1 has 3145728 bytes"));
    }

    @Test
    public void entriesThatBookKeeperGivesTooLateAreReleased() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        List<CompletableFuture<LedgerEntries>> reads = new CopyOnWriteArrayList<>();
        ReadHandle slow = ledger(10, (first, last) -> {
            reads.add(new CompletableFuture<>());
            return reads.get(reads.size() - 1);
        });
        failure(offloaded(driver("CallTimeoutSeconds", "1", "OffloadTimeoutSeconds", "2"), slow));
        ByteBuf payload = Unpooled.wrappedBuffer(new byte[9]);
        reads.get(0).complete(LedgerEntriesImpl.create(
                new ArrayList<>(List.of(LedgerEntryImpl.create(LEDGER, 0, 9, payload)))));
        assertEquals(0, payload.refCnt());
    }

    private static void late(CompletableFuture<Void> offload) {
        String message = failure(offload).getMessage();
        assertTrue(message, message.contains("not offloaded within 1 s"));
    }

    @Test
    public void anOffloadThatNobodyAnswersEndsInTimeAndGivesItsPlaceToAnother() throws Exception {
        Driver driver = driver("OffloadTimeoutSeconds", "1");
        List<CompletableFuture<Void>> silenced = new ArrayList<>();
        for (int i = 0; i < 64; i++) { // as many as there are places
            silenced.add(offloaded(driver, ledger()));
        }
        CompletableFuture<Void> patient =
                driver().offload(ledger(), UUID.randomUUID(), Map.of("ManagedLedgerName", "public/default/persistent/next"));
        silenced.forEach(OffloadTest::late);
        ReadDaemon.until("who waited in line is asked for", () -> topics.contains("persistent://public/default/next"));
        say(state(EnsureState.ENSURE_STATE_COVERED));
        patient.get(30, TimeUnit.SECONDS);
    }

    @Test
    public void anOffloadThatWaitsInLineEndsInTime() throws Exception {
        Driver patient = driver();
        for (int i = 0; i < 64; i++) {
            offloaded(patient, ledger());
        }
        late(offloaded(driver("OffloadTimeoutSeconds", "1"), ledger()));
    }

    @Test
    public void aPushEndsWithItsOffloadAndGivesItsPlaceToAnother() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        silent = true;
        Driver driver = driver("OffloadTimeoutSeconds", "1");
        List<CompletableFuture<Void>> silenced = new ArrayList<>();
        for (int i = 0; i < 8; i++) { // as many as there are places
            silenced.add(offloaded(driver, ledger(10, (long id) -> 10)));
        }
        silenced.forEach(OffloadTest::late);
        ReadDaemon.until("the pushes are stopped", () -> stopped.get() == pushes.get());
        silent = false;
        lastPushed = 9;
        offloaded(driver(), ledger(10, (long id) -> 10)).get(30, TimeUnit.SECONDS);
    }

    @Test
    public void anOffloadThatABrokerAsksForWronglyFailsAndThrowsNothing() throws Exception {
        Driver driver = driver();
        failure(driver.offload(ledger(), UUID.randomUUID(), Map.of("ManagedLedgerName", "nobody's")));
        ReadHandle closed = (ReadHandle) Proxy.newProxyInstance(
                OffloadTest.class.getClassLoader(), new Class<?>[] {ReadHandle.class}, (self, method, arguments) -> {
                    throw new IllegalStateException("the client is closed");
                });
        assertTrue(failure(offloaded(driver, closed)).getMessage().contains("the client is closed"));
        daemons.close();
        failure(offloaded(driver, ledger()));
    }

    @Test
    public void statisticsThatFailCostNoOffload() throws Exception {
        answer = state(EnsureState.ENSURE_STATE_PUSH);
        lastPushed = 9;
        Driver driver = driver();
        LedgerOffloaderStats broken = (LedgerOffloaderStats) Proxy.newProxyInstance(
                getClass().getClassLoader(), new Class<?>[] {LedgerOffloaderStats.class}, (self, method, arguments) -> {
                    throw new NoSuchMethodError(method.getName());
                });
        offloaded(new Driver(driver.settings(), new OffloadPoliciesImpl(), daemons, broken), ledger(10, (long id) -> 10))
                .get(30, TimeUnit.SECONDS);
    }
}
