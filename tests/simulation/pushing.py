"""A broker that pushes a topic's entries into the real OffloadService of whoever owns it, over a simulated stream.

It is the authority on what it wrote: what is not acknowledged as offloaded it offers again to the next owner. Whatever
an owner acknowledges must be in the map at that moment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from offloaderd.api.push import OffloadService
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import EntryBatch, Position
from offloaderd.protocol.conversion import from_position, to_batch
from offloaderd.protocol.v1 import offload_pb2
from tests.simulation.oracle import START

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from tests.simulation.daemon import SimDaemon
    from tests.simulation.world import World

LATENCY_S = 0.01
LOOK_S = 0.05


class Broken(Exception):
    """The stream is over."""


class Stream:
    """One stream from a broker to a daemon; what the service knows as its context."""

    def __init__(self, world: World, daemon: SimDaemon) -> None:
        assert daemon.process is not None
        self._world = world
        self._process = daemon.process
        self._requests: asyncio.Queue[object] = asyncio.Queue()
        self._responses: asyncio.Queue[offload_pb2.StreamingOffloadResponse] = asyncio.Queue()
        self._rng = world.chance.stream(f"stream {world.loop.time()}")
        service = OffloadService(daemon.engine, clock=daemon.clock, metrics=world.metrics)
        stream: Any = self
        self._serving = self._process.start(service.StreamingOffload(None, stream))
        self._serving.add_done_callback(lambda done: done.cancelled() or done.exception())

    # The service's side.

    async def read(self) -> object:
        """Return the next request."""
        return await self._requests.get()

    async def write(self, response: offload_pb2.StreamingOffloadResponse) -> None:
        """Send a response."""
        self._world.loop.in_world(self._rng.random() * LATENCY_S, self._responses.put_nowait, response)

    # The broker's side.

    def send(self, request: offload_pb2.StreamingOffloadRequest) -> None:
        """Send a request."""
        self._world.loop.in_world(LATENCY_S, self._requests.put_nowait, request)

    async def receive(self, within_s: float) -> offload_pb2.StreamingOffloadResponse | None:
        """Return the next response, None when there is none within the time. Raises Broken."""
        deadline = self._world.loop.time() + within_s
        while self._responses.empty():
            if not self._process.alive or self._serving.done():
                raise Broken
            if self._world.loop.time() >= deadline:
                return None
            await asyncio.sleep(LOOK_S)  # noqa: TID251 - the loop's own time
        return self._responses.get_nowait()

    def close(self) -> None:
        """Break it off."""
        if self._process.alive:
            self._serving.cancel()


class Pusher:
    """Pushes one topic until it is told that all of it is durable."""

    def __init__(self, world: World, topic: TopicName) -> None:
        self._world = world
        self._topic = topic
        self._rng = world.chance.stream(f"pusher of {topic}")
        self._at = START
        self.acknowledged = START

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            asked = [one for one in self._world.daemons if one.up]
            asked = [one for one in asked if one.engine.find(self._topic) is not None] or asked  # its owner may sleep
            if asked:
                stream = Stream(self._world, self._rng.choice(asked))
                try:
                    await self._push(stream)
                except (Broken, OffloaderError):
                    self._world.trace("push", f"the stream of {self._topic.local} broke")
                finally:
                    stream.close()
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))  # noqa: TID251 - the loop's own time

    async def _push(self, stream: Stream) -> None:
        request = offload_pb2.StreamingOffloadRequest
        stream.send(request(open=request.Open(topic=str(self._topic))))
        opened = await self._expect(stream, "opened")
        last = opened.opened.last_offered if opened.opened.HasField("last_offered") else None
        self._at = from_position(last) if last is not None else START
        while self._world.faults.on is False or self._rng.random() > 0.003:
            batch = self._next_batch()
            if batch is None:
                response = await stream.receive(0.5)
                if response is not None and response.HasField("offloaded"):
                    self._last_answer(from_position(response.offloaded.position))
                continue
            stream.send(request(batch=to_batch(batch)))
            result = (await self._expect(stream, "offered")).offered.result
            if result == offload_pb2.OFFER_RESULT_NOT_CONSECUTIVE:
                raise Broken
            self._at = batch.last
            self._tell_end(stream, batch.ledger_id)

    def _tell_end(self, stream: Stream, ledger_id: int) -> None:
        ledger = next(one for one in self._world.ledgers.topics[self._topic] if one.ledger_id == ledger_id)
        if ledger.closed and self._at.entry_id == len(ledger.entries) - 1:
            closed = offload_pb2.StreamingOffloadRequest.LedgerClosed(
                ledger_id=ledger_id, last_entry_id=self._at.entry_id, closed_ms=ledger.closed_ms
            )
            stream.send(offload_pb2.StreamingOffloadRequest(ledger_closed=closed))

    def _next_batch(self) -> EntryBatch | None:
        """Return what was written behind the last offer, if it is confirmed."""
        first = self._world.ledgers.following(self._topic, self._at)
        newest = self._world.ledgers.newest(self._topic)
        if first is None or newest is None or first > newest:
            return None
        ledger = next(one for one in self._world.ledgers.topics[self._topic] if one.ledger_id == first.ledger_id)
        end = min(ledger.confirmed, first.entry_id + self._rng.choice([1, 3, 10]))
        return EntryBatch(first.ledger_id, first.entry_id, ledger.entries[first.entry_id : end])

    async def _expect(self, stream: Stream, kind: str) -> offload_pb2.StreamingOffloadResponse:
        """Return the next response of a kind, taking note of acknowledgements on the way."""
        while True:
            response = await stream.receive(60.0)
            if response is None:
                raise Broken
            if response.HasField("offloaded"):
                self._last_answer(from_position(response.offloaded.position))
            if response.HasField(kind):  # type: ignore[arg-type]
                return response

    def _last_answer(self, position: Position) -> None:
        """P1: what is acknowledged as offloaded is in the map, and stays there (the model sees to that)."""
        reached = self._world.oracle.reached(self._topic)
        if reached is None or reached < position:
            self._world.oracle.fail("P1", f"{position} of {self._topic} is acknowledged, the map ends at {reached}")
        self.acknowledged = max(self.acknowledged, position)
