"""The messages of a call between gRPC and a service: requests are parsed and checked, answers sent in time.

gRPC hands requests over as bytes. They become a message here, once the gate knows their sender and a role of theirs
that the call could need: of a few bytes a message makes many objects, and strangers are not to have any made.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from offloaderd.api.gate import Caller
from offloaderd.core.errors import InvalidInput, Throttled

Context: TypeAlias = "aio.ServicerContext[Any, Any]"


class TooSlow(Throttled):
    """The caller did not take its answers in time."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a caller who was admitted; `parse` makes a message of the service from bytes."""

    caller: Caller
    parse: Callable[[bytes], Any]

    def given(self, request: Any, context: Context) -> tuple[Any, Any]:  # noqa: ANN401 - bytes, or a stream of them
        """Return what a handler gets: the request once it passed, or a stream whose messages have to pass.

        Raises Denied before anything is parsed when the caller has no such role, and what `passed` raises.
        """
        self.caller.check_role()
        if hasattr(request, "__aiter__"):
            return self._each(request), _Watched(context, self)
        return self.passed(request), context

    def passed(self, data: bytes) -> Any:  # noqa: ANN401 - a message of any service
        """Return the message in the bytes, once it passed. Raises InvalidInput, and Denied with the missing role."""
        need = self.caller.need
        if need is not None and need.bounded is not None:
            need.bounded(data)
        try:
            message = self.parse(data)
        except DecodeError:
            raise InvalidInput(
                f"a request of {len(data)} bytes is no message of {self.caller.path}",
                hint="compare the caller's protos with those of the daemon's version",
            ) from None
        self.caller.check(message)
        return message

    async def _each(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self.passed(data)


class _Watched:
    """A context whose messages are checked when they are read, and whose answers have to be taken in time."""

    def __init__(self, context: Context, requests: Requests) -> None:
        self._context = context
        self._requests = requests

    async def read(self) -> Any:  # noqa: ANN401 - a message of any service
        """Return the next message, once it passed."""
        data = await self._context.read()
        return data if data is grpc.aio.EOF else self._requests.passed(data)

    async def write(self, answer: Any) -> None:  # noqa: ANN401
        """Send an answer. Raises what `send` raises."""
        await send(self._context, answer, self._requests.caller.send_s_max)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the context's own
        return getattr(self._context, name)


async def send_headers(context: Context) -> None:
    """Begin to answer, before the first answer; even a call that is cut meanwhile has begun.

    gRPC for asyncio holds the head of an answer that was being sent, and was cancelled, for unsent: it sends it again
    with the call's status, which its core refuses, and the call would never end. The head alone waits for no reader.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))  # noqa: TID251 - ends before this does
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending})
        raise


async def send(context: Context, answer: object, seconds_max: float) -> None:
    """Send an answer. Raises TooSlow when the caller has taken nothing for so long (0: it may wait for ever)."""
    try:
        async with asyncio.timeout(seconds_max or None):
            await context.write(answer)
    except TimeoutError:
        raise TooSlow(
            f"the answer was not taken within {seconds_max:g} s", hint="read faster, or raise grpc.send_s_max"
        ) from None
