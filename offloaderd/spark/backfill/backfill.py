"""Backfill of history (PIP-76) with Spark: plan, run, status and cancel, for topics or a whole namespace.

    with spark_session("backfill") as session:
        ended = await run(settings, session, [topic], Options(share=Share(slots=8)))

Planning, status and cancelling need no Spark. A run may be ended at any time, in any way: the next one resumes it. The
ranges of a topic are written by executors, and committed in order. The next step always follows from the ledgers'
chain, never from the ranges: where the source has lost entries the loss is recorded first, and where a segment came out
shorter than planned another one is made for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from offloaderd.core.aio import Group
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Loss, OffloadMethod, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.daemon.settings import Settings
from offloaderd.history.plan import left_of
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import history, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.history import RangeState, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.backfill.plan import (
    Aim,
    AlreadyDone,
    BackfillFailed,
    TopicPlan,
    aim_of,
    enabled_map,
    plan_for_job,
    plan_topic,
    prospect,
)
from offloaderd.spark.backfill.record import JobRecord
from offloaderd.spark.backfill.transfer import take_up
from offloaderd.spark.jobs.driver import Driver, Ended, Item, JobTopics, TopicJob, driver_id, for_each
from offloaderd.spark.jobs.executors import Options, SparkRunner, Stores, open_stores
from offloaderd.spark.jobs.lease import check_free, claimed, driver_of
from offloaderd.spark.jobs.task import PATIENCE_S, Outcome, SegmentTask, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        self._record.stored.add(item.attempt)
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
        while (step := record.next_step()) is not None:
            changed = self._changed.wait()
            if isinstance(step, Loss):
                if any(one.dispatched and not one.ready and step.holds(one.begin) for one in self._segments.values()):
                    await changed  # an executor may have read all of it before
                    continue
                changed.close()
                await record.refresh()
                step = record.next_step()
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


TOPICS_AT_A_TIME = 16
"""Topics whose history is offloaded at a time; their segments share the slots of executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The progress of a topic's history. `driver` works on it now; `seconds_left` is by the rate so far."""

    topic: TopicName
    worker: str
    method: OffloadMethod
    done: bool
    entries: int
    entries_left: int
    payload_bytes: int
    bytes_left: int
    segments: int
    ranges: int
    ranges_done: int
    ranges_claimed: int
    written: int
    driver: str = ""
    bytes_per_s: float = 0.0
    seconds_left: float | None = None


async def plan(
    stores: Stores, job_topics: JobTopics, segment_bytes: int
) -> list[tuple[TopicName, TopicPlan | OffloaderError]]:
    """Return the plan of each topic, or why there is none. Raises Transient."""
    topics = await _topics(stores.context.metadata, job_topics)
    return await for_each(topics, lambda one: plan_topic(stores, one, segment_bytes), in_flight_max=TOPICS_AT_A_TIME)


async def run(
    settings: Settings,
    session: SparkSession,
    topics: Sequence[TopicName],
    options: Options,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[Ended[Progress]]:
    """Offload history with a session's executors, for topics from `checked`. Raises InvalidConfig, Transient."""
    clock = SystemClock()
    with SparkRunner(session, settings, options.share, name="backfill") as runner:
        async with open_stores(settings, clock) as stores:
            driver = Driver[SegmentTask, Progress](
                write=runner.run,
                slots=asyncio.Semaphore(runner.slots),
                me=driver_id(clock),
                patience_s=options.patience_s,
                progress=progress,
            )
            return await drive(stores, topics, driver, options.segment_bytes)


async def drive(
    stores: Stores, topics: Sequence[TopicName], driver: Driver[SegmentTask, Progress], segment_bytes: int
) -> list[Ended[Progress]]:
    """Offload the history of topics; one that fails does not end the others."""

    async def one(topic: TopicName) -> Progress:
        aim = await aim_of(stores, topic, segment_bytes)
        return await TopicBackfill(stores.context, stores.source, topic, driver, aim=aim).run()

    ended = await for_each(topics, one, in_flight_max=TOPICS_AT_A_TIME)
    return [Ended.of(topic, found, nothing=isinstance(found, AlreadyDone)) for topic, found in ended]


async def checked(stores: Stores, job_topics: JobTopics) -> tuple[list[TopicName], list[TopicName]]:
    """Return the topics to work on, and those done. Raises BackfillFailed with each named one that cannot, and why."""
    store = stores.context.metadata
    topics, done, problems = await _topics(store, job_topics), [], []
    for topic in job_topics.topics:
        try:
            await prospect(stores.context, topic, await aim_of(stores, topic, 0))
            await check_free(store, topic)
        except AlreadyDone:
            done.append(topic)
        except OffloaderError as error:
            problems.append(str(error))
    if problems:
        raise BackfillFailed("\n".join(problems), hint="nothing was done")
    return [topic for topic in topics if topic not in done], done


async def _topics(store: MetadataStore, job_topics: JobTopics) -> list[TopicName]:
    """Return the topics by name, and those of namespaces whose history is a job's and not done."""
    found = []
    for topic in await job_topics.enabled(store):
        plan = None if topic in job_topics.topics else (await catalog.load(store, topic)).unfinished
        if topic in job_topics.topics or (plan is not None and plan.worker is Worker.JOB):
            found.append(topic)
    return found


async def status(stores: Stores, job_topics: JobTopics) -> list[tuple[TopicName, Status | None]]:
    """Return the status of each topic, None for one without planned history. Raises CorruptData, Transient."""
    store = stores.context.metadata
    return [(topic, await _status(store, topic)) for topic in await job_topics.enabled(store)]


async def _status(store: MetadataStore, topic: TopicName) -> Status | None:
    topic_map = await catalog.load(store, topic)
    plan = topic_map.history
    if plan is None:
        return None
    counts = (await history.load(store, topic, plan.ranges)).counts()
    driver = await driver_of(store, topic)
    left = left_of(topic_map)
    ours = [one for one in topic_map.segments if one.begin < plan.live_begin]
    written = sum(one.payload_bytes for one in ours)
    took_s = (max(one.offloaded_ms for one in ours) - min(one.assigned_ms for one in ours)) / 1000 if ours else 0.0
    bytes_per_s = written / took_s if took_s > 0 else 0.0
    return Status(
        topic=topic,
        worker=plan.worker.value,
        method=plan.method,
        done=bool(plan.done_ms),
        entries=plan.entries,
        entries_left=left.entries,
        payload_bytes=plan.payload_bytes,
        bytes_left=left.payload_bytes,
        segments=len(ours),
        ranges=plan.ranges,
        ranges_done=counts[RangeState.DONE],
        ranges_claimed=counts[RangeState.CLAIMED],
        written=len(await store.children(paths.history_attempts(topic))),
        driver=driver,
        bytes_per_s=bytes_per_s,
        seconds_left=left.payload_bytes / bytes_per_s if bytes_per_s and driver else None,
    )


async def cancel(stores: Stores, topic: TopicName, *, discard: bool) -> tuple[int, OffloadMethod]:
    """Depose the driver of a topic's backfill; return the number of segments begun, and their method.

    Committed segments stay. A later run resumes those begun, or with `discard` they go to the trash. Raises
    BackfillFailed.
    """
    context, clock = stores.context, stores.context.upload_context.clock
    plan_for_job(await enabled_map(context.metadata, topic))
    me = f"cancel-{clock.uuid().hex[:8]}"
    async with claimed(context.metadata, topic, me, clock, depose=True) as claim:
        record = await JobRecord.open(context, stores.source, claim, me=me, patience_s=PATIENCE_S)
        if record.plan.ranges:
            await record.history.load()
        begun = 0
        async for attempts, attempt in record.earlier_attempts():
            begun += 1
            if discard:
                await record.give_up(attempt, attempts, "the backfill was cancelled")
        await record.release()
    return begun, record.plan.method
