"""A broker: writes a topic, pushes what it writes to whichever daemon owns the topic, and keeps what is not durable.

The daemons have no ledger source, so an entry that is not reported durable exists at the broker alone; it is pushed
again after every broken stream. What the daemons say is noted in the history: an entry counts as acknowledged once a
daemon has reported its position as durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from grpc import aio

from offloaderd.core.model import Position
from offloaderd.protocol.v1 import common_pb2, offload_pb2, offload_pb2_grpc
from tests.integration.processes import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.real.history import Offer
    from tests.real.workload import Workload

Request = offload_pb2.StreamingOffloadRequest
BATCH_BYTES = 1 << 20
RETRY_S = 0.1


class Pusher:
    """Pushes one topic; `owner` is the address of the daemon that took the last push."""

    def __init__(
        self,
        workload: Workload,
        addresses: Callable[[], Sequence[str]],
        *,
        batch: int = 20,
        pause_s: float = 0.05,
        silence_s: float = 3.0,
        ledger_entries: int = 170,
    ) -> None:
        """Take whom to ask; a daemon that says nothing for `silence_s` although it was sent something is left."""
        self.owner = ""
        self.durable: Position | None = None
        self.streams = 0
        self._workload = workload
        self._addresses = addresses
        self._batch = batch
        self._pause_s = pause_s
        self._silence_s = silence_s
        self._ledger_entries = ledger_entries
        self._kept: deque[tuple[Position, list[bytes], Offer]] = deque()
        self._next = Position(1, 0)
        self._ending = False

    def end(self) -> None:
        """Write nothing more; `run` returns once everything is durable."""
        self._ending = True

    async def progress(self, *, beyond: Position | None = None) -> Position:
        """Wait until something (beyond a position) is durable."""
        while self.durable is None or (beyond is not None and self.durable <= beyond):
            await CLOCK.sleep(0.05)
        return self.durable

    async def run(self) -> None:
        """Push until told to end."""
        for turn in count():
            if self._ending and not self._kept:
                return
            addresses = self._addresses()
            address = addresses[turn % len(addresses)]
            async with aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
                try:
                    await self._push(channel, address)
                except (aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
                    await CLOCK.sleep(RETRY_S)

    async def _push(self, channel: aio.Channel, address: str) -> None:
        """Push over one stream until it breaks or all is durable."""
        stub = cast("Any", offload_pb2_grpc.OffloadServiceStub(channel))
        call = stub.StreamingOffload()
        try:
            await call.write(Request(open=Request.Open(topic=str(self._workload.topic))))
            opened = await self._answer(call)
            self._note(opened.offloaded)
            last = opened.last_offered
            sent = Position(last.ledger_id, last.entry_id) if opened.HasField("last_offered") else None
            self.owner = address
            self.streams += 1
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(call, sent), name="push")
                await self._hear(call, writing)
                writing.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            call.cancel()

    async def _answer(self, call: Any) -> Any:  # noqa: ANN401 - the stubs know only iterators
        """Return what the daemon says first."""
        async with asyncio.timeout(self._silence_s):
            answer = await call.read()
        if not isinstance(answer, offload_pb2.StreamingOffloadResponse):
            raise asyncio.InvalidStateError(await call.code())
        return answer.opened

    async def _hear(self, call: Any, writing: asyncio.Task[None]) -> None:  # noqa: ANN401
        while not (self._ending and not self._kept):
            async with asyncio.timeout(self._silence_s if self._kept else None):
                answer = await call.read()
            if not isinstance(answer, offload_pb2.StreamingOffloadResponse):
                raise asyncio.InvalidStateError(await call.code())
            match answer.WhichOneof("response"):
                case "offloaded":
                    self._note(answer.offloaded.position)
                case "offered" if answer.offered.result != offload_pb2.OFFER_RESULT_ACCEPTED:
                    raise asyncio.InvalidStateError(answer.offered.message)
        writing.cancel()

    async def _write(self, call: Any, sent: Position | None) -> None:  # noqa: ANN401
        """Push what is kept behind the position that the daemon has, then what is written."""
        for first, payloads, _ in list(self._kept):
            if sent is None or first > sent:
                await call.write(push(first, payloads))
            elif first._replace(entry_id=first.entry_id + len(payloads) - 1) > sent:
                skip = sent.entry_id + 1 - first.entry_id
                await call.write(push(first._replace(entry_id=sent.entry_id + 1), payloads[skip:]))
        while not self._ending:
            first, payloads = self._make()
            await call.write(push(first, payloads))
            await CLOCK.sleep(self._pause_s)

    def _make(self) -> tuple[Position, list[bytes]]:
        """Write the next entries, to the next ledger if the present one is full."""
        first = self._next
        if first.entry_id + self._batch > self._ledger_entries:
            first = Position(first.ledger_id + 1, 0)
        payloads = self._workload.make(self._batch)
        self._next = first._replace(entry_id=first.entry_id + self._batch)
        self._kept.append((first, payloads, self._workload.history.offer(payloads)))
        return first, payloads

    def _note(self, position: common_pb2.Position) -> None:
        """Take in that everything up to a position is durable; entries are let go once their whole batch is."""
        told = Position(position.ledger_id, position.entry_id)
        if told <= (self.durable or Position(0, 0)):
            return
        self.durable = told
        self._workload.history.durable(told)
        while self._kept:
            first, payloads, offer = self._kept[0]
            last = first._replace(entry_id=first.entry_id + len(payloads) - 1)
            if last > told:
                break
            self._workload.history.ack(offer, last)
            self._kept.popleft()


def push(first: Position, payloads: Sequence[bytes]) -> Request:
    """Make a request that offers consecutive entries."""
    batch = common_pb2.EntryBatch(ledger_id=first.ledger_id, first_entry_id=first.entry_id, payloads=payloads)
    return Request(batch=batch)
