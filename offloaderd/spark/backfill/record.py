"""A driver's changes to one topic under its claim: plan, ranges, attempts, and the map.

One change is made at a time, since each write names the version of its node. Each commit changes the plan as well, so
that the topic's owner reads the map again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from offloaderd.core.aio import race
from offloaderd.core.errors import Conflict, Fenced, OffloaderError, Transient
from offloaderd.core.model import START, LedgerInfo, Loss, Position
from offloaderd.core.retry import until_answered
from offloaderd.format.manifest import SegmentManifest
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.history.record import HistoryRecord
from offloaderd.history.segment import layout_of
from offloaderd.ledgers.chain import Run
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus, Seal
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.places import Place
from offloaderd.segment.claim.attempt_log import AttemptLog, attempt_log
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import HeadKeeper, identity_of
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.complete import put_manifest
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.resume import as_finished, reason_to_give_up, unrecorded
from offloaderd.segment.source_check import listing_of_job
from offloaderd.segment.upload import SegmentFailed, SegmentUpload
from offloaderd.spark.backfill.plan import Aim, BackfillFailed, plan_for_job, split_history
from offloaderd.spark.jobs.driver import stored, verified
from offloaderd.spark.jobs.lease import attempts_of

T = TypeVar("T")

log = structlog.get_logger(__name__)

HOLD_S = 90.0
"""Seconds for which a plan names its driver, unless the driver renews that."""


def with_hold(plan: HistoryPlan, me: str, now_ms: int) -> HistoryPlan:
    """Return the plan with a driver's hold on it."""
    return replace(plan, holder=me, holder_until_ms=now_ms + round(HOLD_S * 1000))


class Joiner:
    """Prepares the segments of one topic for their commit, in their order.

    An executor knows nothing of other segments, so the manifest that it puts is a draft without the totals of all
    before it: the number of entries, the greatest time, the losses. They are recorded in the attempt before the
    manifest is put, so that a deposed driver puts the same bytes as the next one.
    """

    def __init__(self, context: OffloadContext, history: HistoryRecord) -> None:
        self._context = context
        self._history = history

    async def join(self, attempt: Attempt, attempts: AttemptLog) -> CommittedSegment:
        """Verify a segment and put its manifest; return the segment to commit.

        Raises SegmentFailed when it is incomplete, or another; Fenced.
        """
        context = self._context
        upload, written = await stored(
            context, self._history.map.topic, attempt, (ObjectKind.DRAFT, ObjectKind.MANIFEST)
        )
        seal = await self._joined(attempt, attempts, written, upload)
        joined = replace(written, past=seal.past, losses=seal.losses)
        segment = await verified(upload, attempt, joined)
        await put_manifest(upload, attempt, joined)
        context.pasts.note(joined)
        return segment

    async def _joined(
        self, attempt: Attempt, attempts: AttemptLog, written: SegmentManifest, upload: SegmentUpload
    ) -> Seal:
        """Return the segment's seal with the totals before it, which are recorded now. Raises Fenced."""
        seal = attempt.seal
        if seal is None:
            raise SegmentFailed(f"the record of {attempt.segment_id} does not say where it ends")
        if seal.joined:
            return seal
        history = self._history
        past = await self._context.pasts.before(history.map, attempt.begin, history.chain.ledgers, upload.find)
        seal = replace(seal, past=past, losses=history.losses_before(written.ledgers), joined=True)
        await attempts.update(replace(attempt, seal=seal))
        return seal

    async def drop_draft(self, attempt: Attempt) -> None:
        """Delete the draft of a committed segment; garbage collection deletes it if an answer is lost."""
        try:
            await self._context.upload_context.objects.at(attempt.bucket).delete([attempt.keys.draft])
        except OffloaderError as error:
            log.debug("backfill.draft_not_deleted", key=attempt.keys.draft, error=str(error))


LET_GO_S = 5.0
"""Seconds to try to end the hold on the plan at the end, as the metadata store may not answer."""


class StoredSegments:
    """The segments of one topic's job that are stored and wait for their commit, over the chain of its ledgers.

    The source may delete a ledger after an executor has written it and before its commit. Then the ledgers' chain has a
    gap that reaches over the segment: the loss ends where the segment begins, and there is none if the segment follows.
    """

    def __init__(self, history: HistoryRecord) -> None:
        self._history = history
        self._attempts: dict[Position, Attempt] = {}

    def add(self, attempt: Attempt) -> None:
        """Add an attempt if all its entries are stored: it waits for its commit, or for an executor that ends it."""
        if attempt.status is AttemptStatus.OFFLOADED or attempt.whole:
            self._attempts[attempt.begin] = attempt

    def drop(self, attempt: Attempt) -> None:
        """Remove a segment that is committed or given up."""
        self._attempts.pop(attempt.begin, None)

    def next_after(self, position: Position) -> Run | Loss | None:
        """Return the next entries or loss after a position, by the source or stored segments; None at history's end."""
        step = self._history.chain.next_after(position)
        begin = min((one for one in self._attempts if one > position), default=None)
        if begin is None or (isinstance(step, Run) and step.first <= begin):
            return step
        recorded = any(one.after == position and one.holds(begin) for one in self._history.map.losses)
        if recorded or (isinstance(step, Loss) and step.before <= begin):
            return step
        attempt = self._attempts[begin]
        if self._joins(position, attempt):
            last = attempt.end.entry_id if attempt.end is not None else begin.entry_id
            return Run(begin.ledger_id, begin.entry_id, last)
        losses = attempt.seal.losses if attempt.seal is not None else ()
        known = next((one for one in losses if (one.after, one.before) == (position, begin)), None)
        between = begin.entry_id  # only entries of one ledger can be counted
        if begin.ledger_id == position.ledger_id:
            between -= position.entry_id + 1
        return known or Loss(position, begin, between)

    def _joins(self, position: Position, attempt: Attempt) -> bool:
        """Return whether, by the records, there is no entry between a position and a segment."""
        begin, known = attempt.begin, self._history.map
        if any((one.after, one.before) == (position, begin) for one in known.losses):
            return True
        if position == START:
            return begin == Position(self._history.plan.first, 0)
        if begin.ledger_id == position.ledger_id:
            return begin.entry_id == position.entry_id + 1
        if not known.joined(position, begin):
            return False
        index = self._history.ranges.at(position)
        ranges = self._history.ranges.ranges
        split = index is not None and ranges[index].end == position
        follows = split and index is not None and index + 1 < len(ranges) and ranges[index + 1].begin == begin
        return follows or known.ends[position.ledger_id].next_ledger_id == begin.ledger_id


class JobRecord:
    """One topic's history under one driver's claim; `me` is the driver's id."""

    def __init__(
        self,
        context: OffloadContext,
        source: LedgerSource,
        claim: Claim,
        topic_map: TopicMap,
        *,
        me: str,
        patience_s: float,
    ) -> None:
        """Raise BackfillFailed for a history that is not a job's."""
        plan = plan_for_job(topic_map)
        self.claim = claim
        self._context, self._source, self._me, self._patience_s = context, source, me, patience_s
        self._clock = context.upload_context.clock
        self._identity = identity_of(context, claim)
        self._head = HeadKeeper(context, self._identity, epoch=None)
        fence = self._log()
        self._record = TopicRecord(fence, topic_map, None, clock=self._clock, metrics=context.upload_context.metrics)
        self.history = HistoryRecord(self._record, plan, fence, None, holder=me)
        self._joiner = Joiner(context, self.history)
        self.stored = StoredSegments(self.history)
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, context: OffloadContext, source: LedgerSource, claim: Claim, *, me: str, patience_s: float
    ) -> "JobRecord":
        """Read the topic's map under the claim."""
        topic_map = await until_answered(
            context.upload_context.clock, lambda: catalog.load(context.metadata, claim.topic)
        )
        return cls(context, source, claim, topic_map, me=me, patience_s=patience_s)

    @property
    def plan(self) -> HistoryPlan:
        """The recorded plan."""
        return self.history.plan

    @property
    def standing(self) -> Position:
        """The last committed position of history; START for none."""
        return self.history.standing

    def _log(self, path: str | None = None) -> AttemptLog:
        return attempt_log(self._context, self.claim, path, self._head)

    async def refresh(self) -> list[LedgerInfo]:
        """Read the source's list of ledgers.

        Raises BackfillFailed when the source does not answer for too long, HistoryGap, IdentityRefused.
        """
        return await self._patiently(lambda: self.history.refresh(listing_of_job(self._context, self._record.map)))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the source until it answers. Raises BackfillFailed when it does not for too long."""
        started = self._clock.monotonic()

        def on_error(error: Transient) -> None:
            if self._clock.monotonic() - started > self._patience_s:
                raise BackfillFailed(error.message, hint=error.hint) from error

        return await until_answered(self._clock, ask, on_error=on_error)

    async def split(self, aim: Aim) -> None:
        """Record where segments end, or read what an earlier driver has recorded by the same method."""
        infos = await self.refresh()
        if self.plan.ranges and self.plan.method is aim.method:
            await until_answered(self._clock, self.history.load)
            return
        topic, begin, last = self.claim.topic, self._first_uncommitted(), self.plan.last
        split = await until_answered(
            self._clock, lambda: split_history(self._context, self._source, topic, infos, begin, last, aim)
        )
        async with self._lock:
            await self.history.store(split, aim.segment_bytes, aim.method)

    def _first_uncommitted(self) -> Position:
        """Return the source's first entry that is not committed; behind the end of history if there is none."""
        step = self.next_step()
        if step is None:
            return self.plan.live_begin
        return step.before if isinstance(step, Loss) else step.first

    def next_step(self) -> Run | Loss | None:
        """Return the next entries or loss after the committed ones, None at the end of history."""
        return self.stored.next_after(self.standing)

    def end_of(self, begin: Position) -> Position:
        """Return the end of the range in which a segment begins."""
        index = self.history.ranges.at(begin)
        return self.history.ranges.ranges[index].end if index is not None else self.plan.last

    def is_planned(self, begin: Position) -> bool:
        """Return whether a range begins at a position."""
        index = self.history.ranges.at(begin)
        return index is not None and self.history.ranges.ranges[index].begin == begin

    def limit_bytes(self, attempt: Attempt) -> int | None:
        """Return the payload bytes with which a segment ends; None for a whole ledger."""
        return None if attempt.ledger_id is not None else self.plan.segment_bytes + self.plan.segment_bytes // 4

    async def hold(self) -> None:
        """Record in the plan that this driver works on it."""
        await self._locked(lambda: self._record.change_plan(self._with_hold()))

    async def renew_hold(self) -> None:
        """Renew the hold until the task is cancelled."""
        while True:
            await self._clock.sleep(HOLD_S / 3)
            await self.hold()

    async def release(self) -> None:
        """End the hold on the plan, if the metadata store still answers."""

        async def change() -> None:
            async with self._lock:
                await self._record.change_plan(replace(self.plan, holder="", holder_until_ms=0))

        try:
            await race(change(), self._clock.sleep(LET_GO_S))
        except OffloaderError as error:
            log.debug("backfill.plan_not_released", topic=str(self.claim.topic), error=str(error))

    def _with_hold(self) -> HistoryPlan:
        return with_hold(self.plan, self._me, self._clock.wall_ms())

    async def earlier_attempts(self) -> AsyncIterator[tuple[AttemptLog, Attempt]]:
        """Yield the attempts of earlier drivers that can be resumed; the others go to the trash.

        An attempt that is finished in the bucket counts as stored, despite its record. Raises IdentityRefused, Fenced.
        """
        failure_tracker = FailureTracker(self.claim.topic, self._clock, lambda: None)
        begins: set[Position] = set()
        async for attempts, found in attempts_of(self._context, self.claim, self._head):
            reason = reason_to_give_up(found, None, self._context)
            if found.begin <= self.standing or found.begin in begins:
                reason = "its entries are in other segments"
            if not reason:
                found = await as_finished(  # noqa: PLW2901
                    self._context, found, failure_tracker=failure_tracker, identity=self._identity
                )
            if found.proven and found.seal is not None:
                seal = replace(found.seal, joined=True)  # its manifest has the totals before it
                found = replace(found, status=AttemptStatus.OFFLOADED, seal=seal)  # noqa: PLW2901
            else:
                reason = reason or self._unfit(found)
            if reason:
                await self.give_up(found, attempts, reason)
                continue
            begins.add(found.begin)
            self.stored.add(found)
            yield attempts, found

    def _unfit(self, found: Attempt) -> str:
        """Return why an attempt does not fit the ranges of history; empty if it does."""
        if (found.ledger_id is not None) is not self.plan.goes_whole(found.begin):
            return "it was begun by another method"
        if found.end is not None and found.end > self.end_of(found.begin):
            return "it reaches over the end of its range"
        return ""

    async def _layout(self, begin: Position, tries: int) -> SegmentLayout | LedgerLayout:
        info, whole = self.history.chain.ledgers.get(begin.ledger_id), self.plan.goes_whole(begin)
        return await self._patiently(
            lambda: layout_of(self._context, self.claim.topic, info, whole=whole, count=bool(tries))
        )

    async def begin(self, begin: Position, place: Place, failures: tuple[int, str]) -> tuple[AttemptLog, Attempt]:
        """Record an attempt before its first byte. Raises Fenced."""
        layout = await self._layout(begin, failures[0])
        attempt = self._context.attempt(begin, layout, place, epoch=self.claim.epoch, failures=failures)
        attempts = self._log(paths.history_job_attempt(self.claim.topic, attempt.segment_id))
        await self._locked(lambda: self.history.begin(attempt, attempts))
        return attempts, attempt

    async def give_up(self, attempt: Attempt, attempts: AttemptLog, reason: str) -> None:
        """Put the written objects of a segment on the trash list. Raises Fenced."""
        log.warning("backfill.given_up", topic=str(self.claim.topic), segment_id=str(attempt.segment_id), reason=reason)
        self.stored.drop(attempt)
        if attempt.begin <= self.standing:
            await attempts.give_up(attempt, reason)  # its range is another's, and done
        else:
            await self._locked(lambda: self.history.give_up(attempt, reason, attempts))

    async def record_loss(self, loss: Loss) -> None:
        """Record that the source has deleted a part of history before it was offloaded. Raises Fenced."""
        await self._locked(lambda: self.history.lost(loss))

    async def commit(self, attempt: Attempt, attempts: AttemptLog) -> None:
        """Commit a segment that is stored. Raises SegmentFailed when it is incomplete, Fenced, HistoryGap."""
        for loss in unrecorded(self.history.map, attempt):
            await self.record_loss(loss)
        segment = await self._joiner.join(attempt, attempts)
        ends = dict(self.history.known_ends((), {}))  # an earlier owner may not have recorded those before it
        ends |= dict(attempt.seal.ends) if attempt.seal is not None else {}
        await self._locked(lambda: self.history.commit(segment, ends, attempts, self._with_hold()))
        self.stored.drop(attempt)
        await self._joiner.drop_draft(attempt)
        log.info(
            "backfill.segment_committed",
            topic=str(self.claim.topic),
            segment_id=str(segment.segment_id),
            range=str(segment.range),
            payload_bytes=segment.payload_bytes,
            object_bytes=segment.object_bytes,
        )

    async def hand_back(self) -> None:
        """Leave the rest to the daemon; no attempt of it may be recorded. Raises Fenced."""
        rest = replace(self.plan, worker=Worker.DAEMON, holder="", holder_until_ms=0)
        await self._locked(lambda: self._record.change_plan(rest))

    async def finish(self) -> None:
        """Record that all of history is offloaded or lost. Raises Fenced, HistoryGap."""
        await self._locked(lambda: self.history.finish(self._clock.wall_ms()))

    async def _locked(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change; make it once more from the stored state if the topic was changed meanwhile.

        Raises Fenced, BackfillFailed when the history is no longer a job's, Conflict.
        """
        async with self._lock:
            try:
                await change()
            except Fenced:
                raise
            except Conflict as error:
                log.info("backfill.change_retried", topic=str(self.claim.topic), error=str(error))
                await self._record.reload()
                plan_for_job(self._record.map)
                await change()
