"""A producer of a real Pulsar topic that notes, for every message, when it was sent and when it was acknowledged."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pulsar

from bench.site import CLOCK
from offloaderd.core.model import Position

if TYPE_CHECKING:
    from collections.abc import Iterator


class Published(NamedTuple):
    """Where one message went, and when (monotonic seconds)."""

    position: Position
    sent_s: float
    acknowledged_s: float

    @property
    def latency_s(self) -> float:
        """Time from sending to the acknowledgement."""
        return self.acknowledged_s - self.sent_s


class Publisher:
    """Sends messages one entry each."""

    def __init__(self, producer: pulsar.Producer) -> None:
        self.published: list[Published] = []
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._idle = asyncio.Event()

    def send(self, payload: bytes) -> None:
        """Send a message without waiting for it. Raises RuntimeError later, in `settled`, when it is refused."""
        sent_s = CLOCK.monotonic()
        self._waiting += 1
        self._idle.clear()

        def acknowledged(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            now = CLOCK.monotonic()
            position = Position(message_id.ledger_id(), message_id.entry_id())
            self._loop.call_soon_threadsafe(self._note, result, Published(position, sent_s, now))

        self._producer.send_async(payload, acknowledged)

    async def steadily(self, rate: float, seconds: float, payload: bytes) -> None:
        """Send at a steady rate for a while, and wait until all are acknowledged."""
        started = CLOCK.monotonic()
        for number in range(round(rate * seconds)):
            await CLOCK.sleep(max(0.0, started + number / rate - CLOCK.monotonic()))
            self.send(payload)
        await self.settled()

    async def settled(self) -> None:
        """Wait until all that was sent is acknowledged."""
        while self._waiting:
            await self._idle.wait()

    def _note(self, result: pulsar.Result, published: Published) -> None:
        if result != pulsar.Result.Ok:
            raise RuntimeError(f"a message was refused: {result}")
        self.published.append(published)
        self._waiting -= 1
        if not self._waiting:
            self._idle.set()


@contextmanager
def publisher(service_url: str, topic: str) -> Iterator[Publisher]:
    """Give a publisher of a topic, and close it."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(
            topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=20_000
        )
        yield Publisher(producer)
    finally:
        client.close()
