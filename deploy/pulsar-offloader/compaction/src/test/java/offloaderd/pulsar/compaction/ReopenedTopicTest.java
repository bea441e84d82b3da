package offloaderd.pulsar.compaction;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.FakeBookKeeper;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.compaction.CompactedTopicContext;
import org.apache.pulsar.compaction.CompactedTopicImpl;
import org.junit.Test;

/** What becomes of compacted ledgers that cannot be opened; time is a number. */
public class ReopenedTopicTest {
    private static final Position OLD = PositionFactory.create(3, 9);
    private static final Position NEW = PositionFactory.create(5, 2);

    private final FakeBookKeeper ledgers = new FakeBookKeeper();
    private final FakeTime time = new FakeTime();
    private final CompactedTopicImpl pulsars = new CompactedTopicImpl(ledgers);
    private final ReopenedTopic topic = new ReopenedTopic(ledgers, pulsars, time);

    @Test
    public void aLedgerThatCouldNotBeOpenedIsOpenedAgainByTheNextReadAfterAPause() {
        CompletableFuture<CompactedTopicContext> loaded = topic.newCompactedLedger(OLD, 7);
        topic.reopen();
        assertEquals("one is being opened", List.of(7L), ledgers.opens());
        failed();
        assertTrue(loaded.isCompletedExceptionally());
        topic.reopen();
        assertEquals(List.of(7L), ledgers.opens());
        time.advance(CompactedTier.RETRY_MS);
        topic.reopen();
        topic.reopen();
        assertEquals(List.of(7L, 7L), ledgers.opens());
        succeeded();
        assertTrue(topic.getCompactedTopicContext().isPresent());
        assertEquals(OLD, topic.getCompactionHorizon().orElseThrow());
        time.advance(CompactedTier.RETRY_MS);
        topic.reopen();
        assertEquals(List.of(7L, 7L), ledgers.opens());
    }

    @Test
    public void metricsAreAnsweredAtOnce() {
        assertTrue(topic.getCompactedTopicContext().isEmpty());
        topic.newCompactedLedger(OLD, 7);
        assertTrue(topic.getCompactedTopicContext().isEmpty());
        failed();
        assertTrue(topic.getCompactedTopicContext().isEmpty());
    }

    @Test
    public void theNextCompactionReplacesALedgerThatCouldNotBeOpenedBefore() {
        topic.newCompactedLedger(OLD, 7);
        failed();
        CompletableFuture<CompactedTopicContext> replaced = topic.newCompactedLedger(NEW, 8);
        assertEquals(List.of(7L, 7L, 8L), ledgers.opens());
        succeeded();
        CompactedTopicContext before = open();
        assertNull(before);
        succeeded();
        assertNotNull("what is deleted then", replaced.join());
        assertEquals(NEW, topic.getCompactionHorizon().orElseThrow());
    }

    @Test
    public void aNextLedgerThatCannotBeOpenedLeavesTheOneBefore() {
        topic.newCompactedLedger(OLD, 7);
        succeeded();
        CompletableFuture<CompactedTopicContext> replaced = topic.newCompactedLedger(NEW, 8);
        failed();
        assertTrue(replaced.isCompletedExceptionally());
        assertEquals(List.of(7L, 8L, 7L), ledgers.opens());
        assertEquals(OLD, topic.getCompactionHorizon().orElseThrow());
        failed();
        time.advance(CompactedTier.RETRY_MS);
        topic.reopen();
        assertEquals(List.of(7L, 8L, 7L, 7L), ledgers.opens());
        succeeded();
        assertSame(pulsars.getCompactedTopicContextFuture().join(), topic.getCompactedTopicContext().orElseThrow());
    }

    @Test
    public void nothingIsOpenedAgainOnceTheCompactionIsRemoved() {
        topic.newCompactedLedger(OLD, 7);
        failed();
        topic.reset();
        time.advance(CompactedTier.RETRY_MS);
        topic.reopen();
        assertEquals(List.of(7L), ledgers.opens());
        assertFalse(topic.getCompactionHorizon().isPresent());
    }

    private CompactedTopicContext open() {
        return topic.getCompactedTopicContext().orElse(null);
    }

    private void failed() {
        ledgers.answer(BKException.Code.ReadException);
    }

    private void succeeded() {
        ledgers.answer(BKException.Code.OK);
    }
}
