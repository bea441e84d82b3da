"""A call in which both sides send: it ends with the status of the daemon, also after a failed write.

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
"""Number and interval of polls for the status of the daemon after the last answer: gRPC does not notify of it."""
Request = TypeVar("Request")
Response = TypeVar("Response")
Value = TypeVar("Value")


class Exchange(Generic[Request, Response]):
    """Writes and reads of one call, which has no other reader. The maker of the call cancels it at the end."""

    def __init__(self, call: "aio.StreamStreamCall[Request, Response]", clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._answers = aiter(call)
        self._first: aio.AioRpcError | None = None
        call.add_done_callback(self._ended)

    async def write(self, request: Request) -> bool:
        """Send a request; returns whether it was sent. A call that has ended takes none; `read` raises the reason."""
        try:
            await self._call.write(request)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def done_writing(self) -> None:
        """End the requests, unless the call has ended."""
        try:
            await self._call.done_writing()
        except aio.InternalError:
            return

    async def read(self) -> Response | None:
        """Return the next answer, None after a successful end. Raises AioRpcError with the status of the daemon."""
        with suppress(StopAsyncIteration, aio.AioRpcError):
            return await anext(self._answers)
        said = await self._said()
        if said.code() is grpc.StatusCode.OK:
            return None
        raise said

    async def _said(self) -> aio.AioRpcError:
        """Return the status of the daemon; that of a failed write if there is no other."""
        status = self._first or await _status(self._call)
        for _ in range(LOOKS):
            if not _of_a_write(status):
                break
            await self._clock.sleep(LOOK_S)
            status = await _status(self._call)
        return status

    def _ended(self, _: object) -> None:
        """Record a status at once: the next step of another task may replace it."""
        if self._first is None or _of_a_write(self._first):
            self._first = _result(_status(self._call))


def _of_a_write(status: aio.AioRpcError) -> bool:
    return (status.code(), status.details()) == FAILED_WRITE


async def _status(call: aio.Call) -> aio.AioRpcError:
    """Return the status of a call, which may be OK; does not wait once it has ended."""
    return aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )


def _result(work: Coroutine[object, None, Value]) -> Value:
    """Return the result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    work.close()
    raise RuntimeError("a call that has ended has no status")
