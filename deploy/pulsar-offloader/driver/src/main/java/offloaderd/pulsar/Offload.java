package offloaderd.pulsar;

import io.grpc.stub.StreamObserver;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.Broker.EnsureLedgerRequest;
import offloaderd.v1.Broker.EnsureLedgerResponse;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One closed ledger on its way: asks the daemon until it says that all of it is in the bucket and verified, goes to the
 * topic's owner, and pushes what the daemon cannot read. Whatever happens in between, asking again goes on with it.
 */
final class Offload {
    private static final Logger LOG = LoggerFactory.getLogger(Offload.class);
    private static final long PAUSE_MS = 200;
    private static final long PAUSE_MS_MAX = 5_000;

    private final Daemons daemons;
    private final Settings settings;
    private final ReadHandle ledger;
    private final String topic;
    private final long deadlineNs;
    private final CompletableFuture<Integer> done = new CompletableFuture<>();
    private String address;
    private long pauseMs = PAUSE_MS;
    private Push push;

    Offload(Daemons daemons, Settings settings, ReadHandle ledger, String topic) {
        this.daemons = daemons;
        this.settings = settings;
        this.ledger = ledger;
        this.topic = topic;
        this.address = settings.address();
        this.deadlineNs = System.nanoTime() + settings.offloadTimeout().toNanos();
    }

    /** Begins; the answer is how many segments hold the ledger. */
    CompletableFuture<Integer> run() {
        ask();
        return done.whenComplete((segments, error) -> {
            if (push != null) {
                push.stop();
            }
        });
    }

    private void ask() {
        EnsureLedgerRequest request = EnsureLedgerRequest.newBuilder()
                .setTopic(topic)
                .setLedgerId(ledger.getId())
                .setLastEntryId(ledger.getLastAddConfirmed())
                .setLengthBytes(ledger.getLength())
                .build();
        long leftNs = deadlineNs - System.nanoTime();
        if (leftNs <= 0) {
            done.completeExceptionally(new ManagedLedgerException(
                    "not offloaded within " + settings.offloadTimeout().toSeconds() + " s: " + hindrance));
            return;
        }
        daemons.ledgers(settings, address)
                .withDeadlineAfter(leftNs, TimeUnit.NANOSECONDS)
                .ensureLedger(request, new Reports());
    }

    private volatile String hindrance = "the daemon did not say why";

    private void again(String address) {
        this.address = address;
        long pause = pauseMs;
        pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX);
        daemons.timer().schedule(this::ask, pause, TimeUnit.MILLISECONDS);
    }

    private void failed(Throwable error) {
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
                    ask();
                } else {
                    again(settings.address());
                }
            }
            case ENSURE_STATE_PUSH -> {
                if (push != null) {
                    push.stop();
                }
                push = new Push(daemons.pushes(settings, address), ledger, topic, settings.callTimeout());
                push.run().whenComplete((pushed, error) -> {
                    if (error == null) {
                        pauseMs = PAUSE_MS;
                        ask();
                    } else {
                        failed(error);
                    }
                });
            }
            default -> again(address);
        }
    }

    /** What the daemon tells of one call; the last report says what to do. */
    private final class Reports implements StreamObserver<EnsureLedgerResponse> {
        private EnsureLedgerResponse last = EnsureLedgerResponse.getDefaultInstance();

        @Override
        public void onNext(EnsureLedgerResponse report) {
            last = report;
            if (!report.getMessage().isEmpty()) {
                hindrance = report.getMessage();
            }
        }

        @Override
        public void onError(Throwable error) {
            failed(error);
        }

        @Override
        public void onCompleted() {
            react(last);
        }
    }
}
