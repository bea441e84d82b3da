"""What is recorded of a topic, beside what has been seen of its ledgers: one writer at a time brings the former up.

The map and the chain meet here: ends of ledgers are recorded as soon as all before them is offloaded, losses as soon
as they are noticed, so that a restart knows what a vanished ledger means.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from offloaderd.metadata import removal
from offloaderd.model import LedgerEnd, Position, SegmentRange
from offloaderd.offload.buffer import START
from offloaderd.offload.chain import LedgerChain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offloaderd.clock import Clock
    from offloaderd.format.manifest import LedgerPart
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metrics import Metrics
    from offloaderd.model import LedgerInfo, Loss
    from offloaderd.offload.commit import AttemptLog

log = structlog.get_logger(__name__)


class TopicRecord:
    """A topic's map under one claim. `begin` is where an earlier owner's unfinished segment began."""

    def __init__(
        self, attempts: AttemptLog, topic_map: TopicMap, begin: Position | None, *, clock: Clock, metrics: Metrics
    ) -> None:
        resume = topic_map.offloaded or START
        self.map = topic_map
        self.chain = LedgerChain(resume, end=topic_map.ends.get(resume.ledger_id), begin=begin, losses=topic_map.losses)
        self.fence = attempts.fence
        self._attempts = attempts
        self._clock = clock
        self._metrics = metrics
        self._writing = asyncio.Lock()  # who writes nodes has to know their versions

    @property
    def offloaded(self) -> Position | None:
        """Newest position that is durable in the bucket and committed."""
        return self.map.offloaded

    def end_is_news(self) -> bool:
        """Say whether the end of the ledger in which the offloading stands is known and not recorded."""
        return bool(self._end_of_offloaded())

    async def note_end(self) -> None:
        """Record that end, if all before it is offloaded. Raises Fenced."""
        async with self._writing:
            self.map = await self._attempts.note_ends(self.map, self._end_of_offloaded())

    def known_ends(
        self, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo]
    ) -> tuple[tuple[int, LedgerEnd], ...]:
        """Return how ledgers ended, as far as known: the one that offloading stands in, and those of the next segment.

        `parts` is what that segment holds of each, `infos` what the source last said.
        """
        held = {part.ledger_id: part.last_entry_id + 1 for part in parts}
        before = {self.offloaded.ledger_id} if self.offloaded is not None else set()
        ends = []
        for ledger_id in sorted(held.keys() | before):
            end, info = self.chain.end_of(ledger_id), infos.get(ledger_id)
            if end is None and info is not None and info.closed:
                end = LedgerEnd(info.entries, None)
            if end is not None and end.entries >= held.get(ledger_id, 0):
                ends.append((ledger_id, end))
        return tuple(ends)

    def losses_before(self, parts: Sequence[LedgerPart]) -> tuple[Loss, ...]:
        """Return the losses between what is offloaded and the end of the next segment, which holds `parts`."""
        since, end = self.offloaded or START, Position(parts[-1].ledger_id, parts[-1].last_entry_id)
        ranges = [
            SegmentRange(Position(part.ledger_id, part.first_entry_id), Position(part.ledger_id, part.last_entry_id))
            for part in parts
        ]
        left = [loss.without(ranges) for loss in self.map.losses]
        return tuple(loss for loss in left if loss is not None and since <= loss.after and loss.before <= end)

    async def commit(self, segment: CommittedSegment, ends: Mapping[int, LedgerEnd]) -> None:
        """Make a segment part of the topic, and record which ledgers ended. Raises Fenced and Conflict."""
        async with self._writing:
            self.map = await self._attempts.commit(self.map, segment, ends)
        self.chain.forget_before(segment.end)

    async def lost(self, loss: Loss) -> None:
        """Record, count and tell what was deleted before it was offloaded. Raises Fenced."""
        async with self._writing:
            self.map = await self._attempts.note_loss(self.map, loss._replace(noticed_ms=self._clock.wall_ms()))
        self.chain.accept(loss)
        self._metrics.source_losses.labels(kind="certain" if loss.certain else "possible").inc()
        self._metrics.source_lost_entries.inc(loss.entries)
        log.error(
            "topic.entries_lost" if loss.certain else "topic.entries_maybe_lost",
            topic=str(self.map.topic),
            range=str(loss),
            entries=loss.entries,
            hint="retention deleted them before they were offloaded; keep more in BookKeeper, or look what was late",
        )

    async def mark_deleted(self, ledger_ids: Iterable[int]) -> None:
        """Record that ledgers are deleted, as many at a time as go into a transaction. Raises Fenced.

        See `removal.mark_deleted`; what was marked before an error stays so.
        """
        async with self._writing:
            for some in removal.batches(self.map, ledger_ids):
                marked = removal.mark_deleted(self.map, some, now_ms=self._clock.wall_ms())
                self.map = await self._attempts.change(*marked)

    async def remove_oldest(self, segment: CommittedSegment, reason: str) -> bool:
        """Take the oldest segment out of the map and put it on the trash list; False if that was done meanwhile.

        Raises Fenced, Conflict.
        """
        async with self._writing:
            if segment not in self.map.segments[:1]:
                return False
            now_ms = self._clock.wall_ms()
            self.map = await self._attempts.change(
                *removal.without_oldest(self.map, segment, reason=reason, now_ms=now_ms)
            )
        return True

    def _end_of_offloaded(self) -> dict[int, LedgerEnd]:
        offloaded = self.offloaded
        end = self.chain.end_of(offloaded.ledger_id) if offloaded is not None else None
        if offloaded is None or end is None or end.entries != offloaded.entry_id + 1:
            return {}
        return {offloaded.ledger_id: end} if end.adds_to(self.map.ends.get(offloaded.ledger_id)) else {}
