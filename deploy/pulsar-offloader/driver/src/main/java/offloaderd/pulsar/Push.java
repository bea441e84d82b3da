package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.time.Duration;
import java.util.ArrayDeque;
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
 * Pushes those entries of a closed ledger that the daemon has not got: some are read while others are on their way, and
 * the daemon holds both back by answering late.
 *
 * <p>A message has {@link #BATCH_BYTES} at most, or one entry, and four of them are on their way at most. BookKeeper is
 * asked for no more entries than would make a message if all were as large as the largest so far; how large they are
 * is known only when they have come, so that is never more than {@link #ENTRIES_MAX}, as with Pulsar's own offloader.
 */
final class Push implements ClientResponseObserver<StreamingOffloadRequest, StreamingOffloadResponse> {
    static final int BATCH_BYTES = 1 << 20;
    private static final int ENTRIES_MAX = 100;
    private static final int UNANSWERED_MAX = 4;

    private final Daemons daemons;
    private final OffloadServiceStub stub;
    private final ReadHandle ledger;
    private final String topic;
    private final Statistics stats;
    private final Duration patience;
    private final CompletableFuture<Void> pushed = new CompletableFuture<>();
    /** What was read and not sent yet. */
    private final ArrayDeque<EntryBatch> ready = new ArrayDeque<>();
    private volatile ClientCallStreamObserver<StreamingOffloadRequest> call;
    private boolean opened;
    private boolean reading;
    private long next; // the entry to be read next
    private int count = 1; // entries to be read at once
    private int largest; // bytes of an entry
    private long largestId;
    private int unanswered;

    Push(
            Daemons daemons,
            OffloadServiceStub stub,
            ReadHandle ledger,
            String topic,
            Statistics stats,
            Duration patience) {
        this.daemons = daemons;
        this.stub = stub;
        this.ledger = ledger;
        this.topic = topic;
        this.stats = stats;
        this.patience = patience;
    }

    /** Begins; done when the daemon has taken the last entry, and the stream ends. */
    CompletableFuture<Void> run() {
        guarded(() -> {
            stub.streamingOffload(this);
            if (pushed.isDone()) { // stopped before there was a stream
                call.cancel("given up", null);
                return;
            }
            call.onNext(StreamingOffloadRequest.newBuilder()
                    .setOpen(StreamingOffloadRequest.Open.newBuilder().setTopic(topic))
                    .build());
        });
        return pushed;
    }

    /** Ends the stream if it has not ended. */
    void stop() {
        end(Status.CANCELLED.withDescription("the push was given up").asException());
    }

    private void end(Throwable error) {
        boolean now = error == null ? pushed.complete(null) : pushed.completeExceptionally(error);
        ClientCallStreamObserver<StreamingOffloadRequest> open = call;
        if (now && open != null) {
            open.cancel("the ledger is pushed, or given up", null);
        }
    }

    private interface Step {
        void run() throws ManagedLedgerException;
    }

    private void guarded(Step step) {
        try {
            step.run();
        } catch (Throwable error) {
            end(error instanceof ManagedLedgerException ? error : new ManagedLedgerException(error));
        }
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<StreamingOffloadRequest> stream) {
        call = stream;
    }

    @Override
    public void onNext(StreamingOffloadResponse response) {
        guarded(() -> {
            switch (response.getResponseCase()) {
                case OPENED -> begin(response.getOpened().getLastOffered(), response.getOpened().hasLastOffered());
                case OFFERED -> answered(response.getOffered());
                default -> { } // the offloaded position: whoever asked for the push asks for that as well
            }
        });
    }

    private void begin(Position last, boolean known) throws ManagedLedgerException {
        if (known && last.getLedgerId() > ledger.getId()) {
            throw new ManagedLedgerException("the daemon has entries of later ledgers (" + last.getLedgerId() + ":"
                    + last.getEntryId() + ") and not all of ledger " + ledger.getId()
                    + ": what lies between would be out of order; see docs/stock-broker.md");
        }
        synchronized (this) {
            next = known && last.getLedgerId() == ledger.getId() ? last.getEntryId() + 1 : 0;
            opened = true;
        }
        goOn();
    }

    private void answered(StreamingOffloadResponse.Offered offered) {
        if (offered.getResult() != OfferResult.OFFER_RESULT_ACCEPTED) {
            end(Status.UNAVAILABLE.withDescription("the daemon takes no entries: " + offered.getMessage()).asException());
            return;
        }
        synchronized (this) {
            unanswered--;
        }
        goOn();
    }

    /** Sends what is ready and may be sent, reads what may be read; ends when there is no more of either. */
    private void goOn() {
        boolean all;
        synchronized (this) {
            while (!ready.isEmpty() && unanswered < UNANSWERED_MAX && !pushed.isDone()) {
                call.onNext(StreamingOffloadRequest.newBuilder().setBatch(ready.poll()).build());
                unanswered++;
            }
            all = opened && !reading && ready.isEmpty() && unanswered == 0 && next > ledger.getLastAddConfirmed();
            if (opened && !reading && ready.isEmpty() && !all && next <= ledger.getLastAddConfirmed()) {
                reading = true;
                read(next, Math.min(next + count - 1, ledger.getLastAddConfirmed()));
            }
        }
        if (all) {
            end(null);
        }
    }

    /** Reads a range. What comes after the time was up is released here: nobody else has it. */
    private void read(long first, long last) {
        CompletableFuture<LedgerEntries> awaited = daemons.limited(patience, () -> Status.DEADLINE_EXCEEDED
                .withDescription("BookKeeper gave no entries within " + patience.toSeconds() + " s")
                .asException());
        long began = System.nanoTime();
        awaited.whenComplete((entries, error) -> guarded(() -> {
            if (error != null) {
                end(error);
                return;
            }
            try (entries) {
                stats.count(one -> one.recordReadLedgerLatency(topic, System.nanoTime() - began, TimeUnit.NANOSECONDS));
                take(entries);
            }
            goOn();
        }));
        ledger.readAsync(first, last).whenComplete((entries, error) -> {
            boolean late = error != null ? !awaited.completeExceptionally(error) : !awaited.complete(entries);
            if (late && entries != null) {
                entries.close();
            }
        });
    }

    private synchronized void take(LedgerEntries entries) throws ManagedLedgerException {
        EntryBatch.Builder batch = null;
        int bytes = 0;
        for (LedgerEntry entry : entries) {
            if (entry.getEntryId() != next) {
                throw new ManagedLedgerException("BookKeeper gave entry " + entry.getEntryId() + " of ledger "
                        + ledger.getId() + " where entry " + next + " was to come");
            }
            int length = Math.toIntExact(entry.getLength());
            if (batch != null && bytes + length > BATCH_BYTES) {
                ready.add(batch.build());
                batch = null;
            }
            if (batch == null) {
                batch = EntryBatch.newBuilder().setLedgerId(ledger.getId()).setFirstEntryId(next);
                bytes = 0;
            }
            batch.addPayloads(ByteString.copyFrom(entry.getEntryNioBuffer()));
            bytes += length;
            if (length > largest) {
                largest = length;
                largestId = next;
            }
            next++;
        }
        if (batch != null) {
            ready.add(batch.build());
        }
        count = Math.max(1, Math.min(Math.min(2 * count, ENTRIES_MAX), BATCH_BYTES / Math.max(1, largest)));
        reading = false;
    }

    @Override
    public void onError(Throwable error) {
        guarded(() -> end(refused(error)));
    }

    /** Says which entry no daemon will ever take, and would be sent again and again. */
    private synchronized Throwable refused(Throwable error) {
        return Failures.tooLarge(error) && largest > BATCH_BYTES
                ? new ManagedLedgerException("entry " + ledger.getId() + ":" + largestId + " has " + largest
                        + " bytes, more than the daemon takes in a message (grpc.message_bytes_max): "
                        + Failures.told(error))
                : error;
    }

    @Override
    public void onCompleted() {
        end(Status.UNAVAILABLE.withDescription("the daemon ended the push").asException());
    }
}
