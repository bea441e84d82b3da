package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.okhttp.OkHttpServerBuilder;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import javax.management.ObjectName;
import offloaderd.v1.Broker.DeleteLedgerRequest;
import offloaderd.v1.Broker.DeleteLedgerResponse;
import offloaderd.v1.Broker.EnsureLedgerRequest;
import offloaderd.v1.Broker.EnsureLedgerResponse;
import offloaderd.v1.Broker.OpenLedgerRequest;
import offloaderd.v1.Broker.OpenLedgerResponse;
import offloaderd.v1.BrokerServiceGrpc;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What a broker gets when it opens and deletes ledgers, and what Pulsar's statistics say of it. */
public class DriverTest {
    private static final Map<String, String> OURS = Map.of("ManagedLedgerName", "t/n/persistent/topic", "driver", "offloaderd");

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    @Rule
    public final ReadDaemon reads = new ReadDaemon();

    private final List<String> counted = new CopyOnWriteArrayList<>();
    private final Daemons daemons = new Daemons();
    private volatile String outcome = "";
    private volatile Status ensured = Status.UNAVAILABLE;
    private Server server;

    private final class Service extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public void openLedger(OpenLedgerRequest request, StreamObserver<OpenLedgerResponse> answer) {
            if (request.getLedger().getLedgerId() == 6) {
                answer.onError(Status.DATA_LOSS.asRuntimeException());
            } else {
                answer.onNext(OpenLedgerResponse.newBuilder().setLastEntryId(9).build());
                answer.onCompleted();
            }
        }

        @Override
        public void ensureLedger(EnsureLedgerRequest request, StreamObserver<EnsureLedgerResponse> answer) {
            answer.onError(ensured.asRuntimeException());
        }

        @Override
        public void deleteLedger(DeleteLedgerRequest request, StreamObserver<DeleteLedgerResponse> answer) {
            answer.onNext(DeleteLedgerResponse.newBuilder().setOutcome(outcome).build());
            answer.onCompleted();
        }
    }

    @Before
    public void serve() throws Exception {
        server = OkHttpServerBuilder.forPort(0, InsecureServerCredentials.create()).addService(new Service()).build().start();
    }

    @After
    public void end() {
        daemons.close();
        server.shutdownNow();
    }

    /** Returns statistics that note what is counted, by name and by whether it succeeded. */
    private LedgerOffloaderStats stats() {
        return (LedgerOffloaderStats) Proxy.newProxyInstance(
                getClass().getClassLoader(), new Class<?>[] {LedgerOffloaderStats.class}, (proxy, method, arguments) -> {
                    Object last = arguments[arguments.length - 1];
                    counted.add(method.getName() + (last instanceof Boolean ? " " + last : ""));
                    return null;
                });
    }

    private Driver driver(String... said) throws Exception {
        Map<String, String> settings = new HashMap<>(Map.of("Address", "127.0.0.1:" + server.getPort()));
        for (int i = 0; i < said.length; i += 2) {
            settings.put(said[i], said[i + 1]);
        }
        return new Driver(Settings.read(settings, Map.of()), new OffloadPoliciesImpl(), daemons, stats());
    }

    private static void failsAsBrokersExpect(CompletableFuture<?> future) {
        ExecutionException error = assertThrows(ExecutionException.class, () -> future.get(30, TimeUnit.SECONDS));
        assertTrue(error.getCause().toString(), error.getCause() instanceof ManagedLedgerException);
    }

    @Test
    public void nothingIsThrownWhereABrokerExpectsAFuture() throws Exception {
        File half = folder.newFile("half.pem");
        Files.writeString(half.toPath(), "-----BEGIN CERTIFICATE-----\nMIIB");
        File gone = folder.newFile("gone.pem");
        List<Driver> drivers = List.of(
                driver("Address", "offloaderd_1:7650", "CallTimeoutSeconds", "1"),
                driver("Tls", "true", "TlsTrustCertsFile", half.getPath()),
                driver("Tls", "true", "TlsTrustCertsFile", gone.getPath()));
        assertTrue(gone.delete());
        for (Driver driver : drivers) {
            failsAsBrokersExpect(driver.readOffloaded(5, UUID.randomUUID(), OURS));
            failsAsBrokersExpect(driver.deleteOffloaded(5, UUID.randomUUID(), OURS));
        }
        for (Map<String, String> metadata : List.of(Map.<String, String>of(), Map.of("ManagedLedgerName", "nobody's"))) {
            failsAsBrokersExpect(driver().readOffloaded(5, UUID.randomUUID(), metadata));
            failsAsBrokersExpect(driver().deleteOffloaded(5, UUID.randomUUID(), metadata));
        }
    }

    @Test
    public void aReadWhoseDaemonCannotBeCalledFails() throws Exception {
        TieredLedger ledger = reads.ledger(
                daemons, stats(), "Address", "no_host_:7650", "ReadTimeoutSeconds", "1");
        failsAsBrokersExpect(ledger.readAsync(0, 3));
        assertEquals(0, ledger.getPendingRead());
    }

    @Test
    public void openingAndReadingAreInPulsarsStatistics() throws Exception {
        driver().readOffloaded(5, UUID.randomUUID(), OURS).get(30, TimeUnit.SECONDS);
        assertEquals(List.of("recordReadOffloadIndexLatency"), counted);
        counted.clear();
        failsAsBrokersExpect(driver().readOffloaded(6, UUID.randomUUID(), OURS));
        assertEquals(List.of("recordReadOffloadError"), counted);
        counted.clear();
        reads.holds(reads.ledger(daemons, stats()).readAsync(3, 9), 3, 9);
        assertEquals(List.of("recordReadOffloadDataLatency", "recordReadOffloadBytes"), counted);
        counted.clear();
        reads.failures.set(1);
        reads.refusal = Status.DATA_LOSS;
        failsAsBrokersExpect(reads.ledger(daemons, stats()).readAsync(3, 30));
        assertEquals(List.of("recordReadOffloadError"), counted);
    }

    @Test
    public void statisticsThatFailCostNoRead() throws Exception {
        LedgerOffloaderStats broken = (LedgerOffloaderStats) Proxy.newProxyInstance(
                getClass().getClassLoader(), new Class<?>[] {LedgerOffloaderStats.class}, (proxy, method, arguments) -> {
                    throw new NoSuchMethodError(method.getName());
                });
        TieredLedger ledger = reads.ledger(daemons, broken);
        reads.holds(ledger.readAsync(3, 9), 3, 9);
        reads.failures.set(1);
        reads.refusal = Status.DATA_LOSS;
        failsAsBrokersExpect(ledger.readAsync(500, 530));
        assertEquals(0, ledger.getPendingRead());
    }

    @Test
    public void whatIsKeptIsNoDeletion() throws Exception {
        for (Map.Entry<String, List<String>> one : Map.of(
                "kept", List.<String>of(),
                "nothing", List.<String>of(),
                "marked", List.of("recordDeleteOffloadOps true"),
                "deleted", List.of("recordDeleteOffloadOps true")).entrySet()) {
            counted.clear();
            outcome = one.getKey();
            driver().deleteOffloaded(5, UUID.randomUUID(), OURS).get(30, TimeUnit.SECONDS);
            assertEquals(one.getKey(), one.getValue(), counted);
        }
    }

    /** Returns a closed ledger, of which nothing is read. */
    private ReadHandle closed() {
        Map<String, Object> answers = Map.of("getId", 5L, "getLength", 10L, "isClosed", true, "getLastAddConfirmed", 3L);
        return (ReadHandle) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {ReadHandle.class},
                (proxy, method, arguments) -> answers.get(method.getName()));
    }

    @Test
    public void onlyWhatCouldNotBeStoredInTimeIsAnErrorOfTheStorage() throws Exception {
        Driver driver = driver("OffloadTimeoutSeconds", "1");
        ensured = Status.PERMISSION_DENIED;
        failsAsBrokersExpect(driver.offload(closed(), UUID.randomUUID(), OURS));
        assertEquals(List.of("recordOffloadError"), counted);
        counted.clear();
        ensured = Status.UNAVAILABLE;
        failsAsBrokersExpect(driver.offload(closed(), UUID.randomUUID(), OURS));
        assertEquals(List.of("recordOffloadError", "recordWriteToStorageError"), counted);
    }

    @Test
    public void whatIsReadAheadIsSeenInJmx() throws Exception {
        ObjectName name = new ObjectName("offloaderd:type=ReadMemory");
        try (AutoCloseable factory = new DriverFactory()::close) {
            assertEquals(0L, ManagementFactory.getPlatformMBeanServer().getAttribute(name, "UsedBytes"));
        }
    }
}
