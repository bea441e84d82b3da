package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import offloaderd.v1.Broker.OffloadedLedger;
import offloaderd.v1.Broker.ReadLedgerRequest;
import offloaderd.v1.Common.EntryBatch;
import offloaderd.v1.Read.ReadResponse;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One stream of a ledger's entries, and the reads that wait for them in order.
 *
 * <p>Answers are asked for one by one, as long as no more than {@code readAheadBytes} lie here, and only as they are wanted
 * behind a read of a single entry, which looks something up. An answer of frames goes as a whole, when its last entry
 * does. A reader that stops holds nothing but its own stream, and that one ends after {@link #IDLE_S}. A stream that
 * breaks begins again with the entry that is wanted next, until the oldest read has waited for too long.
 */
final class Lane {
    private static final Logger LOG = LoggerFactory.getLogger(Lane.class);
    private static final long IDLE_S = 10;
    private static final long PAUSE_MS = 100;
    private static final long PAUSE_MS_MAX = 2_000;

    private final Daemons daemons;
    private final Settings settings;
    private final OffloadedLedger ledger;
    private final long lastEntryId;
    private final ArrayDeque<Waiting> reads = new ArrayDeque<>();
    private final ArrayDeque<ByteString> ahead = new ArrayDeque<>();
    private long aheadBytes;
    private boolean single; // the last read was of one entry
    private long next; // entry id of the first in `ahead`, or of what the stream gives then
    private Stream stream;
    private long pauseMs = PAUSE_MS;
    private boolean paused;
    private boolean watched;
    private long usedNs = System.nanoTime();
    private boolean closed;

    private final class Waiting {
        final long first;
        final long last;
        final long deadlineNs = System.nanoTime() + settings.readTimeout().toNanos();
        final Entries entries = new Entries(ledger.getLedgerId());
        final CompletableFuture<Entries> done = new CompletableFuture<>();
        long wanted;

        Waiting(long first, long last) {
            this.first = first;
            this.last = last;
            this.wanted = first;
        }
    }

    Lane(Daemons daemons, Settings settings, OffloadedLedger ledger, long lastEntryId) {
        this.daemons = daemons;
        this.settings = settings;
        this.ledger = ledger;
        this.lastEntryId = lastEntryId;
    }

    /** Says how many reads have not got all of their entries. */
    synchronized int waiting() {
        return reads.size();
    }

    /** Says whether the stream comes to an entry without beginning anew. */
    synchronized boolean leadsTo(long entryId) {
        if (!reads.isEmpty()) {
            return reads.peekLast().last + 1 == entryId;
        }
        return next == entryId ? stream != null || !ahead.isEmpty() : next < entryId && entryId < next + ahead.size();
    }

    /** Reads a range behind all those that wait here. */
    CompletableFuture<Entries> read(long first, long last) {
        Waiting read = new Waiting(first, last);
        synchronized (this) {
            if (closed) {
                return CompletableFuture.failedFuture(new ManagedLedgerException.OffloadReadHandleClosedException());
            }
            reads.add(read);
            watch();
        }
        serve();
        return read.done;
    }

    /** Takes no more reads; those that wait get their entries, as a broker closes handles that are being read. */
    synchronized void close() {
        closed = true;
        if (reads.isEmpty()) {
            stop();
        }
    }

    /** Gives the reads what is here, and asks for what is not. Futures are completed outside the lock. */
    private void serve() {
        List<Waiting> served = new ArrayList<>();
        synchronized (this) {
            while (!reads.isEmpty()) {
                Waiting read = reads.peek();
                place(read.wanted);
                while (!ahead.isEmpty() && read.wanted <= read.last) {
                    read.entries.add(read.wanted++, taken());
                }
                if (read.wanted <= read.last) {
                    break;
                }
                single = read.first == read.last;
                served.add(reads.poll());
            }
            usedNs = System.nanoTime();
            if (closed && reads.isEmpty()) {
                stop();
            } else {
                ask();
            }
        }
        for (Waiting read : served) {
            if (!read.done.complete(read.entries)) {
                read.entries.release();
            }
        }
    }

    /** Makes an entry the next one: by skipping what lies before it here, or by another stream. */
    private void place(long entryId) {
        if (next <= entryId && entryId < next + ahead.size()) {
            while (next < entryId) {
                taken();
            }
        } else if (next != entryId) {
            stop();
            next = entryId;
        }
    }

    private ByteString taken() {
        ByteString payload = ahead.poll();
        aheadBytes -= payload.size();
        next++;
        return payload;
    }

    /** Has the stream go on if somebody waits or there is room, and begin if somebody waits. */
    private void ask() {
        boolean wanted = !reads.isEmpty();
        if (stream == null && wanted && !paused) {
            stream = new Stream();
            ReadLedgerRequest request = ReadLedgerRequest.newBuilder()
                    .setLedger(ledger)
                    .setFirstEntryId(next + ahead.size())
                    .setLastEntryId(lastEntryId)
                    .setBatchBytes(Daemons.BATCH_BYTES)
                    .setFramed(true)
                    .build();
            daemons.ledgers(settings, settings.address()).readLedger(request, stream);
        } else if (stream != null && !stream.asked && (wanted || (!single && aheadBytes < settings.readAheadBytes()))) {
            stream.asked = true;
            stream.call.request(1);
        }
    }

    private void stop() {
        if (stream != null) {
            stream.call.cancel("not wanted any more", null);
            stream = null;
        }
        ahead.clear();
        aheadBytes = 0;
    }

    /** Ends a stream that nobody has used for a while: the daemon has places for so many. */
    private synchronized void rest(Stream idle) {
        if (stream != idle) {
            return;
        }
        long leftNs = TimeUnit.SECONDS.toNanos(IDLE_S) - (System.nanoTime() - usedNs);
        if (reads.isEmpty() && leftNs <= 0) {
            stream.call.cancel("nobody reads on", null);
            stream = null;
        } else {
            long pauseNs = Math.max(leftNs, TimeUnit.SECONDS.toNanos(1));
            daemons.timer().schedule(() -> rest(idle), pauseNs, TimeUnit.NANOSECONDS);
        }
    }

    /** Looks again when the oldest read will have waited for too long. */
    private void watch() {
        if (!watched && !reads.isEmpty()) {
            watched = true;
            long leftNs = Math.max(0, reads.peek().deadlineNs - System.nanoTime());
            daemons.timer().schedule(this::dropLate, leftNs + 1_000_000, TimeUnit.NANOSECONDS);
        }
    }

    private void dropLate() {
        List<Waiting> late = new ArrayList<>();
        synchronized (this) {
            watched = false;
            while (!reads.isEmpty() && reads.peek().deadlineNs - System.nanoTime() <= 0) {
                late.add(reads.poll());
            }
            if (!late.isEmpty() && reads.isEmpty()) {
                stop();
            }
            watch();
        }
        fail(late, Status.DEADLINE_EXCEEDED
                .withDescription("no answer within " + settings.readTimeout().toSeconds() + " s")
                .asException());
        if (!late.isEmpty()) {
            serve();
        }
    }

    private void broken(Stream from, Throwable error) {
        List<Waiting> failed = List.of();
        synchronized (this) {
            if (stream != from) {
                return;
            }
            stream = null;
            if (Failures.passes(error)) {
                LOG.info("[{}] Ledger {}: reading on from entry {} in {} ms, {}", ledger.getTopic(),
                        ledger.getLedgerId(), next + ahead.size(), pauseMs, Failures.told(error));
                paused = true;
                daemons.timer().schedule(this::resume, pauseMs, TimeUnit.MILLISECONDS);
                pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX);
            } else {
                failed = new ArrayList<>(reads);
                reads.clear();
            }
        }
        fail(failed, error);
    }

    private void resume() {
        synchronized (this) {
            paused = false;
        }
        serve();
    }

    private static void fail(List<Waiting> reads, Throwable error) {
        for (Waiting read : reads) {
            read.entries.release();
            read.done.completeExceptionally(error);
        }
    }

    /** One call; what comes from one that was given up counts no more. */
    private final class Stream implements ClientResponseObserver<ReadLedgerRequest, ReadResponse> {
        private ClientCallStreamObserver<ReadLedgerRequest> call;
        private boolean asked = true;

        @Override
        public void beforeStart(ClientCallStreamObserver<ReadLedgerRequest> started) {
            call = started;
            call.disableAutoRequestWithInitial(1);
            daemons.timer().schedule(() -> rest(this), IDLE_S, TimeUnit.SECONDS);
        }

        @Override
        public void onNext(ReadResponse response) {
            try {
                take(response.getBatch(), Frames.payloads(response));
            } catch (StatusException wrong) {
                call.cancel("out of order", null);
                broken(this, wrong);
                return;
            }
            serve();
        }

        private void take(EntryBatch batch, List<ByteString> payloads) throws StatusException {
            synchronized (Lane.this) {
                if (stream != this) {
                    return;
                }
                asked = false;
                pauseMs = PAUSE_MS;
                if (batch.getFirstEntryId() != next + ahead.size() || batch.getLedgerId() != ledger.getLedgerId()) {
                    throw Status.INTERNAL.withDescription("entry " + batch.getLedgerId() + ":"
                            + batch.getFirstEntryId() + " came where " + (next + ahead.size()) + " was to").asException();
                }
                for (ByteString payload : payloads) {
                    ahead.add(payload);
                    aheadBytes += payload.size();
                }
            }
        }

        @Override
        public void onError(Throwable error) {
            broken(this, error);
        }

        @Override
        public void onCompleted() {
            boolean early;
            synchronized (Lane.this) {
                early = stream == this && next + ahead.size() <= lastEntryId;
                if (stream == this && !early) {
                    stream = null;
                }
            }
            if (early) {
                broken(this, Status.INTERNAL.withDescription("the daemon ended before the last entry").asException());
            }
        }
    }
}
