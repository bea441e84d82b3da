"""Backfill of history (PIP-76) with Spark: plan, run, status and cancel, for topics or a whole namespace.

    with spark_session("backfill") as session:
        ended = await run(settings, session, [topic], Options(share=Share(slots=8)))

Planning, status and cancelling need no Spark. A run may be ended at any time, in any way: the next one resumes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.daemon.settings import Settings
from offloaderd.history.plan import left_of
from offloaderd.metadata import history, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.history import RangeState, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.spark.backfill.plan import (
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
from offloaderd.spark.backfill.topic import Progress, TopicBackfill
from offloaderd.spark.jobs.driver import Driver, Ended, JobTopics, driver_id, for_each
from offloaderd.spark.jobs.executors import Options, SparkRunner, Stores, open_stores
from offloaderd.spark.jobs.lease import check_free, claimed, driver_of
from offloaderd.spark.jobs.task import PATIENCE_S, SegmentTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """Offload history with the executors of a session, for topics that `checked` has returned.

    Raises InvalidConfig, Transient.
    """
    clock = SystemClock()
    with SparkRunner(session, settings, options.share, name="backfill") as runner:
        async with open_stores(settings, clock) as stores:
            driver = Driver[SegmentTask, Progress](
                runner=runner,
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
    """Return the topics that a job can work on, and those that are done.

    Raises BackfillFailed with all topics by name that it cannot work on, and why.
    """
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
