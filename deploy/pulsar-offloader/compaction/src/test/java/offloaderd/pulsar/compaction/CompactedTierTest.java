package offloaderd.pulsar.compaction;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
    private final FakeTopic topic = new FakeTopic();
    private final CompactedTier tier = new CompactedTier(topic, time, "persistent://acme/eu/orders-partition-0");
    private final FakeLedger ledger = new FakeLedger();
    private Throwable deletionFailure;

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
    public void policiesThatAreSetLaterCountWithoutAnUnload() {
        offloader.policies.setManagedLedgerOffloadThresholdInBytes(-1L);
        offloader.driver = "aws-s3";
        opened();
        time.advance(CompactedTier.FIRST_MS);
        offloader.driver = CompactedTier.DRIVER;
        time.advance(CompactedTier.RETRY_MS_MAX);
        assertEquals(List.of(), calls);
        offloader.policies.setManagedLedgerOffloadThresholdInBytes(0L);
        offloader.policies.setManagedLedgerOffloadDeletionLagInMillis(-1L);
        time.advance(2 * CompactedTier.RETRY_MS_MAX);
        assertEquals(List.of("offload 7 " + NAME), calls);
        offloader.policies.setManagedLedgerOffloadDeletionLagInMillis(1_000L);
        time.advance(CompactedTier.RETRY_MS_MAX);
        assertEquals(List.of("offload 7 " + NAME, "to tier", "delete 7"), calls.subList(1, 4));
        time.advance(86_400_000);
        assertEquals(4, calls.size());
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
        deleted();
        assertEquals(List.of("release", "delete 7"), calls);
        CompletionException error = assertThrows(CompletionException.class, () -> tier.open(LEDGER).join());
        assertEquals(
                BKException.Code.NoSuchLedgerExistsException, ((BKException) error.getCause()).getCode());
    }

    @Test
    public void aDaemonThatIsAwayIsAskedAgainForAMinute() {
        offloader.failure = new ManagedLedgerException("away");
        CompletableFuture<ReadHandle> read = tier.open(LEDGER);
        assertFalse(read.isDone());
        offloader.failure = null;
        time.advance(CompactedTier.RETRY_MS);
        assertSame(offloader.handle, read.join());
        offloader.failure = new ManagedLedgerException("away");
        CompletableFuture<ReadHandle> late = tier.open(LEDGER);
        time.advance(CompactedTier.OPEN_MS - CompactedTier.RETRY_MS);
        assertFalse(late.isDone());
        time.advance(CompactedTier.RETRY_MS);
        assertSame(offloader.failure, assertThrows(CompletionException.class, late::join).getCause());
        CompletableFuture<ReadHandle> ended = tier.open(LEDGER);
        topic.loaded = false;
        tier.close();
        time.advance(CompactedTier.RETRY_MS);
        assertTrue(ended.isCompletedExceptionally());
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
        assertTrue(deleted().isDone());
        time.advance(86_400_000);
        assertEquals(List.of("offload 7 " + NAME, "release", "delete 7", "delete copy 7 " + NAME), calls);
        assertTrue(time.steps.isEmpty());
    }

    @Test
    public void aDeletionThatFailsIsTriedAgainAlsoOfATopicThatIsGone() {
        deletionFailure = new ManagedLedgerException("no session");
        assertTrue(deleted().isCompletedExceptionally());
        topic.loaded = false;
        tier.close();
        deletionFailure = null;
        offloader.failure = new ManagedLedgerException("away");
        time.advance(CompactedTier.RETRY_MS);
        offloader.failure = null;
        time.advance(2 * CompactedTier.RETRY_MS);
        assertEquals(
                List.of("delete 7", "delete 7", "delete copy 7 " + NAME, "delete 7", "delete copy 7 " + NAME), calls);
        assertTrue(time.steps.isEmpty());
        offloader.failure = new ManagedLedgerException("away");
        deleted();
        time.advance(CompactedTier.DELETIONS_MAX * CompactedTier.RETRY_MS_MAX);
        assertEquals(5 + 2 * CompactedTier.DELETIONS_MAX, calls.size());
        assertTrue(time.steps.isEmpty());
    }

    @Test
    public void anUnloadedTopicsLedgerIsLeftToItsNextBroker() {
        opened();
        topic.loaded = false;
        tier.close();
        time.advance(86_400_000);
        assertEquals(List.of("release"), calls);
        opened();
        time.advance(86_400_000);
        assertEquals(List.of("release"), calls);
        assertTrue(time.steps.isEmpty());
    }

    @Test
    public void whatATopicThatCouldNotBeClosedHasGoesOn() {
        opened();
        tier.close();
        time.advance(CompactedTier.FIRST_MS);
        assertEquals(List.of("release", "offload 7 " + NAME, "to tier", "delete 7"), calls);
        assertSame(offloader.handle, tier.open(LEDGER).join());
    }

    private CompletableFuture<Void> deleted() {
        return tier.deleted(LEDGER, this::delete);
    }

    private CompletableFuture<Void> delete(long ledgerId) {
        calls.add("delete " + ledgerId);
        return deletionFailure == null
                ? CompletableFuture.completedFuture(null)
                : CompletableFuture.failedFuture(deletionFailure);
    }

    private void opened() {
        tier.opened(ledger, true, this::delete);
    }

    private final class FakeTopic implements CompactedTier.Topic {
        private boolean loaded = true;

        @Override
        public CompletableFuture<LedgerOffloader> offloader() {
            return CompletableFuture.completedFuture(offloader);
        }

        @Override
        public boolean has(CompactedTier with) {
            return loaded && with == tier;
        }
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
}
