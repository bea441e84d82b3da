package offloaderd.pulsar.compaction;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.junit.Test;

/** When a compacted ledger is offloaded, read from the tier, and deleted from either; time is a number. */
public class CompactedTierTest {
    private static final long LEDGER = 7;
    private static final String NAME = "acme/eu/persistent/orders-partition-0%2F__compaction";

    private final List<String> calls = new ArrayList<>();
    private final FakeTime time = new FakeTime();
    private final FakeOffloader offloader = new FakeOffloader();
    private final CompactedTier tier = new CompactedTier(
            () -> CompletableFuture.completedFuture(offloader), time, "persistent://acme/eu/orders-partition-0");
    private final FakeLedger ledger = new FakeLedger();

    @Test
    public void aLedgerIsReadFromTheTierBeforeBookKeeperIsFreed() {
        opened();
        time.advance(CompactedTier.FIRST_MS);
        assertEquals(List.of("offload 7 " + NAME, "to tier", "delete 7"), calls);
        time.advance(CompactedTier.RETRY_MS_MAX);
        assertEquals(3, calls.size());
    }

    @Test
    public void theDeletionLagBeginsWithTheCopyWhichIsVerifiedOnceMore() {
        offloader.policies.setManagedLedgerOffloadDeletionLagInMillis(3_600_000L);
        opened();
        time.advance(3_600_000);
        assertEquals(List.of("offload 7 " + NAME), calls);
        time.advance(CompactedTier.FIRST_MS);
        assertEquals(List.of("offload 7 " + NAME, "offload 7 " + NAME, "to tier", "delete 7"), calls);
    }

    @Test
    public void nothingIsDeletedWithoutALagOrACopy() {
        offloader.policies.setManagedLedgerOffloadDeletionLagInMillis(-1L);
        opened();
        time.advance(86_400_000);
        assertEquals(List.of("offload 7 " + NAME), calls);
        offloader.policies.setManagedLedgerOffloadDeletionLagInMillis(0L);
        offloader.failure = new ManagedLedgerException("not covered");
        opened();
        time.advance(CompactedTier.FIRST_MS + CompactedTier.RETRY_MS);
        assertEquals(3, calls.size());
        offloader.failure = null;
        time.advance(2 * CompactedTier.RETRY_MS);
        assertEquals(List.of("offload 7 " + NAME, "to tier", "delete 7"), calls.subList(3, 6));
    }

    @Test
    public void otherDriversAndOffloadsByHandKeepTheirLedgers() {
        offloader.policies.setManagedLedgerOffloadThresholdInBytes(-1L);
        opened();
        time.advance(CompactedTier.FIRST_MS);
        offloader.policies.setManagedLedgerOffloadThresholdInBytes(0L);
        offloader.driver = "aws-s3";
        opened();
        time.advance(CompactedTier.FIRST_MS);
        tier.deleted(LEDGER);
        assertEquals(List.of("release"), calls);
        CompletionException error = assertThrows(CompletionException.class, () -> tier.open(LEDGER).join());
        assertEquals(
                BKException.Code.NoSuchLedgerExistsException, ((BKException) error.getCause()).getCode());
    }

    @Test
    public void aDaemonThatIsAwayIsAskedAgainUntilTheTopicIsUnloaded() {
        offloader.failure = new ManagedLedgerException("away");
        CompletableFuture<ReadHandle> read = tier.open(LEDGER);
        assertFalse(read.isDone());
        offloader.failure = null;
        time.advance(CompactedTier.RETRY_MS);
        assertSame(offloader.handle, read.join());
        offloader.failure = new ManagedLedgerException("away");
        CompletableFuture<ReadHandle> late = tier.open(LEDGER);
        tier.close();
        time.advance(CompactedTier.RETRY_MS);
        assertTrue(late.isCompletedExceptionally());
        assertTrue(time.steps.isEmpty());
    }

    @Test
    public void whatIsOnRecordAsDeletedIsGone() {
        offloader.failure = new ManagedLedgerException.LedgerNotExistException("deleted");
        assertTrue(tier.open(LEDGER).isCompletedExceptionally());
        assertTrue(time.steps.isEmpty());
    }

    @Test
    public void aReplacedLedgerIsNoLongerOffloadedAndItsCopyGoes() {
        offloader.policies.setManagedLedgerOffloadDeletionLagInMillis(1_000L);
        opened();
        time.advance(CompactedTier.FIRST_MS);
        tier.deleted(LEDGER);
        time.advance(86_400_000);
        assertEquals(List.of("offload 7 " + NAME, "release", "delete copy 7 " + NAME), calls);
    }

    @Test
    public void anUnloadedTopicsLedgerIsLeftToItsNextBroker() {
        opened();
        tier.close();
        time.advance(86_400_000);
        assertEquals(List.of("release"), calls);
        opened();
        time.advance(86_400_000);
        assertEquals(List.of("release", "release"), calls);
    }

    private void opened() {
        tier.opened(ledger, true, ledgerId -> {
            calls.add("delete " + ledgerId);
            return CompletableFuture.completedFuture(null);
        });
    }

    private final class FakeLedger implements CompactedTier.Ledger {
        @Override
        public long getId() {
            return LEDGER;
        }

        @Override
        public long getLastAddConfirmed() {
            return 0;
        }

        @Override
        public ReadHandle inBookKeeper() {
            return offloader.handle;
        }

        @Override
        public CompletableFuture<ReadHandle> toTier() {
            calls.add("to tier");
            return CompletableFuture.completedFuture(offloader.handle);
        }

        @Override
        public void release() {
            calls.add("release");
        }
    }

    private final class FakeOffloader implements LedgerOffloader {
        private final OffloadPoliciesImpl policies = new OffloadPoliciesImpl();
        private final ReadHandle handle = (ReadHandle) Proxy.newProxyInstance(
                ReadHandle.class.getClassLoader(),
                new Class<?>[] {ReadHandle.class},
                (proxy, method, arguments) -> method.getName().equals("getId") ? LEDGER : null);
        private String driver = CompactedTier.DRIVER;
        private Throwable failure;

        FakeOffloader() {
            policies.setManagedLedgerOffloadThresholdInBytes(0L);
            policies.setManagedLedgerOffloadDeletionLagInMillis(0L);
        }

        private <T> CompletableFuture<T> answer(T value) {
            return failure == null ? CompletableFuture.completedFuture(value) : CompletableFuture.failedFuture(failure);
        }

        @Override
        public String getOffloadDriverName() {
            return driver;
        }

        @Override
        public CompletableFuture<Void> offload(ReadHandle what, UUID uid, Map<String, String> names) {
            calls.add("offload " + what.getId() + " " + names.get("ManagedLedgerName"));
            return answer(null);
        }

        @Override
        public CompletableFuture<ReadHandle> readOffloaded(long ledgerId, UUID uid, Map<String, String> names) {
            return answer(handle);
        }

        @Override
        public CompletableFuture<Void> deleteOffloaded(long ledgerId, UUID uid, Map<String, String> names) {
            calls.add("delete copy " + ledgerId + " " + names.get("ManagedLedgerName"));
            return answer(null);
        }

        @Override
        public OffloadPolicies getOffloadPolicies() {
            return policies;
        }

        @Override
        public void close() {}
    }

    private record Step(Runnable what, long atMs, int number) {}

    private static final class FakeTime implements CompactedTier.Time {
        private final PriorityQueue<Step> steps =
                new PriorityQueue<>(Comparator.comparingLong(Step::atMs).thenComparing(Step::number));
        private long nowMs;
        private int number;

        @Override
        public long nowMs() {
            return nowMs;
        }

        @Override
        public void later(Runnable step, long pauseMs) {
            steps.add(new Step(step, nowMs + pauseMs, ++number));
        }

        void advance(long ms) {
            long untilMs = nowMs + ms;
            while (!steps.isEmpty() && steps.peek().atMs <= untilMs) {
                Step next = steps.remove();
                nowMs = next.atMs;
                next.what.run();
            }
            nowMs = untilMs;
        }
    }
}
