"""Conversion of stored segments (V1 to V2 and back, small segments to larger ones): plan, run, status and cancel.

    ended = await run(settings, JobTopics(topics=[topic]), Options(target=Target.MERGED))

A run may be ended at any time, in any way: the next one resumes it. Executors, this process or Spark's, write objects,
the driver exchanges them for their sources in order. The topic's owner may change the map at any moment. Each exchange
names the version of every context that it writes, so it is either made in the map as it is, or refused and compared
with the map again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import structlog

from offloaderd.core.aio import Group, each
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.daemon.settings import Settings
from offloaderd.history.boundaries import segment_bytes_for
from offloaderd.history.rewrite import PIECE_BYTES, Unreadable, cut_of, exchange, look_up
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import MetadataStore, Replace
from offloaderd.metadata.records.attempt import AttemptStatus
from offloaderd.metadata.topic_map import conversion, merging
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.conversion import Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal, goal_of
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.builder import LEDGERS_MAX
from offloaderd.segment.claim.attempt_log import attempt_log
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import head_of
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.resume import reason_to_give_up
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.jobs import executors as stores
from offloaderd.spark.jobs.driver import Driver, Ended, Item, JobTopics, TopicJob, driver_id, for_each, stored, verified
from offloaderd.spark.jobs.executors import SparkRunner
from offloaderd.spark.jobs.lease import attempts_of, claimed, driver_of
from offloaderd.spark.jobs.task import RewriteTask, Written, rewrite_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = structlog.get_logger(__name__)


class ConversionFailed(OffloaderError):
    """A topic's segments cannot be rewritten. Rewritten ones stay so, all others are unchanged."""


class Target(StrEnum):
    """The form that segments are to have."""

    LEDGER_BASED = "ledger-based"
    """Each ledger of streaming segments (V2) an object of its own (V1)."""
    STREAMING = "streaming"
    """Whole ledgers (V1) streaming segments (V2), neighbours together up to the size of a segment."""
    MERGED = "merged"
    """Small neighbouring streaming segments one of up to the size of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The segments to make: of about `segment_bytes` of payload, from those that have less than `small_bytes`."""

    target: Target
    segment_bytes: int
    small_bytes: int
    policy: RollPolicy | None = None
    """The topic's, for class and tags of new objects; None: as the settings have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """The objects to make of a topic, in the order of their exchange; `left`: segments that stay, counted by reason."""

    goals: tuple[Goal, ...]
    left: Mapping[str, int] = field(default_factory=dict)


def plan_objects(topic_map: TopicMap, wish: Wish, buckets: Collection[str]) -> ObjectPlan:
    """Return the objects to make. Raises ConversionFailed while history is not all offloaded, or if there is none."""
    if topic_map.unfinished is not None:
        raise ConversionFailed(
            f"the history of {topic_map.topic} is still being offloaded",
            hint=f"wait for it, or see offloadctl backfill status {topic_map.topic}",
        )
    if not topic_map.segments:
        raise ConversionFailed(f"nothing of {topic_map.topic} is offloaded", hint="offloadctl topics list")
    if wish.target is Target.LEDGER_BASED:
        return _whole_ledgers(topic_map, buckets)
    left: Counter[str] = Counter()
    wanted: list[CommittedSegment] = []
    for one in topic_map.segments:
        whole = one.method is OffloadMethod.LEDGER_BASED
        if whole is not (wish.target is Target.STREAMING):
            continue
        if wish.target is Target.MERGED and one.payload_bytes >= wish.small_bytes:
            continue
        if why := merging.obstacle(topic_map, one, buckets):
            left[why] += 1
        else:
            wanted.append(one)
    goals = merging.runs(topic_map, wanted, payload_bytes=wish.segment_bytes, ledgers=LEDGERS_MAX)
    if wish.target is Target.MERGED:
        if alone := sum(len(one.sources) == 1 for one in goals):
            left["it has no small neighbour"] = alone
        goals = [one for one in goals if len(one.sources) > 1]
    return ObjectPlan(goals=tuple(goals), left=left)


def _whole_ledgers(topic_map: TopicMap, buckets: Collection[str]) -> ObjectPlan:
    newest = topic_map.segments[-1].end.ledger_id
    left: Counter[str] = Counter()
    wanted: set[int] = set()
    for one in conversion.ledger_states(topic_map, buckets=buckets, to=newest - 1):
        if one.standing is Standing.CONVERTIBLE and one.ledger_id < newest:
            wanted.add(one.ledger_id)
        elif one.standing is not Standing.WHOLE:
            left[one.why or "it is the newest ledger of the tier"] += 1
    order = conversion.sequence(topic_map, wanted)
    goals = (goal_of(conversion.holders_of(topic_map, one), ledger_id=one) for one in order)
    return ObjectPlan(goals=tuple(goals), left=left)


TRIES_MAX = 3
"""Failures of one object after which its sources stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A topic's conversion: exchanged objects and payload bytes, and the totals to exchange."""

    topic: TopicName
    done: int
    goals: int
    bytes_done: int
    bytes_all: int
    writing: int
    failures: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class _Object(Item):
    """An object and the segments that it is made of."""

    goal: Goal
    done: bool = False


class TopicConversion(TopicJob[_Object, RewriteTask, Progress]):
    """One run of one topic's conversion."""

    NAME, COMMAND = "conversion", "convert"
    FAILED = ConversionFailed

    def __init__(
        self, context: OffloadContext, topic: TopicName, driver: Driver[RewriteTask, Progress], wish: Wish
    ) -> None:
        super().__init__(context, topic, driver)
        self._wish = wish
        self._objects: list[_Object] = []
        self._map = TopicMap(topic)
        self._trash_version = 0

    async def _check(self) -> None:
        self._goals(await self._load())

    def _goals(self, topic_map: TopicMap) -> tuple[Goal, ...]:
        return plan_objects(topic_map, self._wish, self._context.places.buckets).goals

    async def _load(self) -> TopicMap:
        return await until_answered(self._clock, lambda: catalog.load(self._context.metadata, self._topic))

    async def _reload(self) -> TopicMap:
        """Read the map, and the version of the folder by which the owner is notified of exchanges."""
        folder, store = paths.trash(self._topic), self._context.metadata

        async def version() -> int:
            found = await node(store, folder)
            if found is None:
                await store.create(folder, b"")
            return found.version if found is not None else 0

        self._trash_version = await until_answered(self._clock, version)
        self._map = await self._load()
        return self._map

    async def _work(self, claim: Claim) -> None:
        self._claim, self._head = claim, head_of(self._context, claim)
        self._objects = [_Object(goal=goal) for goal in self._goals(await self._reload())]
        await self._take_up()
        self._report()
        async with Group() as group:
            dispatching = group.create_task(self._dispatch(group), name=f"dispatch {self._topic}")
            for one in self._objects:
                while not (one.ready or one.error):
                    await self._changed.wait()
                if one.ready:
                    await self._exchange(one)
                self._report()
            await asyncio.wait([dispatching])

    async def _take_up(self) -> None:
        """Take over the attempts of earlier drivers that are still in the plan; the others go to the trash."""
        wanted = {(one.goal.begin, one.goal.whole): one for one in self._objects}
        async for attempts, found in attempts_of(self._context, self._claim, self._head):
            one = wanted.get((found.begin, found.ledger_id is not None))
            reason = reason_to_give_up(found, None, self._context)
            if one is None or one.recorded is not None or found.end not in {None, one.goal.end}:
                reason = reason or "its sources have changed, or the conversion has another target"
            if reason or one is None:
                await attempts.give_up(found, reason)
                continue
            one.recorded, one.again = (attempts, found), True
            one.ready = found.status is AttemptStatus.OFFLOADED
            log.info("conversion.resumed", topic=str(self._topic), begin=str(found.begin), ready=one.ready)

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        for one in self._objects:
            if not one.ready:
                await self._driver.slots.acquire()
                group.create_task(self._write(one), name=f"object of {self._topic} at {one.goal.begin}")

    async def _begin(self, item: _Object) -> None:
        failure_tracker = FailureTracker(self._topic, self._clock, lambda: None)
        try:
            old = await look_up(self._context, self._topic, item.goal, failure_tracker=failure_tracker)
            attempt = await old.new_attempt(self._claim.epoch, self._wish.policy)
        except Unreadable as error:
            item.error = str(error)
            return
        path = paths.history_job_attempt(self._topic, attempt.segment_id)
        attempts = attempt_log(self._context, self._claim, path, self._head)
        await attempts.begin(attempt)
        item.recorded = attempts, attempt

    def _task(self, item: _Object) -> RewriteTask:
        return RewriteTask(
            claim=self._claim,
            segment_id=item.attempt.segment_id,
            begin=item.goal.begin,
            end=item.goal.end,
            whole=item.goal.whole,
            again=item.again,
            patience_s=self._driver.patience_s,
        )

    def _note_failure(self, item: _Object, written: Written) -> None:
        log.warning("conversion.write_failed", topic=str(self._topic), begin=str(item.goal.begin), error=written.error)
        if item.tries >= TRIES_MAX:
            item.error = written.error or written.outcome.value

    async def _exchange(self, item: _Object) -> None:
        """Exchange an object for its sources, or give it up. Raises Fenced."""
        assert item.recorded is not None  # noqa: S101 - it is ready
        attempts, attempt = item.recorded
        try:
            upload, described = await stored(self._context, self._topic, attempt)
            made = await verified(upload, attempt, described)

            async def put() -> None:
                touched = Replace(paths.trash(self._topic), b"", self._trash_version)
                self._map = await attempts.exchange(self._map, made, [touched])
                self._trash_version += 1

            await exchange(put, self._reload, made.segment_id)
        except SegmentFailed as error:
            item.error = str(error)
            await self._give_up(item, item.error)
            return
        item.done = True
        log.info("conversion.exchanged", topic=str(self._topic), segment_id=str(made.segment_id), range=str(made.range))

    def _progress(self) -> Progress:
        return Progress(
            topic=self._topic,
            done=sum(one.done for one in self._objects),
            goals=len(self._objects),
            bytes_done=sum(one.goal.payload_bytes for one in self._objects if one.done),
            bytes_all=sum(one.goal.payload_bytes for one in self._objects),
            writing=sum(one.recorded is not None and not one.ready for one in self._objects),
            failures=tuple(f"{one.goal.range}: {one.error}" for one in self._objects if one.error),
        )


TOPICS_AT_A_TIME = 8
SLOTS_HERE = 2
"""Objects that are written at a time without Spark: one is read while another is proven."""
CHECKS_PER_OBJECT = 9
"""Requests that check the three objects, and read their tables back."""
PUTS_PER_OBJECT = 2
"""Requests beside the data object, for its index and its manifest."""
PUTS_PER_UPLOAD = 2
"""Requests beside the parts of an object of several: its upload is created and completed."""


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


async def wish_of(context: OffloadContext, book: PolicyResolver, topic: TopicName, options: Options) -> Wish:
    """Return the wish for a topic, by the options or else its policy. Raises Transient."""
    policy = RollPolicy.of(await book.of(topic))
    size = segment_bytes_for(options.segment_bytes or policy.segment_bytes_max, context.layout)
    return Wish(
        target=options.target,
        segment_bytes=size,
        small_bytes=options.small_bytes or -(-size // 2),
        policy=policy,
    )


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
    parts = [-(-one.payload_bytes // part_bytes) for one in found.goals]
    uploads = sum(count > 1 for count in parts)
    sources = {source.segment_id for one in found.goals for source in one.sources}
    return Plan(
        target=options.target,
        objects=found,
        segment_bytes=wish.segment_bytes,
        sources=len(sources),
        entries=sum(one.entries for one in found.goals),
        payload_bytes=size,
        puts=sum(parts) + PUTS_PER_UPLOAD * uploads + PUTS_PER_OBJECT * len(found.goals),
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
    """Rewrite topics' segments, by a session's executors or in this process. Raises InvalidConfig, Transient."""
    clock, share = SystemClock(), options.share
    rate = share.upload_bytes_per_s if session is None else 0
    async with AsyncExitStack() as stack:
        spark = stack.enter_context(SparkRunner(session, settings, share, name="convert")) if session else None
        opened = stores.open_context(settings, clock, upload_bytes_per_s=rate, rewriting=True)
        context, book = await stack.enter_async_context(opened)
        driver = Driver[RewriteTask, Progress](
            write=spark.run if spark else partial(rewrite_segment, context),
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

    Raises ConversionFailed while the history is not all offloaded: the attempts would be those of a backfill.
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
