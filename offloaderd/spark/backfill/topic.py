"""The driver's side of one topic's backfill: its ranges are written by executors, and committed in order.

The next step always follows from the ledgers' chain, never from the ranges: where the source has lost entries the loss
is recorded first, and where a segment came out shorter than planned another one is made for the rest.
"""

import asyncio
from dataclasses import dataclass

import structlog

from offloaderd.core.aio import Group
from offloaderd.core.model import Loss, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.history.plan import left_of
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.history import RangeState
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.backfill.plan import Aim, BackfillFailed, prospect
from offloaderd.spark.backfill.record import JobRecord
from offloaderd.spark.backfill.transfer import take_up
from offloaderd.spark.jobs.driver import Driver, Item, TopicJob
from offloaderd.spark.jobs.task import Outcome, SegmentTask, Written

log = structlog.get_logger(__name__)

TRIES_MAX = 5
"""Failures of one segment, with pauses between, after which an operator has to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A topic's backfill: segments that this run has committed, that wait for their commit, and that are written."""

    topic: TopicName
    entries_left: int
    bytes_left: int
    bytes_all: int
    committed: int
    waiting: int
    writing: int
    ranges: int
    ranges_done: int
    losses: int
    retries: int


@dataclass(slots=True, eq=False, kw_only=True)
class _Segment(Item):
    """A segment, from its first entry to the latest possible last one; `dispatched`: an executor has it, or had it."""

    begin: Position
    end: Position
    dispatched: bool = False


class TopicBackfill(TopicJob[_Segment, SegmentTask, Progress]):
    """One run of one topic's backfill; raises HistoryGap and Conflict as well."""

    NAME = COMMAND = "backfill"
    FAILED = BackfillFailed

    def __init__(
        self,
        context: OffloadContext,
        source: LedgerSource,
        topic: TopicName,
        driver: Driver[SegmentTask, Progress],
        *,
        aim: Aim,
    ) -> None:
        super().__init__(context, topic, driver)
        self._source = source
        self._aim = aim
        self._segments: dict[Position, _Segment] = {}
        self._committed = self._losses = self._retries = 0

    async def _check(self) -> None:
        await until_answered(self._clock, lambda: prospect(self._context, self._topic, self._aim))

    async def _work(self, claim: Claim) -> None:
        await take_up(self._context, claim, self._aim, me=self._driver.me)
        self._record = record = await JobRecord.open(
            self._context, self._source, claim, me=self._driver.me, patience_s=self._driver.patience_s
        )
        await record.hold()
        try:
            await record.split(self._aim)
            async for attempts, found in record.earlier_attempts():
                one = _Segment(
                    begin=found.begin,
                    end=record.end_of(found.begin),
                    recorded=(attempts, found),
                    again=True,
                    ready=found.status is AttemptStatus.OFFLOADED,
                )
                self._segments[one.begin] = one
                log.info("backfill.segment_resumed", topic=str(self._topic), begin=str(one.begin), ready=one.ready)
            self._report()
            async with Group() as group:
                holding = group.create_task(record.renew_hold(), name=f"lease of {self._topic}")
                async with Group() as writers:
                    writers.create_task(self._dispatch(writers), name=f"dispatch {self._topic}")
                    await self._commit_all(writers)
                holding.cancel()
            for one in self._segments.values():
                await self._give_up(one, "nothing of it is left to be offloaded")
            await record.finish()
        finally:
            await record.release()
        self._report()

    async def _dispatch(self, writers: asyncio.TaskGroup) -> None:
        """Have all segments written by executors, the oldest first."""
        planned = {
            one.begin: _Segment(begin=one.begin, end=one.end)
            for one in self._record.history.ranges.ranges
            if one.state is not RangeState.DONE and one.begin > self._record.standing
        }
        for _, one in sorted({**planned, **self._segments}.items(), key=lambda one: one[0]):
            if not one.ready:
                await self._have_written(one, writers)

    async def _have_written(self, one: _Segment, writers: asyncio.TaskGroup) -> None:
        """Have a segment written by an executor as soon as a slot is free, unless it is stored by then."""
        await self._driver.slots.acquire()
        if one.dispatched or one.begin <= self._record.standing:
            self._driver.slots.release()
            return
        one.dispatched = True
        self._segments[one.begin] = one
        writers.create_task(self._write(one), name=f"segment of {self._topic} at {one.begin}")

    async def _begin(self, item: _Segment) -> None:
        item.recorded = await self._record.begin(item.begin, self._aim.place, (item.tries, item.last_error))

    def _task(self, item: _Segment) -> SegmentTask:
        plan = self._record.plan
        return SegmentTask(
            claim=self._record.claim,
            segment_id=item.attempt.segment_id,
            begin=item.begin,
            end=item.end,
            limit_bytes=self._record.limit_bytes(item.attempt),
            last=plan.last,
            boundary=plan.boundary,
            again=item.again,
            patience_s=self._driver.patience_s,
        )

    async def _read_back(self, item: _Segment, written: Written) -> bool:
        ready = await super()._read_back(item, written)
        self._record.note_stored(item.attempt)
        return ready

    async def _failed(self, item: _Segment, written: Written) -> None:
        """See TopicJob; a segment is dropped when the source has deleted its first entry."""
        await super()._failed(item, written)
        await self._record.refresh()
        if item.begin.ledger_id not in self._record.history.chain.ledgers:
            item.error = "the source has lost its first entry"
            await self._give_up(item, item.error)
            self._segments.pop(item.begin, None)

    def _note_failure(self, item: _Segment, written: Written) -> None:
        self._retries += 1
        log.warning(
            "backfill.segment_failed",
            topic=str(self._topic),
            begin=str(item.begin),
            outcome=str(written.outcome),
            error=written.error,
            tries=item.tries,
        )
        if item.tries >= TRIES_MAX:
            raise BackfillFailed(
                f"the segment of {self._topic} that begins at {item.begin} failed {item.tries} times: {written.error}",
                hint="run it again once that is mended: it resumes what was begun",
            )

    async def _discard(self, attempts: AttemptLog, attempt: Attempt, reason: str) -> None:
        await self._record.give_up(attempt, attempts, reason)

    async def _commit_all(self, writers: asyncio.TaskGroup) -> None:
        """Commit one segment after the other until the end of history, and record losses between them."""
        record = self._record
        while (step := record.next_after(record.standing)) is not None:
            changed = self._changed.wait()
            if isinstance(step, Loss):
                if any(one.dispatched and not one.ready and step.holds(one.begin) for one in self._segments.values()):
                    await changed  # an executor may have read all of it before
                    continue
                changed.close()
                await record.refresh()
                step = record.next_after(record.standing)
                if isinstance(step, Loss):
                    await record.record_loss(step)
                    self._losses += 1
                    self._report()
                continue
            one = self._segments.get(step.first)
            if one is not None and one.ready:
                changed.close()
                await self._commit(one)
            elif one is None and not record.is_planned(step.first):
                changed.close()
                await self._have_written(_Segment(begin=step.first, end=record.end_of(step.first)), writers)
            else:
                await changed

    async def _commit(self, one: _Segment) -> None:
        """Commit a stored segment; one that proves incomplete is written again."""
        assert one.recorded is not None  # noqa: S101 - it is ready
        attempts, attempt = one.recorded
        try:
            await self._record.commit(attempt, attempts)
        except SegmentFailed as error:
            await self._failed(one, Written(outcome=Outcome.BROKEN, error=str(error)))
            await self._driver.slots.acquire()
            await self._write(one)
            return
        del self._segments[one.begin]
        self._committed += 1
        self._report()

    def _progress(self) -> Progress:
        record = self._record
        left = left_of(record.history.map)
        return Progress(
            topic=self._topic,
            entries_left=left.entries,
            bytes_left=left.payload_bytes,
            bytes_all=record.plan.payload_bytes,
            committed=self._committed,
            waiting=sum(one.ready for one in self._segments.values()),
            writing=sum(one.recorded is not None and not one.ready for one in self._segments.values()),
            ranges=record.plan.ranges,
            ranges_done=record.history.ranges.counts()[RangeState.DONE],
            losses=self._losses,
            retries=self._retries,
        )
