"""A call in which both sides send: it ends with what the daemon said, whatever became of a write.

When a write fails since the call has ended, grpc.aio puts "Internal error from Core" in place of the call's status
(https://github.com/grpc/grpc/issues/36066): before the daemon's own has arrived, which then replaces it, or over it,
so that it is lost. Therefore the first status is kept, and another one is waited for only behind a failed write's.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Generic, TypeVar

import grpc
from grpc import aio

from offloaderd.core.clock import Clock

FAILED_WRITE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
LOOKS, LOOK_S = 200, 0.02
"""How often to look, after the last answer, for what the daemon said, which comes with it: nothing tells of it."""
Request = TypeVar("Request")
Response = TypeVar("Response")
Value = TypeVar("Value")


class Exchange(Generic[Request, Response]):
    """Writes and reads of one call, which nobody else reads. Whoever made the call cancels it in the end."""

    def __init__(self, call: "aio.StreamStreamCall[Request, Response]", clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._answers = aiter(call)
        self._first: aio.AioRpcError | None = None
        call.add_done_callback(self._ended)

    async def write(self, request: Request) -> bool:
        """Send a request; says whether it went. A call that has ended takes none, and `read` tells why it ended."""
        try:
            await self._call.write(request)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def done_writing(self) -> None:
        """Tell the daemon that there is no more, unless the call has ended."""
        try:
            await self._call.done_writing()
        except aio.InternalError:
            return

    async def read(self) -> Response | None:
        """Return the next answer, None when the daemon ended the call well. Raises AioRpcError with what it said."""
        with suppress(StopAsyncIteration, aio.AioRpcError):
            return await anext(self._answers)
        said = await self._said()
        if said.code() is grpc.StatusCode.OK:
            return None
        raise said

    async def _said(self) -> aio.AioRpcError:
        """Return the status that the daemon gave; that of a write that failed if there is no other."""
        status = self._first or await _status(self._call)
        for _ in range(LOOKS):
            if not _of_a_write(status):
                break
            await self._clock.sleep(LOOK_S)
            status = await _status(self._call)
        return status

    def _ended(self, _: object) -> None:
        """Take a status at once: the next step of another task may replace it."""
        if self._first is None or _of_a_write(self._first):
            self._first = _result(_status(self._call))


def _of_a_write(status: aio.AioRpcError) -> bool:
    return (status.code(), status.details()) == FAILED_WRITE


async def _status(call: aio.Call) -> aio.AioRpcError:
    """Return how a call ended, which may be well; waits for nothing once it has."""
    return aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )


def _result(work: Coroutine[object, None, Value]) -> Value:
    """Return what a coroutine gives that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    work.close()
    raise RuntimeError("a call that has ended has no status")
