"""Entries that arrive by the API: from brokers (OffloadService), and for the daemon's own store (LedgerService).

OffloadService is PIP-76's OffloadHandle over gRPC. Batches are answered in order. A topic with a ledger source declines
entries without room (FULL) and reads them from the source itself. For a push-only topic the service stops reading the
stream instead, so that gRPC's flow control holds the broker back. `Offloaded` messages report each new offloaded
position.

A daemon without a ledger store does not serve LedgerService. Appends run one after the other, so answers come in order,
and gRPC's flow control holds back a client that sends faster than the disk writes.
"""

import asyncio
from collections.abc import AsyncIterator

from offloaderd.api.calls import Context
from offloaderd.core.aio import race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import OfferResult, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.ledgers.port import LedgerStore
from offloaderd.protocol.conversion import checked_payloads, from_batch, to_position
from offloaderd.protocol.v1 import ledgers_pb2, ledgers_pb2_grpc, offload_pb2_grpc
from offloaderd.protocol.v1 import offload_pb2 as pb
from offloaderd.topic.offloader import TopicOffloader

RESULTS = {
    OfferResult.ACCEPTED: pb.OFFER_RESULT_ACCEPTED,
    OfferResult.FULL: pb.OFFER_RESULT_FULL,
    OfferResult.NOT_CONSECUTIVE: pb.OFFER_RESULT_NOT_CONSECUTIVE,
    OfferResult.CLOSED: pb.OFFER_RESULT_CLOSED,
}


class OffloadService(offload_pb2_grpc.OffloadServiceServicer):
    """Serves pushing brokers."""

    def __init__(self, engine: Engine, *, clock: Clock, metrics: Metrics) -> None:
        self._engine = engine
        self._clock = clock
        self._metrics = metrics

    async def StreamingOffload(  # type: ignore[override] # reads and writes by context
        self, request_iterator: object, context: Context
    ) -> None:
        """Take a stream of batches for one topic. Raises as the engine, InvalidInput for a wrong request."""
        del request_iterator
        first = await context.read()
        if not isinstance(first, pb.StreamingOffloadRequest):
            raise InvalidInput("an empty stream", hint="the first request must name the topic")
        if first.WhichOneof("request") != "open":
            raise InvalidInput("the first request must be `open`", hint="it names the topic of the whole stream")
        topic = await self._engine.owned(TopicName.parse(first.open.topic))
        push = _Push(topic, context, clock=self._clock, metrics=self._metrics)
        topic.pushers += 1
        try:
            await push.run()
        finally:
            topic.pushers -= 1
            if topic.tailer is not None:
                topic.tailer.nudge()


class _Push:
    """One open stream."""

    def __init__(self, topic: TopicOffloader, context: Context, *, clock: Clock, metrics: Metrics) -> None:
        self._topic = topic
        self._context = context
        self._clock = clock
        self._metrics = metrics
        self._writing = asyncio.Lock()
        self._sent = topic.offloaded

    async def run(self) -> None:
        """Answer until the broker has closed its side and all its entries are answered."""
        opened = pb.StreamingOffloadResponse.Opened(
            offloaded=to_position(self._topic.offloaded),
            last_offered=to_position(self._topic.handle.last_offered()),
            push_only=self._topic.handle.push_only,
        )
        await self._write(pb.StreamingOffloadResponse(opened=opened))
        await race(self._take_batches(), self._send_progress())

    async def _write(self, response: pb.StreamingOffloadResponse) -> None:
        async with self._writing:
            await self._context.write(response)

    async def _take_batches(self) -> None:
        while isinstance(request := await self._next_request(), pb.StreamingOffloadRequest):
            match request.WhichOneof("request"):
                case "batch":
                    await self._offer(request)
                case "ledger_closed":
                    closed = request.ledger_closed
                    self._topic.handle.ledger_closed(closed.ledger_id, closed.last_entry_id, closed.closed_ms)
                case other:
                    raise InvalidInput(f"unexpected request {other or 'without content'}", hint="send batches")
        await self._all_durable()

    async def _next_request(self) -> object:
        """Read the next request, once the topic takes entries."""
        if self._topic.outage.blocked:
            started = self._clock.monotonic()
            await self._topic.outage.may_take()
            self._metrics.backpressure_seconds.inc(self._clock.monotonic() - started)
        return await self._context.read()

    async def _offer(self, request: pb.StreamingOffloadRequest) -> None:
        batch = from_batch(request.batch)
        started = self._clock.monotonic()
        result = await self._topic.accept(batch)
        self._metrics.backpressure_seconds.inc(self._clock.monotonic() - started)
        last = self._topic.handle.last_offered()
        message = ""
        if result is OfferResult.NOT_CONSECUTIVE:
            message = f"{batch.first} does not follow {last}" if last else f"{batch.first} cannot be taken"
        elif result is OfferResult.FULL:
            message = "no room: these entries will be read from the ledger source"
        elif result is OfferResult.CLOSED:
            message = "this daemon is giving the topic up: ask again for its owner"
        offered = pb.StreamingOffloadResponse.Offered(
            result=RESULTS[result], last_offered=to_position(last), message=message
        )
        await self._write(pb.StreamingOffloadResponse(offered=offered))
        if result is OfferResult.CLOSED:
            raise Closed(f"{self._topic.topic} is no longer offloaded here", hint="connect to its new owner")

    async def _send_progress(self) -> None:
        """Send every new position. Raises Closed when the topic is released: a broker that only waits must know."""
        while True:
            if not await self._send_moved():
                if self._topic.buffer.closed:
                    raise Closed(f"{self._topic.topic} is no longer offloaded here", hint="connect to its new owner")
                await self._topic.changed.wait()

    async def _send_moved(self) -> bool:
        """Send the offloaded position if it has moved since the last time; True if it was sent."""
        now = self._topic.offloaded
        if now is None or now == self._sent:
            return False
        self._sent = now
        segments = self._topic.map.segments  # none, where retention was faster than this answer
        offloaded = pb.StreamingOffloadResponse.Offloaded(
            position=to_position(now), segment_id=str(segments[-1].segment_id) if segments else ""
        )
        await self._write(pb.StreamingOffloadResponse(offloaded=offloaded))
        return True

    async def _all_durable(self) -> None:
        """Wait until all entries of a broker that sends no more are durable, or the topic is released."""
        last = self._topic.handle.last_offered()
        while last is not None and (self._topic.offloaded is None or self._topic.offloaded < last):
            if self._topic.buffer.closed:
                raise Closed(f"{self._topic.topic} is no longer offloaded here", hint="connect to its new owner")
            await self._topic.changed.wait()
        await self._send_moved()


class LedgerService(ledgers_pb2_grpc.LedgerServiceServicer):
    """Appends to a LedgerStore."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    async def Append(
        self, request_iterator: AsyncIterator[ledgers_pb2.AppendRequest], context: Context
    ) -> AsyncIterator[ledgers_pb2.AppendResponse]:
        """Append each request's entries durably and answer it. Raises InvalidInput, NoSpace, Transient.

        After an error nothing of that request is stored; all answered requests are.
        """
        async for request in request_iterator:
            payloads = checked_payloads(request.payloads)
            last = await self._store.append(TopicName.parse(request.topic), payloads)
            yield ledgers_pb2.AppendResponse(last=to_position(last), entry_count=len(payloads))

    async def Roll(self, request: ledgers_pb2.RollRequest, context: Context) -> ledgers_pb2.RollResponse:
        """Close the topic's open ledger. Raises NotFound."""
        await self._store.roll(TopicName.parse(request.topic))
        return ledgers_pb2.RollResponse()
