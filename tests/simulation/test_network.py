"""The virtual wire: what is written arrives late, in order and whole; it waits, and connections end as sockets do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import HIGH_BYTES, LATENCY_S, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")
HOST, PORT = "bookie", 3181


class Side(asyncio.Protocol):
    """A protocol that notes what happens to it; `half` keeps the connection when the other side ends its half."""

    def __init__(self, *, half: bool = False) -> None:
        self.transport: asyncio.Transport
        self.got = b""
        self.events: list[str] = []
        self._half = half

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.got += data

    def eof_received(self) -> bool:
        """See asyncio.Protocol."""
        self.events.append("end")
        return self._half

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.events.append("pause")

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.events.append(f"lost {type(exc).__name__}" if exc is not None else "lost")


class CutLine(Line):
    """A line that can be cut."""

    cut = False

    def is_cut(self, process: Process | None) -> bool:
        """See Line."""
        return self.cut


class Pair:
    """A client and a server that are connected; `process` is the client's."""

    def __init__(self, *, half: bool = False) -> None:
        self.loop = VirtualLoop()
        self.line = self.loop.network.line = CutLine()
        self.process = Process(self.loop, "A1")
        self.near, self.far = Side(half=half), Side(half=half)
        self.run(self.loop.create_server(lambda: self.far, HOST, PORT))
        connecting = self.process.start(self.loop.create_connection(lambda: self.near, HOST, PORT))
        self.run(_result(connecting))

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run something of the world."""
        return self.loop.run_until_complete(work)

    def wait(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.run(asyncio.sleep(seconds))  # noqa: TID251 - the loop's own time


@pytest.fixture
def connect() -> Iterator[Callable[..., Pair]]:
    """Make pairs, whose loops are closed at the end."""
    pairs: list[Pair] = []

    def make(*, half: bool = False) -> Pair:
        pairs.append(Pair(half=half))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.loop.close()


async def _result(task: asyncio.Task[T]) -> T:
    return await task


def test_bytes_arrive_late_in_order_and_whole(connect: Callable[..., Pair]) -> None:
    """Both ways; what was written before a close arrives before the end."""
    pair = connect()
    begun = pair.loop.time()
    pair.near.transport.write(b"one ")
    pair.near.transport.write(b"two")
    pair.wait(LATENCY_S / 2)
    assert pair.far.got == b""
    pair.wait(LATENCY_S)
    assert pair.far.got == b"one two"
    assert pair.loop.time() < begun + 2 * LATENCY_S
    pair.far.transport.write(b"three")
    pair.far.transport.close()
    pair.wait()
    assert (pair.near.got, pair.near.events, pair.far.events) == (b"three", ["end", "lost"], ["lost"])


def test_a_half_is_closed_alone(connect: Callable[..., Pair]) -> None:
    """Who has written its end still reads."""
    pair = connect(half=True)
    pair.near.transport.write_eof()
    pair.wait()
    pair.far.transport.write(b"answer")
    pair.wait()
    assert (pair.far.events, pair.near.got, pair.near.events) == (["end"], b"answer", [])


def test_who_writes_too_much_is_paused(connect: Callable[..., Pair]) -> None:
    """Until the other side, which read no more, has got it."""
    pair = connect()
    pair.far.transport.pause_reading()
    pair.near.transport.write(bytes(HIGH_BYTES + 1))
    pair.wait()
    assert (pair.near.events, pair.far.got) == (["pause"], b"")
    pair.far.transport.resume_reading()
    pair.wait()
    assert (pair.near.events, len(pair.far.got)) == (["pause", "resume"], HIGH_BYTES + 1)


def test_a_cut_line_holds_what_was_sent(connect: Callable[..., Pair]) -> None:
    """Nobody notices, and it arrives when the line is whole again; connecting takes as long."""
    pair = connect()
    pair.line.cut = True
    pair.near.transport.write(b"late")
    connecting = pair.loop.create_task(pair.loop.create_connection(Side, HOST, PORT))
    pair.wait(60.0)
    assert (pair.far.got, pair.far.events, connecting.done()) == (b"", [], False)
    pair.line.cut = False
    pair.wait()
    assert (pair.far.got, connecting.done()) == (b"late", True)


def test_a_reset_ends_the_other_side(connect: Callable[..., Pair]) -> None:
    """As that of a process that was killed, which hears of nothing itself."""
    pair = connect()
    pair.far.transport.abort()
    pair.wait()
    assert (pair.far.events, pair.near.events) == (["lost"], ["lost ConnectionResetError"])
    pair = connect()
    pair.process.kill()
    pair.wait()
    assert (pair.far.events, pair.near.events) == (["lost ConnectionResetError"], [])


def test_a_stopped_process_gets_its_bytes_when_it_goes_on(connect: Callable[..., Pair]) -> None:
    """The others' time passes meanwhile."""
    pair = connect()
    pair.process.stop()
    pair.far.transport.write(b"kept")
    pair.wait(30.0)
    assert pair.near.got == b""
    pair.process.resume()
    pair.wait()
    assert pair.near.got == b"kept"


def test_nobody_listens(connect: Callable[..., Pair]) -> None:
    """A connection is refused, also by a server that has ended; the others of that server stay."""
    pair = connect()
    with pytest.raises(ConnectionRefusedError):
        pair.run(pair.loop.create_connection(Side, HOST, PORT + 1))
    pair.run(pair.loop.create_server(Side, HOST, 0)).close()
    with pytest.raises(OSError, match="address already in use"):
        pair.run(pair.loop.create_server(Side, HOST, PORT))
    assert pair.far.events == []
