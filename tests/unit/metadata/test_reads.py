"""Reads that are sent together, with a client that answers when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, UnimplementedError

from offloaderd.core.errors import Closed, NotFound, Transient
from offloaderd.metadata.zookeeper.client import Read
from offloaderd.metadata.zookeeper.reads import ANSWER_BYTES, BATCHES_MAX, TOGETHER_MAX, TOGETHER_MIN, Reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.errors import OffloaderError
    from offloaderd.metadata.zookeeper.client import ZooKeeperClient
    from offloaderd.metadata.zookeeper.connection import Connection

TIMEOUT_S = 10.0


class Request:
    """A request that was sent, and its result."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self.paths = [read.path for read in reads]
        self.value: Any = None
        self.exception: Exception | None = None
        self._answered: Callable[[object], None]

    def successful(self) -> bool:
        """Whether it has a value."""
        return self.exception is None

    def rawlink(self, callback: Callable[[object], None]) -> None:
        """Keep who is told."""
        self._answered = callback

    def answer(self, value: object = None, exception: Exception | None = None) -> None:
        """Answer; kazoo tells more than once."""
        self.value, self.exception = value, exception
        self._answered(None)
        self._answered(None)


class Link:
    """A connection and its client."""

    def __init__(self) -> None:
        self.live = True
        self.requests: list[Request] = []
        self.reads = Reads(
            cast("Connection[ZooKeeperClient]", self), servers="here:1", timeout_s=TIMEOUT_S, translate=_translated
        )
        self.reads._together_max = TOGETHER_MAX

    def check_open(self) -> None:
        """It is open."""

    def present(self) -> Link:
        """Return the client."""
        return self

    def read_async(self, reads: Sequence[Read]) -> Request:
        """Note a request."""
        self.requests.append(Request(reads))
        return self.requests[-1]

    def ask(self, *names: str) -> list[asyncio.Future[Any]]:
        """Ask for the values of nodes."""
        return [self.reads.ask(Read(name, children=False, what=f"read {name}")) for name in names]


def _translated(error: Exception | None, read: Read) -> OffloaderError:
    return NotFound(read.what) if isinstance(error, NoNodeError) else Transient(read.what)


async def turns() -> None:
    """Let what was asked be sent, and what was answered be passed on."""
    for _ in range(4):
        await asyncio.sleep(0)  # noqa: TID251 - gives the loop a turn, measures no time


async def test_what_is_asked_together_is_one_request_and_one_error_is_of_one_read() -> None:
    """Who asks for the same shares the answer; a single read has its answer alone."""
    link = Link()
    a, b, again = link.ask("/a", "/b", "/a")
    await turns()
    assert [one.paths for one in link.requests] == [["/a", "/b"]]
    link.requests[0].answer([b"1", NoNodeError()])
    assert (await a, await again) == (b"1", b"1")
    with pytest.raises(NotFound, match="read /b"):
        await b
    [single] = link.ask("/a")
    await turns()
    link.requests[1].answer(b"2")
    assert await single == b"2"


async def test_requests_are_bounded_and_what_waits_is_sent_with_the_next_answer() -> None:
    """A request has TOGETHER_MAX reads; BATCHES_MAX are unanswered; later reads gather meanwhile."""
    link = Link()
    link.ask(*(f"/{number}" for number in range(TOGETHER_MAX * BATCHES_MAX)))
    first, _ = link.ask("/late", "/later")
    await turns()
    link.ask("/last")
    await turns()
    assert [len(one.paths) for one in link.requests] == [TOGETHER_MAX] * BATCHES_MAX
    link.requests[1].answer([b""] * TOGETHER_MAX)
    await turns()
    assert link.requests[BATCHES_MAX].paths == ["/late", "/later", "/last"]
    assert not first.done()


async def test_a_server_that_does_not_know_such_requests_gets_each_read_alone() -> None:
    """Nothing is lost: what it refused is asked again, one by one, and so is everything after that."""
    link = Link()
    a, b = link.ask("/a", "/b")
    await turns()
    link.requests[0].answer(exception=UnimplementedError())
    await turns()
    assert [one.paths for one in link.requests[1:]] == [["/a"], ["/b"]]
    link.requests[1].answer(b"1")
    link.requests[2].answer(exception=NoNodeError())
    assert await a == b"1"
    with pytest.raises(NotFound):
        await b
    link.ask(*(f"/{number}" for number in range(BATCHES_MAX + 1)))
    await turns()
    assert [len(one.paths) for one in link.requests[3:]] == [1] * (BATCHES_MAX + 1)


async def test_reads_wait_for_a_connection_and_fail_with_it() -> None:
    """Without a connection nothing is sent; what was cancelled never is; a lost one fails all reads of a request."""
    link = Link()
    link.live = False
    a, b, gone = link.ask("/a", "/b", "/gone")
    await turns()
    assert not link.requests
    gone.cancel()
    link.live = True
    link.reads.send()
    assert [one.paths for one in link.requests] == [["/a", "/b"]]
    link.requests[0].answer(exception=ConnectionLoss())
    for one in (a, b):
        with pytest.raises(Transient):
            await one
    link.live = False
    [c] = link.ask("/c")
    link.reads.close()
    with pytest.raises(Closed):
        await c


async def test_a_reader_that_is_cancelled_takes_nothing_from_the_others_of_its_request() -> None:
    """It left after the request was sent: they have the answer, or the error, all the same."""
    link = Link()
    for answered in (True, False):
        gone, same, other = link.ask("/a", "/a", "/b")
        await turns()
        gone.cancel()
        if answered:
            link.requests[-1].answer([b"1", b"2"])
            assert (await same, await other) == (b"1", b"2")
            continue
        link.requests[-1].answer(exception=ConnectionLoss())
        for one in (same, other):
            with pytest.raises(Transient):
                await one


async def test_a_single_read_that_a_server_does_not_know_is_an_error() -> None:
    """It is not asked again for ever."""
    link = Link()
    [single] = link.ask("/a")
    await turns()
    link.requests[0].answer(exception=UnimplementedError())
    with pytest.raises(Transient):
        await single
    await turns()
    assert len(link.requests) == 1


async def test_requests_that_were_given_up_leave_their_places_to_what_waits() -> None:
    """A server that never answers holds up nobody beyond the time of those before."""
    link = Link()
    lost = link.ask(*(f"/{number}" for number in range(TOGETHER_MAX * BATCHES_MAX)))
    await asyncio.sleep(0.5 * TIMEOUT_S)  # noqa: TID251 - virtual time
    [waits] = link.ask("/waits")
    await asyncio.sleep(0.4 * TIMEOUT_S)  # noqa: TID251 - virtual time
    assert len(link.requests) == BATCHES_MAX
    await asyncio.sleep(0.2 * TIMEOUT_S)  # noqa: TID251 - virtual time
    assert all(isinstance(one.exception(), Transient) for one in lost)
    link.requests[BATCHES_MAX].answer(b"1")
    assert await waits == b"1"


async def test_a_read_does_not_share_the_end_of_the_time_of_earlier_ones() -> None:
    """ZooKeeper is away for 11 s: who asked at its start is told, who asks late has an answer."""
    link = Link()
    link.live = False
    early, soon = *link.ask("/early"), *link.ask("/soon")
    await asyncio.sleep(0.95 * TIMEOUT_S)  # noqa: TID251 - virtual time
    [late] = link.ask("/late")
    await asyncio.sleep(0.1 * TIMEOUT_S)  # noqa: TID251 - virtual time
    for one in (early, soon):
        with pytest.raises(Transient, match="no connection"):
            await one
    link.live = True
    link.reads.send()
    assert [one.paths for one in link.requests] == [["/late"]]
    link.requests[0].answer(b"1")
    assert await late == b"1"


async def test_a_read_is_given_up_in_time_and_leaves_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent or not: the error says which; an answer that comes later is of no use."""
    loop, timers = asyncio.get_running_loop(), list[Callable[[], None]]()

    def call_later(delay: float, callback: Callable[..., None], *given: object) -> asyncio.TimerHandle:
        assert delay == TIMEOUT_S
        timers.append(lambda: callback(*given))
        return asyncio.TimerHandle(0.0, callback, given, loop)

    monkeypatch.setattr(loop, "call_later", call_later)
    link = Link()
    [sent] = link.ask("/sent")
    await turns()
    link.live = False
    [unsent] = link.ask("/unsent")
    for late in timers:
        late()
    with pytest.raises(Transient, match="read /sent: no answer within 10 s"):
        await sent
    with pytest.raises(Transient, match="read /unsent: no connection"):
        await unsent
    link.requests[0].answer(b"1")
    link.live = True
    [after] = link.ask("/after")
    await turns()
    assert [one.paths for one in link.requests] == [["/sent"], ["/after"]]
    link.requests[1].answer(b"2")
    assert await after == b"2"


async def test_a_request_has_as_many_reads_as_answers_are_small() -> None:
    """Few at first, twice as many after each full one; half as many behind a large answer, few behind none at all."""
    link = Link()
    link.reads._together_max = TOGETHER_MIN

    async def sent(value: bytes, lost: Exception | None = None) -> list[int]:
        """Return how many reads each request has; the first one is answered by this."""
        link.requests.clear()
        futures = link.ask(*(f"/{number}" for number in range(TOGETHER_MAX)))
        await turns()
        link.requests[0].answer([(value, None)] * len(link.requests[0].paths), lost)
        await turns()
        number = 1
        while number < len(link.requests):  # each answer lets another one go
            link.requests[number].answer([(b"", None)] * len(link.requests[number].paths))
            number += 1
            await turns()
        for one in futures:
            one.exception()
        return [len(one.paths) for one in link.requests]

    small, large = b"", bytes(ANSWER_BYTES // TOGETHER_MAX + 1)
    assert await sent(small) == [4, 4, 4, 4, 8, 8], "what waits is cut when it is sent"
    assert await sent(small) == [16, 16]
    assert await sent(large) == [32]
    assert await sent(small, ConnectionLoss()) == [16, 16]
    assert await sent(small) == [8, 8, 8, 8]
