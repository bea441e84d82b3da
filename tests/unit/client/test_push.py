"""Pushes: asked for what the daemon lacks, again after a break, at the topic's owner, no faster than it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.client import EntryBatch, LedgerClosed, NotConsecutive, OfferResult, Position, Pushed
from offloaderd.core.errors import Closed, Conflict, InvalidInput, NotFound, OffloaderError, Transient
from tests.unit.client.fleet import LEDGER_ENTRIES, TOPIC, Daemon, at, patient, serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

REAL_TIME = "gRPC"

COUNT = 25


async def entries(after: Position | None) -> AsyncGenerator[EntryBatch | LedgerClosed, None]:
    """Give entries 0 to 24 behind a position, one a batch, and tell of each ledger's end."""
    begin = 0 if after is None else after.ledger_id * LEDGER_ENTRIES + after.entry_id + 1
    for number in range(begin, COUNT):
        yield EntryBatch(*at(number), payloads=[b"%d" % number])
        if number % LEDGER_ENTRIES == LEDGER_ENTRIES - 1:
            yield LedgerClosed(*at(number), closed_ms=1)


async def test_everything_is_pushed_and_durable() -> None:
    """The daemon has each entry once, every batch was answered in time, and the end is what is offloaded."""
    daemon, told, ahead = Daemon(owner="here"), list[Pushed](), list[int]()

    async def counted(after: Position | None) -> AsyncGenerator[EntryBatch | LedgerClosed, None]:
        given = 0
        async for item in entries(after):
            given += isinstance(item, EntryBatch)
            ahead.append(given - len(told))
            yield item

    async with serving(daemon), patient(daemon.address) as client:
        assert await client.push(TOPIC, counted, told.append, unanswered_max=2) == at(24)
        assert max(ahead) <= 3
        assert daemon.taken == [b"%d" % number for number in range(COUNT)]
        assert [one.taken for one in told if one.result is OfferResult.ACCEPTED] == [at(n) for n in range(COUNT)]
        assert told[-1] == (None, at(24), at(24))


@pytest.mark.parametrize("error", [None, Closed("it stops")])
async def test_a_broken_push_is_asked_for_what_the_daemon_lacks(error: OffloaderError | None) -> None:
    """Nothing is sent twice, nothing is left out."""
    daemon = Daemon(owner="here", breaks=[(4, error), (0, error), (7, error)])
    async with serving(daemon), patient(daemon.address) as client:
        assert await client.push(TOPIC, entries) == at(24)
        assert daemon.taken == [b"%d" % number for number in range(COUNT)]
        assert daemon.begun == [0, 4, 4, 11]


async def test_a_push_goes_to_the_owner() -> None:
    """The daemon that was asked names it; one that nobody owns is refused."""
    asked, owner = Daemon(), Daemon(owner="here")
    async with serving(asked), serving(owner), patient(asked.address) as client:
        with pytest.raises(Conflict, match="owned by"):
            await client.push(TOPIC, entries, resume_s=0)
        asked.others = [owner.address]
        assert await client.push(TOPIC, entries) == at(24)
        assert len(owner.taken) == COUNT


async def test_entries_that_do_not_follow_are_refused() -> None:
    """The error says what the daemon has to say, and nothing is tried again."""

    async def gap(after: Position | None) -> AsyncGenerator[EntryBatch, None]:
        yield EntryBatch(0, 3, [b"x"])

    daemon = Daemon(owner="here")
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(NotConsecutive, match="a gap"):
            await client.push(TOPIC, gap)
        assert daemon.begun == [0]


async def test_what_the_source_raises_is_raised() -> None:
    """The caller's own error ends the push."""

    async def broken(after: Position | None) -> AsyncGenerator[EntryBatch, None]:
        yield EntryBatch(0, 0, [b"x"])
        raise InvalidInput("line 2 is too long")

    daemon = Daemon(owner="here")
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(InvalidInput, match="line 2"):
            await client.push(TOPIC, broken)


async def test_a_topic_that_nobody_has_is_waited_for() -> None:
    """It moves, or was enabled a moment ago; whoever has no patience is told."""
    daemon = Daemon(owner="here", breaks=[(2, NotFound("not enabled on this daemon"))])
    async with serving(daemon), patient(daemon.address) as client:
        assert await client.push(TOPIC, entries) == at(24)
        daemon.taken, daemon.breaks, daemon.refusals = [], [], [NotFound("not enabled here"), Transient("no owner yet")]
        assert await client.push(TOPIC, entries) == at(24)
        daemon.taken, daemon.refusals = [], [NotFound("not enabled here")]
        with pytest.raises(NotFound):
            await client.push(TOPIC, entries, resume_s=0)


async def test_a_final_answer_ends_the_push() -> None:
    """What no other try would change is raised."""
    daemon = Daemon(owner="here", breaks=[(2, InvalidInput("an entry of 6 MiB"))])
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(InvalidInput, match="6 MiB"):
            await client.push(TOPIC, entries)
