"""Long polls on the wire: what they take no part in, how a bookie that hangs is found out, and what ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.connections import bookies, connection
from offloaderd.bookkeeper.connections.connection import ConnectionLost, TimedOut
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.protocol import BadAnswer, Unsupported
from offloaderd.core.errors import Closed, Throttled, Transient
from tests.patience import PATIENCE_S
from tests.unit.bookkeeper import wire
from tests.unit.bookkeeper.pool_world import ENTRIES, LEDGER, World, world

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.bookkeeper.fake_bookie import Asked

SOON = BookkeeperSettings(request_timeout_s=0.1, long_polls_in_flight_max=3000)
LAC = 8


async def newer(it: World, seconds: float = 30, *, ledger_id: int = LEDGER) -> int:
    """Wait for a newer LAC of a ledger."""
    return await (await it.pool.newer(it.id, ledger_id, LAC, seconds=seconds))


def waits(it: World) -> list[Asked]:
    """Return the long polls that have come to the bookie."""
    return [asked for asked in it.bookie.requests if asked.operation == "wait"]


def probes(it: World) -> int:
    """Return how many plain reads of an end have come."""
    return sum(asked.operation == "last" for asked in it.bookie.requests)


def rung(asked: Asked, lac: int = LAC + 1) -> bytes:
    """Return the answer of a bookie that has a newer entry."""
    return wire.v3_read(asked.number, asked.ledger_id, LAC + 1, ENTRIES[LAC + 1], max_lac=lac)


async def out(it: World, count: int = 1) -> Sequence[Asked]:
    """Return the long polls once so many are out."""
    async with asyncio.timeout(PATIENCE_S):
        while len(waits(it)) < count:
            await it.settle()
    return waits(it)


async def test_a_long_poll_brings_the_lac() -> None:
    """Asked for what is above the one that is known, for so long; answered when there is more."""
    async with world() as it, asyncio.TaskGroup() as group:
        task = group.create_task(newer(it, 1.5))
        (asked,) = await out(it)
        assert (asked.ledger_id, asked.previous_lac, asked.timeout_ms) == (LEDGER, LAC, 1500)
        assert it.value("offloaderd_bookie_long_polls") == 1
        asked.reply(rung(asked))
        assert await task == LAC + 1
        assert it.value("offloaderd_bookie_long_polls") == 0
        assert it.value("offloaderd_bookie_requests_total", operation="wait", outcome="ok") == 1


async def test_thousands_of_them_are_in_nobodys_way() -> None:
    """They take no slot of the window: the end of a ledger is told as if they were not there."""
    async with (
        world(BookkeeperSettings(requests_in_flight_max=1, long_polls_in_flight_max=3000)) as it,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(newer(it)) for _ in range(3000)]
        await out(it, 3000)
        assert it.in_flight == 0
        assert (await it.pool.last_known(it.id, LEDGER)).stored == ENTRIES[9]
        assert len(it.bookie.sessions) == 1
        for asked in waits(it):
            asked.reply(rung(asked))
        assert {await task for task in tasks} == {LAC + 1}


async def test_there_is_a_limit() -> None:
    """Beyond it they are refused here, and the bookie is not to blame."""
    async with world(BookkeeperSettings(long_polls_in_flight_max=2)) as it, asyncio.TaskGroup() as group:
        assert it.pool.long_polls(it.id)
        tasks = [group.create_task(newer(it)) for _ in range(2)]
        await out(it, 2)
        assert not it.pool.long_polls(it.id)
        with pytest.raises(Throttled, match="2 long polls"):
            await newer(it)
        assert it.value("offloaderd_bookies_avoided") == 0
        for task in tasks:
            task.cancel()


async def test_a_bookie_that_lives_is_waited_for() -> None:
    """Nothing comes for long, but a plain read now and then is answered."""
    async with world(SOON) as it, asyncio.TaskGroup() as group:
        task = group.create_task(newer(it))
        await it.bookie.asked(5)
        assert not task.done()
        assert probes(it) == 4
        (asked,) = waits(it)
        asked.reply(rung(asked))
        assert await task == LAC + 1
        await it.settle()
        before = probes(it)
        await asyncio.sleep(0.3)  # noqa: TID251 - virtual time
        assert probes(it) == before
        assert it.value("offloaderd_bookie_requests_total", operation="probe", outcome="ok") >= 3


async def test_a_bookie_that_hangs_is_found_out() -> None:
    """All who wait are told after twice the time that a request has; answers that come all the same disturb nobody."""
    async with world(SOON) as it:
        it.hold()
        begun = asyncio.get_running_loop().time()
        assert await it.outcomes(newer(it, ledger_id=number) for number in range(50)) == [TimedOut] * 50
        assert 0.15 <= asyncio.get_running_loop().time() - begun <= 1
        assert probes(it) == 1
        it.release()
        for asked in it.bookie.requests[:]:
            asked.reply(
                rung(asked) if asked.operation == "wait" else wire.v3_read(asked.number, LEDGER, -1, ENTRIES[9])
            )
        assert (await it.pool.last_known(it.id, LEDGER)).stored == ENTRIES[9]
        assert len(it.bookie.sessions) == 1
        assert it.value("offloaderd_bookie_long_polls") == 0


async def test_one_that_is_never_answered_is_given_up() -> None:
    """Although the bookie lives: it has dropped it. An answer that comes all the same disturbs nobody."""
    async with world(SOON) as it:
        with pytest.raises(TimedOut, match="left a long poll without an answer"):
            await newer(it, 0.2)
        assert probes(it) >= 1
        (asked,) = waits(it)
        asked.reply(rung(asked))
        await it.settle()
        assert (await it.pool.last_known(it.id, LEDGER)).stored == ENTRIES[9]
        assert len(it.bookie.sessions) == 1


async def test_who_gives_up_leaves_nothing_behind() -> None:
    """The answer to nobody comes later, however many they are; the connection goes on."""
    async with world(BookkeeperSettings(long_polls_in_flight_max=3000)) as it:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(newer(it)) for _ in range(2000)]
            await out(it, 2000)
            for task in tasks:
                task.cancel()
        for asked in waits(it):
            asked.reply(rung(asked))
        assert (await it.pool.last_known(it.id, LEDGER)).stored == ENTRIES[9]
        assert it.value("offloaderd_bookie_long_polls") == 0
        assert len(it.bookie.sessions) == 1


async def test_a_connection_with_long_polls_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays while one is out, and is closed when none is."""
    monkeypatch.setattr(connection, "IDLE_S", 0.1)
    async with world(BookkeeperSettings(request_timeout_s=0.2)) as it, asyncio.TaskGroup() as group:
        task = group.create_task(newer(it))
        (asked,) = await out(it)
        await asyncio.sleep(0.5)  # noqa: TID251 - virtual time
        assert not task.done()
        asked.reply(rung(asked))
        assert await task == LAC + 1
        await it.ended()


async def test_a_connection_that_ends_ends_them() -> None:
    """Who waits is told at once, and so at the end of the pool."""
    async with world() as it, asyncio.TaskGroup() as group:
        task = group.create_task(it.outcomes([newer(it)]))
        await out(it)
        it.bookie.sessions[0].cut()
        assert await task == [ConnectionLost]
        await it.clock.advance(30)
        task = group.create_task(it.outcomes([newer(it)]))
        await out(it, 2)
        await it.pool.__aexit__(None, None, None)
        assert await task == [Closed]


async def test_a_bookie_without_long_polls_is_not_asked_again() -> None:
    """It is remembered for a while, as for batch reads."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.reply(wire.v3_refusal(asked.number, 1, 404))
        assert it.pool.long_polls(it.id)
        with pytest.raises(Unsupported):
            await newer(it)
        assert not it.pool.long_polls(it.id)
        await it.clock.advance(3600)
        assert it.pool.long_polls(it.id)


@pytest.mark.parametrize("code", [402, 403])
async def test_a_bookie_that_knows_nothing_of_the_ledger(code: int) -> None:
    """It has no LAC, which is no error."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.reply(wire.v3_read(asked.number, LEDGER, -1, code=code))
        assert await newer(it) == -1
        it.bookie.on_request = lambda asked: asked.reply(wire.v3_refusal(asked.number, 1, code))
        assert await newer(it) == -1


async def test_other_answers_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another ledger, of another kind, or a bookie's trouble."""
    monkeypatch.setattr(bookies, "BACKOFF_MIN_S", 0)
    async with world() as it:
        for answer, error in (
            (lambda asked: wire.v3_read(asked.number, LEDGER + 1, -1, max_lac=9), BadAnswer),
            (lambda asked: wire.v3_auth(asked.number, "sasl", b""), BadAnswer),
            (lambda asked: wire.v3_refusal(asked.number, 1, 506), Throttled),
            (lambda asked: wire.v3_refusal(asked.number, 1, 501), Transient),
        ):
            it.bookie.on_request = lambda asked, answer=answer: asked.reply(answer(asked))  # type: ignore[misc]
            with pytest.raises(error):
                await newer(it)
