package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.ByteString;
import io.netty.buffer.AbstractByteBufAllocator;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.junit.After;
import org.junit.Rule;
import org.junit.Test;

/** A broker that is short of direct memory: a read gives all of its entries or fails, and holds nothing then. */
public class ShortMemoryTest {
    private static final int READ = 20;

    @Rule
    public final ReadDaemon daemon = new ReadDaemon();

    private final Scarce allocator = new Scarce();
    private final Daemons daemons = new Daemons(new ReadMemory(allocator, Duration.ofSeconds(10)));

    /** Fails at one of its calls, as an allocator whose arena is exhausted. */
    private static final class Scarce extends AbstractByteBufAllocator {
        private final UnpooledByteBufAllocator buffers = new UnpooledByteBufAllocator(true);
        private final AtomicInteger left = new AtomicInteger();
        private volatile Error error;

        private Scarce() {
            super(true);
        }

        private void failAt(int call, Error what) {
            error = what;
            left.set(call);
        }

        @Override
        protected ByteBuf newDirectBuffer(int initialCapacity, int maxCapacity) {
            if (left.getAndUpdate(now -> Math.max(0, now - 1)) == 1) {
                throw error;
            }
            return buffers.directBuffer(initialCapacity, maxCapacity);
        }

        @Override
        protected ByteBuf newHeapBuffer(int initialCapacity, int maxCapacity) {
            return buffers.heapBuffer(initialCapacity, maxCapacity);
        }

        @Override
        public boolean isDirectBufferPooled() {
            return false;
        }

        private long used() {
            return buffers.metric().usedDirectMemory();
        }
    }

    @After
    public void end() {
        daemons.close();
    }

    private void nothingLeaks() throws InterruptedException {
        ReadDaemon.until(allocator.used() + " bytes leak",
                () -> allocator.used() == 0);
    }

    @Test
    public void aReadNeverSucceedsWithoutOneOfItsEntries() throws Exception {
        for (int call = 1; call <= READ; call++) {
            TieredLedger ledger = daemon.ledger(daemons);
            allocator.failAt(call, new OutOfMemoryError("Cannot reserve direct buffer memory"));
            CompletableFuture<LedgerEntries> read = ledger.readAsync(0, READ - 1);
            ExecutionException error = assertThrows(ExecutionException.class, () -> read.get(30, TimeUnit.SECONDS));
            assertTrue(error.getCause() instanceof ManagedLedgerException);
            assertTrue(error.getMessage(), error.getMessage().contains("of entry " + (call - 1)));
            nothingLeaks();
            daemon.holds(ledger.readAsync(0, READ - 1), 0, READ - 1);
            assertEquals(0, ledger.getPendingRead());
            ledger.closeAsync().get();
        }
        nothingLeaks();
    }

    @Test
    public void ofReadsThatWaitOneAfterTheOtherEachIsWholeOrFails() throws Exception {
        for (int call = 1; call <= 3 * READ; call += 7) {
            TieredLedger ledger = daemon.ledger(daemons);
            allocator.failAt(call, new OutOfMemoryError("Cannot reserve direct buffer memory"));
            int failed = 0;
            for (CompletableFuture<LedgerEntries> read : List.of(
                    ledger.readAsync(0, READ - 1),
                    ledger.readAsync(READ, 2 * READ - 1),
                    ledger.readAsync(2 * READ, 3 * READ - 1))) {
                try {
                    read.get(30, TimeUnit.SECONDS).forEach(entry -> entry.close());
                } catch (ExecutionException error) {
                    failed++;
                }
            }
            assertEquals(1, failed);
            ledger.closeAsync().get();
            nothingLeaks();
        }
    }

    @Test
    public void entriesThatNobodyWaitsForAreReleased() throws Exception {
        CompletableFuture<LedgerEntries> read = daemon.ledger(daemons).readAsync(0, READ - 1);
        read.cancel(false);
        ReadDaemon.until("the read ends", () -> daemon.sent.get() >= READ);
        nothingLeaks();
    }

    @Test
    public void whatLacksAnEntryIsNotHandedOut() throws Exception {
        for (long[] ids : new long[][] {{3, 4}, {3, 5, 6}, {3, 4, 4}, {4, 5, 6}, {3, 4, 5, 6}, {}}) {
            Entries entries = new Entries(allocator, 7, 3, 5);
            for (long id : ids) {
                entries.add(id, ByteString.copyFromUtf8("x"));
            }
            assertThrows(ManagedLedgerException.class, entries::handedOut);
            entries.release();
        }
        nothingLeaks();
    }
}
