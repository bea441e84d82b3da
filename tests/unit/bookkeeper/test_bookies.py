"""The pool of bookies against a scripted one: what is answered, in what order, how much at a time."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.bookkeeper.connections import bookies, connection
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import Closed, InvalidInput, Throttled, Transient
from tests.unit.bookkeeper import wire
from tests.unit.bookkeeper.fake_bookie import BUSY
from tests.unit.bookkeeper.pool_world import ENTRIES, LEDGER, world


async def test_what_is_stored_is_read() -> None:
    """An entry, a batch within both limits, and the end of a ledger with what is known to be confirmed."""
    async with world() as it:
        it.bookie.max_lac[LEDGER] = 8
        assert await it.pool.read(it.id, LEDGER, 3) == ENTRIES[3]
        assert await it.pool.read_batch(it.id, LEDGER, 4, count_max=3, bytes_max=10_000) == ENTRIES[4:7]
        assert await it.pool.read_batch(it.id, LEDGER, 9, count_max=1, bytes_max=0) == ENTRIES[9:]
        assert await it.pool.last_known(it.id, LEDGER) == (ENTRIES[9], 8)
        assert [session.transport.is_closing() for session in it.bookie.sessions] == [False, False]
        assert it.value("offloaderd_bookie_connections") == 2
        assert it.value("offloaderd_bookie_requests_total", operation="batch", outcome="ok") == 2
        assert it.value("offloaderd_bookie_bytes_total") > sum(map(len, [ENTRIES[3], *ENTRIES[4:7], *ENTRIES[9:]]))
    assert it.value("offloaderd_bookie_connections") == 0


async def test_answers_find_their_requests_in_any_order() -> None:
    """Three reads and two batches that are answered backwards each get their own."""
    async with world() as it, asyncio.TaskGroup() as group:
        it.hold()
        reads = [group.create_task(it.pool.read(it.id, LEDGER, number)) for number in range(3)]
        batches = [group.create_task(it.batch(first, 2)) for first in (3, 5)]
        for asked in reversed(await it.bookie.asked(5)):
            asked.answer()
        assert [await read for read in reads] == ENTRIES[:3]
        assert [await batch for batch in batches] == [ENTRIES[3:5], ENTRIES[5:7]]


async def test_requests_of_one_moment_share_a_packet() -> None:
    """Fifty looks at the ends of ledgers cost one write to the socket, and each gets its answer."""
    async with world() as it:
        await it.pool.last_known(it.id, LEDGER)
        (session,) = it.bookie.sessions
        before = session.packets
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(it.pool.last_known(it.id, LEDGER)) for _ in range(50)]
        assert {task.result().stored for task in asked} == {ENTRIES[-1]}
        assert session.packets - before == 1


async def test_one_entry_wanted_twice_at_a_time_is_asked_for_once() -> None:
    """Both readers get the answer to one request; a later one asks again."""
    async with world() as it, asyncio.TaskGroup() as group:
        it.hold()
        both = [group.create_task(it.pool.read(it.id, LEDGER, 1)) for _ in range(2)]
        (asked,) = await it.bookie.asked()
        await it.settle()
        assert it.in_flight == 1
        asked.answer()
        assert [await read for read in both] == [ENTRIES[1]] * 2
        it.release()
        await it.pool.read(it.id, LEDGER, 1)
        assert len(it.bookie.requests) == 2


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    """Its answer is dropped when it comes, its place in the window is free from then on, and the connection serves."""
    async with world(BookkeeperSettings(requests_in_flight_max=1)) as it, asyncio.TaskGroup() as group:
        it.hold()
        reader = group.create_task(it.pool.read(it.id, LEDGER, 1))
        (asked,) = await it.bookie.asked()
        reader.cancel()
        await it.settle()
        other = group.create_task(it.pool.read(it.id, LEDGER, 2))
        await it.settle()
        assert (it.in_flight, len(it.bookie.requests)) == (1, 1)
        it.release()
        asked.answer()
        assert await other == ENTRIES[2]
        assert (it.in_flight, len(it.bookie.sessions)) == (0, 1)


async def test_a_read_that_nobody_waits_for_is_not_sent_again() -> None:
    """Who asks for the entry of a cancelled read that is still under way gets its answer."""
    async with world() as it, asyncio.TaskGroup() as group:
        it.hold()
        reader = group.create_task(it.pool.read(it.id, LEDGER, 1))
        (asked,) = await it.bookie.asked()
        reader.cancel()
        again = group.create_task(it.pool.read(it.id, LEDGER, 1))
        await it.settle()
        assert len(it.bookie.requests) == 1
        asked.answer()
        assert await again == ENTRIES[1]


async def test_frames_come_in_any_pieces() -> None:
    """An answer byte by byte, and two in one piece."""
    async with world() as it, asyncio.TaskGroup() as group:
        it.hold()
        reads = [group.create_task(it.pool.read(it.id, LEDGER, number)) for number in range(3)]
        first, *_ = await it.bookie.asked(3)
        for byte in wire.v2_read(LEDGER, 0, ENTRIES[0]):
            first.reply(bytes([byte]))
            await it.clock.settle()
        first.reply(wire.v2_read(LEDGER, 2, ENTRIES[2]) + wire.v2_read(LEDGER, 1, ENTRIES[1]))
        assert [await read for read in reads] == ENTRIES[:3]


async def test_no_more_than_the_window_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten reads through a window of three reach the bookie three at a time, in order; batches have a window apart."""
    monkeypatch.setattr(bookies, "BATCHES_MAX", 1)
    async with world(BookkeeperSettings(requests_in_flight_max=3)) as it, asyncio.TaskGroup() as group:
        it.hold()
        reads = [group.create_task(it.pool.read(it.id, LEDGER, number)) for number in range(10)]
        for done in range(10):
            expected = min(done + 3, 10)
            asked = await it.bookie.asked(expected)
            await it.settle()
            assert len(asked) == expected
            assert it.value("offloaderd_bookie_requests_in_flight") == min(3, 10 - done)
            asked[done].answer()
        assert [await read for read in reads] == ENTRIES
        assert [asked.entry_id for asked in it.bookie.requests] == list(range(10))
        batches = [group.create_task(it.batch(0, 1)) for _ in range(2)]
        await it.bookie.asked(11)
        await it.settle()
        assert len(it.bookie.requests) == 11
        it.release()
        it.bookie.requests[10].answer()
        assert [await batch for batch in batches] == [ENTRIES[:1]] * 2


async def test_a_bookie_with_too_much_to_do_is_given_half() -> None:
    """Eight reads that are turned away halve the window once; good answers widen it again."""
    async with world(BookkeeperSettings(requests_in_flight_max=8)) as it:
        it.hold()
        async with asyncio.TaskGroup() as group:
            outcomes = group.create_task(it.outcomes(it.pool.read(it.id, LEDGER, number) for number in range(8)))
            for asked in await it.bookie.asked(8):
                asked.refuse(BUSY)
            assert await outcomes == [Throttled] * 8
            assert it.value("offloaderd_bookie_requests_total", operation="read", outcome="busy") == 8
            reads = [group.create_task(it.pool.read(it.id, LEDGER, number)) for number in range(8)]
            await it.bookie.asked(12)
            await it.settle()
            assert len(it.bookie.requests) == 12
            it.release()
            for asked in it.bookie.requests[8:12]:
                asked.answer()
            assert [await read for read in reads] == ENTRIES[:8]
            for _ in range(5):
                await it.outcomes(it.pool.read(it.id, LEDGER, number) for number in range(8))
            it.hold()
            before = len(it.bookie.requests)
            reads = [group.create_task(it.pool.read(it.id, LEDGER, number)) for number in range(8)]
            for asked in (await it.bookie.asked(before + 8))[before:]:
                asked.answer()


@pytest.mark.parametrize(
    ("stored", "max_lac", "code", "known"),
    [
        (None, None, 402, (None, -1)),
        (None, None, 403, (None, -1)),
        (None, 12, 403, (None, 12)),
        (None, None, 0, (None, -1)),
        (ENTRIES[3], None, 0, (ENTRIES[3], -1)),
        (ENTRIES[3], 9, 0, (ENTRIES[3], 9)),
        (ENTRIES[3], -1, 0, (ENTRIES[3], -1)),
        (ENTRIES[3], -5, 0, (ENTRIES[3], -1)),
    ],
)
async def test_the_end_of_a_ledger(
    stored: bytes | None, max_lac: int | None, code: int, known: tuple[bytes | None, int]
) -> None:
    """A bookie that has nothing of a ledger knows nothing, or what it heard of it."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.reply(
            wire.v3_read(asked.number, LEDGER, -1, stored, max_lac=max_lac, code=code)
        )
        assert await it.pool.last_known(it.id, LEDGER) == known


async def test_a_refusal_without_a_message_still_means_that_nothing_is_there() -> None:
    """An outer status alone is enough."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.reply(wire.v3_refusal(asked.number, 1, 402))
        assert await it.pool.last_known(it.id, LEDGER) == (None, -1)


async def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no failure: the next request opens another."""
    monkeypatch.setattr(connection, "IDLE_S", 0.05)
    async with world() as it:
        await it.pool.read(it.id, LEDGER, 0)
        await it.ended()
        assert it.value("offloaderd_bookie_connections") == 0
        assert await it.pool.read(it.id, LEDGER, 1) == ENTRIES[1]
        assert (len(it.bookie.sessions), it.value("offloaderd_bookies_avoided")) == (2, 0)


async def test_requests_at_once_share_one_connection() -> None:
    """The first one makes it; when that one is cancelled, the next one does."""
    async with world() as it, asyncio.TaskGroup() as group:
        readers = [group.create_task(it.pool.read(it.id, LEDGER, number)) for number in range(8)]
        await it.clock.settle()
        readers[0].cancel()
        assert [await reader for reader in readers[1:]] == ENTRIES[1:8]
        assert sum(not session.ended for session in it.bookie.sessions) == 1


async def test_the_end_of_the_pool_ends_all_waiting() -> None:
    """Who waits for an answer or for a turn gets Closed; nothing is asked afterwards; every connection is gone."""
    async with asyncio.TaskGroup() as group, world(BookkeeperSettings(requests_in_flight_max=1)) as it:
        it.hold()
        outcomes = group.create_task(it.outcomes(it.pool.read(it.id, LEDGER, number) for number in range(3)))
        await it.bookie.asked()
        await it.pool.__aexit__(None, None, None)
        assert await outcomes == [Closed] * 3
        with pytest.raises(Closed):
            await it.pool.read(it.id, LEDGER, 0)
        await it.ended()


async def test_what_cannot_be_asked_for_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids out of range, no bookie's id, the last entry as if it were one; the window stays free."""
    monkeypatch.setattr(bookies, "BATCHES_MAX", 1)
    async with world() as it:
        for _ in range(2):
            for impossible in (
                it.pool.read(it.id, -1, 0),
                it.pool.read(it.id, LEDGER, -1),
                it.pool.read("a/b", LEDGER, 0),
                it.pool.last_known(it.id, -1),
                it.pool.read_batch(it.id, LEDGER, 0, count_max=0, bytes_max=10),
            ):
                with pytest.raises(InvalidInput):
                    await impossible
        assert it.bookie.requests == []
        assert await it.batch(0, 1) == ENTRIES[:1]


async def test_bookies_of_the_past_are_forgotten_and_those_in_use_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters replace bookies for years: what is held of them does not grow with every id that there ever was."""
    monkeypatch.setattr(bookies, "BOOKIES_MAX", 3)
    async with world() as it:
        await it.pool.read(it.id, LEDGER, 0)
        for number in range(10):
            with pytest.raises(Transient):
                await it.pool.read(f"gone-{number}", LEDGER, 0)
            await it.clock.advance(60)
        assert it.id in it.pool._bookies
        assert len(it.pool._bookies) <= 3
        assert await it.pool.read(it.id, LEDGER, 1) == ENTRIES[1]
        assert it.value("offloaderd_bookie_connections") == 1
