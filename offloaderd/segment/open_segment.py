"""The open segment: one attempt from its record to objects that may be committed, by one owner or by several in turn.

What a part holds follows from the record and the topic's entries alone: where the segment begins and how it is cut is
recorded before the first byte, where it ends (the seal) before the first part that depends on it. An owner that was
deposed cannot record the latter, so whatever it still sends is what its successor sends as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import structlog

from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import InvalidInput, first_of
from offloaderd.format.layout import LedgerLayout
from offloaderd.metadata.records.attempt import stored_part
from offloaderd.segment.builder import SegmentBuilder
from offloaderd.segment.complete import SegmentCompletion
from offloaderd.segment.ledger_builder import LedgerBuilder
from offloaderd.segment.progress import Progress
from offloaderd.segment.upload import SegmentFailed, SegmentUpload

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from offloaderd.core.model import EntryBatch, Position
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.records.attempt import Attempt, Seal
    from offloaderd.segment.builder import CutPart
    from offloaderd.segment.claim.attempt_log import AttemptLog
    from offloaderd.segment.complete import Prove
    from offloaderd.segment.context import OffloadContext
    from offloaderd.segment.failures import FailureTracker
    from offloaderd.segment.feed import Reservation

_T = TypeVar("_T")
log = structlog.get_logger(__name__)


class OpenSegment:
    """One attempt that is being worked on. `continued`: an earlier owner began it; `rereadable` as of its feed."""

    def __init__(
        self,
        context: OffloadContext,
        attempts: AttemptLog,
        attempt: Attempt,
        *,
        failure_tracker: FailureTracker,
        opened_s: float,
        continued: bool,
        rereadable: bool,
    ) -> None:
        self.continued = continued
        self._rereadable = rereadable
        self.opened_s = opened_s
        """Since when it is open, by the monotonic clock."""
        self.reason = "continued"
        """Why it was sealed."""
        self._context = context
        self._claim = claim = attempts.fence.claim
        self.topic, self.epoch = str(claim.topic), claim.epoch
        self._clock = context.upload_context.clock
        self.builder = _builder(attempt, context)
        where = attempt.keys
        named = context.labels(where, claim.topic)
        self.upload = SegmentUpload(
            context.upload_context, attempt.bucket, where, failure_tracker=failure_tracker, labels=named
        )
        self.progress = Progress(attempts, attempt, epoch=claim.epoch, clock=self._clock)
        self.trace = context.upload_context.traces.segment(
            attempt.segment_id,
            topic=str(claim.topic),
            begin=str(attempt.begin),
            method=str(attempt.method),
            epoch=claim.epoch,
            continued=continued,
        )
        """Whoever works on the segment enters it, and leaves it at its commit."""

    @property
    def attempt(self) -> Attempt:
        """Its record."""
        return self.progress.attempt

    @property
    def sealed(self) -> Seal:
        """Where it ends; only once that is decided."""
        assert self.attempt.seal is not None  # noqa: S101
        return self.attempt.seal

    @property
    def catching_up(self) -> bool:
        """Whether an earlier owner stored parts that are not cut again yet."""
        return self.builder.part_count < self.upload.stored_count

    async def store(self, fill: Callable[[asyncio.TaskGroup], Awaitable[_T]]) -> _T:
        """Have an upload, and all parts stored and recorded that `fill` sends; returns what `fill` does.

        Raises SegmentFailed, Fenced, what `fill` raises.
        """
        try:
            async with Group() as group:
                group.create_task(self.progress.run(), name=f"progress of {self.attempt.segment_id}")
                async with Group() as parts:
                    with self.trace.step("open"):
                        await self._open()
                    filled = await fill(parts)
                self.progress.end()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        return filled

    async def _open(self) -> None:
        """Have an upload, or go on with the one that there is. Raises SegmentFailed when that cannot be trusted.

        The recorded parts count as sent where their entries can be read again if it should come to that; else they
        are given anew from the begin of the segment, and compared.
        """
        attempt = self.attempt
        if not attempt.upload_id and not attempt.proven:
            await self.progress.note_upload(await self.upload.open(began_before=self.continued))
            return
        trusted = attempt.whole or self._rereadable
        await self.upload.resume(attempt, trusted=trusted)
        if trusted:
            try:
                self.builder.restore(attempt.parts)
            except InvalidInput as error:
                raise SegmentFailed(
                    f"the recorded parts of {attempt.segment_id} contradict each other: {error}"
                ) from error

    def add(self, batch: EntryBatch, payload_bytes_max: int | None = None) -> EntryBatch:
        """Take entries, see SegmentBuilder. Raises SegmentFailed when a ledger has others than it was said to have."""
        try:
            return self.builder.add(batch, payload_bytes_max)
        except InvalidInput as error:
            raise SegmentFailed(f"ledger {batch.ledger_id}: {error}") from error

    def finish_blocks(self) -> None:
        """No more entries. Raises SegmentFailed as `add` does."""
        try:
            self.builder.finish_blocks()
        except InvalidInput as error:
            raise SegmentFailed(f"ledger {self.attempt.begin.ledger_id}: {error}") from error

    async def send(self, parts: asyncio.TaskGroup, *, last: bool = False, held: Reservation | None = None) -> Position:
        """Cut the next part, as soon as there is room for it, and store it; returns its last entry.

        `held` is what was reserved to read its entries.
        """
        reserved = await self.upload.reserve(self.builder.pending_bytes, held)
        part = self.builder.cut_part(last=last)
        task = parts.create_task(self._store_part(part), name=f"part {part.part_number} of {self._claim.topic}")
        # Not in the task itself: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(lambda _: self.upload.unreserve(reserved))
        return part.end

    async def _store_part(self, part: CutPart) -> None:
        with self.trace.step("part", part_number=part.part_number, bytes=part.size_bytes, end=str(part.end)):
            info = await self.upload.send(part)
        self.progress.stored(part.part_number, stored_part(info.etag, info.size_bytes, part.blocks))

    def keeps_seal(self) -> bool:
        """Say whether it holds what was sealed; if the source has lost some of that meanwhile, it is sealed again.

        What it holds may be the last copy there is. The end alone does not tell: a ledger in the middle may be gone.
        """
        seal, holds = self.attempt.seal, (self.builder.end, self.builder.entries)
        if seal is not None and (seal.end, seal.entries) != holds:
            log.error(
                "segment.sealed_again",
                topic=self.topic,
                segment_id=str(self.attempt.segment_id),
                sealed=str(seal.end),
                end=str(self.builder.end),
                entries_lost=seal.entries - self.builder.entries,
                hint="the source deleted what was sealed and not stored; look why it was late",
            )
            return False
        return seal is not None

    async def finish(self, prove: Prove | None = None, *, draft: bool = False) -> CommittedSegment:
        """Make the objects complete and verified; returns what is to be committed. Raises SegmentFailed.

        `prove` and `draft` as in Sealer.finish.
        """
        self.trace.say(
            end=str(self.sealed.end),
            reason=self.reason,
            ledgers=len(self.sealed.ledgers),
            entries=self.sealed.entries,
            payload_bytes=sum(part.payload_bytes for part in self.sealed.ledgers),
            object_bytes=self.sealed.data_bytes,
            parts=self.sealed.part_count,
        )
        completion = SegmentCompletion(self._context, self._claim.topic, self.upload, self.trace)
        try:
            return await completion.finish(self.attempt, self.builder.blocks, prove, draft=draft)
        except InvalidInput as error:
            if not self.continued:
                raise
            raise SegmentFailed(f"the record of {self.attempt.segment_id} contradicts itself: {error}") from error


def _builder(attempt: Attempt, context: OffloadContext) -> SegmentBuilder:
    if isinstance(attempt.layout, LedgerLayout):
        return LedgerBuilder(
            attempt.segment_id, attempt.layout, assigned_ms=attempt.assigned_ms, chunk_bytes=context.chunk_bytes
        )
    return SegmentBuilder(
        attempt.segment_id,
        attempt.layout or context.layout,
        assigned_ms=attempt.assigned_ms,
        chunk_bytes=context.chunk_bytes,
    )
