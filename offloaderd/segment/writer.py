"""Writes segments, one at a time, whoever needs them: from an attempt's record to what may be committed.

The only code that opens, fills, seals, completes and resumes an attempt. Where the entries come from is the feed's,
where the segment ends the stop rule's, what its manifest says of the topic the facts', and what becomes of it the
committer's.
How far the entries are taken is known here alone: after a failure the caller begins again where its topic stands.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from offloaderd import __version__
from offloaderd.metadata.records.attempt import Seal
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.committer import VerifiedSegment
from offloaderd.segment.feed import Empty, End, Entries, Gap, Lost
from offloaderd.segment.open_segment import OpenSegment
from offloaderd.segment.states import SegmentState
from offloaderd.segment.stop import OnGap, SegmentProgress
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.view import NO_VIEWS

if TYPE_CHECKING:
    from offloaderd.core.model import Position
    from offloaderd.format.values import SegmentManifest
    from offloaderd.segment.claim.attempt_log import AttemptLog
    from offloaderd.segment.committer import Assignment, Committer, SealFacts
    from offloaderd.segment.context import OffloadContext
    from offloaderd.segment.failures import FailureTracker
    from offloaderd.segment.feed import EntryFeed, Reservation
    from offloaderd.segment.stop import StopRule
    from offloaderd.segment.view import TopicView, Views

log = structlog.get_logger(__name__)

TAKE_BYTES = 1 << 20
"""Entries are moved from the feed into blocks in steps of about this size, so the loop stays responsive."""

LOOK_S = 1.0
"""How often to look whether entries that are waited for have vanished, of a segment whose end is decided."""


class SegmentWriter:
    """One owner's writer of a topic's segments, live ones, those of history, or those that replace others."""

    def __init__(
        self,
        context: OffloadContext,
        attempts: AttemptLog,
        committer: Committer,
        *,
        failure_tracker: FailureTracker,
        views: Views = NO_VIEWS,
    ) -> None:
        self.progress: SegmentProgress | None = None
        """Of the segment that is being written, or was written last."""
        self.moved = (0, 0)
        """How many entries, and bytes of payload, were taken into all segments."""
        self.context = context
        self.committer = committer
        self.views = views
        self._attempts = attempts
        self._failure_tracker = failure_tracker

    async def run(self, work: Assignment, feed: EntryFeed, stop: StopRule, facts: SealFacts) -> VerifiedSegment | None:
        """Bring an attempt to its commit; None when stopping leaves it to the next owner. Closes the feed.

        Raises SegmentFailed once the attempt was given up, Fenced, and what the feed raises.
        """
        segment = OpenSegment(
            self.context,
            self._attempts,
            work.attempt,
            failure_tracker=self._failure_tracker,
            opened_s=work.opened_s,
            continued=work.resumed,
            rereadable=feed.rereadable,
        )
        self.progress = progress = SegmentProgress(segment)
        one = _OneSegment(self, segment, progress, feed, stop, facts, work.claimed_s)
        try:
            with segment.trace as trace:
                trace.say(**work.notes)
                if not work.resumed:
                    await self.committer.begin(work.attempt)
                if (written := await one.written(work.after)) is None:
                    return None
                await self.committer.commit(written)
                one.went_on()
        except SegmentFailed as error:
            progress.reach(SegmentState.FAILED)
            await self.committer.give_up(segment.attempt, str(error))
            progress.open = False
            raise
        progress.reach(SegmentState.COMMITTED)
        progress.open = False
        return written


@dataclass(slots=True)
class _OneSegment:
    """One attempt, from its record to verified objects."""

    writer: SegmentWriter
    segment: OpenSegment
    progress: SegmentProgress
    feed: EntryFeed
    stop: StopRule
    facts: SealFacts
    claimed_s: float | None
    held: Reservation | None = None
    """What the feed has reserved to read the entries that are not in a part yet."""

    async def written(self, after: Position) -> VerifiedSegment | None:
        """Store its entries, those behind `after`, and verify the objects; None: it is left to the next owner."""
        segment = self.segment
        if not await segment.store(partial(self._fill, after)):
            return None
        await self.writer.committer.before_complete(segment.attempt)
        described: list[SegmentManifest] = []

        async def before_manifest(made: SegmentManifest) -> None:
            self.progress.reach(SegmentState.COMPLETED)
            await self.writer.committer.before_manifest(made)
            described.append(made)

        draft = self.writer.committer.manifest is ObjectKind.DRAFT
        committed = await segment.finish(before_manifest, draft=draft)
        self.progress.reach(SegmentState.VERIFIED)
        return VerifiedSegment(
            attempt=segment.attempt,
            described=described[-1],
            committed=committed,
            reason=segment.reason,
            opened_s=segment.opened_s,
            trace=segment.trace,
        )

    async def _fill(self, after: Position, parts: asyncio.TaskGroup) -> bool:
        """Take entries to the segment's end and send them; False when stopping leaves it to the next owner."""
        segment, builder = self.segment, self.segment.builder
        if self.progress.state is SegmentState.ASSIGNED:
            self.progress.reach(SegmentState.UPLOADING)
        if builder.begin is not None:
            self._begins_with(builder.begin)
        if segment.continued:
            self._resumed()
        cursor = after if builder.end is None else max(after, builder.end)
        self.feed.restart(cursor)
        try:
            if not await self._take(cursor, parts):
                return False
            self._check_end()
            segment.finish_blocks()
            if not segment.keeps_seal():
                await self._seal()
            while builder.pending_bytes:
                await self._send(parts, last=not builder.part_ready)
        finally:
            await self.feed.close()
        return True

    def _resumed(self) -> None:
        """Count and tell that an earlier owner's attempt is brought to its end."""
        segment = self.segment
        self.writer.context.upload_context.metrics.segments_continued.inc()
        log.info(
            "segment.continued",
            topic=segment.topic,
            segment_id=str(segment.attempt.segment_id),
            parts=segment.upload.stored_count,
            entries=self.progress.entries,
            state=self.progress.state,
            epoch=segment.epoch,
        )

    async def _take(self, cursor: Position, parts: asyncio.TaskGroup) -> bool:
        """Move entries behind `cursor` into the segment, up to its end; False when stopping.

        It ends earlier when the rest cannot come any more.
        """
        clock, required = self.writer.context.upload_context.clock, self.segment.attempt.end
        if required is not None and not self.segment.continued:
            self.segment.reason = "ledger"
        while True:
            # From the look at the topic to the wait nothing awaits: a change in between would be missed.
            view, now_s = self.writer.views.at(cursor), clock.monotonic()
            if self._is_at_end(cursor, view, now_s):
                return True
            if required is not None and view.requested.stopping and self.segment.attempt.seal is None:
                return False  # a whole ledger may take long, and the next owner goes on with it
            match self.feed.take(cursor, TAKE_BYTES, required):
                case Entries() as found:
                    self.held = found.reservation
                    cursor = self._add(found, cursor, view, now_s)
                    await self._send_full(parts)
                case Gap() as gap if self.progress.entries:
                    if self._ends_before(gap):
                        return True
                    await self.writer.committer.record_loss(gap)
                case Gap() | Lost() | End():
                    if required is None:
                        self.segment.reason = "end"
                    return True
                case Empty():
                    if required is not None and view.requested.stopping and not self.feed.rereadable:
                        return False
                    wait_s = LOOK_S if required is not None else self.stop.next_check_s(self.progress, view, now_s)
                    await self.feed.wait(wait_s)

    def _is_at_end(self, cursor: Position, view: TopicView, now_s: float) -> bool:
        """Say whether the segment ends with the entry at `cursor`: where that was decided, or as its rule has it."""
        required = self.segment.attempt.end
        if required is None:
            stopped = self.stop.decide(self.progress, view, now_s)
            if stopped is not None:
                self.segment.reason = stopped.reason
            return stopped is not None
        return cursor >= required

    def _ends_before(self, gap: Gap) -> bool:
        """Say whether the segment ends before what the source has lost. Raises SegmentFailed when it may not."""
        match self.stop.on_gap(gap):
            case OnGap.RECORD:
                return False
            case OnGap.END:
                self.segment.reason = "loss"
                return True
            case OnGap.FAIL:
                raise SegmentFailed(f"the source has lost entries {gap.loss}, which the segment was to hold")

    def _add(self, found: Entries, cursor: Position, view: TopicView, now_s: float) -> Position:
        """Take of the entries what the segment may hold; returns the last one that it holds."""
        required = self.segment.attempt.end
        for batch in found.batches:
            if not self.progress.entries:
                self._begins_with(batch.first)
            limit: int | None = None
            piece = batch
            if required is None:
                limit = self.stop.limit(self.progress, view, now_s).payload_bytes
                if limit is not None and self.progress.payload_bytes >= limit:
                    break
            elif batch.first > required:
                break
            elif batch.last > required:
                piece = batch.between(batch.first_entry_id, required.entry_id)
            before = self.progress.payload_bytes
            moved = self.segment.add(piece, limit)
            entries, payload_bytes = self.writer.moved
            self.writer.moved = entries + len(moved.payloads), payload_bytes + self.progress.payload_bytes - before
            self.went_on()
            cursor = moved.last
        return cursor

    def went_on(self) -> None:
        """There is progress: what an earlier owner left is recovered."""
        if self.claimed_s is not None:
            upload_context = self.writer.context.upload_context
            upload_context.metrics.recovery_seconds.observe(upload_context.clock.monotonic() - self.claimed_s)
            self.claimed_s = None

    def _begins_with(self, first: Position) -> None:
        """Raise SegmentFailed unless the first entry is the one that the record says."""
        begin = self.segment.attempt.begin
        if first != begin:
            raise SegmentFailed(f"the segment was to begin at {begin}, its first entry is {first}")

    def _check_end(self) -> None:
        """Raise SegmentFailed for a segment that may not end with what it holds."""
        required = self.segment.attempt.end
        if not self.progress.entries:
            sealed = f" up to {required}" if required is not None else ""
            raise SegmentFailed(f"the source has lost all entries that the segment was to hold{sealed}")
        if flaw := self.stop.flaw(self.progress):
            raise SegmentFailed(flaw)

    async def _seal(self) -> None:
        """No more entries: record the end, before a part is cut that would be larger with more. Raises Fenced."""
        segment, builder = self.segment, self.segment.builder
        infos = await self.facts.infos()
        ledgers = builder.ledgers(infos.get)
        around = await self.facts.around(segment.attempt.begin, ledgers, infos, segment.upload.find)
        data_bytes, part_count = builder.planned()
        seal = Seal(
            sealed_ms=self.writer.context.upload_context.clock.wall_ms(),
            epoch=segment.epoch,
            software_version=__version__,
            data_bytes=data_bytes,
            part_count=part_count,
            ledgers=ledgers,
            losses=around.losses,
            ends=around.ends,
            past=around.past,
            replaces=around.replaces,
        )
        with segment.trace.step("seal", reason=segment.reason, entries=builder.entries):
            await segment.progress.note_seal(seal)
        self.progress.reach(SegmentState.SEALED)

    async def _send_full(self, parts: asyncio.TaskGroup) -> None:
        while self.segment.builder.part_ready:
            await self._send(parts)
        # Sources and clients run between two steps, however much there is to take.
        await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time

    async def _send(self, parts: asyncio.TaskGroup, *, last: bool = False) -> None:
        self.feed.sent(await self.segment.send(parts, last=last, held=self.held))
