"""Writes segments, one at a time, whoever needs them: from an attempt's record to what may be committed.

The only code that opens, fills, seals, completes and resumes an attempt. Where the entries come from is the feed's,
where the segment ends the stop rule's, what its manifest says of the topic the facts', and what becomes of it the
committer's.
How far the entries are taken is known here alone: after a failure the caller begins again where its topic stands.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from offloaderd import __version__
from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import InvalidInput, first_of
from offloaderd.core.model import Position
from offloaderd.format.values import SegmentManifest
from offloaderd.metadata.records.attempt import Attempt, Seal, stored_part
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.builders.builder import CutPart
from offloaderd.segment.builders.ledger_builder import builder_of
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.committer import Assignment, Committer, SealFacts, VerifiedSegment
from offloaderd.segment.complete import SegmentCompletion, keeps_seal
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import Empty, End, Entries, EntryFeed, Gap, Lost, Reservation
from offloaderd.segment.progress import Progress
from offloaderd.segment.states import SegmentState
from offloaderd.segment.stop import OnGap, SegmentProgress, StopRule
from offloaderd.segment.upload import SegmentFailed, SegmentUpload
from offloaderd.segment.view import NO_VIEWS, TopicView, Views

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
        self.attempts = attempts
        self.failure_tracker = failure_tracker

    async def run(self, work: Assignment, feed: EntryFeed, stop: StopRule, facts: SealFacts) -> VerifiedSegment | None:
        """Bring an attempt to its commit; None when stopping leaves it to the next owner. Closes the feed.

        Raises SegmentFailed once the attempt was given up, Fenced, and what the feed raises.
        """
        one = _OneSegment(self, work, feed, stop, facts)
        self.progress = progress = one.progress
        try:
            with one.trace as trace:
                trace.say(**work.notes)
                if not work.resumed:
                    await self.committer.begin(work.attempt)
                if (written := await one.written()) is None:
                    return None
                await self.committer.commit(written)
                one.went_on()
        except SegmentFailed as error:
            progress.reach(SegmentState.FAILED)
            await self.committer.give_up(progress.attempt, str(error))
            progress.open = False
            raise
        progress.reach(SegmentState.COMMITTED)
        progress.open = False
        return written


class _OneSegment:
    """One attempt, from its record to verified objects.

    What a part holds follows from the record and the topic's entries alone: where the segment begins and how it is cut
    is recorded before the first byte, where it ends (the seal) before the first part that depends on it. An owner that
    was deposed cannot record the latter, so whatever it still sends is what its successor sends as well.
    """

    def __init__(
        self, writer: SegmentWriter, work: Assignment, feed: EntryFeed, stop: StopRule, facts: SealFacts
    ) -> None:
        context, claim, attempt = writer.context, writer.attempts.fence.claim, work.attempt
        self._writer = writer
        self._work = work
        self._feed = feed
        self._stop = stop
        self._facts = facts
        self._context = context
        self._topic, self._epoch = claim.topic, claim.epoch
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self._builder = builder_of(attempt, context.layout, chunk_bytes=context.chunk_bytes)
        labels = context.labels(attempt.keys, claim.topic)
        self._upload = SegmentUpload(
            context.upload_context, attempt.bucket, attempt.keys, failure_tracker=writer.failure_tracker, labels=labels
        )
        self._record = Progress(writer.attempts, attempt, epoch=claim.epoch, clock=self._clock)
        self._claimed_s = work.claimed_s
        self._held: Reservation | None = None  # of the feed, to read the entries that are not in a part yet
        self.progress = SegmentProgress(self._record, self._builder, self._upload, work)
        self.trace = context.upload_context.traces.segment(
            attempt.segment_id,
            topic=str(claim.topic),
            begin=str(attempt.begin),
            method=str(attempt.method),
            epoch=claim.epoch,
            continued=work.resumed,
        )

    @property
    def _attempt(self) -> Attempt:
        return self._record.attempt

    async def written(self) -> VerifiedSegment | None:
        """Store its entries and verify the objects; None: it is left to the next owner."""
        committer = self._writer.committer
        if not await self._stored():
            return None
        await committer.before_complete(self._attempt)
        described: list[SegmentManifest] = []

        async def before_manifest(made: SegmentManifest) -> None:
            self.progress.reach(SegmentState.COMPLETED)
            await committer.before_manifest(made)
            described.append(made)

        self.trace.say(reason=self.progress.reason, parts=self._builder.part_count)
        completion = SegmentCompletion(self._context, self._topic, self._upload, self.trace)
        draft = committer.manifest is ObjectKind.DRAFT
        with _failing(f"the record of {self._attempt.segment_id} contradicts itself", when=self._work.resumed):
            committed = await completion.finish(self._attempt, self._builder.blocks, before_manifest, draft=draft)
        self.progress.reach(SegmentState.VERIFIED)
        return VerifiedSegment(
            attempt=self._attempt,
            described=described[-1],
            committed=committed,
            reason=self.progress.reason,
            opened_s=self._work.opened_s,
            trace=self.trace,
        )

    async def _stored(self) -> bool:
        """Have an upload, and all parts stored and recorded; False when stopping leaves it to the next owner."""
        try:
            async with Group() as group:
                group.create_task(self._record.run(), name=f"progress of {self._attempt.segment_id}")
                async with Group() as parts:
                    with self.trace.step("open"):
                        await self._open()
                    done = await self._fill(parts)
                self._record.end()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        return done

    async def _open(self) -> None:
        """Have an upload, or go on with the one that there is. Raises SegmentFailed when that cannot be trusted.

        The recorded parts count as sent where their entries can be read again if it should come to that; else they
        are given anew from the begin of the segment, and compared.
        """
        attempt = self._attempt
        if not attempt.upload_id and not attempt.proven:
            await self._record.note_upload(await self._upload.open(began_before=self._work.resumed))
            return
        trusted = attempt.whole or self._feed.rereadable
        await self._upload.resume(attempt, trusted=trusted)
        if trusted:
            with _failing(f"the recorded parts of {attempt.segment_id} contradict each other"):
                self._builder.restore(attempt.parts)

    async def _fill(self, parts: asyncio.TaskGroup) -> bool:
        """Take entries to the segment's end and send them; False when stopping leaves it to the next owner."""
        builder, cursor = self._builder, self._work.after
        if self.progress.state is SegmentState.ASSIGNED:
            self.progress.reach(SegmentState.UPLOADING)
        if builder.begin is not None:
            self._begins_with(builder.begin)
        if self._work.resumed:
            self._resumed()
        if builder.end is not None:
            cursor = max(cursor, builder.end)
        self._feed.restart(cursor)
        try:
            if not await self._take(cursor, parts):
                return False
            self._check_end()
            with _failing(f"ledger {self._attempt.begin.ledger_id}"):
                builder.finish_blocks()
            if not keeps_seal(self._attempt, builder, self._topic):
                await self._seal()
            while builder.pending_bytes:
                await self._send(parts, last=not builder.part_ready)
        finally:
            await self._feed.close()
        return True

    def _resumed(self) -> None:
        """Count and tell that an earlier owner's attempt is brought to its end."""
        self._metrics.segments_resumed.inc()
        log.info(
            "segment.resumed",
            topic=str(self._topic),
            segment_id=str(self._attempt.segment_id),
            parts=self._upload.stored_count,
            entries=self.progress.entries,
            state=self.progress.state,
            epoch=self._epoch,
        )

    async def _take(self, cursor: Position, parts: asyncio.TaskGroup) -> bool:
        """Move entries behind `cursor` into the segment, up to its end; False when stopping.

        It ends earlier when the rest cannot come any more.
        """
        required = self._attempt.end
        if required is not None and not self._work.resumed:
            self.progress.reason = "ledger"
        while True:
            # From the look at the topic to the wait nothing awaits: a change in between would be missed.
            view, now_s = self._writer.views.at(cursor), self._clock.monotonic()
            if self._is_at_end(cursor, view, now_s):
                return True
            if required is not None and view.requested.stopping and self._attempt.seal is None:
                return False  # a whole ledger may take long, and the next owner goes on with it
            match self._feed.take(cursor, TAKE_BYTES, required):
                case Entries() as found:
                    self._held = found.reservation
                    cursor = self._add(found, cursor, view, now_s)
                    await self._send_full(parts)
                case Gap() as gap if self.progress.entries:
                    if self._ends_before(gap):
                        return True
                    await self._writer.committer.record_loss(gap)
                case Gap() | Lost() | End():
                    if required is None:
                        self.progress.reason = "end"
                    return True
                case Empty():
                    if required is not None and view.requested.stopping and not self._feed.rereadable:
                        return False
                    wait_s = LOOK_S if required is not None else self._stop.next_check_s(self.progress, view, now_s)
                    await self._feed.wait(wait_s)

    def _is_at_end(self, cursor: Position, view: TopicView, now_s: float) -> bool:
        """Say whether the segment ends with the entry at `cursor`: where that was decided, or as its rule has it."""
        required = self._attempt.end
        if required is None:
            stopped = self._stop.decide(self.progress, view, now_s)
            if stopped is not None:
                self.progress.reason = stopped.reason
            return stopped is not None
        return cursor >= required

    def _ends_before(self, gap: Gap) -> bool:
        """Say whether the segment ends before what the source has lost. Raises SegmentFailed when it may not."""
        match self._stop.on_gap(gap):
            case OnGap.RECORD:
                return False
            case OnGap.END:
                self.progress.reason = "loss"
                return True
            case OnGap.FAIL:
                raise SegmentFailed(f"the source has lost entries {gap.loss}, which the segment was to hold")

    def _add(self, found: Entries, cursor: Position, view: TopicView, now_s: float) -> Position:
        """Take of the entries what the segment may hold; returns the last one that it holds."""
        required = self._attempt.end
        for batch in found.batches:
            if not self.progress.entries:
                self._begins_with(batch.first)
            limit: int | None = None
            piece = batch
            if required is None:
                limit = self._stop.limit(self.progress, view, now_s).payload_bytes
                if limit is not None and self.progress.payload_bytes >= limit:
                    break
            elif batch.first > required:
                break
            elif batch.last > required:
                piece = batch.between(batch.first_entry_id, required.entry_id)
            before = self.progress.payload_bytes
            with _failing(f"ledger {batch.ledger_id}"):
                moved = self._builder.add(piece, limit)
            entries, payload_bytes = self._writer.moved
            self._writer.moved = entries + len(moved.payloads), payload_bytes + self.progress.payload_bytes - before
            self.went_on()
            cursor = moved.last
        return cursor

    def went_on(self) -> None:
        """There is progress: what an earlier owner left is recovered."""
        if self._claimed_s is not None:
            self._metrics.recovery_seconds.observe(self._clock.monotonic() - self._claimed_s)
            self._claimed_s = None

    def _begins_with(self, first: Position) -> None:
        """Raise SegmentFailed unless the first entry is the one that the record says."""
        begin = self._attempt.begin
        if first != begin:
            raise SegmentFailed(f"the segment was to begin at {begin}, its first entry is {first}")

    def _check_end(self) -> None:
        """Raise SegmentFailed for a segment that may not end with what it holds."""
        required = self._attempt.end
        if not self.progress.entries:
            sealed = f" up to {required}" if required is not None else ""
            raise SegmentFailed(f"the source has lost all entries that the segment was to hold{sealed}")
        if flaw := self._stop.flaw(self.progress):
            raise SegmentFailed(flaw)

    async def _seal(self) -> None:
        """No more entries: record the end, before a part is cut that would be larger with more. Raises Fenced."""
        builder, facts = self._builder, self._facts
        infos = await facts.infos()
        ledgers = builder.ledgers(infos.get)
        around = await facts.around(self._attempt.begin, ledgers, infos, self._upload.find)
        data_bytes, part_count = builder.planned()
        seal = Seal(
            sealed_ms=self._clock.wall_ms(),
            epoch=self._epoch,
            software_version=__version__,
            data_bytes=data_bytes,
            part_count=part_count,
            ledgers=ledgers,
            losses=around.losses,
            ends=around.ends,
            past=around.past,
            replaces=around.replaces,
        )
        with self.trace.step("seal", reason=self.progress.reason, entries=builder.entries):
            await self._record.note_seal(seal)
        self.progress.reach(SegmentState.SEALED)

    async def _send_full(self, parts: asyncio.TaskGroup) -> None:
        while self._builder.part_ready:
            await self._send(parts)
        # Sources and clients run between two steps, however much there is to take.
        await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time

    async def _send(self, parts: asyncio.TaskGroup, *, last: bool = False) -> None:
        """Cut the next part, as soon as there is room for it, and have it stored."""
        reserved = await self._upload.reserve(self._builder.pending_bytes, self._held)
        part = self._builder.cut_part(last=last)
        task = parts.create_task(self._store_part(part), name=f"part {part.part_number} of {self._topic}")
        # Not in the task itself: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(lambda _: self._upload.unreserve(reserved))
        self._feed.sent(part.end)

    async def _store_part(self, part: CutPart) -> None:
        with self.trace.step("part", part_number=part.part_number, bytes=part.size_bytes, end=str(part.end)):
            info = await self._upload.send(part)
        self._record.stored(part.part_number, stored_part(info.etag, info.size_bytes, part.blocks))


@contextmanager
def _failing(what: str, *, when: bool = True) -> Iterator[None]:
    """What a builder refuses cannot become a segment; what this owner has made alone is a defect if not `when`."""
    try:
        yield
    except InvalidInput as error:
        if not when:
            raise
        raise SegmentFailed(f"{what}: {error}") from error
