"""The driver's side of one topic: has its ranges written by executors, commits them in order.

What an executor has written is known by its attempt alone, so a driver that comes after a crash goes on with what it
finds: segments that are whole wait for their turn, others are given to an executor again. What follows what is
committed is always asked of the ledgers' chain, never of the ranges: where the source has lost entries the loss is
recorded first, and where a segment came out shorter than planned another one is made for the rest.
"""

import asyncio
from dataclasses import dataclass

import structlog

from offloaderd.core.aio.groups import Group
from offloaderd.core.aio.signal import Signal
from offloaderd.core.errors import Fenced, Transient, first_of
from offloaderd.core.model import Loss, Position, TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.history.plan import left_of
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.history import RangeState
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.backfill.eligible import prospect
from offloaderd.spark.backfill.record import JobRecord
from offloaderd.spark.backfill.takeover import take_up
from offloaderd.spark.jobs.job import Aim, BackfillFailed, Driver, Outcome, Progress, SegmentTask, Written
from offloaderd.spark.jobs.lease import as_driver

log = structlog.get_logger(__name__)

TRIES_MAX = 5
"""After so many failures of one segment, with pauses between, somebody has to look."""


@dataclass(slots=True, eq=False)
class _Item:
    """One segment: where it begins, where it may end at the latest, and what is recorded of it."""

    begin: Position
    end: Position
    recorded: tuple[AttemptLog, Attempt] | None = None
    ready: bool = False
    taken: bool = False
    """Somebody sees to it that it is written."""
    tries: int = 0
    last_error: str = ""


class TopicBackfill:
    """One run of one topic's backfill."""

    def __init__(
        self, context: OffloadContext, source: LedgerSource, topic: TopicName, driver: Driver, *, aim: Aim
    ) -> None:
        self._context = context
        self._source = source
        self._topic = topic
        self._driver = driver
        self._aim = aim
        self._clock = context.upload_context.clock
        self._changed = Signal()
        self._items: dict[Position, _Item] = {}
        self._committed = self._losses = self._retries = 0

    async def run(self) -> Progress:
        """Work until all of history is committed, or known to be lost; returns how it ended.

        Raises BackfillFailed, Driven, Fenced when another driver took over, HistoryTorn, CorruptData, Conflict.
        """
        store, me = self._context.metadata, self._driver.me
        await until_answered(self._clock, lambda: prospect(self._context, self._topic, self._aim))
        await as_driver(store, self._topic, me, self._clock, self._run, job="backfill", failed=BackfillFailed)
        return self._standing()

    async def _run(self, claim: Claim) -> None:
        await take_up(self._context, claim, self._aim, me=self._driver.me)
        self._record = record = await JobRecord.open(
            self._context, self._source, claim, me=self._driver.me, patience_s=self._driver.patience_s
        )
        await record.hold()
        try:
            await record.split(self._aim)
            async for attempts, found in record.left_behind():
                ready = found.status is AttemptStatus.OFFLOADED
                item = _Item(found.begin, record.end_of(found.begin), (attempts, found), ready=ready)
                self._items[item.begin] = item
                log.info("backfill.segment_resumed", topic=str(self._topic), begin=str(item.begin), ready=ready)
            self._told()
            await self._work()
            for item in self._items.values():
                await self._give_up(item, "nothing of it is left to be offloaded")
            await record.finish()
        finally:
            await record.let_go()
        self._told()

    async def _work(self) -> None:
        """Write and commit side by side."""
        try:
            async with Group() as group:
                beating = group.create_task(self._record.keep_hold(), name=f"lease of {self._topic}")
                async with Group() as writers:
                    writers.create_task(self._dispatch(writers), name=f"dispatch {self._topic}")
                    await self._commit_all(writers)
                beating.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    async def _dispatch(self, writers: asyncio.TaskGroup) -> None:
        """Have everything written that is not, the oldest first."""
        planned = {
            one.begin: _Item(one.begin, one.end)
            for one in self._record.history.ranges.ranges
            if one.state is not RangeState.DONE and one.begin > self._record.standing
        }
        for _, item in sorted({**planned, **self._items}.items(), key=lambda one: one[0]):
            if not item.ready:
                await self._driver.slots.acquire()
                self._have_written(item, writers)

    def _have_written(self, item: _Item, writers: asyncio.TaskGroup) -> None:
        """Have a segment written for which a place is held."""
        if item.taken or item.begin <= self._record.standing:
            self._driver.slots.release()
            return
        item.taken = True
        self._items[item.begin] = item
        writers.create_task(self._written(item), name=f"segment of {self._topic} at {item.begin}")

    async def _written(self, item: _Item) -> None:
        """Have one segment written; its place is held already. Raises BackfillFailed, Fenced."""
        backoff, again = Backoff(self._clock), item.recorded is not None
        try:
            while not item.ready:
                if item.recorded is None:
                    item.recorded = await self._record.begin(item.begin, self._aim.place, (item.tries, item.last_error))
                self._told()
                written = await self._task(item.recorded[1], item.end, again=again)
                again = True
                if await self._is_ready(item, written):
                    break
                self._failed(item, written)
                if written.outcome is Outcome.BROKEN:
                    await self._give_up(item, written.error)
                    again = False
                if await self._is_lost(item):
                    break
                await backoff.wait(Transient(written.error))
        finally:
            self._driver.slots.release()
        self._changed.notify()
        self._told()

    async def _task(self, attempt: Attempt, end: Position, *, again: bool) -> Written:
        plan = self._record.plan
        task = SegmentTask(
            claim=self._record.claim,
            segment_id=attempt.segment_id,
            begin=attempt.begin,
            end=end,
            limit_bytes=self._record.limit_bytes(attempt),
            last=plan.last,
            boundary=plan.boundary,
            again=again,
            patience_s=self._driver.patience_s,
        )
        try:
            return await self._driver.runner.run(task)
        except Transient as error:
            return Written(outcome=Outcome.HINDERED, error=str(error))

    async def _is_ready(self, item: _Item, written: Written) -> bool:
        """Say whether a segment is whole, by its record; what the executor said is only how it went. Raises Fenced."""
        assert item.recorded is not None  # noqa: S101 - it has begun
        attempts, _ = item.recorded
        found = await until_answered(self._clock, attempts.load)
        if found is None or written.outcome is Outcome.FENCED:
            raise Fenced(
                f"somebody else has taken over the backfill of {self._topic}, or cancelled it",
                hint=f"see offloadctl backfill status {self._topic}",
            )
        item.recorded = attempts, found
        item.ready = found.status is AttemptStatus.OFFLOADED
        self._record.keep(found)
        return item.ready

    def _failed(self, item: _Item, written: Written) -> None:
        """Count a failure. Raises BackfillFailed after too many of them."""
        item.tries, item.last_error = item.tries + 1, written.error
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
                hint="run it again once that is mended: it goes on where it stood",
            )

    async def _is_lost(self, item: _Item) -> bool:
        """Say whether the source has not even the first entry of a segment any more; look again to be sure."""
        await self._record.look()
        if item.begin.ledger_id in self._record.history.chain.ledgers:
            return False
        await self._give_up(item, "the source has lost its first entry")
        self._items.pop(item.begin, None)
        return True

    async def _give_up(self, item: _Item, reason: str) -> None:
        if item.recorded is not None:
            attempts, attempt = item.recorded
            await self._record.give_up(attempt, attempts, reason)
        item.recorded, item.ready = None, False

    async def _commit_all(self, writers: asyncio.TaskGroup) -> None:
        """Commit one segment after the other until history ends; losses are recorded where they are."""
        record = self._record
        while (step := record.next_after(record.standing)) is not None:
            changed = self._changed.wait()
            if isinstance(step, Loss):
                if any(one.taken and not one.ready and step.holds(one.begin) for one in self._items.values()):
                    await changed  # an executor may have read all of it before
                    continue
                changed.close()
                await record.look()
                step = record.next_after(record.standing)
                if isinstance(step, Loss):
                    await record.lost(step)
                    self._losses += 1
                    self._told()
                continue
            item = self._items.get(step.first)
            if item is not None and item.ready:
                changed.close()
                await self._commit(item)
            elif item is None and not record.is_planned(step.first):
                changed.close()
                await self._driver.slots.acquire()
                self._have_written(_Item(step.first, record.end_of(step.first)), writers)
            else:
                await changed

    async def _commit(self, item: _Item) -> None:
        """Commit a segment that is whole; one that proves not to be is written anew."""
        assert item.recorded is not None  # noqa: S101 - it is ready
        attempts, attempt = item.recorded
        try:
            await self._record.commit(attempt, attempts)
        except SegmentFailed as error:
            self._failed(item, Written(outcome=Outcome.BROKEN, error=str(error)))
            await self._give_up(item, str(error))
            await self._driver.slots.acquire()
            await self._written(item)
            return
        del self._items[item.begin]
        self._committed += 1
        self._told()

    def _standing(self) -> Progress:
        record = self._record
        left = left_of(record.history.map)
        return Progress(
            topic=self._topic,
            entries_left=left.entries,
            bytes_left=left.payload_bytes,
            bytes_all=record.plan.payload_bytes,
            committed=self._committed,
            waiting=sum(one.ready for one in self._items.values()),
            writing=sum(one.recorded is not None and not one.ready for one in self._items.values()),
            ranges=record.plan.ranges,
            ranges_done=record.history.ranges.counts()[RangeState.DONE],
            losses=self._losses,
            retries=self._retries,
        )

    def _told(self) -> None:
        self._driver.progress(self._standing())
