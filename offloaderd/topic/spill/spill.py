"""Overflow of a push-only topic's buffer: what is accepted while memory is full waits on disk for its turn.

While anything waits there, all that is offered goes there too, so that order is kept; it comes back into the buffer,
oldest first, as soon as commits make room, and takes the same way into segments as ever. One task does all of this for
a topic; who offers waits for it. A limit or disk that is full, or a disk that fails, has the offer wait: the topic is
blocked then. A record that reads back wrong ends the topic's claim, and what was not durable is pushed again.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from offloaderd.core.aio.signal import Signal, race
from offloaderd.core.clock import Clock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, OfferResult, Position
from offloaderd.topic.memory.buffer import TailingBuffer
from offloaderd.topic.memory.pool import BufferPool
from offloaderd.topic.spill.files import SpillArea, SpillQueue

CHUNK_BYTES = 1 << 20
"""Read back at a time."""

LOOK_S = 1.0
"""What waits for room looks again this often: a disk does not tell when it has some."""


class _Offer(NamedTuple):
    batch: EntryBatch
    answer: asyncio.Future[OfferResult]


class Spill:
    """One topic's overflow."""

    def __init__(
        self, area: SpillArea, buffer: TailingBuffer, pool: BufferPool, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._area = area
        self._buffer = buffer
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._queue = SpillQueue(area)
        self._offers: deque[_Offer] = deque()
        self._back: deque[EntryBatch] = deque()  # read from disk, not yet in the buffer
        self._edge: Position | None = None  # what the oldest of them follows
        self._wake = Signal()
        self._over = False
        self.entries = 0
        self.payload_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether nothing waits, on disk or on its way there or back."""
        return not (self._queue.unread or self._back or self._offers)

    @property
    def holds_back(self) -> bool:
        """Whether somebody who pushes waits for room."""
        return bool(self._offers)

    async def accept(self, batch: EntryBatch) -> OfferResult:
        """Take a batch for which memory has no room; returns once it is on disk, or why it cannot be taken.

        Never FULL: it waits for room. When cancelled, the batch may be taken all the same, which `last_offered` tells.
        """
        if self._over or self._buffer.refusing:
            return OfferResult.CLOSED
        offer = _Offer(batch, asyncio.get_running_loop().create_future())
        self._offers.append(offer)
        self._buffer.diverted = True
        self._wake.notify()
        return await offer.answer

    async def run(self) -> None:
        """Write what is offered and bring it back as there is room, until cancelled. Raises CorruptData."""
        try:
            while True:
                if not await self._step():
                    room = self._pool.freed.wait(), self._buffer.demand.wait()
                    await race(self._wake.wait(), *room, self._clock.sleep(LOOK_S))
                elif self.empty:
                    self._buffer.diverted = False
                    self._pool.freed.notify()
                    await self._wake.wait()
        finally:
            self._over = True
            for offer in self._offers:
                if not offer.answer.done():
                    offer.answer.set_result(OfferResult.CLOSED)
            self._offers.clear()
            await self._queue.drop()
            self._account(-self.entries, -self.payload_bytes)

    async def _step(self) -> bool:
        """Do what can be done next; False when all of it waits for room."""
        wrote = await self._write() if self._offers else False
        if not self._back and self._queue.unread:
            self._back.extend(await self._queue.take(CHUNK_BYTES))
        return self._fill() or wrote or self.empty

    async def _write(self) -> bool:
        """Answer the first offer; False when it has to wait."""
        offer = self._offers[0]
        if offer.answer.cancelled():
            self._offers.popleft()
            return True
        result = self._taken_directly(offer.batch)
        if result is None and await self._queue.append(offer.batch):
            follows = self._buffer.overflow(offer.batch)
            if self.entries == 0:
                self._edge = follows
            self._account(len(offer.batch.payloads), offer.batch.payload_bytes())
            self._metrics.spilled_entries.inc(len(offer.batch.payloads))
            result = OfferResult.ACCEPTED
        if result is None:
            return False
        self._offers.popleft()
        if not offer.answer.done():
            offer.answer.set_result(result)
        return True

    def _taken_directly(self, batch: EntryBatch) -> OfferResult | None:
        """Offer to the buffer when nothing is before it on disk; None when it has to go there."""
        if self._buffer.closed or self._buffer.refusing:
            return OfferResult.CLOSED
        if self._queue.unread or self._back:
            return None if self._buffer.expects(batch) else OfferResult.NOT_CONSECUTIVE
        self._buffer.diverted = False
        result = self._buffer.offer(batch)
        self._buffer.diverted = True
        return None if result is OfferResult.FULL else result

    def _fill(self) -> bool:
        """Move what was read back into the buffer as far as there is room; says whether any was."""
        moved = False
        while self._back and self._edge is not None and self._buffer.fill(self._back[0], self._edge):
            batch = self._back.popleft()
            self._edge = batch.last
            self._account(-len(batch.payloads), -batch.payload_bytes())
            moved = True
        return moved

    def _account(self, entries: int, payload_bytes: int) -> None:
        self.entries += entries
        self.payload_bytes += payload_bytes
        self._metrics.spill_bytes.set(self._area.used_bytes)
