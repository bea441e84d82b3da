package offloaderd.pulsar;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadFactory;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Makes the offloader of each namespace.
 *
 * <p>A broker gives the extra configuration of broker.conf to its default offloader alone, which it makes while it starts
 * ({@code PulsarService.start} in Pulsar 4.0): what it merges for a namespace has none of it
 * ({@code OffloadPoliciesImpl.mergeConfiguration}). So that one is remembered, and holds for namespaces unless they say
 * something else of what is theirs to say. A broker whose default driver is another makes ours for namespaces alone; what one of them says is
 * nothing to the next.
 *
 * <p>Settings that are wrong in themselves are refused. Of a daemon that cannot be reached as they say, or not yet, the
 * log tells at once, and the offloader is made: a broker never waits for its daemon.
 */
public final class DriverFactory implements LedgerOffloaderFactory<Driver> {
    private static final Logger LOG = LoggerFactory.getLogger(DriverFactory.class);
    private static final String BROKER = "org.apache.pulsar.broker.PulsarService";

    private final ThreadFactory threads;
    private final ReadMemory memory = new ReadMemory();
    private final ObjectName gauge = registered(memory);
    private Map<String, String> ofBroker = Map.of();
    private Daemons daemons;

    /** As Pulsar makes it. */
    public DriverFactory() {
        this(Executors.defaultThreadFactory());
    }

    DriverFactory(ThreadFactory threads) {
        this.threads = threads;
    }

    /** Returns what all offloaders share. */
    ReadMemory memory() {
        return memory;
    }

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
        if (brokerStarts()) {
            ofBroker = Map.copyOf(own);
            own = Map.of();
        }
        Settings settings = Settings.read(ofBroker, own);
        memory.limit(settings.readMemoryBytes());
        try {
            daemons = daemons != null ? daemons : new Daemons(memory, threads);
        } catch (OutOfMemoryError error) {
            throw new IOException("offloaderd's driver has no threads: " + error.getMessage(), error);
        }
        daemons.inspect(settings);
        return new Driver(settings, policies, daemons, stats);
    }

    /** Nothing in the arguments tells the default offloader from a namespace's; who calls does. */
    private static boolean brokerStarts() {
        return StackWalker.getInstance().walk(frames -> frames.anyMatch(
                frame -> frame.getClassName().equals(BROKER) && frame.getMethodName().equals("start")));
    }

    /** Shows a factory's memory in JMX, under a number of its own if a broker has loaded the archive twice. */
    private static ObjectName registered(ReadMemory memory) {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        try {
            for (int number = 1; ; number++) {
                ObjectName name = new ObjectName(
                        "offloaderd:type=ReadMemory" + (number == 1 ? "" : ",number=" + number));
                try {
                    server.registerMBean(memory, name);
                    return name;
                } catch (InstanceAlreadyExistsException taken) {
                    LOG.debug("{} is another factory's", name);
                }
            }
        } catch (JMException | RuntimeException error) {
            LOG.warn("What is read ahead cannot be seen in JMX", error);
            return null;
        }
    }

    @Override
    public synchronized void close() {
        try {
            if (gauge != null) {
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(gauge);
            }
        } catch (JMException error) {
            LOG.warn("{} stays in JMX", gauge, error);
        }
        if (daemons != null) {
            daemons.close();
        }
    }
}
