package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.stub.StreamObserver;
import java.net.MalformedURLException;
import java.net.URI;
import java.net.URL;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.zip.CRC32C;
import offloaderd.v1.Broker.PlanLedgerResponse;
import offloaderd.v1.Broker.PlannedBlock;
import offloaderd.v1.Broker.ReadLedgerRequest;

/**
 * What a lane reads from the bucket itself: the daemon plans which bytes have the entries, and they are fetched by GETs of
 * several blocks, as many at a time as the lane has room for. Each block is checked by its checksum before an entry of it
 * is used. Anything that is not as it should be ends it, and the lane goes on by a stream from the daemon; where the daemon
 * plans no more, it does so behind what was planned.
 *
 * <p>All of it is done in the lane's turns.
 */
final class Direct {
    static final int GET_BYTES = 4 << 20;
    private static final int GETS_MAX = 8;
    private static final int PLAN_BYTES_MAX = 16 << 20;
    private static final int BLOCK_BYTES_MAX = 64 << 20;
    private static final Duration PATIENCE_MAX = Duration.ofSeconds(10);

    private record Planned(URL url, long untilNs, PlannedBlock block) {
        private long end() {
            return block.getFirstEntryId() + block.getEntries();
        }
    }

    private final Lane lane;
    private final Lane.Source source;
    private final long lastEntryId;
    private final Duration patience;
    private final ArrayDeque<Planned> planned = new ArrayDeque<>();
    private final ArrayDeque<Get> gets = new ArrayDeque<>();
    private long plannedBytes;
    private long heldBytes; // of memory, for all gets
    private long begin; // entry with which the planned blocks begin
    private long end; // entry behind the planned blocks
    private int planBytes = 2 * GET_BYTES;
    private boolean planning;
    private boolean plannedAll; // the daemon plans nothing behind these blocks
    private boolean ended;

    Direct(Lane lane, Lane.Source source, long first, long lastEntryId) {
        this.lane = lane;
        this.source = source;
        this.begin = first;
        this.end = first;
        this.lastEntryId = lastEntryId;
        Duration quarter = source.settings().readTimeout().dividedBy(4); // the rest of a read's time is the stream's
        this.patience = quarter.compareTo(PATIENCE_MAX) < 0 ? quarter : PATIENCE_MAX;
    }

    /** Fetches what somebody waits for, and ahead if there is room. */
    void ask() {
        while (!ended && !planned.isEmpty() && gets.size() < GETS_MAX) {
            if (planned.element().untilNs - System.nanoTime() <= 0) {
                if (planning) {
                    return; // of what follows these
                }
                planned.clear();
                plannedBytes = 0;
                end = begin;
                break;
            }
            Get get = new Get();
            if (!lane.hasRoomFor(begin, get.bytes, gets.size(), heldBytes)) {
                break;
            }
            heldBytes += get.bytes;
            gets.add(get);
            get.blocks.forEach(block -> planned.remove());
            plannedBytes -= get.bytes;
            begin = get.blocks.get(get.blocks.size() - 1).end();
            get.send();
        }
        if (ended || planning || end > lastEntryId) {
            return;
        }
        if (!plannedAll && plannedBytes < 2 * GET_BYTES) {
            plan();
        } else if (plannedAll && planned.isEmpty() && gets.isEmpty()) {
            lane.withoutBucket();
        }
    }

    /** Gives back what it holds. */
    void end() {
        ended = true;
        planned.clear();
        gets.forEach(Get::cancel);
        gets.clear();
        source.daemons().memory().giveBack(heldBytes);
        heldBytes = 0;
    }

    private void fail(String why) {
        if (!ended) {
            source.daemons().bucket().failed(
                    "[" + source.ledger().getTopic() + "] Ledger " + source.ledger().getLedgerId(), why);
            lane.withoutBucket();
        }
    }

    private void plan() {
        planning = true;
        ReadLedgerRequest request = ReadLedgerRequest.newBuilder()
                .setLedger(source.ledger())
                .setFirstEntryId(end)
                .setLastEntryId(lastEntryId)
                .setBatchBytes(planBytes)
                .build();
        planBytes = Math.min(2 * planBytes, PLAN_BYTES_MAX);
        try {
            source.daemons().ledgers(source.settings(), source.settings().address())
                    .withDeadlineAfter(patience.toMillis(), TimeUnit.MILLISECONDS)
                    .planLedger(request, new Plan());
        } catch (Throwable error) { // a certificate that is none, an address that gRPC cannot use
            unplanned(error);
        }
    }

    /** Leaves it to the stream to say what is wrong, unless the daemon has no such call. */
    private void unplanned(Throwable error) {
        if (Status.fromThrowable(error).getCode() == Status.Code.UNIMPLEMENTED) {
            fail(Failures.told(error));
            return;
        }
        planning = false;
        plannedAll = true;
        ask();
    }

    private final class Plan implements StreamObserver<PlanLedgerResponse> {
        private final long askedNs = System.nanoTime();

        @Override
        public void onNext(PlanLedgerResponse answer) {
            lane.inTurn(() -> take(answer, askedNs));
        }

        @Override
        public void onError(Throwable error) {
            lane.inTurn(() -> unplanned(error));
        }

        @Override
        public void onCompleted() {}
    }

    private void take(PlanLedgerResponse answer, long askedNs) {
        planning = false;
        if (ended) {
            return;
        }
        if (answer.getBlocksCount() == 0) {
            plannedAll = true;
            ask();
            return;
        }
        URL url = parsed(answer.getUrl());
        long untilNs = askedNs + TimeUnit.MILLISECONDS.toNanos(answer.getValidMs()) - patience.toNanos();
        for (PlannedBlock block : answer.getBlocksList()) {
            Planned one = new Planned(url, untilNs, block);
            if (url == null || untilNs - System.nanoTime() <= 0 || block.getFirstEntryId() > end || one.end() <= end || block.getOffset() < 0
                    || block.getLength() <= 0 || block.getLength() > BLOCK_BYTES_MAX
                    || block.getHeadBytes() < 0 || block.getHeadBytes() > block.getLength()) {
                fail("the daemon's plan for entry " + end + " cannot be used");
                return;
            }
            planned.add(one);
            plannedBytes += block.getLength();
            end = one.end();
        }
        ask();
    }

    private static URL parsed(String url) {
        try {
            return url.matches("https?://.*") ? URI.create(url).toURL() : null;
        } catch (IllegalArgumentException | MalformedURLException error) {
            return null;
        }
    }

    /** A GET of the next planned blocks that lie side by side. */
    private final class Get {
        private final List<Planned> blocks = new ArrayList<>();
        private final long first = begin;
        private int bytes;
        private byte[] body;
        private CompletableFuture<byte[]> call;

        private Get() {
            for (Planned one : planned) {
                PlannedBlock last = blocks.isEmpty() ? null : blocks.get(blocks.size() - 1).block;
                if (last != null && (one.url != blocks.get(0).url || bytes + one.block.getLength() > GET_BYTES
                        || one.block.getOffset() != last.getOffset() + last.getLength())) {
                    break;
                }
                blocks.add(one);
                bytes += one.block.getLength();
            }
        }

        private void send() {
            try {
                Planned begins = blocks.get(0);
                call = source.daemons().limited(
                        patience, () -> new TimeoutException("no answer within " + patience.toSeconds() + " s"));
                source.daemons().bucket().get(begins.url, begins.block.getOffset(), bytes, patience, call);
                call.whenCompleteAsync(
                        (found, error) -> lane.inTurn(() -> {
                            if (error == null) {
                                came(found);
                            } else {
                                fail(Failures.told(error));
                            }
                        }),
                        source.daemons().workers());
            } catch (Throwable error) { // no thread can be had, or the broker ends
                fail(Failures.told(error));
            }
        }

        private void cancel() {
            if (call != null) {
                call.cancel(false);
            }
        }

        private void came(byte[] found) {
            if (ended) {
                return;
            }
            body = found;
            try {
                while (!gets.isEmpty() && gets.element().body != null) {
                    Get next = gets.element();
                    List<ByteString> payloads = next.payloads();
                    source.daemons().bucket().succeeded();
                    gets.remove();
                    heldBytes -= next.bytes;
                    source.daemons().memory().giveBack(next.bytes);
                    lane.came(payloads, next.bytes);
                }
            } catch (Throwable wrong) {
                fail(Failures.told(wrong));
                return;
            }
            lane.serve();
        }

        private List<ByteString> payloads() throws StatusException {
            List<ByteString> found = new ArrayList<>();
            int at = 0;
            for (Planned one : blocks) {
                PlannedBlock block = one.block;
                CRC32C sum = new CRC32C();
                sum.update(body, at, block.getLength());
                if ((int) sum.getValue() != block.getCrc32C()) {
                    throw Frames.wrong("the block of entries " + block.getFirstEntryId() + " to " + (one.end() - 1)
                            + " has another checksum than it was stored with");
                }
                int head = block.getHeadBytes();
                ByteString frames = UnsafeByteOperations.unsafeWrap(body, at + head, block.getLength() - head);
                List<ByteString> whole = Frames.payloads(frames, block.getFirstEntryId(), block.getEntries());
                long from = Math.max(0, first + found.size() - block.getFirstEntryId());
                long to = Math.min(whole.size(), lastEntryId + 1 - block.getFirstEntryId());
                found.addAll(whole.subList((int) from, (int) to));
                at += block.getLength();
            }
            return found;
        }
    }
}
