"""Reads over daemons that break, go away and lag: each entry of the range once, in order, or a typed error."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.client import EntryBatch, ReadAnswer, TimedOut, Unreachable
from offloaderd.client.reading import Ahead
from offloaderd.core.errors import Closed, CorruptData, NotFound, OffloaderError, Throttled, Transient
from offloaderd.protocol.errors import CallTooLong
from offloaderd.protocol.v1 import common_pb2
from tests.unit.client.fleet import TOPIC, Daemon, at, number_of, patient, serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from grpc import aio

    from offloaderd.client import DaemonClient

REAL_TIME = "gRPC"


async def numbers(answers: AsyncIterator[ReadAnswer]) -> list[int]:
    """Return the numbers of all entries that come."""
    return [int(payload) async for answer in answers for payload in answer.batch.payloads]


async def numbers_while_stopping(client: DaemonClient, server: aio.Server) -> list[int]:
    """Read the topic, and stop the server once its first entries have come; return the numbers of all."""
    found: list[int] = []
    async with aclosing(client.read(TOPIC, ahead=1)) as answers:
        async for answer in answers:
            if not found:
                await server.stop(0)
            found += [int(payload) for payload in answer.batch.payloads]
    return found


@pytest.mark.parametrize("frames", [True, False])
@pytest.mark.parametrize(
    "error", [None, Closed("it stops"), CallTooLong("an hour"), Transient("the bucket is away"), Throttled("too many")]
)
async def test_a_broken_read_goes_on_behind_the_last_entry(error: OffloaderError | None, *, frames: bool) -> None:
    """Twice in one range, at whatever a daemon of this or an older version breaks with once the stream has worked."""
    daemon = Daemon(breaks=[(2, error), (1, error)], frames=frames)
    async with serving(daemon), patient(daemon.address) as client:
        assert await numbers(client.read(TOPIC, first=at(1))) == list(range(1, 25))
        assert [number_of(request.first) for request in daemon.reads] == [1, 7, 10]
        assert {number_of(request.last) for request in daemon.reads} == {24}


async def test_a_read_moves_to_a_daemon_that_the_first_one_told_of() -> None:
    """The first goes away in the middle; the second one's address was never given."""
    first, second = Daemon(breaks=[(3, Closed("it stops"))]), Daemon()
    async with serving(second), serving(first) as server:
        first.others = [second.address]
        async with patient(first.address) as client:
            assert await numbers_while_stopping(client, server) == list(range(25))
            assert client.address == second.address
            assert second.reads


async def test_the_first_address_that_answers_is_taken() -> None:
    """Those before it are skipped; when none answers, all are named."""
    daemon = Daemon()
    async with serving(daemon), patient("127.0.0.1:1", daemon.address) as client:
        assert client.address == daemon.address
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1; .*127\.0\.0\.1:2"):
        async with patient("127.0.0.1:1", "127.0.0.1:2"):
            pytest.fail("nobody is there")


async def test_a_daemon_that_lags_behind_is_waited_for() -> None:
    """What the first daemon knew to be the newest entry is the end of the range at the second one, too."""
    first, second = Daemon(), Daemon(count=20, grows_to=25)
    async with serving(first) as server, serving(second), patient(first.address, second.address) as client:
        found: list[int] = []
        async with aclosing(client.read(TOPIC, ahead=1)) as answers:
            async for answer in answers:
                found += [int(payload) for payload in answer.batch.payloads]
                if len(found) == 3:
                    await server.stop(0)
        assert found == list(range(25))


@pytest.mark.parametrize("frames", [True, False])
async def test_entries_max_counts_over_breaks(*, frames: bool) -> None:
    """Each new stream is asked for what is left only."""
    daemon = Daemon(breaks=[(2, None)], frames=frames)
    async with serving(daemon), patient(daemon.address) as client:
        assert await numbers(client.read(TOPIC, entries_max=8)) == list(range(8))
        assert [request.entries_max for request in daemon.reads] == [8, 2]


async def test_nothing_is_asked_again_behind_the_end() -> None:
    """A stream that breaks behind its last entry was complete."""
    daemon = Daemon(count=9, breaks=[(3, None)])
    async with serving(daemon), patient(daemon.address) as client:
        assert await numbers(client.read(TOPIC, last=at(8))) == list(range(9))
        assert len(daemon.reads) == 1


async def test_following_goes_on_as_well() -> None:
    """A broken stream that follows is opened again, and has no end."""
    daemon = Daemon(breaks=[(5, None)])
    async with serving(daemon), patient(daemon.address) as client:
        found = 0
        async with aclosing(client.read(TOPIC, follow=True)) as answers:
            async for answer in answers:
                found += len(answer.batch.payloads)
                if found == 25:
                    break
        assert [request.HasField("last") for request in daemon.reads] == [False, False]


@pytest.mark.parametrize(
    "error", [NotFound("no such topic"), CorruptData(key="k", offset=1, expected="a", found="b")], ids=str
)
async def test_what_is_final_ends_the_read(error: OffloaderError) -> None:
    """Nothing is asked again that would be answered in the same way."""
    daemon = Daemon(breaks=[(1, error)])
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(type(error)):
            await numbers(client.read(TOPIC))
        assert len(daemon.reads) == 1


async def test_a_failure_at_the_beginning_is_reported_at_once() -> None:
    """A store that is away when the read begins is no broken stream."""
    daemon = Daemon(breaks=[(0, Transient("the bucket is away"))])
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(Transient, match="bucket"):
            await numbers(client.read(TOPIC))


async def test_patience_ends() -> None:
    """Without resuming the first break is raised; with a little of it the last one; a deadline goes over all."""
    daemon = Daemon(breaks=[(1, None)])
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(Unreachable):
            await numbers(client.read(TOPIC, resume_s=0))
        daemon.breaks = [(1, None), *[(0, None)] * 1000]
        with pytest.raises(Unreachable):
            await numbers(client.read(TOPIC, resume_s=0.2))
        daemon.breaks = [(1, None), *[(0, None)] * 1000]
        with pytest.raises(TimedOut):
            await numbers(client.read(TOPIC, timeout_s=0.3))


async def test_a_daemon_that_repeats_entries_is_not_believed() -> None:
    """What does not follow is an error, never handed out."""
    daemon = Daemon(repeats=True)
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(OffloaderError, match=r"0:0 behind 0:2"):
            await numbers(client.read(TOPIC))


async def test_a_read_moves_between_versions() -> None:
    """What one daemon sends framed the next one, of an older version, sends as payloads."""
    first, second = Daemon(breaks=[(3, Closed("it stops"))]), Daemon(frames=False)
    async with serving(second), serving(first) as server, patient(first.address, second.address) as client:
        assert await numbers_while_stopping(client, server) == list(range(25))
        assert all(request.framed for request in [*first.reads, *second.reads])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frames: frames[:-1],
        lambda frames: frames + b"\0",
        lambda frames: frames[13:],
        lambda frames: frames[:11] + b"\x07" + frames[12:],
        lambda frames: frames[:13],
        lambda frames: b"",
    ],
)
async def test_frames_that_are_not_right_are_never_handed_out(spoil: Callable[[bytes], bytes]) -> None:
    """Lengths, ids and number are compared: a wrong one is an error that names the daemon, and no gap."""
    daemon = Daemon(spoil=spoil)
    async with serving(daemon), patient(daemon.address) as client:
        with pytest.raises(CorruptData, match=daemon.address):
            await numbers(client.read(TOPIC))
        assert len(daemon.reads) == 1


async def test_a_client_that_is_closed_ends_its_reads() -> None:
    """A reader that waits for new entries hears of it."""
    daemon = Daemon()
    async with serving(daemon):
        async with patient(daemon.address) as client:
            answers = client.read(TOPIC, follow=True, first=at(24))
            await anext(answers)
        with pytest.raises(Closed):
            await anext(answers)


async def test_what_is_fetched_ahead_is_bounded() -> None:
    """A reader that pauses stops the stream once as many answers wait for it."""

    given = 0

    async def endless() -> AsyncGenerator[ReadAnswer, None]:
        nonlocal given
        while given < 100:
            given += 1
            yield ReadAnswer(EntryBatch(0, given, [b"x" * 1000]), common_pb2.TIER_OBJECTS)
        raise NotFound("the end")

    ahead = Ahead(3)
    async with asyncio.TaskGroup() as group:
        filling = group.create_task(ahead.fill(endless()))
        for took in range(100):
            for _ in range(5):
                await asyncio.sleep(0)  # noqa: TID251 - to let the other task go on
            assert given <= took + 3
            assert await ahead.take() is not None
        with pytest.raises(NotFound):
            await ahead.take()
        await filling
