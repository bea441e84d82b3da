package offloaderd.pulsar;

import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.Broker.DeleteLedgerRequest;
import offloaderd.v1.Broker.DeleteLedgerResponse;
import offloaderd.v1.Broker.OffloadedLedger;
import offloaderd.v1.Broker.OpenLedgerRequest;
import offloaderd.v1.Broker.OpenLedgerResponse;
import offloaderd.v1.BrokerServiceGrpc.BrokerServiceStub;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One namespace's offloader. It may be closed while handles that it opened go on. */
public final class Driver implements LedgerOffloader {
    static final String NAME = "offloaderd";
    private static final Logger LOG = LoggerFactory.getLogger(Driver.class);
    /** Under which the broker names the managed ledger, in the metadata of every call. */
    private static final String MANAGED_LEDGER = "ManagedLedgerName";
    /** What tells a ledger that this driver offloaded from those of Pulsar's own. */
    private static final String MARK = "driver";
    /** Under which Pulsar's own drivers for S3 record where their objects lie. */
    private static final String BUCKET = "bucket";
    /** What a daemon says of a ledger of which it has deleted nothing: Pulsar's statistics count it neither way. */
    private static final Set<String> KEPT = Set.of("kept", "nothing");

    private final Settings settings;
    private final OffloadPolicies policies;
    private final Daemons daemons;
    private final Statistics stats;

    Driver(Settings settings, OffloadPolicies policies, Daemons daemons, LedgerOffloaderStats stats) {
        this.settings = settings;
        this.policies = policies;
        this.daemons = daemons;
        this.stats = new Statistics(stats);
    }

    Settings settings() {
        return settings;
    }

    @Override
    public String getOffloadDriverName() {
        return NAME;
    }

    /**
     * Returns what is recorded with each ledger: that it is ours, and the bucket that the policies name, in which Pulsar's
     * own driver for S3 will look for it if it is ever rewritten for that one.
     */
    @Override
    public Map<String, String> getOffloadDriverMetadata() {
        String bucket = policies.getManagedLedgerOffloadBucket();
        return bucket == null ? Map.of(MARK, NAME) : Map.of(MARK, NAME, BUCKET, bucket);
    }

    @Override
    public CompletableFuture<Void> offload(ReadHandle ledger, UUID uid, Map<String, String> extraMetadata) {
        try {
            return offloaded(ledger, uid, extraMetadata.get(MANAGED_LEDGER));
        } catch (Throwable error) { // a name that is none, a client that is closed, a broker that ends
            return CompletableFuture.failedFuture(Failures.of(error, "a ledger is not offloaded"));
        }
    }

    private CompletableFuture<Void> offloaded(ReadHandle ledger, UUID uid, String managedLedger) {
        if (managedLedger == null || ledger.getLength() == 0 || !ledger.isClosed() || ledger.getLastAddConfirmed() < 0) {
            return CompletableFuture.failedFuture(new IllegalArgumentException(
                    "ledger " + ledger.getId() + " of " + managedLedger + " is open, empty or nobody's"));
        }
        long began = System.nanoTime();
        String topic = topicOf(managedLedger);
        return new Offload(daemons, settings, ledger, topic, stats).run().handle((segments, error) -> {
            if (error != null) {
                stats.count(one -> one.recordOffloadError(topic));
                if (Failures.isOurs(error)) { // no daemon refused it: it could not be stored in time
                    stats.count(one -> one.recordWriteToStorageError(topic));
                }
                throw FutureFailure.of(Failures.of(error, "ledger " + ledger.getId() + " is not offloaded"));
            }
            stats.count(one -> one.recordOffloadBytes(topic, ledger.getLength()));
            LOG.info("[{}] Ledger {} is offloaded in {} segments, verified in {} ms, uuid {}", managedLedger,
                    ledger.getId(), segments, TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began), uid);
            return null;
        });
    }

    @Override
    public CompletableFuture<ReadHandle> readOffloaded(long ledgerId, UUID uid, Map<String, String> driverMetadata) {
        OffloadedLedger ledger;
        try {
            ledger = named(ledgerId, uid, driverMetadata);
        } catch (Throwable error) {
            return CompletableFuture.failedFuture(Failures.of(error, "cannot tell whose ledger " + ledgerId + " is"));
        }
        long began = System.nanoTime();
        OpenLedgerRequest request = OpenLedgerRequest.newBuilder().setLedger(ledger).build();
        return this.<OpenLedgerResponse>call(settings.address(), (stub, answer) -> stub.openLedger(request, answer))
                .handle((found, error) -> {
                    if (error != null) {
                        stats.count(one -> one.recordReadOffloadError(ledger.getTopic()));
                        throw FutureFailure.of(Failures.of(error, "cannot open ledger " + ledgerId));
                    }
                    stats.count(one -> one.recordReadOffloadIndexLatency(
                            ledger.getTopic(), System.nanoTime() - began, TimeUnit.NANOSECONDS));
                    return new TieredLedger(daemons, settings, stats, ledger, found.getLastEntryId(),
                            found.getLengthBytes());
                });
    }

    @Override
    public CompletableFuture<Void> deleteOffloaded(long ledgerId, UUID uid, Map<String, String> driverMetadata) {
        OffloadedLedger ledger;
        try {
            ledger = named(ledgerId, uid, driverMetadata);
        } catch (Throwable error) {
            return CompletableFuture.failedFuture(Failures.of(error, "cannot tell whose ledger " + ledgerId + " is"));
        }
        DeleteLedgerRequest request = DeleteLedgerRequest.newBuilder().setLedger(ledger).build();
        return delete(settings.address(), request)
                .thenCompose(found -> found.getOwnerAddress().isEmpty()
                        ? CompletableFuture.completedFuture(found)
                        : delete(found.getOwnerAddress(), request))
                .handle((found, error) -> {
                    boolean moved = error == null && !found.getOwnerAddress().isEmpty();
                    if (error != null || !KEPT.contains(found.getOutcome())) {
                        stats.count(one -> one.recordDeleteOffloadOps(ledger.getTopic(), error == null && !moved));
                    }
                    if (moved) {
                        throw FutureFailure.of(new ManagedLedgerException(ledger.getTopic() + " is changing hands"));
                    }
                    if (error != null) {
                        throw FutureFailure.of(Failures.of(error, "cannot delete ledger " + ledgerId));
                    }
                    LOG.info("[{}] Ledger {} uuid {}: {}", ledger.getTopic(), ledgerId, uid, found.getOutcome());
                    return null;
                });
    }

    private CompletableFuture<DeleteLedgerResponse> delete(String address, DeleteLedgerRequest request) {
        return call(address, (stub, answer) -> stub.deleteLedger(request, answer));
    }

    @Override
    public OffloadPolicies getOffloadPolicies() {
        return policies;
    }

    @Override
    public void close() {
        // Connections are the factory's: readers go on when the policies of their namespace change.
    }

    private interface Unary<T> {
        void start(BrokerServiceStub stub, StreamObserver<T> answer);
    }

    /**
     * Makes a call; a daemon that is not there is waited for until the time is up. Nothing is thrown, whatever is wrong with
     * a certificate or an address: a broker calls this where it expects a future, and would wait for ever.
     */
    private <T> CompletableFuture<T> call(String address, Unary<T> call) {
        CompletableFuture<T> found = new CompletableFuture<>();
        try {
            BrokerServiceStub stub = daemons.ledgers(settings, address)
                    .withWaitForReady()
                    .withDeadlineAfter(settings.callTimeout().toMillis(), TimeUnit.MILLISECONDS);
            call.start(stub, new Answer<>(found));
        } catch (Throwable error) {
            found.completeExceptionally(error);
        }
        return found;
    }

    private static OffloadedLedger named(long ledgerId, UUID uid, Map<String, String> driverMetadata)
            throws ManagedLedgerException {
        String managedLedger = driverMetadata.get(MANAGED_LEDGER);
        if (managedLedger == null) {
            throw new ManagedLedgerException("the broker does not say whose ledger " + ledgerId + " is");
        }
        return OffloadedLedger.newBuilder()
                .setTopic(topicOf(managedLedger))
                .setLedgerId(ledgerId)
                .setObjectId(uid.toString())
                .setBucket(driverMetadata.containsKey(MARK) ? "" : driverMetadata.getOrDefault(BUCKET, ""))
                .build();
    }

    private static String topicOf(String managedLedger) {
        return TopicName.fromPersistenceNamingEncoding(managedLedger);
    }

    /** The one answer of a call. */
    private record Answer<T>(CompletableFuture<T> found) implements StreamObserver<T> {
        @Override
        public void onNext(T value) {
            found.complete(value);
        }

        @Override
        public void onError(Throwable failure) {
            found.completeExceptionally(failure);
        }

        @Override
        public void onCompleted() {
            found.completeExceptionally(Status.INTERNAL.withDescription("the daemon ended without an answer").asException());
        }
    }
}
