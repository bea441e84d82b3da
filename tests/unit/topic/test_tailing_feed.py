"""The feed of a live topic: how far its entries are taken, what of them may be dropped, and what is not to be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from offloaderd.core.model import START, LedgerInfo, Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.feed import Empty, Entries, Lost
from offloaderd.testing.clock import FakeClock
from offloaderd.topic.buffer import BufferPool, Missing, TailingBuffer
from offloaderd.topic.live_segment import OVERDRAW_S, TailingFeed
from tests.unit.rigs.feed_cases import LAST, Cases, batch

if TYPE_CHECKING:
    from offloaderd.topic.tailer import Tailer

TAKE_BYTES = 1 << 20


class Tail:
    """What a tailer has filled in: ledger 1 with 10 entries, ledger 3 with 5, in batches that are not joined."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pool = BufferPool(10_000)
        self.buffer = TailingBuffer(self.pool, resume=START, rereadable=True)
        follows = START
        for ledger_id, first, count in ((1, 0, 4), (1, 4, 6), (3, 0, 5)):
            assert self.buffer.fill(batch(ledger_id, first, count), follows)
            follows = Position(ledger_id, first + count - 1)
            self.buffer.mark_cut(follows)
        self.buffer.restart(START)
        self.feed = TailingFeed(self.buffer, self.clock, resume=START)


class TestTailing(Cases):
    """What every feed has to do."""

    def feed(self) -> TailingFeed:
        """See Cases."""
        return Tail().feed


def test_a_request_confirms_what_came_before() -> None:
    """So the position is one answer behind what is in the segment."""
    tail = Tail()
    feed = tail.feed
    assert isinstance(feed.take(START, TAKE_BYTES), Entries)
    assert feed.position == START
    assert feed.first() == Position(1, 0)
    assert isinstance(feed.take(LAST, TAKE_BYTES), Empty)
    assert feed.position == LAST
    assert feed.first() is None


def test_what_is_in_a_part_and_dropped_is_not_read_again() -> None:
    """Although nobody has asked for more since: the segment may wait long for its turn to send the next part."""
    tail = Tail()
    feed = tail.feed
    feed.take(START, TAKE_BYTES)
    feed.sent(Position(1, 9))
    tail.buffer.evict(TAKE_BYTES)
    assert tail.buffer.span() == (Position(3, 0), LAST)
    assert tail.buffer.gap(feed.position) == Missing(LAST, None)


def test_a_segment_that_was_given_up_needs_its_entries_again() -> None:
    """They may not be dropped, and who reads for what came behind them stops."""
    tail = Tail()
    feed = tail.feed
    feed.take(START, TAKE_BYTES)
    feed.sent(LAST)
    need = tail.buffer.need
    feed.restart(START)
    assert (feed.position, tail.buffer.evictable_bytes) == (START, 0)
    assert tail.buffer.need > need


def test_a_segment_that_begins_where_it_stands_interrupts_no_reading() -> None:
    """What the tailer reads at that moment is what comes next."""
    tail = Tail()
    feed = tail.feed
    feed.sent(LAST)
    feed.committed(LAST)
    need = tail.buffer.need
    feed.restart(LAST)
    assert tail.buffer.need == need


def test_what_an_earlier_owner_stored_may_be_dropped_once() -> None:
    """A segment goes on with it ahead of what was taken: what is dropped counts as dropped but once."""
    tail = Tail()
    feed = tail.feed
    feed.restart(Position(1, 9))
    assert feed.position == Position(1, 9)
    tail.buffer.evict(TAKE_BYTES)
    assert tail.buffer.span() == (Position(3, 0), LAST)
    assert tail.buffer.evictable_bytes == 0


def test_what_is_committed_and_was_not_taken_is_read_no_more() -> None:
    """A broker's ledger that was adopted while the tailer read it."""
    tail = Tail()
    feed = tail.feed
    need = tail.buffer.need
    feed.committed(Position(1, 9))
    assert (feed.position, tail.buffer.span()) == (Position(1, 9), (Position(3, 0), LAST))
    assert tail.buffer.need > need


def test_entries_behind_the_required_end_are_no_use() -> None:
    """What was required is gone if they come next; the required end itself may be all that comes."""
    tail = Tail()
    feed = tail.feed
    feed.restart(Position(1, 9))
    assert isinstance(feed.take(Position(1, 9), TAKE_BYTES, Position(1, 12)), Lost)
    for required in (Position(3, 0), Position(3, 2)):
        assert isinstance(feed.take(Position(1, 9), TAKE_BYTES, required), Entries)


def test_what_no_ledger_holds_any_more_is_lost() -> None:
    """As soon as the source was looked at, and not while one may still get it."""
    tail = Tail()
    feed = tail.feed
    chain = LedgerChain(START, end=None, begin=Position(1, 0))
    feed.restart(LAST)
    assert isinstance(feed.take(LAST, TAKE_BYTES, Position(3, 9)), Empty)
    for refreshed_s, closed, answer in ((None, True, Empty), (1.0, False, Empty), (1.0, True, Lost)):
        chain.update([LedgerInfo(ledger_id=3, closed=closed, entries=5, size_bytes=5)])
        feed.source = cast("Tailer", SimpleNamespace(chain=chain, refreshed_s=refreshed_s))
        assert isinstance(feed.take(LAST, TAKE_BYTES, Position(3, 9)), answer)


def test_a_segment_that_lacks_its_entries_and_is_given_up_overdraws_no_more() -> None:
    """It had taken none, so its end is where it began: what it was to have beyond the memory is for another."""
    tail = Tail()
    other = TailingBuffer(tail.pool, resume=START, rereadable=False)
    tail.pool.follow(100)
    tail.feed.take(LAST, TAKE_BYTES, Position(9, 0))
    tail.pool.take(0, tail.buffer)
    other.starve()
    assert not tail.pool.admit(1, other, needed_by=other)
    tail.feed.restart(LAST)
    assert not tail.buffer.starving
    assert tail.pool.admit(1, other, needed_by=other)


async def test_who_waits_in_vain_lets_another_take_more_memory_than_there_is() -> None:
    """After a while without entries; each that comes begins it anew."""
    tail = Tail()
    other = TailingBuffer(tail.pool, resume=START, rereadable=False)
    feed, required = tail.feed, Position(9, 0)
    tail.pool.follow(100)
    feed.take(LAST, TAKE_BYTES, required)
    assert tail.buffer.starving
    tail.pool.take(0, tail.buffer)  # it takes more than there is
    other.starve()
    for _ in range(2):
        await tail.clock.advance(OVERDRAW_S - 1)
        feed.take(LAST, TAKE_BYTES, required)
        assert not tail.pool.admit(1, other, needed_by=other)
        feed.take(Position(1, 9), TAKE_BYTES, required)
    await tail.clock.advance(OVERDRAW_S)
    feed.take(LAST, TAKE_BYTES, required)
    assert tail.pool.admit(1, other, needed_by=other)
