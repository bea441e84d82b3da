package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.okhttp.OkHttpServerBuilder;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.junit.After;
import org.junit.Test;

/** Whose settings a namespace's offloader has. */
public class DriverFactoryTest {
    private final DriverFactory factory = new DriverFactory();

    @After
    public void close() {
        factory.close();
    }

    private Driver made(Map<String, String> extra) throws Exception {
        OffloadPoliciesImpl policies = new OffloadPoliciesImpl();
        policies.setManagedLedgerExtraConfigurations(extra);
        return factory.create(policies, Map.of(), null);
    }

    private Settings ofNamespace(Map<String, String> extra) throws Exception {
        return PulsarService.getManagedLedgerOffloader(() -> made(extra)).settings();
    }

    @Test
    public void whatOneNamespaceSaysIsNothingToTheNext() throws Exception {
        assertEquals(7, ofNamespace(Map.of("CallTimeoutSeconds", "7")).callTimeout().toSeconds());
        assertEquals(30, ofNamespace(Map.of("ReadAheadBytes", "9")).callTimeout().toSeconds());
    }

    @Test
    public void patienceOfBrokerConfHoldsUnlessTheNamespaceSaysElse() throws Exception {
        PulsarService.start(() -> made(Map.of("Tls", "true", "Address", "broker:1", "ReadTimeoutSeconds", "6")));
        Settings said = ofNamespace(Map.of("ReadTimeoutSeconds", "5"));
        assertEquals(5, said.readTimeout().toSeconds());
        for (Settings one : List.of(said, ofNamespace(Map.of()))) {
            assertTrue(one.tls());
            assertEquals("broker:1", one.address());
        }
        assertEquals(6, ofNamespace(Map.of()).readTimeout().toSeconds());
    }

    @Test
    public void aNamespaceCannotHaveTheBrokersFilesSentToAnAddressOfItsOwn() throws Exception {
        File secret = File.createTempFile("superuser", ".token");
        PulsarService.start(() -> made(Map.of("Tls", "true")));
        for (Map<String, String> attack : List.of(
                Map.of("Address", "evil.example:443"),
                Map.of("Tls", "false"),
                Map.of("TokenFile", secret.getPath()),
                Map.of("TlsTrustCertsFile", secret.getPath()),
                Map.of("TlsCertFile", secret.getPath(), "TlsKeyFile", secret.getPath()),
                Map.of("NamespaceAddresses", "true", "Address", "evil.example:443"))) {
            IOException error = assertThrows(IOException.class, () -> ofNamespace(attack));
            assertTrue(error.getMessage(), error.getMessage().contains(" is the broker's to say, not a namespace's"));
        }
    }

    @Test
    public void aBrokerStartsWithoutItsDaemonOrItsFiles() throws Exception {
        for (Map<String, String> unusable : List.of(
                Map.of("Address", "no_host_:7650"),
                Map.of("Tls", "true", "TlsTrustCertsFile", "/no/such/ca"),
                Map.of("Tls", "true", "TlsCertFile", "/no/such/cert", "TlsKeyFile", "/no/such/key"),
                Map.of("Tls", "true", "TokenFile", "/no/such/token"))) {
            Driver driver = PulsarService.start(() -> made(unusable));
            assertEquals(unusable.getOrDefault("Address", "127.0.0.1:7650"), driver.settings().address());
        }
    }

    @Test
    public void aDaemonIsAskedWhetherItIsThereAsSoonAsAnOffloaderIsMade() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        Server server = OkHttpServerBuilder.forPort(0, InsecureServerCredentials.create())
                .addService(DaemonsTest.health(asked)).build().start();
        try {
            PulsarService.start(() -> made(Map.of("Address", "127.0.0.1:" + server.getPort())));
            ReadDaemon.until("the daemon is asked", () -> asked.get() == 1);
        } finally {
            server.shutdownNow();
        }
    }

    @Test
    public void theBrokersMemoryForReadingAheadIsWhatItSays() throws Exception {
        PulsarService.start(() -> made(Map.of("ReadMemoryBytes", "12345")));
        assertEquals(12345, factory.memory().getLimitBytes());
        assertThrows(IOException.class, () -> ofNamespace(Map.of("ReadMemoryBytes", "54321")));
        assertThrows(IOException.class, () -> ofNamespace(Map.of("DirectReads", "true")));
        assertEquals(12345, factory.memory().getLimitBytes());
    }

    @Test
    public void aNamespaceWaitsNoLongerThanTheBroker() throws Exception {
        PulsarService.start(() -> made(Map.of("OffloadTimeoutSeconds", "300")));
        assertEquals(300, ofNamespace(Map.of("OffloadTimeoutSeconds", "3600")).offloadTimeout().toSeconds());
    }

    @Test
    public void aBrokerMayLetNamespacesNameTheirDaemons() throws Exception {
        PulsarService.start(() -> made(Map.of("NamespaceAddresses", "true", "Address", "broker:1")));
        assertEquals("two:2", ofNamespace(Map.of("Address", "two:2")).address());
        assertEquals("broker:1", ofNamespace(Map.of()).address());
        assertThrows(IOException.class, () -> ofNamespace(Map.of("NamespaceAddresses", "false")));
    }

    @Test
    public void aTokenIsNotTakenWithoutTls() throws Exception {
        File token = File.createTempFile("broker", ".token");
        IOException error = assertThrows(IOException.class, () -> Settings.read(
                Map.of("TokenFile", token.getPath(), "Address", "127.0.0.1:7650"), Map.of()));
        assertTrue(error.getMessage(), error.getMessage().contains("TokenFile without Tls=true"));
        assertTrue(Settings.read(Map.of("TokenFile", token.getPath(), "Tls", "true"), Map.of()).tls());
    }
}
