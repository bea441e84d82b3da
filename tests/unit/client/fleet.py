"""Daemons of canned entries for tests of the client: they break, go away, lag behind and hand topics over."""

# ruff: noqa: N802 - a servicer's methods are named by the proto
from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from offloaderd.client import DaemonClient
from offloaderd.core.entries import frame
from offloaderd.core.errors import Conflict, OffloaderError, OutOfRange
from offloaderd.core.model import Position
from offloaderd.protocol.errors import DETAIL_KEY, code_of, detail_of
from offloaderd.protocol.v1 import (
    common_pb2,
    offload_pb2,
    offload_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
    read_pb2,
    read_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TOPIC = "public/default/orders"
LEDGER_ENTRIES = 10
Answer = offload_pb2.StreamingOffloadResponse


CONNECT_S = 60.0


def patient(*addresses: str) -> DaemonClient:
    """Return a client for a machine that may be busy."""
    return DaemonClient(*addresses, connect_s=CONNECT_S)


def at(number: int) -> Position:
    """Return the position of the topic's entry `number`."""
    return Position(*divmod(number, LEDGER_ENTRIES))


def number_of(position: common_pb2.Position) -> int:
    """Return the number of the entry at a position, or of the next one when that is behind its ledger's end."""
    return position.ledger_id * LEDGER_ENTRIES + min(position.entry_id, LEDGER_ENTRIES)


def message(number: int) -> common_pb2.Position:
    """Return the position of an entry as a message."""
    return common_pb2.Position(ledger_id=at(number).ledger_id, entry_id=at(number).entry_id)


@dataclass
class Daemon(
    read_pb2_grpc.ReadServiceServicer,
    placement_pb2_grpc.PlacementServiceServicer,
    offload_pb2_grpc.OffloadServiceServicer,
):
    """Serves entries 0 to `count` - 1, three a batch; each stream breaks by what `breaks` gives, if there is one left.

    A break is (batches before it, the error; None: as when the process dies). `refusals`: of pushes, before they
    are opened. `grows_to`: what one that lags has after it was asked for more. Without `frames` it is one of an older
    version, which knows of none; else `spoil` changes those of each answer.
    """

    count: int = 25
    breaks: list[tuple[int, OffloaderError | None]] = field(default_factory=list)
    refusals: list[OffloaderError] = field(default_factory=list)
    repeats: bool = False
    frames: bool = True
    spoil: Callable[[bytes], bytes] = bytes
    grows_to: int = 0
    owner: str = "other"
    others: list[str] = field(default_factory=list)
    reads: list[read_pb2.ReadRequest] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    address: str = ""

    async def LastPositions(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """Tell the newest entry."""
        return read_pb2.LastPositionsResponse(confirmed=message(self.count - 1) if self.count else None)

    async def PlanRead(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """Nothing is in a bucket."""
        return read_pb2.PlanReadResponse()

    async def ListDaemons(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """Tell of the others; the first of them owns what this one does not."""
        found = [placement_pb2.Daemon(daemon_id="here", address=self.address, asked=True)]
        found += [placement_pb2.Daemon(daemon_id="other", address=one) for one in self.others]
        return placement_pb2.ListDaemonsResponse(daemons=found, owner=self.owner)

    async def Read(self, request: read_pb2.ReadRequest, context: Any) -> AsyncIterator[read_pb2.ReadResponse]:  # noqa: ANN401
        """Serve a range as a daemon does."""
        self.reads.append(request)
        first = number_of(request.first) if request.HasField("first") else 0
        last = number_of(request.last) if request.HasField("last") else self.count - 1
        if first >= self.count or last >= self.count:
            self.count = self.grows_to or self.count
            await self._abort(context, OutOfRange("beyond the end"))
        breaks_after, error = self.breaks.pop(0) if self.breaks else (-1, None)
        left, sent = request.entries_max or 10**9, 0
        while first <= last and left:
            if sent == breaks_after:
                await self._abort(context, error)
            size = min(3, last - first + 1, LEDGER_ENTRIES - first % LEDGER_ENTRIES, left)
            batch = common_pb2.EntryBatch(ledger_id=at(first).ledger_id, first_entry_id=at(first).entry_id)
            answer = read_pb2.ReadResponse(batch=batch, tier=common_pb2.TIER_OBJECTS)
            payloads = [b"%d" % number for number in range(first, first + size)]
            if request.framed and self.frames:
                answer.entries, answer.frames = size, self.spoil(b"".join(frame(at(first).entry_id, payloads)))
            else:
                answer.batch.payloads.extend(payloads)
            yield answer
            first, left, sent = first if self.repeats else first + size, left - size, sent + 1
        while request.follow:
            await asyncio.Event().wait()

    async def ReadMessages(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """None."""
        return
        yield

    async def Seek(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """Nowhere."""
        return read_pb2.SeekResponse()

    async def Drain(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        """Done."""
        yield placement_pb2.DrainProgress(done=True)

    async def StreamingOffload(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: ANN401
        """Take what follows; entries are durable when the caller is done."""
        await context.read()
        if self.owner != "here":
            await self._abort(context, Conflict("owned by daemon other", hint="ask it"))
        if self.refusals:
            await self._abort(context, self.refusals.pop(0))
        self.begun.append(len(self.taken))
        newest = message(len(self.taken) - 1) if self.taken else None
        await context.write(Answer(opened=Answer.Opened(offloaded=newest, last_offered=newest, push_only=True)))
        breaks_after, error = self.breaks.pop(0) if self.breaks else (-1, None)
        answered = 0
        while isinstance(request := await context.read(), offload_pb2.StreamingOffloadRequest):
            if request.WhichOneof("request") == "ledger_closed":
                continue
            if answered == breaks_after:
                await self._abort(context, error)
            expected = len(self.taken)
            follows = at(expected) == (request.batch.ledger_id, request.batch.first_entry_id)
            result = offload_pb2.OFFER_RESULT_ACCEPTED if follows else offload_pb2.OFFER_RESULT_NOT_CONSECUTIVE
            if follows:
                self.taken += request.batch.payloads
            offered = Answer.Offered(
                result=result, last_offered=message(len(self.taken) - 1) if self.taken else None, message="a gap"
            )
            await context.write(Answer(offered=offered))
            answered += 1
        if self.taken:
            await context.write(Answer(offloaded=Answer.Offloaded(position=message(len(self.taken) - 1))))

    @staticmethod
    async def _abort(context: Any, error: OffloaderError | None) -> None:  # noqa: ANN401
        if error is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        else:
            detail = detail_of(error).SerializeToString()
            await context.abort(code_of(error), error.message, ((DETAIL_KEY, detail),))


@asynccontextmanager
async def serving(daemon: Daemon) -> AsyncIterator[aio.Server]:
    """Serve a daemon on a free port; the test may stop it before."""
    server = aio.server()
    read_pb2_grpc.add_ReadServiceServicer_to_server(daemon, server)
    placement_pb2_grpc.add_PlacementServiceServicer_to_server(daemon, server)
    offload_pb2_grpc.add_OffloadServiceServicer_to_server(daemon, server)
    daemon.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)
        while handlers():
            await asyncio.wait(handlers(), timeout=0.1)


def handlers() -> list[asyncio.Task[Any]]:
    """Return gRPC's own tasks for calls that were cut off: stopping a server does not wait for them."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(("rpc_task", "HandleExceptions"))]
