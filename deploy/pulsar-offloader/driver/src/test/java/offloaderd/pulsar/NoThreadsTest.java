package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import offloaderd.v1.Broker.OpenLedgerRequest;
import offloaderd.v1.Broker.OpenLedgerResponse;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.junit.Rule;
import org.junit.Test;

/** A broker whose process may start no more threads: calls fail in time, nothing is thrown, and it goes on once it may. */
public class NoThreadsTest {
    private static final Map<String, String> OURS = Map.of("ManagedLedgerName", "t/n/persistent/topic", "driver", "offloaderd");

    @Rule
    public final ReadDaemon daemon = new ReadDaemon();

    /** Threads of which only some can be started, as under a limit of processes. */
    private static final class Scarce implements ThreadFactory {
        private final AtomicInteger left;
        private final AtomicInteger connecting = new AtomicInteger();
        private volatile boolean ofConnections = true;

        private Scarce(int left) {
            this.left = new AtomicInteger(left);
        }

        @Override
        public Thread newThread(Runnable task) {
            return new Thread(task) {
                @Override
                public void start() {
                    boolean counts = ofConnections || !getName().startsWith("offloaderd-connection");
                    if (counts && left.getAndUpdate(now -> Math.max(0, now - 1)) == 0) {
                        throw new OutOfMemoryError("unable to create native thread");
                    }
                    connecting.addAndGet(getName().startsWith("offloaderd-connection") ? 1 : 0);
                    super.start();
                }
            };
        }
    }

    private static ReadHandle closed() {
        Map<String, Object> answers = Map.of("getId", 5L, "getLength", 10L, "isClosed", true, "getLastAddConfirmed", 3L);
        return (ReadHandle) Proxy.newProxyInstance(NoThreadsTest.class.getClassLoader(), new Class<?>[] {ReadHandle.class},
                (proxy, method, arguments) -> answers.get(method.getName()));
    }

    private static void fails(CompletableFuture<?> future) {
        ExecutionException error = assertThrows(ExecutionException.class, () -> future.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause().toString(), error.getCause() instanceof ManagedLedgerException);
    }

    @Test
    public void whileNoThreadCanBeStartedCallsFailInTimeAndAfterwardsTheyWork() throws Exception {
        Scarce threads = new Scarce(Integer.MAX_VALUE);
        try (Daemons daemons = new Daemons(new ReadMemory(), threads)) {
            threads.left.set(0);
            String[] hurried = {"CallTimeoutSeconds", "1", "ReadTimeoutSeconds", "1", "OffloadTimeoutSeconds", "1"};
            TieredLedger ledger = daemon.ledger(daemons, hurried);
            Driver driver = new Driver(
                    Settings.read(Map.of("Address", daemon.address(), "CallTimeoutSeconds", "1", "OffloadTimeoutSeconds", "1"),
                            Map.of()),
                    new OffloadPoliciesImpl(), daemons, LedgerOffloaderStats.create(false, false, null, 0));
            String told = daemons.inspect(driver.settings()).get(30, TimeUnit.SECONDS);
            assertTrue(told, told.contains("Address=" + daemon.address()));
            List<CompletableFuture<?>> calls = new ArrayList<>(List.of(
                    driver.readOffloaded(5, UUID.randomUUID(), OURS),
                    driver.deleteOffloaded(5, UUID.randomUUID(), OURS),
                    driver.offload(closed(), UUID.randomUUID(), OURS)));
            for (long first = 0; first < 900; first += 50) { // more than there are workers
                calls.add(ledger.readAsync(first, first + 9));
            }
            calls.forEach(NoThreadsTest::fails);
            assertEquals(0, ledger.getPendingRead());
            assertEquals(0, daemon.calls.get());
            threads.left.set(Integer.MAX_VALUE);
            works(ledger); // by the connection that could not be made before
        }
    }

    /** Checks that a handle reads, on a machine that may be slow. */
    private void works(TieredLedger hurried) throws Exception {
        for (int tries = 30; ; tries--) {
            try {
                daemon.holds(hurried.readAsync(0, 99), 0, 99);
                return;
            } catch (ExecutionException late) {
                assertTrue(late.toString(), tries > 0);
            }
        }
    }

    @Test
    public void answersOfADaemonNeedNoThreadThatHasToBeStarted() throws Exception {
        Scarce threads = new Scarce(Integer.MAX_VALUE);
        try (Daemons daemons = new Daemons(new ReadMemory(), threads)) {
            Settings settings = Settings.read(Map.of("Address", daemon.address()), Map.of());
            CompletableFuture<String> thread = new CompletableFuture<>();
            daemons.ledgers(settings, settings.address()).openLedger(
                    OpenLedgerRequest.getDefaultInstance(),
                    new StreamObserver<>() {
                        @Override
                        public void onNext(OpenLedgerResponse answer) {}

                        @Override
                        public void onError(Throwable unimplemented) {
                            thread.complete(Thread.currentThread().getName());
                        }

                        @Override
                        public void onCompleted() {}
                    });
            String name = thread.get(30, TimeUnit.SECONDS);
            assertTrue(name, name.matches("offloaderd-\\d+")); // a worker, and none of gRPC's own
            assertTrue("a connection has threads of ours as well", threads.connecting.get() >= 2);
        }
    }

    @Test
    public void fewThreadsDo() throws Exception {
        Scarce threads = new Scarce(3); // two timers and one worker
        threads.ofConnections = false;
        try (Daemons daemons = new Daemons(new ReadMemory(), threads)) {
            daemon.holds(daemon.ledger(daemons).readAsync(0, 99), 0, 99);
        }
    }

    @Test
    public void noStepThatFailsTakesAWorkerWithIt() throws Exception {
        Scarce scarce = new Scarce(3);
        try (Threads threads = new Threads(scarce)) {
            for (int i = 0; i < 100; i++) {
                threads.work(() -> {
                    throw new OutOfMemoryError("no memory for a step");
                });
            }
            CountDownLatch done = new CountDownLatch(1);
            threads.later(() -> threads.work(done::countDown), 1, TimeUnit.MILLISECONDS);
            assertTrue(done.await(30, TimeUnit.SECONDS));
        }
    }

    @Test
    public void withoutAnyThreadThereIsNoOffloaderUntilThereAreSome() throws Exception {
        Scarce threads = new Scarce(2);
        DriverFactory factory = new DriverFactory(threads);
        IOException error = assertThrows(
                IOException.class, () -> factory.create(new OffloadPoliciesImpl(), Map.of(), null));
        assertTrue(error.getMessage(), error.getMessage().contains("unable to create native thread"));
        threads.left.set(Integer.MAX_VALUE);
        factory.create(new OffloadPoliciesImpl(), Map.of(), null);
        factory.close();
    }

    @Test
    public void aBrokerThatEndsHearsSo() throws Exception {
        Daemons daemons = new Daemons(new ReadMemory(), new Scarce(Integer.MAX_VALUE));
        Driver driver = new Driver(Settings.read(Map.of("Address", daemon.address()), Map.of()), new OffloadPoliciesImpl(),
                daemons, LedgerOffloaderStats.create(false, false, null, 0));
        daemons.close();
        fails(driver.readOffloaded(5, UUID.randomUUID(), OURS));
        fails(driver.deleteOffloaded(5, UUID.randomUUID(), OURS));
        fails(driver.offload(closed(), UUID.randomUUID(), OURS));
        fails(daemon.ledger(daemons).readAsync(0, 9));
        assertTrue(daemons.inspect(driver.settings()).get(30, TimeUnit.SECONDS).contains("the broker ends"));
    }
}
