package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Common.Position;
import offloaderd.v1.Offload.OfferResult;
import offloaderd.v1.Offload.StreamingOffloadRequest;
import offloaderd.v1.Offload.StreamingOffloadResponse;
import offloaderd.v1.OffloadServiceGrpc.OffloadServiceStub;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.mledger.ManagedLedgerException;

/**
 * Pushes those entries of a closed ledger that the daemon has not got: one batch is read while another is on its way, and
 * the daemon holds it back by answering late.
 */
final class Push implements ClientResponseObserver<StreamingOffloadRequest, StreamingOffloadResponse> {
    private static final int BATCH_BYTES = 1 << 20;
    private static final int ENTRIES_MAX = 5_000;
    private static final int UNANSWERED_MAX = 4;

    private final OffloadServiceStub stub;
    private final ReadHandle ledger;
    private final String topic;
    private final Duration patience;
    private final CompletableFuture<Void> pushed = new CompletableFuture<>();
    private ClientCallStreamObserver<StreamingOffloadRequest> call;
    private long next = -1;
    private int unanswered;
    private boolean reading;
    private boolean ended;

    Push(OffloadServiceStub stub, ReadHandle ledger, String topic, Duration patience) {
        this.stub = stub;
        this.ledger = ledger;
        this.topic = topic;
        this.patience = patience;
    }

    /** Begins; done when the daemon has taken the last entry. The stream stays open until {@link #stop}. */
    CompletableFuture<Void> run() {
        stub.streamingOffload(this);
        call.onNext(StreamingOffloadRequest.newBuilder()
                .setOpen(StreamingOffloadRequest.Open.newBuilder().setTopic(topic))
                .build());
        return pushed;
    }

    /** Ends the stream, whatever has become of it. */
    void stop() {
        call.cancel("the ledger is offloaded, or given up", null);
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<StreamingOffloadRequest> stream) {
        call = stream;
    }

    @Override
    public void onNext(StreamingOffloadResponse response) {
        try {
            switch (response.getResponseCase()) {
                case OPENED -> begin(response.getOpened().getLastOffered(), response.getOpened().hasLastOffered());
                case OFFERED -> answered(response.getOffered());
                default -> { } // the offloaded position: whoever asked for the push asks for that as well
            }
        } catch (ManagedLedgerException error) {
            fail(error);
        }
    }

    private synchronized void begin(Position last, boolean known) throws ManagedLedgerException {
        if (known && last.getLedgerId() > ledger.getId()) {
            throw new ManagedLedgerException("the daemon has entries of later ledgers (" + last.getLedgerId() + ":"
                    + last.getEntryId() + ") and not all of ledger " + ledger.getId()
                    + ": what lies between would be out of order; see docs/stock-broker.md");
        }
        next = known && last.getLedgerId() == ledger.getId() ? last.getEntryId() + 1 : 0;
        readOn();
    }

    private synchronized void answered(StreamingOffloadResponse.Offered offered) {
        if (offered.getResult() != OfferResult.OFFER_RESULT_ACCEPTED) {
            fail(Status.UNAVAILABLE.withDescription("the daemon takes no entries: " + offered.getMessage()).asException());
            return;
        }
        unanswered--;
        readOn();
    }

    private void readOn() {
        if (next > ledger.getLastAddConfirmed()) {
            if (unanswered == 0 && !ended) {
                ended = true;
                call.onNext(StreamingOffloadRequest.newBuilder()
                        .setLedgerClosed(StreamingOffloadRequest.LedgerClosed.newBuilder()
                                .setLedgerId(ledger.getId())
                                .setLastEntryId(ledger.getLastAddConfirmed())
                                .setClosedMs(System.currentTimeMillis()))
                        .build());
                pushed.complete(null);
            }
            return;
        }
        if (reading || unanswered >= UNANSWERED_MAX) {
            return;
        }
        reading = true;
        long average = Math.max(1, ledger.getLength() / (ledger.getLastAddConfirmed() + 1));
        long count = Math.max(1, Math.min(ENTRIES_MAX, BATCH_BYTES / average));
        ledger.readAsync(next, Math.min(next + count - 1, ledger.getLastAddConfirmed()))
                .orTimeout(patience.toMillis(), TimeUnit.MILLISECONDS)
                .whenComplete((entries, error) -> {
                    if (error != null) {
                        fail(error);
                    } else {
                        send(entries);
                    }
                });
    }

    private synchronized void send(LedgerEntries entries) {
        EntryBatch.Builder batch = EntryBatch.newBuilder().setLedgerId(ledger.getId()).setFirstEntryId(next);
        try (entries) {
            for (LedgerEntry entry : entries) {
                batch.addPayloads(ByteString.copyFrom(entry.getEntryNioBuffer()));
            }
        }
        call.onNext(StreamingOffloadRequest.newBuilder().setBatch(batch).build());
        next += batch.getPayloadsCount();
        unanswered++;
        reading = false;
        readOn();
    }

    private void fail(Throwable error) {
        pushed.completeExceptionally(error);
        stop();
    }

    @Override
    public void onError(Throwable error) {
        pushed.completeExceptionally(error);
    }

    @Override
    public void onCompleted() {
        pushed.completeExceptionally(Status.UNAVAILABLE.withDescription("the daemon ended the push").asException());
    }
}
