"""Feeds of ledgers: read ahead under the budget of uploads, tried again, told of losses, closed without a trace."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import START, EntryBatch, LedgerInfo, Loss, Position
from offloaderd.history.segment import LedgerReading, ledger_batches
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.feed import Empty, End, Entries, EntryHash, HashingFeed, ReadAheadFeed, Reservation
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.ledgers import MemoryLedgers
from tests.unit.rigs.feed_cases import LossCases, answer, batch, closing, drained, positions
from tests.unit.rigs.rig import TOPIC, turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.core.errors import OffloaderError
    from offloaderd.core.model import TopicName
    from offloaderd.segment.feed import Batches

END = Position(9, 99)


class Source(MemoryLedgers):
    """Reads what it was given, a few entries at a time, unless it fails."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.fails: list[Exception] = []
        self.reads = 0

    async def read(
        self, topic: TopicName, ledger_id: int, first: int, last: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """See LedgerSource; after the first batch it fails, as often as it was told to."""
        self.reads += 1
        while first <= last:
            count = min(4, last - first + 1)
            yield batch(ledger_id, first, count)
            first += count
            if self.fails:
                raise self.fails.pop()


class TestReadAhead(LossCases):
    """A range of ledgers."""

    def setup_method(self) -> None:
        """Make what it reads from."""
        self.clock = FakeClock()
        self.source = Source(self.clock)
        self.budget = ByteBudget(1000)
        self.chain = LedgerChain(START, end=None, begin=Position(1, 0))
        self.listed = [info(1, 10), info(3, 5), info(5, 8), info(7, 2)]
        self.chain.update(self.listed)
        del self.listed[2]
        self.chain.update(self.listed)
        self.failing: list[OffloaderError | None] = []
        self.refreshed = 0
        self.answers = asyncio.Event()
        self.answers.set()

    def batches(self, end: Position = END) -> Batches:
        """Read the ledgers up to `end`."""
        reading = LedgerReading(
            source=self.source,
            topic=TOPIC,
            chain=self.chain,
            refresh=self.refresh,
            failing=self.failing.append,
            pace=self.clock,
            metrics=Metrics(),
        )
        return partial(ledger_batches, reading, end=end, batch_bytes=100)

    def feed(self, end: Position = END) -> ReadAheadFeed:
        """See LossCases."""
        return ReadAheadFeed(self.batches(end), self.budget, reserve_bytes=600, holder="segment")

    async def refresh(self) -> None:
        """Look at the source anew, as soon as it answers."""
        await self.answers.wait()
        self.refreshed += 1
        self.chain.update(self.listed)

    def accept(self, loss: Loss) -> None:
        """See LossCases."""
        self.chain.accept(loss)

    async def test_what_may_pass_is_tried_again_without_holding_memory(self) -> None:
        """It goes on where it was, tells what hinders, and leaves the budget to others meanwhile."""
        self.source.fails = [Transient("away"), Transient("away")]
        feed = self.feed()
        feed.restart(START)
        async with closing(feed), asyncio.TaskGroup() as group:
            reading = group.create_task(drained(feed, START))
            await self.clock.settle()
            assert self.budget.used == 0
            assert [str(one) for one in self.failing] == ["away"]
            await self.clock.advance(60)
            seen, _ = await reading
        assert seen == positions(1, 0, 9) + positions(3, 0, 4)
        assert self.failing[-1] is None

    async def test_a_ledger_that_vanishes_while_it_is_read_is_a_loss(self) -> None:
        """The source is looked at anew; one that is listed and not there is tried again."""
        self.source.fails = [NotFound("gone"), NotFound("gone")]
        feed = self.feed()
        feed.restart(START)
        async with closing(feed), asyncio.TaskGroup() as group:
            reading = group.create_task(drained(feed, START))
            await self.clock.settle()
            assert self.refreshed == 1
            assert isinstance(self.failing[-1], Transient)
            del self.listed[0]
            await self.clock.advance(60)
            seen, found = await reading
        assert seen == positions(1, 0, 7)
        assert found.loss == Loss(Position(1, 7), Position(3, 0), 2)  # type: ignore[union-attr]

    async def test_a_list_that_is_waited_for_holds_no_memory(self) -> None:
        """Two histories share one turn: who waits for the source leaves turn and memory to the other."""
        self.source.fails = [NotFound("gone")]
        self.answers.clear()
        feed = self.feed()
        feed.restart(START)
        async with closing(feed), asyncio.TaskGroup() as group:
            reading = group.create_task(drained(feed, START))
            await self.clock.settle()
            assert (self.refreshed, self.budget.used) == (0, 0)
            self.answers.set()
            await self.clock.advance(60)
            seen, _ = await reading
        assert seen == positions(1, 0, 9) + positions(3, 0, 4)

    async def test_nothing_is_read_beyond_the_end(self) -> None:
        """A range ends in the middle of a ledger; nothing follows it."""
        feed = self.feed(Position(1, 5))
        feed.restart(START)
        async with closing(feed):
            assert await drained(feed, START) == (positions(1, 0, 5), End())

    async def test_who_is_cancelled_while_it_waits_for_memory_has_taken_none(self) -> None:
        """Nor is anything left of it in the queue."""
        await self.budget.acquire(1000)
        feed = self.feed()
        feed.restart(START)
        waiting = asyncio.ensure_future(answer(feed, START))  # noqa: TID251 - to cancel it
        await turn()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await feed.close()
        self.budget.release(1000)
        assert self.budget.used == 0

    async def test_a_part_takes_over_what_was_reserved_to_read_it(self) -> None:
        """One reservation for one part, whether it is smaller or larger: two at once would lock a small budget."""
        self.budget.follow(600)
        feed = self.feed()
        feed.restart(START)
        async with closing(feed):
            for part_bytes in (500, 600, 900):
                found = await answer(feed, START)
                assert isinstance(found, Entries)
                assert found.reservation is not None
                part = await found.reservation.moved(part_bytes)
                assert self.budget.used == part.size_bytes == part_bytes
                part.release()
                assert self.budget.used == 0
                feed.restart(START)
                assert isinstance(feed.take(START, 1), Empty)
        assert self.budget.used == 0

    async def test_the_last_part_takes_over_what_was_reserved_to_read_more(self) -> None:
        """A budget of one part is enough, although the feed had reserved for entries that there are not."""
        self.budget.follow(600)
        feed = self.feed(Position(1, 3))
        feed.restart(START)
        async with closing(feed), asyncio.timeout(10):
            found = await answer(feed, START)
            assert isinstance(found, Entries)
            assert found.reservation is not None
            (await found.reservation.moved(600)).release()
            assert isinstance(await answer(feed, Position(1, 3)), End)
            (await found.reservation.moved(100)).release()
        assert self.budget.used == 0

    async def test_what_was_reserved_to_read_is_free_once_the_feed_is_closed(self) -> None:
        """Also if no part took it over: the segment failed, or ended before these entries."""
        feed = self.feed()
        feed.restart(START)
        assert isinstance(await answer(feed, START), Entries)
        assert self.budget.used == 600
        await feed.close()
        assert self.budget.used == 0

    async def test_entries_are_hashed_once_however_often_they_are_answered(self) -> None:
        """From the begin to the last one that was answered; who begins behind the begin has no hash of all."""
        expected = EntryHash()
        for one in (batch(1, 0, 10), batch(3, 0, 5)):
            expected.take(one)
        feed = HashingFeed(self.batches(), self.budget, begin=Position(1, 0), reserve_bytes=600, holder="segment")
        async with closing(feed):
            for at in (START, Position(1, -1)):
                feed.restart(at)
                assert isinstance(await answer(feed, at), Entries)
                assert isinstance(await answer(feed, Position(1, 1)), Entries)
                await drained(feed, Position(1, 1))
                found = feed.digest(Position(3, 4))
                assert found is not None
                assert (found.entries, found.digest()) == (15, expected.digest())
                assert feed.digest(Position(3, 3)) is None
            feed.restart(Position(1, 0))
            await drained(feed, Position(1, 0))
            assert feed.digest(Position(3, 4)) is None

    async def test_the_hash_of_a_closed_feed_is_still_known(self) -> None:
        """The writer closes the feed before the new object is compared with what was read."""
        feed = HashingFeed(self.batches(), self.budget, begin=Position(1, 0), reserve_bytes=600, holder="segment")
        feed.restart(Position(1, -1))
        await drained(feed, Position(1, -1))
        await feed.close()
        found = feed.digest(Position(3, 4))
        assert found is not None
        assert found.entries == 15


async def test_nothing_is_held_while_more_is_asked_for() -> None:
    """Two parts that turn out larger than what was reserved for them do not wait for each other."""
    budget = ByteBudget(100)
    first, second = [await Reservation.of(budget, 50, name) for name in ("first", "second")]
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:

        async def sent(one: Reservation) -> None:
            (await one.moved(60)).release()

        group.create_task(sent(first))
        group.create_task(sent(second))
    assert budget.used == 0


def test_a_hash_depends_on_where_entries_end() -> None:
    """The same bytes in other entries are other entries; how they are cut into batches does not matter."""
    whole, parted, other = EntryHash(), EntryHash(), EntryHash()
    whole.take(EntryBatch(1, 0, (b"ab", b"c")))
    for entry_id, payload in enumerate((b"ab", b"c")):
        parted.take(EntryBatch(1, entry_id, (payload,)))
    other.take(EntryBatch(1, 0, (b"a", b"bc")))
    assert (whole.entries, whole.digest()) == (parted.entries, parted.digest())
    assert other.entries == whole.entries
    assert other.digest() != whole.digest()


def info(ledger_id: int, entries: int) -> LedgerInfo:
    """A closed ledger."""
    return LedgerInfo(ledger_id=ledger_id, closed=True, entries=entries, size_bytes=entries)
