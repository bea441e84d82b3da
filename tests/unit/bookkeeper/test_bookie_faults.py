"""Bookies that are silent, talk nonsense, break down or are too old: who is told what, and what is asked next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

from offloaderd.bookkeeper.connections import bookies, connection
from offloaderd.bookkeeper.connections.connection import BookieConnection, ConnectionLost, TimedOut, Wire
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.protocol import BadAnswer, NotHere, Unsupported
from offloaderd.core.errors import Denied, OffloaderError, Throttled, Transient
from offloaderd.testing.clock import FakeClock
from tests.patience import PATIENCE_S
from tests.unit.bookkeeper import wire
from tests.unit.bookkeeper.fake_bookie import BUSY, fake_bookie
from tests.unit.bookkeeper.pool_world import ENTRIES, LEDGER, world

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.unit.bookkeeper.fake_bookie import Asked

T = TypeVar("T")


async def test_an_answer_after_its_deadline_is_dropped() -> None:
    """The reader has been told; asked again, the entry comes, and the second answer to it disturbs nobody."""
    async with world(BookkeeperSettings(request_timeout_s=0.05)) as it:
        it.hold()
        with pytest.raises(TimedOut, match=r"0\.05 s"):
            await it.pool.read(it.id, LEDGER, 1)
        assert it.in_flight == 0

        def twice(asked: Asked) -> None:
            asked.answer()
            it.bookie.requests[0].answer()

        it.bookie.on_request = twice
        assert await it.pool.read(it.id, LEDGER, 1) == ENTRIES[1]
        it.release()
        assert await it.pool.read(it.id, LEDGER, 2) == ENTRIES[2]
        assert len(it.bookie.sessions) == 1
        assert it.value("offloaderd_bookie_requests_total", operation="read", outcome="timeout") == 1


async def test_answers_after_their_deadlines_are_dropped_each() -> None:
    """A single read has no number: when the same one was given up twice, two answers to it may still come."""
    async with world(BookkeeperSettings(request_timeout_s=0.05)) as it:
        it.hold()
        for _ in range(2):
            with pytest.raises(TimedOut):
                await it.pool.read(it.id, LEDGER, 1)
        it.release()
        for asked in await it.bookie.asked(2):
            asked.answer()
        await it.settle()
        assert await it.pool.read(it.id, LEDGER, 2) == ENTRIES[2]
        assert len(it.bookie.sessions) == 1


async def test_a_silent_bookie_is_left_after_three_deadlines() -> None:
    """All who wait on the connection are told at once, it is closed, and the bookie is avoided for a while."""
    async with world(BookkeeperSettings(request_timeout_s=0.05)) as it:
        await it.pool.read(it.id, LEDGER, 0)
        it.hold()
        outcomes = await it.outcomes(it.pool.read(it.id, LEDGER, number) for number in range(1, 6))
        assert outcomes == [TimedOut] * 5
        await it.ended()
        assert it.value("offloaderd_bookies_avoided") == 1
        with pytest.raises(TimedOut, match="no request for another"):
            await it.pool.read(it.id, LEDGER, 1)
        assert len(it.bookie.sessions) == 1


async def test_a_bookie_that_answers_others_is_not_silent() -> None:
    """Deadlines in a row only count while nothing else comes."""
    async with world(BookkeeperSettings(request_timeout_s=0.05)) as it:
        it.bookie.on_request = lambda asked: asked.answer() if asked.entry_id == 0 else None
        for number in range(1, 6):
            assert await it.pool.read(it.id, LEDGER, 0) == ENTRIES[0]
            with pytest.raises(TimedOut):
                await it.pool.read(it.id, LEDGER, number)
        assert len(it.bookie.sessions) == 1


async def test_a_bookie_that_leaves_out_answers_gets_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What might still be answered is remembered, up to a limit."""
    monkeypatch.setattr(connection, "LATE_MAX", 2)
    async with world(BookkeeperSettings(request_timeout_s=0.05)) as it:
        it.bookie.on_request = lambda asked: asked.answer() if asked.entry_id == 0 else None
        for number in range(1, 4):
            assert not any(session.ended for session in it.bookie.sessions)
            assert await it.pool.read(it.id, LEDGER, 0) == ENTRIES[0]
            with pytest.raises(TimedOut):
                await it.pool.read(it.id, LEDGER, number)
        await it.ended()


class NoSocket(asyncio.Transport):
    """A transport that leads nowhere."""

    def abort(self) -> None:
        """Nothing is there to be ended."""


async def test_requests_wait_while_the_socket_takes_none() -> None:
    """They go on when it does, or fail when it ends."""
    async with asyncio.TaskGroup() as group:
        ends: list[OffloaderError] = []
        made = BookieConnection(
            "b", Wire.V2, BookkeeperSettings(), on_bytes=lambda _: None, on_probe=lambda _: None, on_end=ends.append
        )
        made.connection_made(NoSocket())
        await made.writable()
        for over in (made.resume_writing, lambda: made.connection_lost(None)):
            made.pause_writing()
            waiting = group.create_task(made.writable())
            await asyncio.sleep(0.01)  # noqa: TID251 - virtual time
            assert not waiting.done()
            over()
            await waiting


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        wire.framed(b"\x02\x09\x00\x00"),
        wire.framed(b"\x03\x02\x00\x00" + bytes(24)),
        (2**30).to_bytes(4, "big"),
        wire.v2_read(LEDGER, 999, ENTRIES[0]),
        wire.v2_batch(999, LEDGER, 0, ENTRIES[:1]),
    ],
    ids=["other-protocol", "operation", "version", "huge", "entry-not-asked-for", "batch-not-asked-for"],
)
async def test_nonsense_ends_the_connection_for_all(nonsense: bytes) -> None:
    """Everybody who waits is told, and the bookie is avoided; after that a new connection serves."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.reply(nonsense) if asked.entry_id == 2 else None
        outcomes = await it.outcomes(it.pool.read(it.id, LEDGER, number) for number in range(3))
        assert outcomes == [BadAnswer] * 3
        await it.ended()
        assert it.value("offloaderd_bookies_avoided") == 1
        it.release()
        await it.clock.advance(1)
        assert await it.pool.read(it.id, LEDGER, 2) == ENTRIES[2]


async def test_a_reset_in_the_middle_of_a_frame_loses_only_that_connection() -> None:
    """Who waits gets a Transient; a bookie that has answered before is asked again at once."""
    async with world() as it:
        await it.pool.read(it.id, LEDGER, 0)

        def half(asked: Asked) -> None:
            asked.reply(wire.v2_read(LEDGER, asked.entry_id, ENTRIES[1])[:30])
            asked.session.transport.close()

        it.bookie.on_request = half
        with pytest.raises(ConnectionLost):
            await it.pool.read(it.id, LEDGER, 1)
        it.release()
        assert await it.pool.read(it.id, LEDGER, 1) == ENTRIES[1]
        assert it.value("offloaderd_bookies_avoided") == 0


async def test_a_bookie_that_takes_connections_and_drops_them_is_avoided() -> None:
    """What ends before it has answered anything is as good as no connection: each pause is longer."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.session.cut()
        for pause in (0.2, 0.4, 0.8):
            with pytest.raises(ConnectionLost):
                await it.pool.read(it.id, LEDGER, 1)
            assert it.pool.ordered(["other:1", it.id, "third:1"]) == ["other:1", "third:1", it.id]
            await it.clock.advance(pause / 2 - 0.01)
            with pytest.raises(Transient, match="no request for another"):
                await it.pool.read(it.id, LEDGER, 1)
            await it.clock.advance(pause / 2 + 0.02)
            assert it.pool.ordered([it.id, "other:1"]) == [it.id, "other:1"]
        assert len(it.bookie.sessions) == 3


async def test_one_answer_makes_up_for_all_failures() -> None:
    """The first failure after it counts as a first one."""
    async with world() as it:
        for failures in (5, 1):
            it.bookie.on_request = lambda asked: asked.reply(b"nonsense")
            for _ in range(failures):
                await it.clock.advance(30)
                with pytest.raises(BadAnswer):
                    await it.pool.read(it.id, LEDGER, 1)
            await it.clock.advance(0.2)
            assert it.value("offloaderd_bookies_avoided") == (1 if failures > 1 else 0)
            await it.clock.advance(30)
            it.release()
            await it.pool.read(it.id, LEDGER, 1)
            assert it.pool.ordered(["other:1", it.id]) == ["other:1", it.id]


async def test_a_bookie_that_is_down_is_avoided_ever_longer() -> None:
    """The pause doubles up to half a minute; an answer ends it."""
    async with world() as it:
        async with fake_bookie() as gone:
            down = gone.bookie_id
        pauses = []
        for _ in range(12):
            with pytest.raises(Transient, match="cannot be reached"):
                await it.pool.read(down, LEDGER, 1)
            began = it.clock.monotonic()
            while it.pool.ordered([down, "other:1"])[0] != down:
                await it.clock.advance(0.1)
            pauses.append(it.clock.monotonic() - began)
        assert 0.1 <= pauses[0] <= 0.3
        assert pauses[3] > pauses[0]
        assert all(15 <= pause <= 30.2 for pause in pauses[-3:])
        async with fake_bookie(int(down.rpartition(":")[2])) as risen:
            risen.stored[LEDGER, 1] = ENTRIES[1]
            assert await it.pool.read(down, LEDGER, 1) == ENTRIES[1]
            assert it.pool.ordered([down, "other:1"]) == [down, "other:1"]


async def test_a_bookie_without_batch_reads_is_asked_for_none_for_an_hour() -> None:
    """It ends the connection twice, which says that it does not know them; single reads go on, batches are refused."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.session.cut() if asked.operation == "batch" else asked.answer()
        assert it.pool.batches(it.id)
        with pytest.raises(Unsupported, match=r"4\.17|batch"):
            await it.batch(0, 5)
        assert [asked.operation for asked in it.bookie.requests] == ["batch"] * 2
        assert not it.pool.batches(it.id)
        assert it.value("offloaderd_bookies_avoided") == 0
        with pytest.raises(Unsupported):
            await it.batch(0, 5)
        assert await it.pool.read(it.id, LEDGER, 0) == ENTRIES[0]
        assert len(it.bookie.requests) == 3
        await it.clock.advance(3600)
        it.release()
        assert it.pool.batches(it.id)
        assert await it.batch(0, 5) == ENTRIES[:5]


async def test_a_bookie_that_breaks_down_on_its_first_batch_is_not_taken_for_an_old_one() -> None:
    """It cannot be reached again at once, which an old one could be."""
    async with world() as it:
        async with fake_bookie() as mortal:
            dying = mortal.bookie_id
            asked = asyncio.Event()
            mortal.on_request = lambda _: asked.set()
            async with asyncio.TaskGroup() as group:
                outcomes = group.create_task(
                    it.outcomes([it.pool.read_batch(dying, LEDGER, 0, count_max=1, bytes_max=100)])
                )
                await asked.wait()
                mortal.shut()
                assert await outcomes == [Transient]
        assert it.pool.batches(dying)


async def test_a_bookie_known_to_answer_batches_stays_so() -> None:
    """A lost connection then is one, and is not tried again in here."""
    async with world() as it:
        await it.batch(0, 1)
        it.bookie.on_request = lambda asked: asked.session.cut()
        with pytest.raises(ConnectionLost):
            await it.batch(0, 1)
        assert it.pool.batches(it.id)
        assert len(it.bookie.requests) == 2


async def test_a_batch_that_is_refused_by_name_is_not_asked_for_again() -> None:
    """EBADREQ says the same as an ended connection."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.refuse(100)
        with pytest.raises(Unsupported):
            await it.batch(0, 1)
        assert not it.pool.batches(it.id)


@pytest.mark.parametrize("wrong", ["too-many", "ledger", "first"])
async def test_a_batch_other_than_asked_for_is_not_taken(wrong: str) -> None:
    """More entries than asked for could lie beyond what is confirmed: the bookie is not believed at all."""
    async with world() as it:

        def spoilt(asked: Asked) -> None:
            ledger = LEDGER + (wrong == "ledger")
            first = asked.entry_id + (wrong == "first")
            asked.reply(wire.v2_batch(asked.number, ledger, first, ENTRIES[: 3 if wrong == "too-many" else 2]))

        it.bookie.on_request = spoilt
        with pytest.raises(BadAnswer):
            await it.batch(0, 2)
        await it.ended()
        assert it.value("offloaderd_bookies_avoided") == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, NotHere), (2, NotHere), (101, Transient), (102, Denied), (104, BadAnswer), (106, Throttled), (107, Transient)],
)
async def test_codes_become_errors(code: int, error: type[OffloaderError]) -> None:
    """Each way of asking raises what the code means; credentials that are wanted come with what to set."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.refuse(code)
        outcomes = await it.outcomes([it.pool.read(it.id, LEDGER, 0), it.batch(0, 1)])
        assert outcomes == [error] * 2
        if error is Denied:
            with pytest.raises(Denied) as caught:
                await it.pool.last_known(it.id, LEDGER)
            assert "bookkeeper.sasl_username" in caught.value.hint
        assert len(it.bookie.sessions) <= 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked: wire.v3_read(asked.number, LEDGER + 1, -1, ENTRIES[0]),
        lambda asked: wire.v3_read(asked.number + 1, LEDGER, -1, ENTRIES[0]),
        lambda asked: wire.v3_auth(asked.number, "sasl", b""),
        lambda asked: wire.v3_refusal(asked.number, 1, 0),
    ],
    ids=["ledger", "number", "kind", "good-without-answer"],
)
async def test_the_end_of_another_ledger_is_not_taken(answer: Callable[[Asked], bytes]) -> None:
    """What nobody asked for ends the connection."""
    async with world() as it:
        it.bookie.on_request = lambda asked: asked.reply(answer(asked))
        with pytest.raises(BadAnswer):
            await it.pool.last_known(it.id, LEDGER)
        await it.ended()


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_a_bookie_does_answers_are_right_or_errors_are_ours(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers late, out of order, twice, in pieces, not at all, ended connections, readers who give up: no mix-up."""
    chance = FakeClock(seed=seed)

    def pick(choices: Sequence[T]) -> T:
        return choices[chance.uuid().int % len(choices)]

    for name, value in (("BATCHES_MAX", 2), ("BACKOFF_MIN_S", 0.001), ("BACKOFF_MAX_S", 0.002)):
        monkeypatch.setattr(bookies, name, value)
    options = BookkeeperSettings(request_timeout_s=0.03, requests_in_flight_max=4)
    async with world(options) as it:
        held: list[Asked] = []

        def disturb(asked: Asked) -> None:
            held.append(asked)
            match pick(["now", "now", "now", "later", "later", "never", "cut", "all", "busy"]):
                case "now":
                    held.pop().answer()
                case "all":
                    held.sort(key=lambda _: chance.uuid())
                    while held:
                        held.pop().answer()
                case "never":
                    held.pop()
                case "busy":
                    held.pop().refuse(BUSY)
                case "cut":
                    asked.session.cut()

        it.bookie.on_request = disturb
        wrong: list[object] = []

        async def reader() -> None:
            for _ in range(30):
                entry = pick(range(10))
                try:
                    async with asyncio.timeout(pick([0.005, 1])):
                        if pick([True, False]):
                            got = [await it.pool.read(it.id, LEDGER, entry)]
                        else:
                            got = await it.batch(entry, 3)
                    if got != ENTRIES[entry : entry + len(got)]:
                        wrong.append((entry, got))
                except (Transient, Unsupported, TimeoutError):
                    await it.clock.advance(0.01)

        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(reader())
        assert wrong == []
        it.release()
        async with asyncio.timeout(PATIENCE_S):
            while it.in_flight:
                await it.settle()
        await it.clock.advance(1)
        assert await it.pool.read(it.id, LEDGER, 1) == ENTRIES[1]
