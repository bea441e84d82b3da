package offloaderd.pulsar;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * Makes the offloader of each namespace.
 *
 * <p>A broker gives the extra configuration of broker.conf to its default offloader alone, which it makes first: what it
 * merges for a namespace has none of it ({@code OffloadPoliciesImpl.mergeConfiguration} in Pulsar 4.0). So the first one
 * is remembered, and holds for namespaces unless they say something else.
 */
public final class DriverFactory implements LedgerOffloaderFactory<Driver> {
    private final Daemons daemons = new Daemons();
    private Map<String, String> ofBroker;

    @Override
    public boolean isDriverSupported(String driverName) {
        return Driver.NAME.equalsIgnoreCase(driverName);
    }

    @Override
    public Driver create(OffloadPoliciesImpl policies, Map<String, String> userMetadata, OrderedScheduler scheduler)
            throws IOException {
        return create(policies, userMetadata, scheduler, LedgerOffloaderStats.create(false, false, null, 0));
    }

    @Override
    public synchronized Driver create(
            OffloadPoliciesImpl policies,
            Map<String, String> userMetadata,
            OrderedScheduler scheduler,
            LedgerOffloaderStats stats)
            throws IOException {
        Map<String, String> own = policies.getManagedLedgerExtraConfigurations();
        own = own != null ? own : Map.of();
        if (ofBroker == null) {
            ofBroker = Map.copyOf(own);
        }
        Map<String, String> configured = new HashMap<>(ofBroker);
        configured.putAll(own);
        return new Driver(Settings.read(configured), policies, daemons, stats);
    }

    @Override
    public void close() {
        daemons.close();
    }
}
