"""The segment writer: one attempt at a time, from its record to its commit.

Only this module opens, fills, seals, completes and resumes attempts. The feed supplies the entries, the stop rule ends
the segment, the facts describe the topic around it for the manifest, and the committer adds it to the topic. The cursor
is local: after a failure the caller begins again at the committed position.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from offloaderd import __version__
from offloaderd.core.aio import Event, Group, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput, first_of
from offloaderd.core.model import Position
from offloaderd.format.manifest import SegmentManifest
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.metadata.records.attempt import Attempt, Seal, StoredPart, stored_part
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import PartInfo
from offloaderd.segment.builder import CutPart, builder_of
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.committer import Assignment, Committer, SealFacts, VerifiedSegment
from offloaderd.segment.complete import SegmentCompletion, keeps_seal
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import Empty, End, Entries, EntryFeed, Gap, Lost, Reservation
from offloaderd.segment.roll import NO_VIEW, OnGap, SegmentProgress, StopRule, TopicView, Views
from offloaderd.segment.states import SegmentState
from offloaderd.segment.upload import SegmentFailed, SegmentUpload

log = structlog.get_logger(__name__)

TAKE_BYTES = 1 << 20
"""Entries are moved from the feed into blocks in steps of about this size, so the loop stays responsive."""

PAUSE_MIN_S = 0.2
RECORD_BYTES_PER_S = 128 * 1024
"""Limit of one topic's writes into the metadata store: a record of 700 kB every 5 s."""

RECORD_BYTES_MAX = 700_000
"""ZooKeeper takes nodes of about 1 MB; parts whose blocks do not fit are not recorded."""

HEAD_BYTES = 4096
"""Reserved for the rest of the record."""
CREATED_BYTES = 24
"""Greatest size of one ledger's creation time in the record."""

CHECK_S = 1.0
"""Pause between checks whether entries that a segment with a decided end needs were deleted at the source."""


class SegmentWriter:
    """One owner's writer of a topic's segments: live, of history, or rewritten."""

    def __init__(
        self,
        context: OffloadContext,
        attempts: AttemptLog,
        committer: Committer,
        *,
        failure_tracker: FailureTracker,
        views: Views = lambda _: NO_VIEW,
    ) -> None:
        self.progress: SegmentProgress | None = None
        """Progress of the open segment, or of the last one."""
        self.moved = (0, 0)
        """Entries and payload bytes taken into all segments."""
        self.context = context
        self.committer = committer
        self.views = views
        self.attempts = attempts
        self.failure_tracker = failure_tracker

    async def run(self, work: Assignment, feed: EntryFeed, stop: StopRule, facts: SealFacts) -> VerifiedSegment | None:
        """Write an attempt up to its commit and close the feed; None if the owner stops and leaves it to the next one.

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

    The bytes of a part follow from the record and the topic's entries alone: begin and layout are recorded before the
    first byte, the end (the seal) before the first part that depends on it. A fenced owner cannot record the end, so
    all that it still sends is what its successor sends as well. The upload is created for the first part; a part that
    is the whole object is recorded with the end, and put without an upload.
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
            context.upload_context,
            attempt.bucket,
            attempt.keys,
            failure_tracker=writer.failure_tracker,
            labels=labels,
            stored_as=attempt.stored_as,
        )
        self._record = AttemptProgress(writer.attempts, attempt, work.chain, epoch=claim.epoch, clock=self._clock)
        self._claimed_s = work.claimed_s
        self._checked = False  # whether the object may be completed
        self._held: Reservation | None = None  # of the feed, to read the entries that are not in a part yet
        self.progress = SegmentProgress(lambda: self._record.attempt, self._builder, self._upload, work)
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
        """Store the entries and verify the objects; None: the next owner does it."""
        committer = self._writer.committer
        if not await self._stored():
            return None
        if not self._checked:
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
        """Store and record all parts; False if the owner stops and leaves them to the next one."""
        try:
            async with Group() as group:
                group.create_task(self._record.run(), name=f"progress of {self._attempt.segment_id}")
                async with Group() as parts:
                    await self._resume()
                    done = await self._fill(parts)
                self._record.end()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        return done

    async def _resume(self) -> None:
        """Resume what an earlier owner has recorded, if anything. Raises SegmentFailed if that is impossible.

        Recorded parts count as sent if the feed could read their entries again. Otherwise the segment is taken from its
        begin: its entries are cut into parts again, and compared with the recorded ones. A part without an upload was
        recorded before it was sent: it counts if the object is there.
        """
        attempt = self._attempt
        if attempt.upload_id or attempt.proven:
            trusted = attempt.whole or self._feed.rereadable
            with self.trace.step("open"):
                await self._upload.resume(attempt, trusted=trusted)
        elif (alone_bytes := attempt.alone_bytes) is not None:
            with self.trace.step("open"):
                trusted = await self._upload.is_stored(alone_bytes)
        else:
            return
        if trusted:
            with _failing(f"the recorded parts of {attempt.segment_id} contradict each other"):
                self._builder.restore(attempt.parts)

    async def _fill(self, parts: asyncio.TaskGroup) -> bool:
        """Take and send the entries up to the end; False if the owner stops and leaves them to the next one."""
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
            alone, seal = not self._upload.upload_id, self._attempt.seal  # it has no full part yet, so one in all
            if not keeps_seal(self._attempt, builder, self._topic):
                seal = await self._seal()
                if not alone:
                    await self._note_seal(seal)
            while builder.pending_bytes:
                await self._send(parts, last=alone or not builder.part_ready, alone=seal if alone else None)
        finally:
            await self._feed.close()
        return True

    def _resumed(self) -> None:
        """Count and log that the attempt of an earlier owner is resumed."""
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
        """Move entries behind `cursor` into the segment, up to its end or the last available; False if stopping."""
        required = self._attempt.end
        if required is not None and not self._work.resumed:
            self.progress.reason = "ledger"
        while True:
            # Nothing awaits between the view and the wait: a change in between would be missed.
            view, now_s = self._writer.views(cursor), self._clock.monotonic()
            if self._is_at_end(cursor, view, now_s):
                return True
            if required is not None and view.requested.stopping and self._attempt.seal is None:
                return False  # a whole ledger may take long, and the next owner resumes it
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
                    wait_s = CHECK_S if required is not None else self._stop.next_check_s(self.progress, view, now_s)
                    await self._feed.wait(wait_s)

    def _is_at_end(self, cursor: Position, view: TopicView, now_s: float) -> bool:
        """Return whether the segment ends at `cursor`: at its decided end, else by the stop rule."""
        required = self._attempt.end
        if required is None:
            stopped = self._stop.decide(self.progress, view, now_s)
            self.progress.reason = stopped or self.progress.reason
            return stopped is not None
        return cursor >= required

    def _ends_before(self, gap: Gap) -> bool:
        """Return whether the segment ends before a loss. Raises SegmentFailed when it may hold none."""
        match self._stop.on_gap(gap):
            case OnGap.RECORD:
                return False
            case OnGap.END:
                self.progress.reason = "loss"
                return True
            case OnGap.FAIL:
                raise SegmentFailed(f"the source has lost entries {gap.loss}, which the segment was to hold")

    def _add(self, found: Entries, cursor: Position, view: TopicView, now_s: float) -> Position:
        """Add the entries that the segment may hold; returns the last one."""
        required = self._attempt.end
        for batch in found.batches:
            if not self.progress.entries:
                self._begins_with(batch.first)
            limit: int | None = None
            piece = batch
            if required is None:
                limit = self._stop.limit(self.progress, view, now_s)
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
        """Note progress, which ends the recovery of an earlier owner's attempt."""
        if self._claimed_s is not None:
            self._metrics.recovery_seconds.observe(self._clock.monotonic() - self._claimed_s)
            self._claimed_s = None

    def _begins_with(self, first: Position) -> None:
        """Raise SegmentFailed unless the first entry is the recorded begin."""
        begin = self._attempt.begin
        if first != begin:
            raise SegmentFailed(f"the segment was to begin at {begin}, its first entry is {first}")

    def _check_end(self) -> None:
        """Raise SegmentFailed if the segment may not end here."""
        required = self._attempt.end
        if not self.progress.entries:
            sealed = f" up to {required}" if required is not None else ""
            raise SegmentFailed(f"the source has lost all entries that the segment was to hold{sealed}")
        if flaw := self._stop.flaw(self.progress):
            raise SegmentFailed(flaw)

    async def _seal(self) -> Seal:
        """Return the end. No memory is reserved for a part yet: the source and buckets may not answer for long."""
        builder, facts = self._builder, self._facts
        infos = await facts.infos()
        ledgers = builder.ledgers(infos.get)
        around = await facts.around(self._attempt.begin, ledgers, infos, self._upload.find)
        data_bytes, part_count = builder.planned()
        return Seal(
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

    async def _note_seal(self, seal: Seal, alone: CutPart | None = None) -> None:
        """Record the end, before a part is sent that more entries would make larger. Raises Fenced.

        With it the part that is the whole object, so that a later owner can prove the object without its entries.
        """
        with self.trace.step("seal", reason=self.progress.reason, entries=self._builder.entries):
            await self._record.note_seal(seal, alone)
        self.progress.reach(SegmentState.SEALED)

    async def _send_full(self, parts: asyncio.TaskGroup) -> None:
        while self._builder.part_ready:
            await self._send(parts)
        # Sources and clients run between two steps, however much there is to take.
        await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time

    async def _send(self, parts: asyncio.TaskGroup, *, last: bool = False, alone: Seal | None = None) -> None:
        """Cut the next part as soon as there is room for it, and store it in a task.

        `alone` is the end, recorded or not, if the part is the object.
        """
        if alone is None and not self._upload.upload_id:
            with self.trace.step("open"):
                await self._record.note_upload(await self._upload.open(began_before=self._work.resumed))
        reserved = await self._upload.reserve(self._builder.pending_bytes, self._held)
        part = self._builder.cut_part(last=last)
        stored = self._store_part(part) if alone is None else self._store_alone(part, alone)
        task = parts.create_task(stored, name=f"part {part.part_number} of {self._topic}")
        # Not in the task itself: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(lambda _: self._upload.unreserve(reserved))
        self._feed.sent(part.end)

    async def _store_part(self, part: CutPart) -> None:
        info = await self._sent(part)
        self._record.stored(part.part_number, stored_part(info.etag, info.size_bytes, part.blocks))

    async def _store_alone(self, part: CutPart, seal: Seal) -> None:
        """Store the part that is the whole object: once it is sent, the object is complete."""
        if self._attempt.seal is None:
            await self._note_seal(seal, part)
        await self._writer.committer.before_complete(self._attempt)
        self._checked = True
        if self._work.resumed:
            await self._upload.abort_strays()
        await self._sent(part)

    async def _sent(self, part: CutPart) -> PartInfo:
        with self.trace.step("part", part_number=part.part_number, bytes=part.size_bytes, end=str(part.end)):
            return await self._upload.send(part)


@contextmanager
def _failing(what: str, *, when: bool = True) -> Iterator[None]:
    """Turn InvalidInput of a builder into SegmentFailed; if not `when` it is a defect and stays as it is."""
    try:
        yield
    except InvalidInput as error:
        if not when:
            raise
        raise SegmentFailed(f"{what}: {error}") from error


class AttemptProgress:
    """The record of one attempt under one claim, kept close to its stored parts: the next owner resumes behind it.

    One update at a time, within the rate limit of the metadata store: each rewrites the whole record, which grows with
    the segment. Parts that the record lacks, because it lags or is full, are cut again by the next owner, compared, and
    not sent again.
    """

    def __init__(
        self, log: AttemptLog, attempt: Attempt, chain: LedgerChain | None, *, epoch: int, clock: Clock
    ) -> None:
        self.attempt = attempt
        """As it is recorded."""
        self._log = log
        self._chain = chain
        self._epoch = epoch
        self._clock = clock
        self._stored: dict[int, StoredPart] = dict(enumerate(attempt.parts, start=1))
        self._parts = list(attempt.parts)  # what the next update records
        self._created = dict(attempt.created)
        self._parts_bytes = sum(len(part.encoded) for part in attempt.parts) + CREATED_BYTES * len(self._created)
        self._written_s = clock.monotonic()
        self._writing = asyncio.Lock()  # a write needs the node's version
        self._change_signal = Event()
        self._ended = Event()

    def stored(self, part_number: int, part: StoredPart) -> None:
        """Note that a part is in the bucket."""
        self._stored[part_number] = part
        while (following := self._stored.get(len(self._parts) + 1)) is not None:
            if HEAD_BYTES + self._parts_bytes + len(following.encoded) > RECORD_BYTES_MAX:
                break
            self._parts.append(following)
            self._parts_bytes += len(following.encoded)
            self._note_created(following)
            self._change_signal.set()

    def _note_created(self, part: StoredPart) -> None:
        """Note the creation times of a part's ledgers; the first time that was known of a ledger stays."""
        ledgers = self._chain.ledgers if self._chain is not None else {}
        for ledger_id in {block.ledger_id for block in part.blocks} & ledgers.keys() - self._created.keys():
            if (created_ms := ledgers[ledger_id].created_ms) is not None:
                self._created[ledger_id] = created_ms
                self._parts_bytes += CREATED_BYTES

    async def run(self) -> None:
        """Record the parts as they are stored, until `end`. Raises Fenced."""
        while not self._ended.is_set():
            await race(self._change_signal.wait(), self._ended.wait())
            pause_s = max(PAUSE_MIN_S, self._parts_bytes / RECORD_BYTES_PER_S)
            await self._ended.wait_at_most(self._clock, self._written_s + pause_s - self._clock.monotonic())
            if self._change_signal.is_set():
                await self._write()

    def end(self) -> None:
        """Have `run` record the rest and return."""
        self._ended.set()

    async def note_upload(self, upload_id: str) -> None:
        """Record the multipart upload. Raises Fenced."""
        await self._write(upload_id=upload_id)

    async def note_seal(self, seal: Seal, alone: CutPart | None = None) -> None:
        """Record where the segment ends, and the part that is about to be stored as its object. Raises Fenced."""
        if alone is not None:
            self.stored(alone.part_number, stored_part("", alone.size_bytes, alone.blocks))
        await self._write(seal=seal)

    async def _write(self, *, upload_id: str | None = None, seal: Seal | None = None) -> None:
        async with self._writing:
            self._change_signal.clear()
            before = self.attempt
            attempt = replace(
                before,
                epoch=self._epoch,
                upload_id=before.upload_id if upload_id is None else upload_id,
                parts=tuple(self._parts),
                seal=seal or before.seal,
                created=dict(self._created),
            )
            await self._log.update(attempt)
            self.attempt = attempt
            self._written_s = self._clock.monotonic()
