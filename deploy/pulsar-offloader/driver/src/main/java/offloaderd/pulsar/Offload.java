package offloaderd.pulsar;

import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import offloaderd.v1.Broker.EnsureLedgerRequest;
import offloaderd.v1.Broker.EnsureLedgerResponse;
import offloaderd.v1.Broker.EnsureState;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One closed ledger on its way: asks the daemon until it says that all of it is in the bucket and verified, goes to the
 * topic's owner, and pushes what the daemon cannot read. Whatever happens in between, asking again goes on with it.
 *
 * <p>A ledger that waits holds no call: the daemon answers within {@link #WAIT_MS}, and is asked again by a timer. Of a
 * broker only so many ledgers ask or push at the same time ({@link Daemons}), those that are new first: mostly their
 * data is there already. Whatever is thrown, on whichever thread, fails the offload, and so does the end of its time,
 * whatever it waits for: a place, an answer, a callback that never comes. Then what runs is stopped and its place is
 * another's. The broker repeats it.
 */
final class Offload {
    private static final Logger LOG = LoggerFactory.getLogger(Offload.class);
    private static final int WAIT_MS = 1_000;
    private static final long PAUSE_MS = 200;
    private static final long PAUSE_MS_MAX = 5_000;

    private final Daemons daemons;
    private final Settings settings;
    private final ReadHandle ledger;
    private final String topic;
    private final Statistics stats;
    private final CompletableFuture<Integer> done;
    private volatile String hindrance = "the daemon did not say why";
    private volatile Runnable stop = () -> { };
    private String address;
    private long pauseMs = PAUSE_MS;

    Offload(Daemons daemons, Settings settings, ReadHandle ledger, String topic, Statistics stats) {
        this.daemons = daemons;
        this.settings = settings;
        this.ledger = ledger;
        this.topic = topic;
        this.stats = stats;
        this.address = settings.address();
        this.done = daemons.limited(settings.offloadTimeout(), this::late);
    }

    /** Begins; the answer is how many segments hold the ledger. */
    CompletableFuture<Integer> run() {
        CompletableFuture<Integer> ended = done.whenComplete((segments, error) -> stop.run());
        ask(true);
        return ended;
    }

    private ManagedLedgerException late() {
        return new ManagedLedgerException(
                "not offloaded within " + settings.offloadTimeout().toSeconds() + " s: " + hindrance);
    }

    /** Runs what nobody else would hear of if it threw. */
    private void guarded(Runnable step) {
        try {
            step.run();
        } catch (Throwable error) {
            LOG.warn("[{}] Ledger {}: the offload is given up", topic, ledger.getId(), error);
            done.completeExceptionally(error);
        }
    }

    private void ask(boolean first) {
        guarded(() -> daemons.asking().take(this::call, first));
    }

    private void call() {
        Reports reports = new Reports();
        try {
            if (done.isDone()) {
                reports.end(() -> { });
                return;
            }
            EnsureLedgerRequest request = EnsureLedgerRequest.newBuilder()
                    .setTopic(topic)
                    .setLedgerId(ledger.getId())
                    .setLastEntryId(ledger.getLastAddConfirmed())
                    .setLengthBytes(ledger.getLength())
                    .setWaitMs(WAIT_MS)
                    .build();
            stop = reports::cancel;
            daemons.offloads(settings, address).ensureLedger(request, reports);
            if (done.isDone()) { // before there was anything to cancel
                reports.cancel();
            }
        } catch (Throwable error) {
            done.completeExceptionally(error);
            reports.end(() -> { });
        }
    }

    private void again(String address) {
        this.address = address;
        long pause = pauseMs;
        pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX);
        daemons.later(() -> ask(false), pause, TimeUnit.MILLISECONDS);
    }

    private void failed(Throwable error) {
        if (done.isDone()) {
            return;
        }
        if (Failures.passes(error)) {
            hindrance = Failures.told(error);
            LOG.info("[{}] Ledger {}: asking again, {}", topic, ledger.getId(), hindrance);
            again(settings.address());
        } else {
            done.completeExceptionally(error);
        }
    }

    private void react(EnsureLedgerResponse last) {
        switch (last.getState()) {
            case ENSURE_STATE_COVERED -> done.complete(last.getSegments());
            case ENSURE_STATE_ELSEWHERE -> {
                String owner = last.getOwnerAddress();
                if (address.equals(settings.address()) && !address.equals(owner)) {
                    address = owner;
                    ask(true);
                } else {
                    again(settings.address());
                }
            }
            case ENSURE_STATE_PUSH -> daemons.pushing().take(this::push, false);
            default -> again(address);
        }
    }

    private void push() {
        CompletableFuture<Void> pushed;
        try {
            if (done.isDone()) {
                daemons.pushing().done();
                return;
            }
            Push push = new Push(
                    daemons, daemons.pushes(settings, address), ledger, topic, stats, settings.callTimeout());
            stop = push::stop;
            pushed = push.run();
            if (done.isDone()) { // before there was anything to stop
                push.stop();
            }
        } catch (Throwable error) {
            pushed = CompletableFuture.failedFuture(new ManagedLedgerException(error));
        }
        pushed.whenComplete((nothing, error) -> {
            daemons.pushing().done();
            guarded(() -> {
                if (error == null) {
                    pauseMs = PAUSE_MS;
                    ask(true);
                } else {
                    failed(error);
                }
            });
        });
    }

    /** What the daemon tells of one call; the last report says what to do. Ends once, and gives its place back then. */
    private final class Reports implements ClientResponseObserver<EnsureLedgerRequest, EnsureLedgerResponse> {
        private final AtomicBoolean over = new AtomicBoolean();
        private final long beganNs = System.nanoTime();
        private volatile ClientCallStreamObserver<EnsureLedgerRequest> call;
        private EnsureLedgerResponse last = EnsureLedgerResponse.getDefaultInstance();

        /** Ends the call if there is one, and so gives its place back. */
        void cancel() {
            ClientCallStreamObserver<EnsureLedgerRequest> open = call;
            if (open != null) {
                open.cancel("the offload has ended", null);
            }
        }

        void end(Runnable next) {
            if (over.compareAndSet(false, true)) {
                daemons.asking().done();
                guarded(next);
            }
        }

        @Override
        public void beforeStart(ClientCallStreamObserver<EnsureLedgerRequest> started) {
            call = started;
        }

        @Override
        public void onNext(EnsureLedgerResponse report) {
            last = report;
            if (!report.getMessage().isEmpty()) {
                hindrance = report.getMessage();
            }
            boolean held = System.nanoTime() - beganNs > TimeUnit.MILLISECONDS.toNanos(2 * WAIT_MS);
            if (held && report.getState() == EnsureState.ENSURE_STATE_WAITING) { // a daemon of an older version
                end(() -> again(address));
                call.cancel("the ledger will be asked for again", null);
            }
        }

        @Override
        public void onError(Throwable error) {
            end(() -> failed(error));
        }

        @Override
        public void onCompleted() {
            end(() -> react(last));
        }
    }
}
