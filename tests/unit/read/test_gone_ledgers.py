"""Reads at ledgers that have left the source: deleted by retention, dropped as empty, lost by BookKeeper."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import EntriesMissing
from offloaderd.core.model import Position
from tests.unit.read.build import TOPIC, Piece, collect, make_read_rig, payloads, put_segment, run, turns
from tests.unit.read.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.read.build import ReadRig

IDS = [uuid.UUID(int=number) for number in range(1, 3)]


async def follow_over(rig: ReadRig, change: Callable[[], None]) -> list[tuple[int, int, bytes]]:
    """Follow the topic up to 5:1, and change it once the follower waits."""
    async with rig.reader, asyncio.TaskGroup() as group:
        following = group.create_task(collect(rig, follow=True, last=Position(5, 1)))
        await turns(50)
        assert not following.done()
        change()
    return following.result()[0]


async def test_a_follower_goes_on_behind_what_retention_deletes() -> None:
    """It has read all of a ledger, which then leaves every tier; so does a read that begins behind the ledger."""
    shelf = Shelf()
    shelf.put(3, payloads(3, 0, 9), closed=False)
    rig = make_read_rig(source=shelf)
    old = await put_segment(rig.store, [Piece(3, 0, payloads(3, 0, 9))], segment_id=IDS[0])
    new = await put_segment(rig.store, [Piece(5, 0, payloads(5, 0, 3))], segment_id=IDS[1])
    rig.map.segments = [old]

    def expire() -> None:
        rig.map.segments = [old, new]
        rig.map.expire(1)
        del shelf.ledgers_by_id[3]
        shelf.put(5, payloads(5, 0, 7), closed=False)

    assert await follow_over(rig, expire) == run(3, 0, 9) + run(5, 0, 1)
    again = make_read_rig(source=shelf, store=rig.store)
    again.map.segments, again.map.base = rig.map.segments, rig.map.base
    async with again.reader:
        assert (await collect(again, first=Position(3, 10)))[0] == run(5, 0, 7)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_follower_in_an_empty_ledger_that_is_gone(*, lost: bool) -> None:
    """A broker dropped it when it started again: what follows the last entry is decided anew. What is lost stays so."""
    shelf = Shelf()
    shelf.unreadable = set()
    shelf.put(3, payloads(3, 0, 9))
    shelf.put(4, [], closed=False)
    rig = make_read_rig(source=shelf)

    def start_again() -> None:
        del shelf.ledgers_by_id[4]
        shelf.unreadable = {4} if lost else set()
        shelf.put(5, payloads(5, 0, 7), closed=False)

    if not lost:
        assert await follow_over(rig, start_again) == run(3, 0, 9) + run(5, 0, 1)
        return
    with pytest.raises(ExceptionGroup) as caught:
        await follow_over(rig, start_again)
    assert caught.group_contains(EntriesMissing, match="between ledgers 3 and 5")


async def test_a_follower_behind_several_empty_ledgers_that_are_gone() -> None:
    """A broker drops all of them at once: none of them is where a read goes back to."""
    shelf = Shelf()
    shelf.put(3, payloads(3, 0, 9))
    shelf.put(4, [])
    shelf.put(5, [], closed=False)
    rig = make_read_rig(source=shelf)

    def start_again() -> None:
        del shelf.ledgers_by_id[4], shelf.ledgers_by_id[5]
        shelf.put(6, payloads(6, 0, 7), closed=False)

    async with rig.reader, asyncio.TaskGroup() as group:
        following = group.create_task(collect(rig, follow=True, last=Position(6, 1)))
        await turns(50)
        start_again()
    assert following.result()[0] == run(3, 0, 9) + run(6, 0, 1)


async def test_a_ledger_with_entries_that_is_gone_is_no_empty_one() -> None:
    """It was listed with entries when the read began; that the list looks as if there was none proves nothing."""
    shelf = Shelf()
    shelf.unreadable = set()
    shelf.put(3, payloads(3, 0, 9))
    shelf.put(4, payloads(4, 0, 3))
    shelf.put(5, payloads(5, 0, 7))
    rig = make_read_rig(source=shelf)
    found: list[Position] = []

    async def read() -> None:
        async for batch, _ in rig.reader.read(TOPIC):
            shelf.ledgers_by_id.pop(4, None)
            found.append(batch.last)

    async with rig.reader:
        with pytest.raises(EntriesMissing, match="no ledger 4"):
            await read()
    assert found[-1] == Position(3, 9)


async def test_an_entry_that_is_missing_at_the_begin_of_a_ledger_ends_a_read() -> None:
    """It goes back to what was before once, not for ever."""
    shelf = Shelf()
    shelf.put(3, payloads(3, 0, 9))
    rig = make_read_rig(source=shelf)
    rig.map.segments = [await put_segment(rig.store, [Piece(5, 2, payloads(5, 2, 8))], segment_id=IDS[0])]
    async with rig.reader:
        with pytest.raises(EntriesMissing, match="entry 5:0 is in no tier"):
            await collect(rig)


async def test_a_ledger_that_bookkeeper_lost_in_the_middle_of_the_list() -> None:
    """Its neighbours are there: a read ends before it with an error, also before the owner has recorded a loss."""
    shelf = Shelf()
    shelf.unreadable = {4}
    shelf.put(3, payloads(3, 0, 9))
    shelf.put(5, payloads(5, 0, 7), closed=False)
    rig = make_read_rig(source=shelf)
    async with rig.reader:
        assert (await collect(rig, last=Position(3, 9)))[0] == run(3, 0, 9)
        with pytest.raises(EntriesMissing, match="between ledgers 3 and 5"):
            await collect(rig, first=Position(3, 9))
        assert (await collect(rig, first=Position(5, 0)))[0] == run(5, 0, 7)
