package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.SynchronizationContext;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import offloaderd.v1.Broker.OffloadedLedger;
import offloaderd.v1.Broker.ReadLedgerRequest;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Read.ReadResponse;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One stream of a ledger's entries, and the reads that wait for them in order.
 *
 * <p>Answers are asked for one by one: as long as a read waits, and ahead of the next one, first a single answer, and
 * twice as many whenever a read had to wait all the same, up to {@code readAheadBytes}, and as {@link ReadMemory} has
 * room. An answer goes as a whole, when its last entry does. A lane that nobody uses gives back all that it holds after
 * {@link ReadMemory#idle}. A stream that breaks begins again with the entry that is wanted next, until the oldest read
 * has waited for too long. A lane of which a read failed takes no more.
 *
 * <p>Everything is done in turns, one thing at a time, on threads of the driver: the broker's own only queue it, hold no
 * lock meanwhile, and what is thrown fails the reads.
 */
final class Lane {
    private static final Logger LOG = LoggerFactory.getLogger(Lane.class);
    private static final long PAUSE_MS = 100;
    private static final long PAUSE_MS_MAX = 2_000;
    private static final int AHEAD_MAX = 1 << 16;

    /** Whose lanes these are, and for how many reads of the handle they have to find entries. */
    record Source(
            Daemons daemons,
            Settings settings,
            Statistics stats,
            OffloadedLedger ledger,
            AtomicInteger pending) {}

    private final Source source;
    private final OffloadedLedger ledger;
    private final ReadMemory memory;
    private final long lastEntryId;
    private final SynchronizationContext turns = new SynchronizationContext((thread, error) -> failed(error));
    private volatile boolean over;
    private volatile long readyTo;

    // the rest is touched in turns only
    private final ArrayDeque<Waiting> reads = new ArrayDeque<>();
    private final Ahead ahead;
    private long next; // entry id of the first that lies ahead, or of what the stream gives then
    private boolean used;
    private int aheadAnswers = 1;
    private Stream stream;
    private Direct direct;
    private boolean throughDaemon;
    private long pauseMs = PAUSE_MS;
    private boolean paused;
    private String hindrance = "";
    private Future<?> watch;
    private boolean resting;
    private long usedNs = System.nanoTime();

    /** Makes a lane whose streams end with an entry. */
    Lane(Source source, long lastEntryId) {
        this.source = source;
        this.ledger = source.ledger;
        this.memory = source.daemons.memory();
        this.ahead = new Ahead(memory);
        this.lastEntryId = lastEntryId;
    }

    /** Says whether it takes no more reads. */
    boolean over() {
        return over;
    }

    /** Returns the id behind the last entry that is here, as far as anybody who is not in turn can tell. */
    long readyTo() {
        return readyTo;
    }

    /** Queues a read behind all others; it begins with the next {@link #go}. */
    CompletableFuture<LedgerEntries> read(long first, long last) {
        Waiting read = new Waiting(source, first, last);
        turns.executeLater(() -> begin(read));
        source.pending.incrementAndGet();
        return read.done;
    }

    /** Queues the end: no more reads, but those that wait get their entries, as a broker closes handles in use. */
    void close() {
        turns.executeLater(() -> {
            over = true;
            serve();
        });
    }

    /** Has a thread of the driver do what is queued. */
    void go() {
        try {
            source.daemons.workers().execute(turns::drain);
        } catch (Throwable error) { // no thread can be had
            turns.drain();
        }
    }

    private void begin(Waiting read) {
        if (used && read.last >= coming() && aheadAnswers < AHEAD_MAX) {
            aheadAnswers *= 2;
        }
        used = true;
        reads.add(read);
        watch();
        serve();
    }

    /** Gives the reads what is here, and asks for what is not. */
    void serve() {
        while (!reads.isEmpty()) {
            Waiting read = reads.peek();
            place(read.entries.wanted());
            ManagedLedgerException error = filled(read.entries);
            if (error == null && !read.entries.whole()) {
                break;
            }
            settle(reads.poll(), error);
        }
        if (watch != null && reads.isEmpty()) {
            watch.cancel(false);
            watch = null;
        }
        usedNs = System.nanoTime();
        if (over && reads.isEmpty()) {
            stop();
        } else {
            ask();
        }
        readyTo = coming();
        rest();
    }

    /** Gives a read what is here, and returns why that cannot be. */
    private ManagedLedgerException filled(Entries entries) {
        while (ahead.entries() > 0 && !entries.whole()) {
            ByteString payload = ahead.first();
            try {
                entries.add(next, payload);
            } catch (Throwable error) {
                return new ManagedLedgerException("cannot read ledger " + ledger.getLedgerId() + ": no memory for the "
                        + payload.size() + " bytes of entry " + next + ": " + error, error);
            }
            pass();
        }
        return null;
    }

    /** Makes an entry the next one: by skipping what lies before it here, or by another stream. */
    private void place(long entryId) {
        if (next <= entryId && entryId < coming()) {
            while (next < entryId) {
                pass();
            }
        } else if (next != entryId) {
            stop();
            next = entryId;
        }
    }

    private void pass() {
        ahead.pass();
        next++;
    }

    /** Returns the id of the entry that the stream gives next. */
    private long coming() {
        return next + ahead.entries();
    }

    /** Has the stream go on if somebody waits or there is room, and begin if somebody waits. */
    private void ask() {
        boolean wanted = !reads.isEmpty();
        if (direct != null) {
            direct.ask();
        } else if (stream == null) {
            if (wanted && !paused) {
                start();
            }
        } else if (!stream.asked && (wanted || roomAhead(Daemons.BATCH_BYTES, 0, 0))) {
            if (wanted) {
                memory.need(Daemons.BATCH_BYTES);
            }
            stream.held += Daemons.BATCH_BYTES;
            stream.asked = true;
            stream.call.request(1);
        }
    }

    private boolean roomAhead(long bytes, int underWay, long underWayBytes) {
        return coming() <= lastEntryId
                && ahead.untouched() + underWay < aheadAnswers
                && ahead.bytes() + underWayBytes < source.settings.readAheadBytes()
                && memory.take(bytes);
    }

    /** Takes memory for more from the bucket, from an entry on: as much as somebody waits for, and ahead if there is room. */
    boolean hasRoomFor(long entryId, long bytes, int underWay, long underWayBytes) {
        if (!reads.isEmpty() && entryId <= reads.getLast().last) {
            memory.need(bytes);
            return true;
        }
        return roomAhead(bytes, underWay, underWayBytes);
    }

    /** Does something in turn. */
    void inTurn(Runnable task) {
        turns.execute(task);
    }

    /** Adds what has come from the bucket, which begins with the entry that was coming; {@link #serve} is to follow. */
    void came(List<ByteString> payloads, long heapBytes) {
        ahead.add(payloads, heapBytes);
    }

    /** Goes on by streams alone. */
    void withoutBucket() {
        throughDaemon = true;
        endDirect();
        turns.executeLater(this::serve);
    }

    private void endDirect() {
        if (direct != null) {
            direct.end();
            direct = null;
        }
    }

    private void start() {
        if (source.settings.directReads() && !throughDaemon && coming() < lastEntryId
                && ledger.getBucket().isEmpty() && source.daemons.bucket().isUsable()) {
            direct = new Direct(this, source, coming(), lastEntryId);
            direct.ask();
            return;
        }
        Stream begun = new Stream();
        memory.need(begun.held);
        stream = begun;
        try {
            ReadLedgerRequest request = ReadLedgerRequest.newBuilder()
                    .setLedger(ledger)
                    .setFirstEntryId(coming())
                    .setLastEntryId(lastEntryId)
                    .setBatchBytes(Daemons.BATCH_BYTES)
                    .setFramed(true)
                    .build();
            source.daemons.ledgers(source.settings, source.settings.address()).readLedger(request, begun);
        } catch (Throwable error) { // a certificate that is none, an address that gRPC cannot use
            broken(begun, error);
        }
    }

    private void stop() {
        end("not wanted any more");
        endDirect();
        ahead.clear();
        readyTo = next;
    }

    private void end(String why) {
        Stream ended = stream;
        if (ended != null) {
            stream = null;
            memory.giveBack(ended.held);
            if (ended.call != null) {
                ended.call.cancel(why, null);
            }
        }
    }

    /** Gives everything back when nobody has used the lane for a while; a daemon has places for so many streams, too. */
    private void rest() {
        if (resting || (stream == null && direct == null && ahead.entries() == 0)) {
            return;
        }
        long leftNs = memory.idle().toNanos() - (System.nanoTime() - usedNs);
        if (leftNs <= 0 && reads.isEmpty()) {
            stop();
            aheadAnswers = 1;
            return;
        }
        resting = true;
        later(() -> {
            resting = false;
            rest();
        }, leftNs > 0 ? leftNs : memory.idle().toNanos());
    }

    /** Looks again when the oldest read will have waited for too long. */
    private void watch() {
        if (watch == null && !reads.isEmpty()) {
            watch = later(this::dropLate, Math.max(0, reads.element().leftNs()) + 1_000_000);
        }
    }

    private void dropLate() {
        watch = null;
        while (!reads.isEmpty() && reads.element().leftNs() <= 0) {
            settle(reads.poll(), Status.DEADLINE_EXCEEDED
                    .withDescription("no answer within " + source.settings.readTimeout().toSeconds() + " s" + hindrance)
                    .asException());
        }
        watch();
        serve();
    }

    private Future<?> later(Runnable task, long delayNs) {
        return source.daemons.later(() -> turns.execute(task), delayNs, TimeUnit.NANOSECONDS);
    }

    private void broken(Stream from, Throwable error) {
        if (stream != from) {
            return;
        }
        end("it cannot be used");
        if (!Failures.passes(error)) {
            failAll(error);
            stop();
            return;
        }
        LOG.info("[{}] Ledger {}: reading on from entry {} in {} ms, {}", ledger.getTopic(), ledger.getLedgerId(),
                coming(), pauseMs, Failures.told(error));
        hindrance = ", " + Failures.told(error);
        paused = true;
        later(() -> {
            paused = false;
            serve();
        }, TimeUnit.MILLISECONDS.toNanos(pauseMs));
        pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX);
    }

    /** What was thrown in a turn, whatever it is, leaves no read without an answer. */
    private void failed(Throwable error) {
        LOG.warn("[{}] Ledger {}: a stream is given up", ledger.getTopic(), ledger.getLedgerId(), error);
        over = true;
        try {
            stop();
        } finally {
            failAll(error);
        }
    }

    private void failAll(Throwable error) {
        while (!reads.isEmpty()) {
            settle(reads.poll(), error);
        }
    }

    private void settle(Waiting read, Throwable error) {
        if (error != null) {
            over = true;
            read.fail(error);
        } else if (!read.succeed()) {
            over = true;
        }
    }

    /** One call; what comes from one that was given up counts no more. */
    private final class Stream implements ClientResponseObserver<ReadLedgerRequest, ReadResponse> {
        private ClientCallStreamObserver<ReadLedgerRequest> call;
        private boolean asked = true;
        private long held = Daemons.WINDOW_BYTES + Daemons.BATCH_BYTES;

        @Override
        public void beforeStart(ClientCallStreamObserver<ReadLedgerRequest> started) {
            call = started;
            call.disableAutoRequestWithInitial(1);
        }

        @Override
        public void onNext(ReadResponse response) {
            turns.execute(() -> {
                if (stream == this) {
                    try {
                        take(response.getBatch(), Frames.payloads(response), response.getFrames().size());
                    } catch (StatusException wrong) {
                        broken(this, wrong);
                        return;
                    }
                    serve();
                }
            });
        }

        private void take(EntryBatch batch, List<ByteString> payloads, long framesBytes) throws StatusException {
            asked = false;
            held -= Daemons.BATCH_BYTES;
            memory.giveBack(Daemons.BATCH_BYTES);
            pauseMs = PAUSE_MS;
            hindrance = "";
            if (batch.getFirstEntryId() != coming() || batch.getLedgerId() != ledger.getLedgerId()) {
                throw Status.INTERNAL.withDescription("entry " + batch.getLedgerId() + ":" + batch.getFirstEntryId()
                        + " came where " + coming() + " was to").asException();
            }
            ahead.add(payloads, Math.max(framesBytes, batch.getSerializedSize()));
        }

        @Override
        public void onError(Throwable error) {
            turns.execute(() -> broken(this, error));
        }

        @Override
        public void onCompleted() {
            turns.execute(() -> {
                if (stream == this && coming() <= lastEntryId) {
                    broken(this, Status.INTERNAL
                            .withDescription("the daemon ended before the last entry").asException());
                } else if (stream == this) {
                    end("ended");
                }
            });
        }
    }
}
