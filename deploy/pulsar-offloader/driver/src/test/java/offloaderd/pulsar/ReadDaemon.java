package offloaderd.pulsar;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
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
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import offloaderd.v1.Broker.OffloadedLedger;
import offloaderd.v1.Broker.PlanLedgerResponse;
import offloaderd.v1.Broker.ReadLedgerRequest;
import offloaderd.v1.BrokerServiceGrpc;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Read.ReadResponse;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.junit.rules.ExternalResource;

/** A daemon with one ledger, whose entries are their own numbers; it breaks off `failures` times, or says nothing. */
final class ReadDaemon extends ExternalResource {
    static final int ENTRIES = 1_000;
    static final int BATCH = 7;

    final AtomicInteger calls = new AtomicInteger();
    final AtomicInteger cancelled = new AtomicInteger();
    final AtomicInteger failures = new AtomicInteger();
    final List<Long> ends = new CopyOnWriteArrayList<>(); // with which entry streams were to end
    final AtomicLong sent = new AtomicLong(); // entries
    volatile Status refusal = Status.UNAVAILABLE;
    volatile boolean silent;
    volatile String padding = "";
    volatile boolean framed = true;
    volatile UnaryOperator<ReadResponse> spoil = answer -> answer;
    volatile Function<ReadLedgerRequest, PlanLedgerResponse> plan; // none: as a daemon of an older version
    private Server server;

    private final class Service extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public void planLedger(ReadLedgerRequest request, StreamObserver<PlanLedgerResponse> answers) {
            if (plan == null) {
                super.planLedger(request, answers);
            } else {
                answers.onNext(plan.apply(request));
                answers.onCompleted();
            }
        }

        @Override
        public void readLedger(ReadLedgerRequest request, StreamObserver<ReadResponse> answers) {
            calls.incrementAndGet();
            ends.add(request.getLastEntryId());
            if (silent) {
                return;
            }
            ServerCallStreamObserver<ReadResponse> call = (ServerCallStreamObserver<ReadResponse>) answers;
            boolean breaks = failures.getAndUpdate(left -> Math.max(0, left - 1)) > 0;
            AtomicLong next = new AtomicLong(request.getFirstEntryId());
            call.setOnCancelHandler(cancelled::incrementAndGet);
            call.setOnReadyHandler(() -> {
                while (call.isReady() && next.get() <= request.getLastEntryId()) {
                    EntryBatch.Builder batch = EntryBatch.newBuilder().setLedgerId(5).setFirstEntryId(next.get());
                    for (int i = 0; i < BATCH && next.get() <= request.getLastEntryId(); i++) {
                        batch.addPayloads(ByteString.copyFromUtf8(next.getAndIncrement() + padding));
                    }
                    sent.addAndGet(batch.getPayloadsCount());
                    ReadResponse answer = ReadResponse.newBuilder().setBatch(batch).build();
                    call.onNext(spoil.apply(request.getFramed() && framed ? framed(answer) : answer));
                    if (breaks) {
                        next.set(Long.MAX_VALUE);
                        if (refusal.isOk()) {
                            call.onCompleted();
                        } else {
                            call.onError(refusal.asRuntimeException());
                        }
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

    @Override
    protected void before() throws IOException {
        server = OkHttpServerBuilder.forPort(0, InsecureServerCredentials.create())
                .addService(new Service())
                .build()
                .start();
    }

    @Override
    protected void after() {
        server.shutdownNow();
    }

    String address() {
        return "127.0.0.1:" + server.getPort();
    }

    TieredLedger ledger(Daemons daemons, String... settings) throws IOException {
        return ledger(daemons, LedgerOffloaderStats.create(false, false, null, 0), settings);
    }

    TieredLedger ledger(Daemons daemons, LedgerOffloaderStats stats, String... settings) throws IOException {
        Map<String, String> said = new HashMap<>(Map.of("Address", address()));
        for (int i = 0; i < settings.length; i += 2) {
            said.put(settings[i], settings[i + 1]);
        }
        OffloadedLedger named = OffloadedLedger.newBuilder().setTopic("t").setLedgerId(5).build();
        return new TieredLedger(daemons, Settings.read(said, Map.of()), new Statistics(stats), named, ENTRIES - 1, 2890);
    }

    /** Checks that a read gives its entries, each once and in a buffer of its own, and releases them. */
    void holds(CompletableFuture<LedgerEntries> read, long first, long last) throws Exception {
        try (LedgerEntries entries = read.get(30, TimeUnit.SECONDS)) {
            long expected = first;
            for (LedgerEntry entry : entries) {
                assertEquals(5, entry.getLedgerId());
                assertEquals(expected, entry.getEntryId());
                assertEquals((expected + padding).length(), entry.getLength());
                assertArrayEquals((expected + padding).getBytes(), entry.getEntryBytes());
                assertTrue(entry.getEntryBuffer().isDirect());
                expected++;
            }
            assertEquals(last + 1, expected);
        }
    }

    static void until(String what, BooleanSupplier holds) throws InterruptedException {
        for (long left = 30_000; !holds.getAsBoolean(); left--) {
            assertTrue(what, left > 0);
            Thread.sleep(1);
        }
    }
}
