"""Moves the entries of one segment of history from the source into it, whoever writes it: a daemon or an executor.

There is nothing to wait for, so they are read as fast as they can be stored, without the tailing buffer. What is read
of a part counts against the budget of uploads until it is sent.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from offloaderd.errors import NotFound, OffloaderError, Transient
from offloaderd.model import Loss, Position
from offloaderd.offload.budget import Backoff
from offloaderd.offload.open_segment import SegmentView
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.model import TopicName
    from offloaderd.offload.chain import LedgerChain
    from offloaderd.offload.open_segment import OpenSegment
    from offloaderd.offload.workshop import Workshop

READ_BYTES = 1 << 20


class HistoryView(SegmentView, Protocol):
    """What is known of a topic's history."""

    @property
    def chain(self) -> LedgerChain:
        """Its ledgers, as they were seen."""
        ...


class HistoryFiller:
    """Fills segments of one topic's history.

    `look` has the view see the source anew; `met` is told what hinders, and None when that is over. `lost` records
    that the source has lost what comes next, so that the segment may go on behind it; without it, it ends there.
    """

    def __init__(
        self,
        shop: Workshop,
        source: LedgerSource,
        topic: TopicName,
        view: HistoryView,
        *,
        look: Callable[[], Awaitable[object]],
        met: Callable[[OffloaderError | None], None],
        lost: Callable[[Loss], Awaitable[None]] | None = None,
    ) -> None:
        self._shop = shop
        self._source = source
        self._topic = topic
        self._view = view
        self._look = look
        self._met = met
        self._lost = lost
        self._clock, self._metrics, self._budget = shop.uplink.clock, shop.uplink.metrics, shop.uplink.budget

    async def fill(
        self, segment: OpenSegment, parts: asyncio.TaskGroup, *, behind: Position, end: Position, limit: int | None
    ) -> None:
        """Read the segment's entries, seal it, send what is left. It ends earlier when the source has lost the rest.

        It begins directly `behind` a position, and ends at `end` or with `limit` bytes of payload; one that is sealed
        where it was sealed.
        """
        builder, seal = segment.builder, segment.attempt.seal
        if seal is not None:
            end, limit = seal.end, None
        taken = await self._take(segment, parts, builder.end or behind, end, limit)
        if not builder.entries:
            raise SegmentFailed("the source has lost all entries that the segment was to hold")
        segment.finish_blocks()
        if segment.attempt.seal is None or segment.sealed.end != taken:
            await segment.decide_end(self._view, self._view.chain.ledgers)
        while builder.pending_bytes:
            await segment.send(parts, last=not builder.part_ready)

    async def _take(
        self, segment: OpenSegment, parts: asyncio.TaskGroup, taken: Position, end: Position, limit: int | None
    ) -> Position:
        """Move the entries behind `taken`, up to `end`, into the segment as long as it has room; returns the last."""
        builder, backoff = segment.builder, Backoff(self._clock)
        while taken < end and not builder.full and (limit is None or builder.payload_bytes < limit):
            step = self._view.chain.next_after(taken)
            if isinstance(step, Loss):
                if not builder.entries or self._lost is None:
                    return taken
                await self._lost(step)
                continue
            if step is None or step.first > end:
                return taken
            if not builder.entries and step.first != segment.attempt.begin:
                raise SegmentFailed(
                    f"the segment was to begin at {segment.attempt.begin}, its first entry is {step.first}"
                )
            last = min(step.last_entry_id, end.entry_id) if step.ledger_id == end.ledger_id else step.last_entry_id
            try:
                await self._read(segment, parts, Position(step.ledger_id, step.first_entry_id), last, limit)
            except NotFound:
                await self._look()
                if step.ledger_id in self._view.chain.ledgers:
                    await self._pause(backoff, Transient(f"ledger {step.ledger_id} is listed, and not there"))
            except Transient as error:
                await self._pause(backoff, error)
            else:
                self._met(None)
                backoff.reset()
            taken = builder.end or taken
        return taken

    async def _pause(self, backoff: Backoff, error: Transient) -> None:
        self._met(error)
        await backoff.wait(error)

    async def _read(
        self, segment: OpenSegment, parts: asyncio.TaskGroup, first: Position, last: int, limit: int | None
    ) -> None:
        """Read entries of one ledger into the segment, and send each part as soon as it is full."""
        builder = segment.builder
        part_bytes = (segment.attempt.layout or self._shop.layout).part_bytes
        entries = self._source.read(
            self._topic, first.ledger_id, first.entry_id, last, batch_bytes=min(READ_BYTES, part_bytes)
        )
        held = 0
        try:
            async with aclosing(entries) as batches:
                while True:
                    if not held:
                        await self._budget.acquire(part_bytes, self)
                        held = part_bytes
                    batch = await anext(batches, None)
                    if batch is None:
                        return
                    segment.add(batch, limit)
                    self._metrics.source_entries.inc(len(batch.payloads))
                    self._metrics.source_bytes.inc(batch.payload_bytes())
                    if builder.part_ready:
                        self._budget.release(held, self)
                        held = 0
                        while builder.part_ready:
                            await segment.send(parts)
                    # Live segments run between two steps, however fast the source is.
                    await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
                    if builder.full or (limit is not None and builder.payload_bytes >= limit):
                        return
        finally:
            if held:
                self._budget.release(held, self)
