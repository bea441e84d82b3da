"""What every feed has to do, whatever it reads from: `Cases` runs against each of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.core.model import START, EntryBatch, Loss, Position
from offloaderd.segment.feed import Empty, End, Entries, Gap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.segment.feed import Answer, EntryFeed


LAST = Position(3, 4)


@asynccontextmanager
async def closing(feed: EntryFeed) -> AsyncIterator[EntryFeed]:
    """Close a feed in the end."""
    try:
        yield feed
    finally:
        await feed.close()


def batch(ledger_id: int, first: int, count: int) -> EntryBatch:
    """So many entries, each of which says where it lies."""
    return EntryBatch(ledger_id, first, [b"%d:%d" % (ledger_id, first + number) for number in range(count)])


async def answer(feed: EntryFeed, after: Position, required: Position | None = None) -> Answer:
    """Return what a feed answers once it is more than Empty."""
    while isinstance(found := feed.take(after, 1 << 20, required), Empty):
        await feed.wait(1.0)
    return found


async def drained(feed: EntryFeed, after: Position, last: Position | None = None) -> tuple[list[Position], Answer]:
    """Return the positions behind `after`, up to `last`, in the order that they come, and the answer that ends them."""
    seen: list[Position] = []
    while isinstance(found := await answer(feed, after), Entries):
        for one in found.batches:
            assert one.payloads == batch(one.ledger_id, one.first_entry_id, one.count).payloads
            seen += [Position(one.ledger_id, one.first_entry_id + number) for number in range(one.count)]
        after = seen[-1]
        if after == last:
            break
    return seen, found


def positions(ledger_id: int, first: int, last: int) -> list[Position]:
    """The entries of one ledger."""
    return [Position(ledger_id, one) for one in range(first, last + 1)]


class Cases:
    """A feed of ledger 1 with 10 entries, and ledger 3 with 5."""

    def feed(self) -> EntryFeed:
        """Make it."""
        raise NotImplementedError

    async def test_entries_come_once_and_in_order(self) -> None:
        """Through the ledgers."""
        async with closing(self.feed()) as feed:
            feed.restart(START)
            seen, _ = await drained(feed, START, LAST)
        assert seen == positions(1, 0, 9) + positions(3, 0, 4)

    async def test_a_batch_may_be_taken_in_two(self) -> None:
        """What a limit left of it comes next."""
        async with closing(self.feed()) as feed:
            feed.restart(START)
            first = await answer(feed, START)
            assert isinstance(first, Entries)
            middle = Position(1, first.batches[0].first_entry_id + 1)
            rest = await answer(feed, middle)
            assert isinstance(rest, Entries)
            assert rest.batches[0].first == Position(1, middle.entry_id + 1)

    async def test_it_goes_on_wherever_it_is_told_to(self) -> None:
        """Behind what was taken, or before it."""
        async with closing(self.feed()) as feed:
            for at in (START, Position(1, 7), Position(1, 2), Position(3, 1)):
                feed.restart(at)
                found = await answer(feed, at)
                assert isinstance(found, Entries)
                expected = Position(1, 0) if at == START else Position(at.ledger_id, at.entry_id + 1)
                assert found.batches[0].first == expected

    async def test_closing_twice_is_once(self) -> None:
        """Also before anything was read."""
        feed = self.feed()
        await feed.close()
        feed.restart(START)
        await answer(feed, START)
        await feed.close()
        await feed.close()


class LossCases(Cases):
    """A feed that tells of losses as well: behind these, of ledger 5, before 2 entries of ledger 7."""

    def accept(self, loss: Loss) -> None:
        """Have the loss recorded."""
        raise NotImplementedError

    async def test_a_loss_is_reported_where_it_is(self) -> None:
        """With what follows it."""
        async with closing(self.feed()) as feed:
            feed.restart(START)
            _, found = await drained(feed, START)
        assert isinstance(found, Gap)
        assert (found.loss.after, found.loss.before) == (LAST, Position(7, 0))

    async def test_a_loss_that_was_recorded_is_passed(self) -> None:
        """The entries behind it follow."""
        async with closing(self.feed()) as feed:
            feed.restart(Position(3, 3))
            found = await answer(feed, Position(3, 4))
            assert isinstance(found, Gap)
            self.accept(found.loss)
            seen, _ = await drained(feed, Position(3, 4))
        assert seen == positions(7, 0, 1)

    async def test_a_loss_that_was_not_recorded_ends_it(self) -> None:
        """Nothing is skipped in silence."""
        async with closing(self.feed()) as feed:
            feed.restart(Position(3, 4))
            assert isinstance(await answer(feed, Position(3, 4)), Gap)
            assert isinstance(await answer(feed, Position(3, 4)), End | Gap)
