package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.Map;
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
        assertTrue(ofNamespace(Map.of("Tls", "true", "Address", "one:1")).tls());
        Settings next = ofNamespace(Map.of("Address", "two:2"));
        assertFalse(next.tls());
        assertEquals("two:2", next.address());
    }

    @Test
    public void whatBrokerConfSaysHoldsUnlessTheNamespaceSaysElse() throws Exception {
        PulsarService.start(() -> made(Map.of("Tls", "true", "Address", "broker:1")));
        assertEquals("two:2", ofNamespace(Map.of("Address", "two:2")).address());
        Settings silent = ofNamespace(Map.of());
        assertTrue(silent.tls());
        assertEquals("broker:1", silent.address());
    }
}
