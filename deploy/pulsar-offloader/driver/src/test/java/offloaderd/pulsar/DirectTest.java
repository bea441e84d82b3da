package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URL;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.UnaryOperator;
import java.util.zip.CRC32C;
import offloaderd.v1.Broker.PlanLedgerResponse;
import offloaderd.v1.Broker.PlannedBlock;
import offloaderd.v1.Broker.ReadLedgerRequest;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;

/** Entries that a broker fetches from the bucket itself: the same ones, whatever the bucket or the plan has wrong. */
public class DirectTest {
    private static final int PER_BLOCK = 10;
    private static final int HEAD_BYTES = 128;
    private static final int LAST = ReadDaemon.ENTRIES - 1;

    /** How a bucket answers a GET of some bytes. */
    private interface Answer {
        void give(HttpExchange get, byte[] bytes) throws IOException;
    }

    @Rule
    public final ReadDaemon daemon = new ReadDaemon();

    private final Daemons daemons = new Daemons(new ReadMemory(UnpooledByteBufAllocator.DEFAULT, Duration.ofHours(1)));
    private final List<PlannedBlock> blocks = new ArrayList<>();
    private final AtomicInteger plans = new AtomicInteger();
    private final AtomicInteger gets = new AtomicInteger();
    private final Set<InetSocketAddress> connections = ConcurrentHashMap.newKeySet();
    private final AtomicInteger good = new AtomicInteger(Integer.MAX_VALUE); // GETs that are answered well
    private final ExecutorService serving = Executors.newCachedThreadPool();
    private final CountDownLatch never = new CountDownLatch(1);
    private volatile Answer bad = (get, bytes) -> {};
    private volatile UnaryOperator<PlanLedgerResponse.Builder> change = plan -> plan;
    private volatile int expired; // plans of which the URLs are worth nothing any more
    private volatile byte[] object;
    private HttpServer bucket;

    @Before
    public void store() throws Exception {
        daemon.padding = ".".repeat(30_000);
        store(PER_BLOCK);
        bucket = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        bucket.setExecutor(serving);
        bucket.createContext("/", this::get);
        bucket.start();
        daemon.plan = this::planned;
    }

    /** Stores the ledger in blocks of so many entries, some of which do not lie side by side. */
    private void store(int perBlock) throws IOException {
        blocks.clear();
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        for (int first = 0; first <= LAST; first += perBlock) {
            ByteArrayOutputStream block = new ByteArrayOutputStream();
            block.write(new byte[HEAD_BYTES]);
            for (int entry = first; entry < first + perBlock; entry++) {
                byte[] payload = (entry + daemon.padding).getBytes();
                block.write(ByteBuffer.allocate(12).putInt(payload.length).putLong(entry).array());
                block.write(payload);
            }
            block.write(new byte[] {-2, -36, -34, -83});
            CRC32C sum = new CRC32C();
            sum.update(block.toByteArray());
            blocks.add(PlannedBlock.newBuilder().setFirstEntryId(first).setEntries(perBlock).setOffset(made.size())
                    .setLength(block.size()).setHeadBytes(HEAD_BYTES).setCrc32C((int) sum.getValue()).build());
            block.writeTo(made);
            made.write(new byte[first % 300 == 0 ? 5 : 0]);
        }
        object = made.toByteArray();
    }

    @After
    public void end() {
        never.countDown();
        daemons.close();
        bucket.stop(0);
        serving.shutdown();
    }

    private void get(HttpExchange get) throws IOException {
        gets.incrementAndGet();
        connections.add(get.getRemoteAddress());
        String[] range = get.getRequestHeaders().getFirst("Range").substring("bytes=".length()).split("-");
        byte[] bytes = Arrays.copyOfRange(object, Integer.parseInt(range[0]), Integer.parseInt(range[1]) + 1);
        String plan = get.getRequestURI().getQuery().replaceFirst(".*=", "");
        if (Integer.parseInt(plan) <= expired) {
            answered(403, 0).give(get, bytes);
        } else {
            (good.getAndDecrement() > 0 ? answered(206, 0) : bad).give(get, bytes);
        }
        get.close();
    }

    /** Answers with a status, and as many bytes more or less than were asked for. */
    private static Answer answered(int status, int more) {
        return (get, bytes) -> {
            get.sendResponseHeaders(status, bytes.length + Math.max(0, more));
            try (OutputStream body = get.getResponseBody()) {
                body.write(Arrays.copyOf(bytes, bytes.length + more));
            }
        };
    }

    private PlanLedgerResponse planned(ReadLedgerRequest request) {
        plans.incrementAndGet();
        PlanLedgerResponse.Builder plan = PlanLedgerResponse.newBuilder()
                .setUrl("http://127.0.0.1:" + bucket.getAddress().getPort() + "/object?X-Amz-Signature=secret&plan="
                        + plans.get())
                .setValidMs(300_000);
        int bytes = 0;
        for (PlannedBlock block : blocks) {
            if (block.getFirstEntryId() + block.getEntries() > request.getFirstEntryId() && bytes < request.getBatchBytes()) {
                plan.addBlocks(block);
                bytes += block.getLength();
            }
        }
        return change.apply(plan).build();
    }

    private TieredLedger ledger() throws IOException {
        return daemon.ledger(daemons, "DirectReads", "true");
    }

    /** Reads a ledger to its end as a broker does, and checks every entry and that nothing is held in the end. */
    private void isRead(TieredLedger ledger, int step) throws Exception {
        for (long first = 3; first <= LAST; first += step) {
            long last = Math.min(first + step - 1, LAST);
            daemon.holds(ledger.readAsync(first, last), first, last);
        }
        ledger.closeAsync().get();
        ReadDaemon.until("all is given back", () -> daemons.memory().getUsedBytes() == 0);
    }

    @Test
    public void everyEntryComesFromTheBucket() throws Exception {
        for (int step : new int[] {7, 100, 997}) {
            isRead(ledger(), step);
        }
        assertEquals(0, daemon.calls.get());
        assertTrue("GETs: " + gets.get(), gets.get() <= 3 * object.length / (Direct.GET_BYTES / 2));
        assertTrue(connections.size() + " connections for " + gets.get(), connections.size() < gets.get() / 2);
    }

    @Test
    public void whatTheBucketDoesNotGiveTheDaemonGives() throws Exception {
        Answer flipped = (get, bytes) -> {
            bytes[bytes.length / 2] ^= 1;
            answered(206, 0).give(get, bytes);
        };
        Answer cut = (get, bytes) -> {
            get.sendResponseHeaders(206, bytes.length);
            get.getResponseBody().write(bytes, 0, bytes.length / 2);
            throw new IOException("cut");
        };
        Answer silent = (get, bytes) -> await(Long.MAX_VALUE);
        Answer dripping = (get, bytes) -> {
            get.sendResponseHeaders(206, bytes.length);
            for (int at = 0; !await(20); at++) {
                get.getResponseBody().write(bytes, at, 1);
                get.getResponseBody().flush();
            }
        };
        for (Answer answer : List.of(answered(403, 0), answered(404, 0), answered(200, 0), answered(206, 1),
                answered(206, -1), answered(302, 0), flipped, cut, silent, dripping)) {
            for (int before : new int[] {0, 3}) {
                Daemons own = new Daemons(new ReadMemory(UnpooledByteBufAllocator.DEFAULT, Duration.ofHours(1)));
                bad = answer;
                good.set(before);
                daemon.calls.set(0);
                for (int failed = 1; failed <= 2; failed++) {
                    assertTrue("one failure concerns one reader", own.bucket().isUsable());
                    TieredLedger ledger = daemon.ledger(own, "DirectReads", "true", "ReadTimeoutSeconds", "8");
                    for (long first = 0; first < LAST; first += 100) {
                        daemon.holds(ledger.readAsync(first, first + 99), first, first + 99);
                    }
                    ledger.closeAsync().get();
                    assertEquals(failed, daemon.calls.get());
                }
                assertFalse("it is left alone", own.bucket().isUsable());
                int sent = gets.get();
                daemon.holds(daemon.ledger(own, "DirectReads", "true").readAsync(0, 500), 0, 500);
                assertEquals(sent, gets.get());
                own.close();
            }
        }
    }

    @Test
    public void failuresAmongSuccessesConcernTheirReadersAlone() throws Exception {
        bad = answered(503, 0);
        for (int round = 0; round < 4; round++) {
            good.set(2);
            isRead(ledger(), 100);
        }
        assertEquals(4, daemon.calls.get());
        assertTrue(daemons.bucket().isUsable());
    }

    @Test
    public void readersDoNotWaitForThreadsThatOthersHold() throws Exception {
        bad = (get, bytes) -> await(Long.MAX_VALUE);
        good.set(0);
        URL url = URI.create("http://127.0.0.1:" + bucket.getAddress().getPort() + "/?plan=1").toURL();
        for (int i = 0; i < 16; i++) {
            daemons.bucket().get(url, 0, 1, Duration.ofMinutes(1), new CompletableFuture<>());
        }
        ReadDaemon.until("all threads wait", () -> gets.get() == 16);
        daemon.holds(daemon.ledger(daemons, "DirectReads", "true", "ReadTimeoutSeconds", "8").readAsync(0, 99), 0, 99);
        assertEquals(1, daemon.calls.get());
        assertEquals(16, gets.get());
    }

    @Test
    public void whatWasPlannedIsFetchedBeforeTheDaemonSendsTheRest() throws Exception {
        List<UnaryOperator<PlanLedgerResponse.Builder>> ends = List.of(PlanLedgerResponse.Builder::clear, plan -> {
            throw new IllegalStateException("of a daemon that cannot answer now");
        });
        for (UnaryOperator<PlanLedgerResponse.Builder> end : ends) {
            AtomicLong behind = new AtomicLong();
            daemon.sent.set(0);
            change = plan -> {
                if (behind.get() > 0) {
                    return end.apply(plan);
                }
                PlannedBlock last = plan.getBlocks(plan.getBlocksCount() - 1);
                behind.set(last.getFirstEntryId() + last.getEntries());
                return plan;
            };
            isRead(ledger(), 100);
            assertEquals(ReadDaemon.ENTRIES - behind.get(), daemon.sent.get());
            assertTrue(daemons.bucket().isUsable());
        }
        assertEquals(2, daemon.calls.get());
    }

    @Test
    public void whereNoThreadCanBeStartedTheDaemonSends() throws Exception {
        ThreadFactory factory = task -> new Thread(task) {
            @Override
            public void start() {
                if (getName().startsWith("offloaderd-bucket")) {
                    throw new OutOfMemoryError("unable to create native thread");
                }
                super.start();
            }
        };
        Daemons own = new Daemons(new ReadMemory(UnpooledByteBufAllocator.DEFAULT, Duration.ofHours(1)), factory);
        TieredLedger ledger = daemon.ledger(own, "DirectReads", "true");
        daemon.holds(ledger.readAsync(0, 99), 0, 99);
        assertEquals(1, daemon.calls.get());
        ledger.closeAsync().get();
        ReadDaemon.until("all is given back", () -> own.memory().getUsedBytes() == 0);
        assertEquals("the lane's rest is left, and no limit of a request", 1, own.putOff());
        own.close();
    }

    @Test
    public void readersAnywhereOfBlocksOfAnySizeGetTheirEntries() throws Exception {
        for (long seed = 0; seed < 12; seed++) {
            Random random = new Random(seed);
            store(new int[] {1, 10, 200}[random.nextInt(3)]);
            Daemons own = new Daemons(new ReadMemory(UnpooledByteBufAllocator.DEFAULT, Duration.ofMillis(20)));
            own.memory().limit(random.nextInt(3) * (10L << 20));
            bad = List.of(answered(503, 0), answered(206, -1)).get(random.nextInt(2));
            good.set(random.nextBoolean() ? Integer.MAX_VALUE : random.nextInt(20));
            daemon.failures.set(random.nextInt(3));
            int plansMax = random.nextBoolean() ? Integer.MAX_VALUE : plans.get() + random.nextInt(8);
            change = plan -> plans.get() > plansMax ? plan.clear() : plan.setValidMs(10_000 + random.nextInt(2_000));
            TieredLedger ledger = daemon.ledger(own, "DirectReads", "true");
            long[] places = new long[4];
            for (int round = 0; round < 40; round++) {
                int one = random.nextInt(places.length);
                long first = random.nextInt(8) == 0 ? random.nextInt(LAST + 1) : Math.min(LAST, places[one]);
                long last = Math.min(LAST, first + new int[] {0, 6, 99}[random.nextInt(3)]);
                places[one] = last + 1 > LAST ? 0 : last + 1;
                CompletableFuture<LedgerEntries> read = ledger.readAsync(first, last);
                if (random.nextInt(6) == 0) {
                    daemon.holds(ledger.readAsync(places[one], places[one]), places[one], places[one]);
                }
                if (round == 39) {
                    ledger.closeAsync().get();
                }
                daemon.holds(read, first, last);
            }
            ReadDaemon.until("all is given back, seed " + seed, () -> own.memory().getUsedBytes() == 0);
            own.close();
        }
    }

    /** Waits until the test ends, which it returns, or for so long. */
    private boolean await(long ms) {
        try {
            return never.await(ms, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            return true;
        }
    }

    @Test
    public void plansThatCannotBeRightAreNotFollowed() throws Exception {
        List<UnaryOperator<PlanLedgerResponse.Builder>> changes = List.of(
                plan -> plan.setUrl("file:///etc/passwd"),
                plan -> plan.setUrl("http://a b/"),
                plan -> plan.setUrl(""),
                plan -> plan.setUrl("http://127.0.0.1:1/"),
                plan -> plan.setValidMs(0),
                plan -> plan.removeBlocks(0),
                plan -> plan.addBlocks(0, blocks.get(0)).addBlocks(0, blocks.get(0)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setLength(0)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setLength(-1)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setOffset(-1)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setHeadBytes(1 << 30)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setEntries(PER_BLOCK + 1)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setEntries(0)),
                plan -> plan.setBlocks(0, plan.getBlocks(0).toBuilder().setEntries(-1)),
                plan -> plan.setBlocks(0, blocks.get(1).toBuilder().setFirstEntryId(0)));
        for (UnaryOperator<PlanLedgerResponse.Builder> wrong : changes) {
            change = wrong;
            Daemons own = new Daemons(new ReadMemory(UnpooledByteBufAllocator.DEFAULT, Duration.ofHours(1)));
            daemon.calls.set(0);
            daemon.holds(daemon.ledger(own, "DirectReads", "true").readAsync(0, 200), 0, 200);
            assertEquals(1, daemon.calls.get());
            daemon.holds(daemon.ledger(own, "DirectReads", "true").readAsync(0, 200), 0, 200);
            assertFalse(own.bucket().isUsable());
            own.close();
        }
    }

    @Test
    public void anEmptyPlanConcernsThisReaderAlone() throws Exception {
        change = PlanLedgerResponse.Builder::clear;
        TieredLedger ledger = ledger();
        isRead(ledger, 100);
        assertEquals(1, daemon.calls.get());
        assertEquals(1, plans.get());
        assertTrue(daemons.bucket().isUsable());
    }

    @Test
    public void aDaemonOfAnOlderVersionIsAskedNoMore() throws Exception {
        daemon.plan = null;
        isRead(ledger(), 100);
        isRead(ledger(), 100);
        assertEquals(2, daemon.calls.get());
        assertFalse(daemons.bucket().isUsable());
    }

    @Test
    public void aPlanThatFailsConcernsThisReaderAlone() throws Exception {
        daemon.plan = request -> {
            throw new IllegalStateException("of a daemon that cannot answer now");
        };
        isRead(ledger(), 100);
        assertEquals(1, daemon.calls.get());
        assertTrue(daemons.bucket().isUsable());
    }

    @Test
    public void nothingIsPlannedUnlessTheBrokerSaysSo() throws Exception {
        isRead(daemon.ledger(daemons), 100);
        assertEquals(0, plans.get());
        assertEquals(1, daemon.calls.get());
    }

    @Test
    public void aUrlThatExpiresIsAskedForAgain() throws Exception {
        change = plan -> plan.setValidMs(4_000); // of which the last two seconds are for GETs that were sent
        TieredLedger ledger = daemon.ledger(daemons, "DirectReads", "true", "ReadTimeoutSeconds", "8");
        daemon.holds(ledger.readAsync(0, 9), 0, 9);
        ReadDaemon.until("nothing is under way", () -> ledger.readyTo(10) > 10);
        Thread.sleep(2_100);
        expired = plans.get();
        daemon.holds(ledger.readAsync(10, 500), 10, 500);
        assertEquals(0, daemon.calls.get());
    }

    @Test
    public void lookupsAreTheDaemons() throws Exception {
        TieredLedger ledger = ledger();
        daemon.holds(ledger.readAsync(500, 500), 500, 500);
        assertEquals(0, plans.get());
        assertEquals(1, daemon.calls.get());
    }
}
