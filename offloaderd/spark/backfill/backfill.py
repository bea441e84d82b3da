"""Backfill of history (PIP-76) with Spark: plan, run, status and cancel, for topics or a whole namespace.

    with spark_session("backfill") as session:
        ended = await run(settings, session, [topic], Options(share=Share(slots=8)))

Planning, status and cancelling need no Spark. A run may be broken off at any time, by whatever: the next one goes on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offloaderd.core.aio.each import each
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.daemon.settings import Settings
from offloaderd.history.plan import left_of
from offloaderd.metadata import history, paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.history import RangeState, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.store import enabled_topics
from offloaderd.spark.backfill.eligible import enabled_map, plan_for_job, prospect
from offloaderd.spark.backfill.plan import TopicPlan, aim_of, plan_topic
from offloaderd.spark.backfill.record import JobRecord
from offloaderd.spark.backfill.topic import TopicBackfill
from offloaderd.spark.jobs.job import PATIENCE_S, AlreadyDone, BackfillFailed, Driver, Progress
from offloaderd.spark.jobs.lease import check_free, claimed
from offloaderd.spark.jobs.run import SparkRunner
from offloaderd.spark.jobs.stores import Share, Stores, open_stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS_AT_A_TIME = 16
"""Topics whose history is worked on side by side; their segments share the places of executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a backfill is run. `segment_bytes` 0: by each topic's policy; `share.slots` is set by who runs it."""

    segment_bytes: int = 0
    share: Share = field(default_factory=Share)
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Topics by name, and all topics with history of namespaces, each `tenant/namespace`."""

    topics: Sequence[TopicName] = ()
    namespaces: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of one topic: how far it is, or why it is no further; `nothing` says there was nothing to do."""

    topic: TopicName
    progress: Progress | None = None
    error: OffloaderError | None = None
    nothing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How far a topic's history is offloaded. `driver` works on it now; `seconds_left` is a guess by the past rate."""

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
    stores: Stores, wanted: Wanted, segment_bytes: int
) -> list[tuple[TopicName, TopicPlan | OffloaderError]]:
    """Say what would be done of each topic, or why nothing. Raises Transient."""

    async def one(topic: TopicName) -> tuple[TopicName, TopicPlan | OffloaderError]:
        try:
            return topic, await plan_topic(stores, topic, segment_bytes)
        except OffloaderError as error:
            return topic, error

    return await each(await _topics(stores.context.metadata, wanted), one, in_flight_max=TOPICS_AT_A_TIME)


async def run(
    settings: Settings,
    session: SparkSession,
    topics: Sequence[TopicName],
    options: Options,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[Ended]:
    """Offload history with the executors of a session; returns what became of each topic.

    Which topics there are, and whether they are for a job, `checked` says. Raises InvalidConfig, Transient.
    """
    clock = SystemClock()
    share = options.share
    with SparkRunner(session, settings, share, group=f"backfill-{clock.uuid()}") as runner:
        async with open_stores(settings, clock) as stores:
            driver = Driver(
                runner=runner,
                slots=asyncio.Semaphore(share.slots),
                me=f"{socket.gethostname()}-{os.getpid()}-{clock.uuid().hex[:8]}",
                patience_s=options.patience_s,
                progress=progress,
            )
            return await drive(stores, topics, driver, options.segment_bytes)


async def drive(stores: Stores, topics: Sequence[TopicName], driver: Driver, segment_bytes: int) -> list[Ended]:
    """Offload the history of topics; one that fails does not end the others."""

    async def one(topic: TopicName) -> Ended:
        try:
            aim = await aim_of(stores, topic, segment_bytes)
            job = TopicBackfill(stores.context, stores.source, topic, driver, aim=aim)
            return Ended(topic=topic, progress=await job.run())
        except AlreadyDone:
            return Ended(topic=topic, nothing=True)
        except OffloaderError as error:
            return Ended(topic=topic, error=error)

    return await each(topics, one, in_flight_max=TOPICS_AT_A_TIME)


async def checked(stores: Stores, wanted: Wanted) -> tuple[list[TopicName], list[TopicName]]:
    """Return the topics that a job can work on, and those with which there is nothing to do.

    Raises BackfillFailed naming all of those by name that it cannot.
    """
    store = stores.context.metadata
    topics, done, problems = await _topics(store, wanted), [], []
    for topic in wanted.topics:
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


async def _topics(store: MetadataStore, wanted: Wanted) -> list[TopicName]:
    """Return the topics by name, and those of namespaces whose history is a job's and not done."""
    found = list(dict.fromkeys(wanted.topics))
    if not wanted.namespaces:
        return found
    for topic in await enabled_topics(store):
        if (topic.tenant, topic.namespace) in wanted.namespaces and topic not in found:
            topic_map = await catalog.load(store, topic)
            if topic_map.unfinished is not None and topic_map.unfinished.worker is Worker.JOB:
                found.append(topic)
    return found


async def status(stores: Stores, wanted: Wanted) -> list[tuple[TopicName, Status | None]]:
    """Say how far topics are, None for one without planned history. Raises CorruptData, Transient."""
    store = stores.context.metadata
    topics = list(dict.fromkeys(wanted.topics))
    if wanted.namespaces:
        known = await enabled_topics(store)
        topics += [one for one in known if (one.tenant, one.namespace) in wanted.namespaces and one not in topics]
    return [(topic, await _status(store, topic)) for topic in topics]


async def _status(store: MetadataStore, topic: TopicName) -> Status | None:
    topic_map = await catalog.load(store, topic)
    plan = topic_map.history
    if plan is None:
        return None
    counts = (await history.load(store, topic, plan.ranges)).counts()
    held = await node(store, paths.history_holder(topic))
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
        driver=held.value.decode(errors="replace") if held is not None else "",
        bytes_per_s=bytes_per_s,
        seconds_left=left.payload_bytes / bytes_per_s if bytes_per_s and held is not None else None,
    )


async def cancel(stores: Stores, topic: TopicName, *, discard: bool) -> tuple[int, OffloadMethod]:
    """Depose whoever drives a topic's backfill; what is committed stays.

    Returns how many segments were begun, and by which method.

    What was begun is gone on with by a later run, or with `discard` goes to the trash. Raises BackfillFailed.
    """
    context, clock = stores.context, stores.context.upload_context.clock
    plan_for_job(await enabled_map(context.metadata, topic))
    me = f"cancel-{clock.uuid().hex[:8]}"
    async with claimed(context.metadata, topic, me, clock, depose=True) as claim:
        record = await JobRecord.open(context, stores.source, claim, me=me, patience_s=PATIENCE_S)
        if record.plan.ranges:
            await record.history.load()
        begun = 0
        async for attempts, attempt in record.left_behind():
            begun += 1
            if discard:
                await record.give_up(attempt, attempts, "the backfill was cancelled")
        await record.let_go()
    return begun, record.plan.method


def slots_of(session: SparkSession, asked: int | None) -> int:
    """Return how many segments are written at a time: as asked, else one for each core that Spark has now."""
    return asked or max(1, session.sparkContext.defaultParallelism)


def with_slots(options: Options, slots: int) -> Options:
    """Return the options for so many executors."""
    return replace(options, share=options.share.in_slots(slots))
