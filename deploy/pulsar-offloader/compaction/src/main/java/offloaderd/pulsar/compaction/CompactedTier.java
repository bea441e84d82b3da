package offloaderd.pulsar.compaction;

import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.ManagedLedgerException.LedgerNotExistException;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The compacted ledgers of one topic in the tier, through the offloader that the topic has by its policies. The daemon keeps
 * them as ledgers of a topic of their own, {@code <topic>/__compaction}, whose list is the ledger that the cursor of the
 * compaction names.
 *
 * <p>A ledger is offloaded where raw ledgers are offloaded by themselves (a threshold is set), and deleted from BookKeeper
 * by the same deletion lag: counted since this broker saw it covered, and after the daemon has verified the copy once more.
 * Without a lag it stays. The broker deletes a copy with the ledger, when the next compaction has replaced it.
 *
 * <p>What does not succeed is tried again until the topic is unloaded, and policies that change count within five minutes.
 * Deletions are tried again beyond that. Nothing throws, and nothing waits.
 */
public final class CompactedTier implements AutoCloseable {
    static final String DRIVER = "offloaderd";
    static final long FIRST_MS = 1_000;
    static final long RETRY_MS = 5_000;
    static final long RETRY_MS_MAX = 300_000;
    /** How long a read waits for a ledger to open in the tier; then it fails, and the next one opens it again. */
    static final long OPEN_MS = 60_000;
    /** Within about eight hours. */
    static final int DELETIONS_MAX = 100;
    private static final long NEVER = Long.MIN_VALUE;
    private static final long STAYS = Long.MAX_VALUE;
    private static final Logger LOG = LoggerFactory.getLogger(CompactedTier.class);
    private static final String MANAGED_LEDGER = "ManagedLedgerName";
    private static final String COMPACTION = "%2F__compaction";

    private final Topic loaded;
    private final Time time;
    private final String topic;
    private final String managedLedger;
    /** Those that BookKeeper has and that are not replaced yet; usually one. */
    private final Map<Long, Stored> stored = new ConcurrentHashMap<>();
    private final Map<Long, Ledger> opened = new ConcurrentHashMap<>();
    private volatile boolean closed;

    CompactedTier(Topic loaded, Time time, String topic) {
        this.loaded = loaded;
        this.time = time;
        this.topic = topic;
        this.managedLedger = TopicName.get(topic).getPersistenceNamingEncoding() + COMPACTION;
    }

    /** A compacted ledger as its readers have it. */
    public interface Ledger {
        long getId();

        long getLastAddConfirmed();

        /** Returns it as BookKeeper opened it, to be offloaded. */
        ReadHandle inBookKeeper();

        /** Has it read from the tier from now on, once it is opened there. */
        CompletableFuture<ReadHandle> toTier();

        /** Lets go of what is read ahead: the topic is closed, or the next compaction has replaced it. Reads go on anew. */
        void release();
    }

    /** The topic as its broker has it. */
    interface Topic {
        /** Returns the offloader that it has by its policies now. */
        CompletableFuture<LedgerOffloader> offloader();

        /** Says whether it is loaded, with these compacted ledgers: also one that could not be closed. */
        boolean has(CompactedTier tier);
    }

    /** The time, which tests move themselves. */
    interface Time {
        long nowMs();

        /** Runs a step later, or never where the broker ends. */
        void later(Runnable step, long pauseMs);
    }

    /** How a compacted ledger is deleted from BookKeeper. */
    public interface Deletion {
        /** Deletes a ledger; one that is not there is no failure. */
        CompletableFuture<Void> delete(long ledgerId);
    }

    /** Takes care of a ledger that was opened; {@code inBookKeeper}: to be offloaded and freed. */
    public void opened(Ledger ledger, boolean inBookKeeper, Deletion deletion) {
        opened.put(ledger.getId(), ledger);
        if (inBookKeeper && ledger.getLastAddConfirmed() >= 0) {
            Stored one = new Stored(ledger, deletion);
            stored.put(ledger.getId(), one);
            one.later(FIRST_MS);
        }
    }

    /**
     * Opens a ledger in the tier. A daemon that is away, or does not know it, is asked again, for a minute; of a topic with
     * another offloader, and of a ledger that is on record as deleted, the answer is what BookKeeper says of a ledger that
     * it lacks.
     */
    public CompletableFuture<ReadHandle> open(long ledgerId) {
        CompletableFuture<ReadHandle> found = new CompletableFuture<>();
        open(ledgerId, found, time.nowMs() + OPEN_MS);
        return found;
    }

    private void open(long ledgerId, CompletableFuture<ReadHandle> found, long untilMs) {
        ours().thenCompose(ours -> ours == null
                        ? CompletableFuture.<ReadHandle>failedFuture(gone())
                        : ours.readOffloaded(ledgerId, uid(ledgerId), named(ours)))
                .whenComplete((handle, error) -> {
                    Throwable cause = cause(error);
                    if (cause == null) {
                        LOG.info("[{}] Compacted ledger {} is read from the tier", topic, ledgerId);
                        found.complete(handle);
                    } else if (cause instanceof LedgerNotExistException || cause instanceof BKException) {
                        found.completeExceptionally(cause instanceof BKException ? cause : gone());
                    } else {
                        LOG.warn("[{}] Compacted ledger {} is not in BookKeeper, and cannot be opened in the tier yet: {}",
                                topic, ledgerId, cause.getMessage());
                        if (time.nowMs() + RETRY_MS > untilMs || over()) {
                            found.completeExceptionally(cause);
                        } else {
                            time.later(() -> open(ledgerId, found, untilMs), RETRY_MS);
                        }
                    }
                });
    }

    /**
     * Deletes a ledger from BookKeeper, then its copy: the next compaction has replaced it, or the topic goes. Returns how
     * it went in BookKeeper at first; it goes on until both succeeded, whatever becomes of the topic.
     */
    public CompletableFuture<Void> deleted(long ledgerId, Deletion deletion) {
        stored.remove(ledgerId);
        Ledger ledger = opened.remove(ledgerId);
        if (ledger != null) {
            ledger.release();
        }
        return delete(ledgerId, deletion, 1, RETRY_MS);
    }

    private CompletableFuture<Void> delete(long ledgerId, Deletion deletion, int tries, long pauseMs) {
        CompletableFuture<Void> inBookKeeper = deletion.delete(ledgerId);
        inBookKeeper.thenCompose(nothing -> ours())
                .thenCompose(ours -> ours == null
                        ? CompletableFuture.<Void>completedFuture(null)
                        : ours.deleteOffloaded(ledgerId, uid(ledgerId), named(ours)))
                .whenComplete((nothing, error) -> {
                    if (error != null && tries < DELETIONS_MAX) {
                        LOG.warn("[{}] Compacted ledger {} is replaced, and is not deleted everywhere yet: {}",
                                topic, ledgerId, cause(error).getMessage());
                        long nextMs = Math.min(2 * pauseMs, RETRY_MS_MAX);
                        time.later(() -> delete(ledgerId, deletion, tries + 1, nextMs), pauseMs);
                    } else if (error != null) {
                        LOG.error("[{}] Compacted ledger {} is replaced, and is not deleted everywhere after {} tries: look "
                                + "for it in BookKeeper; the daemon deletes its copy", topic, ledgerId, tries, cause(error));
                    }
                });
        return inBookKeeper;
    }

    /** The topic is about to be closed; if that fails, everything goes on. */
    @Override
    public void close() {
        closed = true;
        opened.values().forEach(Ledger::release);
    }

    /** Says whether the topic is closed; its next broker has the same to do. */
    private boolean over() {
        return closed && !loaded.has(this);
    }

    /** Returns the topic's offloader if it is ours, else null. */
    private CompletableFuture<LedgerOffloader> ours() {
        try {
            return loaded.offloader().thenApply(
                    one -> one != null && DRIVER.equals(one.getOffloadDriverName()) ? one : null);
        } catch (Throwable error) { // of a broker that ends
            return CompletableFuture.failedFuture(error);
        }
    }

    private Map<String, String> named(LedgerOffloader ours) {
        Map<String, String> names = new HashMap<>(ours.getOffloadDriverMetadata());
        names.put(MANAGED_LEDGER, managedLedger);
        return names;
    }

    /** The daemon wants an id of each attempt, which here needs to tell nothing apart. */
    private static UUID uid(long ledgerId) {
        return new UUID(0, ledgerId);
    }

    private static BKException gone() {
        return BKException.create(BKException.Code.NoSuchLedgerExistsException);
    }

    private static Throwable cause(Throwable error) {
        Throwable cause = error;
        while (cause instanceof CompletionException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }

    private static boolean automatic(OffloadPolicies policies) {
        Long bytes = policies.getManagedLedgerOffloadThresholdInBytes();
        Long seconds = policies.getManagedLedgerOffloadThresholdInSeconds();
        return (bytes != null && bytes >= 0) || (seconds != null && seconds >= 0);
    }

    /** A ledger in BookKeeper, on its way out of it. */
    private final class Stored {
        private final Ledger ledger;
        private final Deletion deletion;
        private long coveredMs = NEVER;
        private long pauseMs = RETRY_MS;

        Stored(Ledger ledger, Deletion deletion) {
            this.ledger = ledger;
            this.deletion = deletion;
        }

        void later(long pauseMs) {
            time.later(this::step, pauseMs);
        }

        private boolean isDone() {
            if (over()) {
                stored.remove(ledger.getId(), this);
            }
            return stored.get(ledger.getId()) != this;
        }

        /** Has the ledger covered, and frees BookKeeper of it when its time has come, by the policies of that moment. */
        private void step() {
            if (isDone()) {
                return;
            }
            ours().thenCompose(this::ensure).whenComplete((leftMs, error) -> {
                if (isDone()) {
                    return;
                }
                if (error != null) {
                    LOG.warn("[{}] Compacted ledger {} is not offloaded yet, and stays in BookKeeper: {}",
                            topic, ledger.getId(), cause(error).getMessage());
                    again();
                } else if (leftMs <= 0) {
                    free();
                } else {
                    later(Math.min(leftMs, RETRY_MS_MAX));
                }
            });
        }

        private void again() {
            later(pauseMs);
            pauseMs = Math.min(2 * pauseMs, RETRY_MS_MAX);
        }

        /**
         * Has the ledger covered, and returns for how many ms it stays in BookKeeper then; STAYS: until policies change. Its
         * copy is verified at first, and before it is the only one.
         */
        private CompletableFuture<Long> ensure(LedgerOffloader ours) {
            if (ours == null || !automatic(ours.getOffloadPolicies())) {
                return CompletableFuture.completedFuture(STAYS);
            }
            Long set = ours.getOffloadPolicies().getManagedLedgerOffloadDeletionLagInMillis();
            long lagMs = set == null || set < 0 ? STAYS : set;
            boolean covered = coveredMs != NEVER;
            long leftMs = covered ? lagMs - (time.nowMs() - coveredMs) : lagMs;
            if (covered && leftMs > 0) {
                return CompletableFuture.completedFuture(leftMs);
            }
            return ours.offload(ledger.inBookKeeper(), uid(ledger.getId()), named(ours)).thenApply(nothing -> {
                coveredMs = covered ? coveredMs : time.nowMs();
                pauseMs = RETRY_MS;
                return leftMs;
            });
        }

        /** Readers have the ledger of the tier first; then BookKeeper's goes. */
        private void free() {
            ledger.toTier().thenCompose(handle -> isDone()
                            ? CompletableFuture.<Void>completedFuture(null)
                            : deletion.delete(ledger.getId()))
                    .whenComplete((nothing, error) -> {
                        if (isDone()) {
                            return;
                        }
                        if (error != null) {
                            LOG.warn("[{}] Compacted ledger {} is not deleted from BookKeeper yet: {}",
                                    topic, ledger.getId(), cause(error).getMessage());
                            again();
                            return;
                        }
                        stored.remove(ledger.getId(), this);
                        LOG.info("[{}] Compacted ledger {} is offloaded, and deleted from BookKeeper",
                                topic, ledger.getId());
                    });
        }
    }
}
