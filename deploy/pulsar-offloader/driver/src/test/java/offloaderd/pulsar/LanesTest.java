package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import io.netty.buffer.UnpooledByteBufAllocator;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.junit.After;
import org.junit.Rule;
import org.junit.Test;

/** What readers at different places of a ledger cost: streams, bytes that are sent, and heap. */
public class LanesTest {
    private static final int ENTRY_BYTES = 100_000;

    @Rule
    public final ReadDaemon daemon = new ReadDaemon();

    private Daemons daemons = made(Duration.ofSeconds(10));

    private static Daemons made(Duration idle) {
        return new Daemons(new ReadMemory(UnpooledByteBufAllocator.DEFAULT, idle));
    }

    @After
    public void end() {
        daemons.close();
    }

    /** Waits as a dispatcher does between its reads: until nothing more comes. */
    private void pause() throws InterruptedException {
        long before = -1;
        for (int same = 0; same < 3; ) {
            long now = daemons.memory().getUsedBytes() * 31 + daemon.sent.get();
            same = now == before ? same + 1 : 0;
            before = now;
            Thread.sleep(1);
        }
    }

    private void inTurns(TieredLedger ledger, int subscriptions, int rounds, int count) throws Exception {
        for (int round = 0; round < rounds; round++) {
            for (int one = 0; one < subscriptions; one++) {
                long first = one * 133L + round * count;
                daemon.holds(ledger.readAsync(first, first + count - 1), first, first + count - 1);
                pause();
            }
        }
    }

    @Test
    public void subscriptionsInTurnsReadAheadAsOneDoes() throws Exception {
        daemon.padding = ".".repeat(ENTRY_BYTES);
        for (int subscriptions : new int[] {1, 2, 6}) {
            daemon.calls.set(0);
            daemon.sent.set(0);
            TieredLedger ledger = daemon.ledger(daemons);
            for (int round = 0; round < 40; round++) {
                for (int one = 0; one < subscriptions; one++) {
                    long first = one * 133L + round * 5L;
                    daemon.holds(ledger.readAsync(first, first + 4), first, first + 4);
                    ReadDaemon.until("no read ever has to wait", () -> ledger.readyTo(first + 5) >= first + 10);
                }
            }
            ledger.closeAsync().get();
            assertEquals(subscriptions, daemon.calls.get());
            double ratio = daemon.sent.get() / (subscriptions * 200.0);
            assertTrue(subscriptions + " in turns were sent " + ratio + " times what they read", ratio <= 1.3);
        }
    }

    @Test
    public void subscriptionsAtTheSamePlaceHaveAStreamEach() throws Exception {
        TieredLedger ledger = daemon.ledger(daemons);
        for (long first = 0; first < 200; first += 5) {
            daemon.holds(ledger.readAsync(first, first + 4), first, first + 4);
            daemon.holds(ledger.readAsync(first, first + 4), first, first + 4);
        }
        assertEquals(2, daemon.calls.get());
    }

    @Test
    public void moreReadersThanLanesAreServedAllTheSame() throws Exception {
        daemons = made(Duration.ofHours(1));
        TieredLedger ledger = daemon.ledger(daemons);
        for (int round = 0; round < 3; round++) {
            for (int one = 0; one < TieredLedger.LANES_MAX + 3; one++) {
                long first = one * 25L + round * 5L;
                daemon.holds(ledger.readAsync(first, first + 4), first, first + 4);
            }
        }
        assertTrue(daemon.calls.get() > 2 * TieredLedger.LANES_MAX);
        ReadDaemon.until("a reader whose lane another one took holds nothing",
                () -> daemons.memory().getUsedBytes() < (TieredLedger.LANES_MAX + 1) * Daemons.WINDOW_BYTES);
    }

    @Test
    public void aLookupGetsOneEntryAndDisturbsNobody() throws Exception {
        TieredLedger ledger = daemon.ledger(daemons);
        for (int one = 0; one < 2 * TieredLedger.LANES_MAX; one++) {
            long looked = 998 - 2 * one;
            daemon.holds(ledger.readAsync(5L * one, 5L * one + 4), 5L * one, 5L * one + 4);
            daemon.holds(ledger.readAsync(looked, looked), looked, looked);
            assertEquals(looked, (long) daemon.ends.get(one + 1));
        }
        assertEquals(2 * TieredLedger.LANES_MAX + 1, daemon.calls.get());
    }

    @Test
    public void lookupsInsideWhatIsReadAheadTakeNothingFromTheReader() throws Exception {
        TieredLedger ledger = daemon.ledger(daemons);
        for (long first = 0; first < 500; first += 5) {
            daemon.holds(ledger.readAsync(first, first + 4), first, first + 4);
            daemon.holds(ledger.readAsync(first + 7, first + 7), first + 7, first + 7);
        }
        assertEquals(101, daemon.calls.get());
    }

    @Test
    public void whoReadsOneEntryAfterTheOtherIsAReader() throws Exception {
        TieredLedger ledger = daemon.ledger(daemons);
        for (long entry = 0; entry < 300; entry++) {
            daemon.holds(ledger.readAsync(entry, entry), entry, entry);
        }
        assertEquals(2, daemon.calls.get());
    }

    @Test
    public void readingAheadBeginsWithOneAnswerAndDoubles() throws Exception {
        daemon.padding = ".".repeat(ENTRY_BYTES);
        TieredLedger ledger = daemon.ledger(daemons);
        daemon.holds(ledger.readAsync(0, 6), 0, 6);
        pause();
        long answer = ReadDaemon.BATCH * ENTRY_BYTES;
        long held = daemons.memory().getUsedBytes() - Daemons.WINDOW_BYTES;
        assertTrue("held ahead: " + held, held >= answer && held < 2 * answer);
        for (long first = 7; first < 807; first += 160) { // more than may lie here, so that each has to wait
            daemon.holds(ledger.readAsync(first, first + 159), first, first + 159);
        }
        ReadDaemon.until("8 MiB are read ahead", () -> daemons.memory().getUsedBytes() >= 8 << 20);
    }

    @Test
    public void atRestAllIsGivenBackAndTheStreamEnds() throws Exception {
        daemons = made(Duration.ofMillis(50));
        daemon.padding = ".".repeat(ENTRY_BYTES);
        TieredLedger ledger = daemon.ledger(daemons);
        daemon.holds(ledger.readAsync(0, 9), 0, 9);
        daemon.holds(ledger.readAsync(980, 989), 980, 989); // the rest of the ledger comes, and its stream ends
        daemon.holds(ledger.readAsync(500, 500), 500, 500);
        ReadDaemon.until("all is given back", () -> daemons.memory().getUsedBytes() == 0);
        ReadDaemon.until("the stream ends", () -> daemon.cancelled.get() >= 1);
        daemon.holds(ledger.readAsync(10, 19), 10, 19);
        daemon.holds(ledger.readAsync(990, 999), 990, 999);
    }

    @Test
    public void aReadThatIsDoneLeavesNothingBehind() throws Exception {
        daemons = made(Duration.ofMillis(50));
        TieredLedger ledger = daemon.ledger(daemons, "ReadTimeoutSeconds", "3600");
        for (long looked = 0; looked < 200; looked += 2) {
            daemon.holds(ledger.readAsync(looked, looked), looked, looked);
        }
        ReadDaemon.until("lookups wait for the end of their time", () -> daemons.putOff() == 0);
    }

    @Test
    public void allHandlesTogetherReadAheadWithinOneBudget() throws Exception {
        daemon.padding = ".".repeat(ENTRY_BYTES);
        daemons.memory().limit(10 << 20);
        for (int handle = 0; handle < 4; handle++) {
            TieredLedger ledger = daemon.ledger(daemons);
            inTurns(ledger, 3, 2, 20);
            long used = daemons.memory().getUsedBytes();
            // what reads waited for is beyond it: a stream, and the rest of an answer each
            assertTrue("held: " + used, used <= (10 << 20) + 12 * (Daemons.WINDOW_BYTES + ReadDaemon.BATCH * ENTRY_BYTES));
        }
        assertTrue(daemons.memory().getRefusals() > 0);
    }

    @Test
    public void aHandleThatIsClosedHoldsNothing() throws Exception {
        daemon.padding = ".".repeat(ENTRY_BYTES);
        TieredLedger ledger = daemon.ledger(daemons);
        inTurns(ledger, 3, 2, 20);
        CompletableFuture<LedgerEntries> last = ledger.readAsync(700, 720);
        ledger.closeAsync().get();
        daemon.holds(last, 700, 720);
        ReadDaemon.until("all is given back", () -> daemons.memory().getUsedBytes() == 0);
    }
}
