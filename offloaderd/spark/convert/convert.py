"""Conversion of stored segments (V1 to V2 and back, small segments to larger ones): plan, run, status and cancel.

    ended = await run(settings, Wanted(topics=[topic]), Options(target=Target.MERGED))

A run may be ended at any time, in any way: the next one resumes it. Executors are this process or Spark's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.core.aio.each import each
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.daemon.settings import Settings
from offloaderd.history.boundaries import segment_bytes_for
from offloaderd.history.rewriting.rewrite import cut_of
from offloaderd.history.rewriting.stored_feed import PIECE_BYTES
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.roll import RollPolicy
from offloaderd.spark.convert.object_plan import ConversionFailed, ObjectPlan, Target, Wish, plan_objects
from offloaderd.spark.convert.topic import Progress, TopicConversion
from offloaderd.spark.jobs import stores
from offloaderd.spark.jobs.job import Driver, Ended, JobTopics, RewriteTask, Runner, Written, driver_id, for_each
from offloaderd.spark.jobs.lease import attempts_of, claimed, driver_of
from offloaderd.spark.jobs.run import SparkRunner
from offloaderd.spark.jobs.write_task import rewrite_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS_AT_A_TIME = 8
SLOTS_HERE = 2
"""Objects that are written at a time without Spark: one is read while another is proven."""
CHECKS_PER_OBJECT = 9
"""Requests that check the three objects, and read their tables back."""
PUTS_PER_OBJECT = 4
"""Requests beside the parts: the upload is created and completed, index and manifest are put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(stores.Options):
    """How a conversion is run. `small_bytes` 0: half of a segment's size."""

    target: Target
    small_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The segments and bytes that a run would rewrite, the objects made of them, and estimated requests."""

    target: Target
    objects: ObjectPlan
    segment_bytes: int
    sources: int
    entries: int
    payload_bytes: int
    puts: int
    gets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A topic's segments now. `begun` objects are written, or being written, and not exchanged."""

    topic: TopicName
    driver: str
    ledgers: int
    segments: int
    payload_bytes: int
    begun: int
    trash: int


class LocalRunner:
    """Carries tasks out in this process; see Runner."""

    def __init__(self, context: OffloadContext) -> None:
        self._context = context

    async def run(self, task: RewriteTask) -> Written:
        """See Runner."""
        return await rewrite_segment(self._context, task)


async def wish_of(context: OffloadContext, book: PolicyResolver, topic: TopicName, options: Options) -> Wish:
    """Return the wish for a topic, by the options or else its policy. Raises Transient."""
    policy = RollPolicy.of(await book.of(topic))
    size = segment_bytes_for(options.segment_bytes or policy.segment_bytes_max, context.layout)
    return Wish(target=options.target, segment_bytes=size, small_bytes=options.small_bytes or -(-size // 2))


async def plan(
    context: OffloadContext, book: PolicyResolver, topics: Sequence[TopicName], options: Options
) -> list[tuple[TopicName, Plan | OffloaderError]]:
    """Return the plan of each topic, or why there is none. Raises Transient."""
    return await for_each(topics, lambda one: _plan(context, book, one, options), in_flight_max=TOPICS_AT_A_TIME)


async def _plan(context: OffloadContext, book: PolicyResolver, topic: TopicName, options: Options) -> Plan:
    wish = await wish_of(context, book, topic, options)
    topic_map = await catalog.load(context.metadata, topic)
    found = plan_objects(topic_map, wish, context.places.buckets)
    size = sum(one.payload_bytes for one in found.goals)
    part_bytes = cut_of(context).part_bytes if options.target is Target.LEDGER_BASED else context.layout.part_bytes
    pieces = sum(-(-one.payload_bytes // min(PIECE_BYTES, part_bytes)) for one in found.goals)
    parts = sum(-(-one.payload_bytes // part_bytes) for one in found.goals)
    sources = {source.segment_id for one in found.goals for source in one.sources}
    return Plan(
        target=options.target,
        objects=found,
        segment_bytes=wish.segment_bytes,
        sources=len(sources),
        entries=sum(one.entries for one in found.goals),
        payload_bytes=size,
        puts=parts + PUTS_PER_OBJECT * len(found.goals),
        gets=2 * pieces + len(sources) + CHECKS_PER_OBJECT * len(found.goals),
    )


async def run(
    settings: Settings,
    job_topics: JobTopics,
    options: Options,
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    session: SparkSession | None = None,
) -> list[Ended[Progress]]:
    """Rewrite topics' segments, with the executors of a session or without one in this process.

    Raises InvalidConfig, Transient.
    """
    clock, share = SystemClock(), options.share
    rate = share.upload_bytes_per_s if session is None else 0
    async with AsyncExitStack() as stack:
        spark = stack.enter_context(SparkRunner(session, settings, share, name="convert")) if session else None
        opened = stores.open_context(settings, clock, upload_bytes_per_s=rate, rewriting=True)
        context, book = await stack.enter_async_context(opened)
        runner: Runner[RewriteTask] = spark or LocalRunner(context)
        driver = Driver(
            runner=runner,
            slots=asyncio.Semaphore(spark.slots if spark else share.slots or SLOTS_HERE),
            me=driver_id(clock),
            patience_s=options.patience_s,
            progress=progress,
        )
        return await drive(context, book, await named(context.metadata, job_topics), options, driver)


async def drive(
    context: OffloadContext,
    book: PolicyResolver,
    topics: Sequence[TopicName],
    options: Options,
    driver: Driver[RewriteTask, Progress],
) -> list[Ended[Progress]]:
    """Rewrite topics' segments; one topic that fails does not end the others."""

    async def one(topic: TopicName) -> Progress:
        return await TopicConversion(context, topic, driver, await wish_of(context, book, topic, options)).run()

    ended = await for_each(topics, one, in_flight_max=TOPICS_AT_A_TIME)
    return [Ended.of(topic, found) for topic, found in ended]


async def named(store: MetadataStore, job_topics: JobTopics) -> list[TopicName]:
    """Return the topics by name, and all enabled ones of namespaces with segments. Raises Transient."""
    topics = await job_topics.enabled(store)
    ledgers = await each(topics, lambda one: store.children(paths.ledgers(one)))
    return [one for one, known in zip(topics, ledgers, strict=True) if known or one in job_topics.topics]


async def status(store: MetadataStore, topic: TopicName) -> Status:
    """Return the state of a topic's segments. Raises CorruptData, Transient."""
    topic_map = await catalog.load(store, topic)
    whole = [one for one in topic_map.segments if one.method is OffloadMethod.LEDGER_BASED]
    return Status(
        topic=topic,
        driver=await driver_of(store, topic),
        ledgers=len(whole),
        segments=len(topic_map.segments) - len(whole),
        payload_bytes=sum(one.payload_bytes for one in topic_map.segments),
        begun=0 if topic_map.unfinished is not None else len(await store.children(paths.history_attempts(topic))),
        trash=len(await store.children(paths.trash(topic))),
    )


async def cancel(context: OffloadContext, topic: TopicName) -> int:
    """Depose the driver of a topic's conversion; return the number of its attempts, which go to the trash.

    Raises ConversionFailed during a backfill, whose attempts these would be.
    """
    clock = context.upload_context.clock
    if (await catalog.load(context.metadata, topic)).unfinished is not None:
        raise ConversionFailed(
            f"the history of {topic} is not all offloaded: nothing can be converting it",
            hint=f"to end that: offloadctl backfill cancel {topic}",
        )
    begun = 0
    async with claimed(context.metadata, topic, f"cancel-{clock.uuid().hex[:8]}", clock, depose=True) as claim:
        async for attempts, found in attempts_of(context, claim):
            begun += 1
            await attempts.give_up(found, "the conversion was cancelled")
    return begun
