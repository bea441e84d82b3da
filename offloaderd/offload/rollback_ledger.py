"""One ledger on its way out of streaming segments into an object of its own: attempt, object, proof, exchange.

It goes as any attempt does: recorded before its first byte, parts recorded as they are stored, sealed, completed,
verified, gone on with by the next owner. Since it replaces what may be the only copy, what was stored is then read
back through manifest and index as they lie in the bucket, and the hash of its entries has to be that of the entries in
the segments; only then are the two exchanged, in one transaction.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import structlog

from offloaderd import __version__
from offloaderd.errors import Conflict, Fenced, InvalidInput, NotFound, OffloaderError
from offloaderd.format.manifest import Past
from offloaderd.ledgers.plain_metadata import plain_metadata
from offloaderd.metadata import conversion
from offloaderd.metadata.records.attempt import Attempt, Seal
from offloaderd.model import LedgerInfo, Position
from offloaderd.offload.budget import until_answered
from offloaderd.offload.next_segment import LedgerCut
from offloaderd.offload.open_segment import OpenSegment
from offloaderd.offload.past import past_within
from offloaderd.offload.rollback_read import BucketReader, EntryHash, Unreadable
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.conversion import LedgerOutlook
    from offloaderd.model import TopicName
    from offloaderd.offload.commit import AttemptLog
    from offloaderd.offload.rollback_read import Volume
    from offloaderd.offload.topic import TopicOffloader
    from offloaderd.offload.workshop import Workshop

log = structlog.get_logger(__name__)

EXCHANGES_MAX = 5
"""How often the exchange is tried while somebody else changes the map (a job that commits history)."""

BLOCK_BYTES = 64 << 20
"""Pulsar's default size of a block (`managedLedgerOffloadMaxBlockSizeInBytes`), where no setting says another."""


class Stopped(OffloaderError):
    """The order was taken back while the ledger was being rewritten."""


class Phase(StrEnum):
    """What is being done with a ledger."""

    WRITING = "writing"
    VERIFYING = "verifying"
    COMMITTING = "committing"


class LedgerConversion:
    """The work on one ledger; `stopped` says whether it is not wanted any more."""

    def __init__(
        self,
        offloader: TopicOffloader,
        shop: Workshop,
        attempts: AttemptLog,
        row: LedgerOutlook,
        stopped: Callable[[], bool],
    ) -> None:
        self.row = row
        self.phase = Phase.WRITING
        self.done_bytes = 0
        """Payload bytes that were read of it in this phase."""
        self.attempt: Attempt | None = None
        """As it was recorded last, None while none is."""
        self.troubles = Troubles(offloader.topic, shop.uplink.clock, offloader.changed.notify)
        self._offloader = offloader
        self._shop = shop
        self._attempts = attempts
        self._stopped = stopped
        self._topic: TopicName = offloader.topic
        self._clock = shop.uplink.clock
        self._reader = BucketReader(shop, self._topic, self.troubles, self._ready)
        self._volumes: list[Volume] = []
        self._hash: EntryHash | None = None

    async def run(self, left: Attempt | None) -> CommittedSegment:
        """Rewrite the ledger, going on with what an earlier owner left; returns what was committed.

        Raises Unreadable, SegmentFailed, Stopped (`attempt` is to be given up then), Fenced, Conflict.
        """
        self.attempt = left
        holders = conversion.holders_of(self._offloader.map, self.row.ledger_id)
        self._volumes = [await self._reader.volume(one) for one in holders]
        attempt = left or await self._new_attempt()
        segment = OpenSegment(
            self._shop,
            self._attempts,
            attempt,
            troubles=self.troubles,
            opened_s=self._clock.monotonic(),
            continued=left is not None,
        )
        if left is None:
            await self._attempts.begin(attempt)
        try:
            with segment.trace as trace:
                trace.say(rollback=True)
                await segment.store(partial(self._rewrite, segment))
                self._ready()
                whole = await segment.finish()
                await self._prove(whole)
                with trace.step("commit"):
                    await self._exchange(whole)
        finally:
            self.attempt = segment.attempt
        self.attempt = None
        return whole

    def _ready(self) -> None:
        """Raise Stopped when the ledger is not wanted any more."""
        if self._stopped():
            raise Stopped(f"ledger {self.row.ledger_id} is not to be rewritten any more")

    async def _new_attempt(self) -> Attempt:
        cut = cut_of(self._shop)
        info = self._info()
        try:
            metadata = await until_answered(self._clock, lambda: _described(self._shop, self._topic, info))
        except InvalidInput as error:
            raise Unreadable(error.message) from error
        layout = cut.layout(entries=info.entries, payload_bytes=info.size_bytes, metadata=metadata)
        place = self._shop.places.find(self._volumes[0].bucket, self._volumes[0].keys.prefix)
        begin, epoch = Position(info.ledger_id, 0), self._offloader.claim.epoch
        return self._shop.attempt(begin, layout, place or self._shop.places.home, epoch=epoch)

    def _info(self) -> LedgerInfo:
        """Return what the map and the segments know of the ledger, whatever the source can still tell of it."""
        ledger_id = self.row.ledger_id
        parts = [part for one in self._volumes for part in one.manifest.ledgers if part.ledger_id == ledger_id]
        known = self._offloader.record.chain.ledgers.get(ledger_id)
        closed_ms = max(part.closed_ms for part in parts)
        return LedgerInfo(
            ledger_id=ledger_id,
            closed=True,
            entries=self.row.entries,
            size_bytes=sum(part.payload_bytes for part in parts),
            closed_at_ms=known.closed_at_ms if known is not None and known.closed else closed_ms,
        )

    async def _rewrite(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        """Send all parts of the object, sealing it in between. Raises SegmentFailed, Unreadable, Stopped, Fenced."""
        await self._fill(segment, parts)
        segment.finish_blocks()
        if segment.attempt.seal is None:
            await segment.progress.note_seal(self._seal(segment))
        while segment.builder.pending_bytes:
            await segment.send(parts, last=not segment.builder.part_ready)

    async def _fill(self, segment: OpenSegment, parts: asyncio.TaskGroup) -> None:
        """Move the ledger's entries into the object, a part at a time."""
        builder, budget = segment.builder, self._shop.uplink.budget
        first = builder.end.entry_id + 1 if builder.end is not None else 0
        self.done_bytes = builder.payload_bytes
        taken = EntryHash()
        part_bytes = (segment.attempt.layout or self._shop.layout).part_bytes
        wanted = part_bytes + self._reader.piece_bytes
        held = 0
        try:
            async with aclosing(self._reader.entries(self._volumes, self.row.ledger_id, first)) as batches:
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
        self._hash = None if first else taken

    def _seal(self, segment: OpenSegment) -> Seal:
        """Say where the object ends, and all that its manifest tells beside its blocks."""
        builder, topic_map = segment.builder, self._offloader.map
        ledger_id, begin = self.row.ledger_id, Position(self.row.ledger_id, 0)
        data_bytes, part_count = builder.planned()
        before = max((one for one in topic_map.contexts if one < ledger_id), default=ledger_id)
        losses = tuple(loss for loss in topic_map.losses if loss.before == begin)
        past = past_within(self._volumes[0].manifest, ledger_id)
        info = self._info()
        return Seal(
            sealed_ms=self._clock.wall_ms(),
            epoch=self._offloader.claim.epoch,
            software_version=__version__,
            data_bytes=data_bytes,
            part_count=part_count,
            ledgers=builder.ledgers(lambda _: info),
            losses=losses,
            ends=tuple((one, topic_map.ends[one]) for one in sorted({before, ledger_id}) if one in topic_map.ends),
            past=Past(past.entries, begin) if past is not None and losses else past,
        )

    async def _prove(self, whole: CommittedSegment) -> None:
        """Compare the entries of what is stored with those in the segments. Raises SegmentFailed when they differ."""
        self.phase = Phase.VERIFYING
        ledger_id = self.row.ledger_id
        before = self._hash or await self._reader.hashed(self._volumes, ledger_id)
        try:
            after = await self._reader.hashed([await self._reader.object_of(whole)], ledger_id)
        except Unreadable as error:
            raise SegmentFailed(f"what was stored reads back differently: {error.message}") from error
        if (before.entries, before.digest()) != (after.entries, after.digest()):
            raise SegmentFailed(f"object {whole.segment_id} does not hold the entries of ledger {ledger_id}")

    async def _exchange(self, whole: CommittedSegment) -> None:
        """Put the object in the place of the slices. Raises Fenced, SegmentFailed when the map has no such slices."""
        self.phase = Phase.COMMITTING
        record = self._offloader.record
        for tries in range(1, EXCHANGES_MAX + 1):
            try:
                await record.exchange(self._attempts, whole)
            except Fenced:
                raise
            except (Conflict, NotFound) as error:
                await record.reload()
                if any(one.segment_id == whole.segment_id for one in record.map.segments):
                    return
                if tries == EXCHANGES_MAX:
                    raise SegmentFailed(f"the map has changed: {error.message}") from error
            else:
                return


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
