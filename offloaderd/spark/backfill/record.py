"""What a driver changes of one topic under its claim: plan, ranges, attempts, and the map.

All of it goes one after the other, since who writes a node has to know its version. Each commit changes the plan as
well, so that the topic's owner takes it in.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from offloaderd.core.aio.signal import race
from offloaderd.core.errors import Conflict, Fenced, OffloaderError, Transient
from offloaderd.core.model import LedgerInfo, Loss, Position
from offloaderd.core.retry import until_answered
from offloaderd.format.layout import LedgerLayout, SegmentLayout
from offloaderd.history.record import HistoryRecord
from offloaderd.history.segment import layout_in_history
from offloaderd.ledgers.chain import Run
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import paths
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.places import Place
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import HeadKeeper, identity_of
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.resume import resume as recovery
from offloaderd.segment.resume.roll_forward import as_finished, unrecorded
from offloaderd.segment.source_check import listing_of_job
from offloaderd.spark.backfill.eligible import plan_for_job
from offloaderd.spark.backfill.kept import Kept
from offloaderd.spark.backfill.split import split_history
from offloaderd.spark.backfill.takeover import HOLD_S, held
from offloaderd.spark.jobs.attempts import attempts_of
from offloaderd.spark.jobs.job import Aim, BackfillFailed
from offloaderd.spark.jobs.join import Joiner

T = TypeVar("T")

log = structlog.get_logger(__name__)

LET_GO_S = 5.0
"""How long to try to take that back in the end: the metadata store may be what is away."""


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
        """Raises BackfillFailed for a history that is not a job's, or not any more."""
        plan = plan_for_job(topic_map)
        self.claim = claim
        self._context, self._source, self._me, self._patience_s = context, source, me, patience_s
        self._clock = context.upload_context.clock
        self._identity = identity_of(context, claim)
        self._head = HeadKeeper(context, self._identity, epoch=None)
        fence = self._log(None)
        self._record = TopicRecord(fence, topic_map, None, clock=self._clock, metrics=context.upload_context.metrics)
        self.history = HistoryRecord(self._record, plan, fence, None, holder=me)
        self._joiner = Joiner(context, self.history)
        self._kept = Kept(self.history)
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, context: OffloadContext, source: LedgerSource, claim: Claim, *, me: str, patience_s: float
    ) -> "JobRecord":
        """Read the topic as it is under the claim."""
        topic_map = await until_answered(
            context.upload_context.clock, lambda: catalog.load(context.metadata, claim.topic)
        )
        return cls(context, source, claim, topic_map, me=me, patience_s=patience_s)

    @property
    def plan(self) -> HistoryPlan:
        """The plan as it is recorded."""
        return self.history.plan

    @property
    def standing(self) -> Position:
        """Up to where history is committed; START for nothing."""
        return self.history.standing

    def _log(self, path: str | None) -> AttemptLog:
        metrics = self._context.upload_context.metrics
        return AttemptLog(
            self._context.metadata, self.claim, clock=self._clock, metrics=metrics, path=path, head=self._head
        )

    async def look(self) -> list[LedgerInfo]:
        """Take in what the source has.

        Raises BackfillFailed when it does not say it for too long, HistoryTorn, IdentityRefused.
        """
        return await self._patiently(lambda: self.history.look(listing_of_job(self._context, self._record.map)))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the source until it answers. Raises BackfillFailed when it does not for too long."""
        started = self._clock.monotonic()

        def met(error: Transient) -> None:
            if self._clock.monotonic() - started > self._patience_s:
                raise BackfillFailed(error.message, hint=error.hint) from error

        return await until_answered(self._clock, ask, met=met)

    async def split(self, aim: Aim) -> None:
        """Find where segments end and record it, or read what an earlier driver found by the same method."""
        infos = await self.look()
        if self.plan.ranges and self.plan.method is aim.method:
            await until_answered(self._clock, self.history.load)
            return
        topic, begin, last = self.claim.topic, self._first_left(), self.plan.last
        split = await until_answered(
            self._clock, lambda: split_history(self._context, self._source, topic, infos, begin, last, aim)
        )
        async with self._lock:
            await self.history.store(split, aim.segment_bytes, aim.method)

    def _first_left(self) -> Position:
        """Return where what is not committed begins at the source; behind the end of history if nothing is."""
        step = self.next_after(self.standing)
        if step is None:
            return self.plan.live_begin
        return step.before if isinstance(step, Loss) else step.first

    def next_after(self, position: Position) -> Run | Loss | None:
        """Return what follows a position, None at the end of history.

        What is stored and waits for its commit is there, whatever the source has.
        """
        return self._kept.next_after(position)

    def end_of(self, begin: Position) -> Position:
        """Return where the range ends in which a segment begins."""
        index = self.history.ranges.at(begin)
        return self.history.ranges.ranges[index].end if index is not None else self.plan.last

    def is_planned(self, begin: Position) -> bool:
        """Say whether a range begins there."""
        index = self.history.ranges.at(begin)
        return index is not None and self.history.ranges.ranges[index].begin == begin

    def limit_bytes(self, attempt: Attempt) -> int | None:
        """Return with how much payload a segment ends; None for a whole ledger."""
        return None if attempt.ledger_id is not None else self.plan.segment_bytes + self.plan.segment_bytes // 4

    async def hold(self) -> None:
        """Say in the plan that this driver works on it."""
        await self._locked(lambda: self._record.change_plan(self._held()))

    async def keep_hold(self) -> None:
        """Say it again and again."""
        while True:
            await self._clock.sleep(HOLD_S / 3)
            await self.hold()

    async def let_go(self) -> None:
        """Say that nobody drives it any more, as far as that can still be said."""

        async def say() -> None:
            async with self._lock:
                await self._record.change_plan(replace(self.plan, holder="", holder_until_ms=0))

        try:
            await race(say(), self._clock.sleep(LET_GO_S))
        except OffloaderError as error:
            log.debug("backfill.plan_not_released", topic=str(self.claim.topic), error=str(error))

    def _held(self) -> HistoryPlan:
        return held(self.plan, self._me, self._clock.wall_ms())

    async def left_behind(self) -> AsyncIterator[tuple[AttemptLog, Attempt]]:
        """Yield what earlier drivers left and can be gone on with; the rest goes to the trash.

        What is finished in the bucket is whole, whatever its record says. Raises IdentityRefused, Fenced.
        """
        topic, failure_tracker = self.claim.topic, FailureTracker(self.claim.topic, self._clock, lambda: None)
        begins: set[Position] = set()
        async for attempts, found in attempts_of(self._context, self.claim, self._head):
            reason = recovery.reason_to_give_up(found, None, self._context)
            if found.begin <= self.standing or found.begin in begins:
                reason = "its entries are in other segments"
            if not reason:
                found = await as_finished(  # noqa: PLW2901
                    self._context, topic, found, failure_tracker=failure_tracker, identity=self._identity
                )
            if found.proven and found.seal is not None:
                seal = replace(found.seal, joined=True)  # its manifest says what lay before
                found = replace(found, status=AttemptStatus.OFFLOADED, seal=seal)  # noqa: PLW2901
            else:
                reason = reason or self._unfit(found)
            if reason:
                await self.give_up(found, attempts, reason)
                continue
            begins.add(found.begin)
            self.keep(found)
            yield attempts, found

    def keep(self, attempt: Attempt) -> None:
        """Note that an attempt's segment waits for its commit, if it is whole."""
        if attempt.status is AttemptStatus.OFFLOADED:
            self._kept.add(attempt)

    def _unfit(self, found: Attempt) -> str:
        """Say why an attempt does not go with the way in which history is split now; empty: it does."""
        if (found.ledger_id is not None) is not self.plan.goes_whole(found.begin):
            return "it was begun by another method"
        if found.end is not None and found.end > self.end_of(found.begin):
            return "it reaches over the end of its range"
        return ""

    async def _layout(self, begin: Position, tries: int) -> SegmentLayout | LedgerLayout:
        info = self.history.chain.ledgers.get(begin.ledger_id)
        return await self._patiently(
            lambda: layout_in_history(self._context, self.claim.topic, self.plan, begin, info, count=bool(tries))
        )

    async def begin(self, begin: Position, place: Place, failures: tuple[int, str]) -> tuple[AttemptLog, Attempt]:
        """Record an attempt before its first byte. Raises Fenced."""
        layout = await self._layout(begin, failures[0])
        attempt = self._context.attempt(begin, layout, place, epoch=self.claim.epoch, failures=failures)
        attempts = self._log(paths.history_job_attempt(self.claim.topic, attempt.segment_id))
        await self._locked(lambda: self.history.begin(attempt, attempts))
        return attempts, attempt

    async def give_up(self, attempt: Attempt, attempts: AttemptLog, reason: str) -> None:
        """Put what was written of a segment on the trash list. Raises Fenced."""
        log.warning("backfill.given_up", topic=str(self.claim.topic), segment_id=str(attempt.segment_id), reason=reason)
        self._kept.drop(attempt)
        if attempt.begin <= self.standing:
            await attempts.give_up(attempt, reason)  # its range is another's, and done
        else:
            await self._locked(lambda: self.history.give_up(attempt, reason, attempts))

    async def lost(self, loss: Loss) -> None:
        """Record that the source has deleted a part of history before it was offloaded. Raises Fenced."""
        await self._locked(lambda: self.history.lost(loss))

    async def commit(self, attempt: Attempt, attempts: AttemptLog) -> None:
        """Make a segment that is whole part of the topic. Raises SegmentFailed when it is not, Fenced, HistoryTorn."""
        for loss in unrecorded(self.history.map, attempt):
            await self.lost(loss)
        segment = await self._joiner.join(attempt, attempts)
        ends = dict(self.history.known_ends((), {}))  # what lay before may be of an owner that had not recorded it
        ends |= dict(attempt.seal.ends) if attempt.seal is not None else {}
        await self._locked(lambda: self.history.commit(segment, ends, attempts, self._held()))
        self._kept.drop(attempt)
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
        """Make what is left the daemon's; nothing may be begun of it. Raises Fenced."""
        rest = replace(self.plan, worker=Worker.DAEMON, holder="", holder_until_ms=0)
        await self._locked(lambda: self._record.change_plan(rest))

    async def finish(self) -> None:
        """Record that all of history is offloaded, or known to be lost. Raises Fenced, HistoryTorn."""
        await self._locked(lambda: self.history.finish(self._clock.wall_ms()))

    async def _locked(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change; once more over what is stored if somebody else has changed the topic meanwhile.

        Raises Fenced, BackfillFailed when it is not a job's any more, Conflict.
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
