"""What is stored, on its way into one object of another shape: object, proof; whoever replaces the old by it.

It goes as any attempt does: recorded before its first byte, parts recorded as they are stored, sealed, completed,
verified, gone on with by whoever comes next. Since it replaces what may be the only copy, what was stored is read back
through the index as it lies in the bucket, and the hash of its entries has to be that of the entries in the old
objects. Only then is the manifest put: it says what the object replaces, and a rebuild believes it. Only what passes
may be exchanged for the old objects (`metadata/conversion.py`, `metadata/merging.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from offloaderd import __version__
from offloaderd.errors import InvalidInput, NotFound
from offloaderd.format.manifest import Past
from offloaderd.ledgers.plain_metadata import plain_metadata
from offloaderd.metadata.records.attempt import Seal
from offloaderd.model import LedgerInfo
from offloaderd.offload.budget import until_answered
from offloaderd.offload.next_segment import LedgerCut
from offloaderd.offload.open_segment import OpenSegment
from offloaderd.offload.past import past_within
from offloaderd.offload.rollback_read import BucketReader, EntryHash, Unreadable, Volume
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from offloaderd.format.layout import LedgerLayout
    from offloaderd.format.manifest import SegmentManifest
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.merging import Goal
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.model import TopicName
    from offloaderd.offload.commit import AttemptLog
    from offloaderd.offload.troubles import Troubles
    from offloaderd.offload.workshop import Workshop

BLOCK_BYTES = 64 << 20
"""Pulsar's default size of a block (`managedLedgerOffloadMaxBlockSizeInBytes`), where no setting says another."""


class Phase(StrEnum):
    """What is being done."""

    WRITING = "writing"
    VERIFYING = "verifying"
    COMMITTING = "committing"


class Rewriting:
    """The work on one goal. `current` is the topic's map; `ready` is asked before each request, and may raise.

    `closed_ms` is when the source says that a ledger was closed, None where it does not.
    """

    def __init__(
        self,
        shop: Workshop,
        attempts: AttemptLog,
        current: Callable[[], TopicMap],
        goal: Goal,
        *,
        troubles: Troubles,
        ready: Callable[[], None] = lambda: None,
        closed_ms: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.goal = goal
        self.phase = Phase.WRITING
        self.done_bytes = 0
        """Payload bytes that were read in this phase."""
        self._shop = shop
        self._attempts = attempts
        self._current = current
        self._troubles = troubles
        self._ready = ready
        self._closed_ms = closed_ms
        self._topic: TopicName = attempts.fence.claim.topic
        self._clock = shop.uplink.clock
        self._reader = BucketReader(shop, self._topic, troubles, ready)
        self._volumes: list[Volume] = []
        self._hash: EntryHash | None = None

    async def open(self) -> None:
        """Look the old objects up. Raises Unreadable."""
        self._volumes = [await self._reader.volume(one) for one in self.goal.sources]

    async def attempt(self) -> Attempt:
        """Return a new attempt, not recorded yet. Raises Unreadable."""
        layout = await self._whole_layout() if self.goal.whole else self._shop.layout
        place = self._shop.places.find(self._volumes[0].bucket, self._volumes[0].keys.prefix)
        epoch = self._attempts.fence.claim.epoch
        return self._shop.attempt(self.goal.begin, layout, place or self._shop.places.home, epoch=epoch)

    async def _whole_layout(self) -> LedgerLayout:
        info = self._info(self.goal.begin.ledger_id)
        try:
            metadata = await until_answered(self._clock, lambda: _described(self._shop, self._topic, info))
        except InvalidInput as error:
            raise Unreadable(error.message) from error
        cut = cut_of(self._shop)
        return cut.layout(entries=info.entries, payload_bytes=info.size_bytes, metadata=metadata)

    def segment(self, attempt: Attempt, *, continued: bool) -> OpenSegment:
        """Return the attempt as it is to be worked on."""
        return OpenSegment(
            self._shop,
            self._attempts,
            attempt,
            troubles=self._troubles,
            opened_s=self._clock.monotonic(),
            continued=continued,
        )

    async def store(self, segment: OpenSegment) -> CommittedSegment:
        """Store the object and prove it; returns what may be exchanged for the old ones.

        Raises Unreadable, SegmentFailed, Fenced, what `ready` raises.
        """
        await segment.store(partial(self._rewrite, segment))
        self._ready()
        return await segment.finish(partial(self._prove, segment.attempt))

    def _info(self, ledger_id: int) -> LedgerInfo:
        """Return what map and manifests know of a ledger, whatever the source can still tell of it."""
        parts = [part for one in self._volumes for part in one.manifest.ledgers if part.ledger_id == ledger_id]
        known = max(parts, key=lambda part: (part.closed, part.ledger_entries))
        closed_ms = self._closed_ms(ledger_id)
        return LedgerInfo(
            ledger_id=ledger_id,
            closed=self.goal.whole or known.closed,
            entries=self.goal.entries if self.goal.whole else known.ledger_entries,
            size_bytes=sum(part.payload_bytes for part in parts) if self.goal.whole else known.ledger_bytes,
            closed_at_ms=max(part.closed_ms for part in parts) if closed_ms is None else closed_ms,
            created_ms=known.created_ms,
        )

    async def _rewrite(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        """Send all parts of the object, sealing it in between."""
        await self._fill(segment, parts)
        segment.finish_blocks()
        if segment.builder.end != self.goal.end or segment.builder.entries != self.goal.entries:
            raise SegmentFailed(f"the old objects end with {segment.builder.end}, not with {self.goal.end}")
        if segment.attempt.seal is None:
            await segment.progress.note_seal(self._seal(segment))
        while segment.builder.pending_bytes:
            await segment.send(parts, last=not segment.builder.part_ready)

    async def _fill(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        """Move the entries into the object, a part at a time."""
        builder, budget = segment.builder, self._shop.uplink.budget
        behind = builder.end
        self.done_bytes = builder.payload_bytes
        taken = EntryHash()
        part_bytes = (segment.attempt.layout or self._shop.layout).part_bytes
        wanted = part_bytes + self._reader.piece_bytes
        held = 0
        try:
            async with aclosing(self._reader.run(self._volumes, self.goal.slices, behind)) as batches:
                while True:
                    if not held:  # what is read is in memory until its part is cut
                        await budget.acquire(wanted, self)
                        held = wanted
                    batch = await anext(batches, None)
                    if batch is None:
                        break
                    segment.add(batch)
                    taken.take(batch)
                    self.done_bytes += batch.payload_bytes()
                    if builder.part_ready:
                        budget.release(held, self)
                        held = 0
                        while builder.part_ready:
                            await segment.send(parts)
                    # Live segments run between two steps, however fast the bucket is.
                    await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
        finally:
            if held:
                budget.release(held, self)
        self._hash = taken if behind is None else None

    def _seal(self, segment: OpenSegment) -> Seal:
        """Say where the object ends, and all that its manifest tells beside its blocks."""
        builder, goal, topic_map = segment.builder, self.goal, self._current()
        begin = goal.begin
        data_bytes, part_count = builder.planned()
        held = {part.ledger_id for part in goal.slices}
        before = max((one for one in topic_map.contexts if one < begin.ledger_id), default=begin.ledger_id)
        losses = tuple(loss for loss in topic_map.losses if begin <= loss.before <= goal.end)
        past = past_within(self._volumes[0].manifest, begin.ledger_id)
        lost_before = any(loss.before == begin for loss in losses)
        return Seal(
            sealed_ms=self._clock.wall_ms(),
            epoch=self._attempts.fence.claim.epoch,
            software_version=__version__,
            data_bytes=data_bytes,
            part_count=part_count,
            ledgers=builder.ledgers(self._info),
            losses=losses,
            ends=tuple((one, topic_map.ends[one]) for one in sorted({before, *held}) if one in topic_map.ends),
            past=Past(past.entries, begin) if past is not None and lost_before else past,
            replaces=self._replaced(topic_map),
        )

    def _replaced(self, topic_map: TopicMap) -> tuple[UUID, ...]:
        """Return what it is made of, and what that was made of and is in the map for its other entries."""
        known = {one.segment_id for one in topic_map.segments}
        before = {one for volume in self._volumes for one in volume.manifest.replaces}
        sources = {one.segment_id for one in self.goal.sources}
        return tuple(sorted(sources | (before & known)))

    async def _prove(self, attempt: Attempt, made: SegmentManifest) -> None:
        """Compare the entries of what is stored with those of the old objects. Raises SegmentFailed."""
        self.phase = Phase.VERIFYING
        before = self._hash or await self._reader.hashed(self._volumes, self.goal.slices)
        try:
            volume = await self._reader.stored(Volume(attempt.bucket, attempt.keys, made))
            after = await self._reader.hashed([volume], self.goal.slices)
        except Unreadable as error:
            raise SegmentFailed(f"what was stored reads back differently: {error.message}") from error
        if (before.entries, before.digest()) != (after.entries, after.digest()):
            raise SegmentFailed(f"object {made.segment_id} does not hold the entries of {self.goal.range}")


def cut_of(shop: Workshop) -> LedgerCut:
    """Return how ledgers are cut, with a source or without."""
    layout = shop.layout
    return (
        shop.ledgers
        or shop.cut
        or LedgerCut(block_bytes=BLOCK_BYTES, part_bytes=layout.part_bytes, run_bytes=layout.block_bytes)
    )


async def _described(shop: Workshop, topic: TopicName, info: LedgerInfo) -> bytes:
    """Return BookKeeper's metadata of a ledger; what is known without it when the source has no such ledger."""
    if shop.ledgers is None:
        return plain_metadata(info)
    try:
        return await shop.ledgers.describer.described(topic, info.ledger_id)
    except (NotFound, InvalidInput):
        return plain_metadata(info)
