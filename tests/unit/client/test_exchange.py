"""Calls in which both sides send: what the daemon said is told, whatever grpc.aio makes of a write that failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import aio

from offloaderd.client import EntryBatch, Position
from offloaderd.client.writing import Exchange
from offloaderd.core.errors import InvalidInput
from tests.unit.client.fleet import TOPIC, patient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

REAL_TIME = "gRPC"

TRIES = 40
REFUSED = (grpc.StatusCode.UNIMPLEMENTED, "no such call")
FAILED = (grpc.StatusCode.INTERNAL, "Internal error from Core")
OWN = (grpc.StatusCode.INTERNAL, "the daemon's own trouble")
DONE = (grpc.StatusCode.OK, "")
Status = tuple[grpc.StatusCode, str]


class Call:
    """A call as grpc.aio has it, whose status may be set again; callbacks are called for the first, or for `each`.

    Its write fails; statuses come `before` the reader sees the end, and `after`, while it waits. It is its own clock.
    """

    def __init__(self, before: list[Status], after: list[Status], *, each: bool) -> None:
        self._before, self._after, self._each = before, after, each
        self._status: Status | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have a callback called."""
        self._callbacks.append(callback)

    async def sleep(self, _: float) -> None:
        """Have the next status come."""
        if self._after:
            self._set(self._after.pop(0))

    def _set(self, status: Status) -> None:
        self._status = status
        for callback in self._callbacks:
            callback(self)
        if not self._each:
            self._callbacks.clear()

    async def write(self, _: object) -> None:
        """Fail."""
        raise self._error()

    async def done_writing(self) -> None:
        """Fail."""
        raise aio.InternalError("Failed")

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        """Give what had come, and tell of the end by the status that there is then."""
        yield "answer"
        for status in self._before:
            self._set(status)
        if self._status != DONE:
            raise self._error()

    def _error(self) -> aio.AioRpcError:
        code, details = self._status or FAILED
        return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details=details)

    async def code(self) -> grpc.StatusCode:
        """Return the present one."""
        assert self._status
        return self._status[0]

    async def details(self) -> str:
        """Return the present ones."""
        assert self._status
        return self._status[1]

    async def initial_metadata(self) -> aio.Metadata:
        """None."""
        return aio.Metadata()

    trailing_metadata = initial_metadata


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([REFUSED], [], REFUSED),
        ([REFUSED, FAILED], [], REFUSED),
        ([FAILED], [REFUSED], REFUSED),
        ([OWN, FAILED], [], OWN),
        ([DONE, FAILED], [], DONE),
        ([FAILED], [DONE], DONE),
        ([FAILED], [FAILED, REFUSED], REFUSED),
        ([FAILED], [], FAILED),
    ],
)
async def test_the_end_is_what_the_daemon_said(
    before: list[Status], after: list[Status], said: Status, *, each: bool
) -> None:
    """Whether it comes before the write that failed or behind it; nothing else is told for as long as it may come."""
    call: Any = Call([*before], [*after], each=each)
    exchange: Exchange[str, str] = Exchange(call, call)
    assert not await exchange.write("request")
    await exchange.done_writing()
    assert await exchange.read() == "answer"
    if said == DONE:
        assert await exchange.read() is None
        return
    with pytest.raises(aio.AioRpcError) as caught:
        await exchange.read()
    assert (caught.value.code(), caught.value.details()) == said


async def test_what_the_daemon_said_between_two_writes_that_failed_is_told() -> None:
    """Both may set the status: the first before it has come, the second over it."""
    call: Any = Call([FAILED, REFUSED, FAILED], [], each=True)
    exchange: Exchange[str, str] = Exchange(call, call)
    assert await exchange.read() == "answer"
    with pytest.raises(aio.AioRpcError) as caught:
        await exchange.read()
    assert (caught.value.code(), caught.value.details()) == REFUSED


@contextmanager
def refusing() -> Iterator[str]:
    """Serve nothing: every call is refused at once, by threads of gRPC's that wait for no loop."""
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait()


async def test_a_call_that_is_not_offered_is_always_told_as_such() -> None:
    """A daemon refuses while the first write is under way: some of the tries hit it in every way there is."""

    async def batches() -> AsyncGenerator[list[bytes], None]:
        yield [b"x"]

    async def entries(_: Position | None) -> AsyncGenerator[EntryBatch, None]:
        yield EntryBatch(0, 0, [b"x"])

    with refusing() as address:
        async with patient(address) as client:
            for _ in range(TRIES):
                with pytest.raises(InvalidInput, match="does not offer this call"):
                    await client.append(TOPIC, batches(), lambda _: None)
                with pytest.raises(InvalidInput, match="does not offer this call"):
                    await client.push(TOPIC, entries, resume_s=0)
