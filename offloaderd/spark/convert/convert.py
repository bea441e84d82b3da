"""Conversion of what is stored (V1 to V2 and back, small segments to larger ones): plan, run, status and cancel.

    async with open_context(settings, clock, rewriting=True) as (context, book):
        ended = await run(context, book, [topic], options, driver)

A run may be broken off at any time, by whatever: the next one goes on. Executors are this process or Spark's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from offloaderd.core.aio.each import each
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.history.boundaries import segment_bytes_for
from offloaderd.history.rewriting.rewrite import cut_of
from offloaderd.history.rewriting.stored_feed import PIECE_BYTES
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.store import enabled_topics
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.roll import RollPolicy
from offloaderd.spark.convert.topic import TopicConversion
from offloaderd.spark.jobs.attempts import attempts_of
from offloaderd.spark.jobs.job import PATIENCE_S, Written
from offloaderd.spark.jobs.lease import claimed
from offloaderd.spark.jobs.rewrite_job import (
    ConversionFailed,
    Driver,
    Outlook,
    Progress,
    RewriteTask,
    Target,
    Wish,
    outlook,
)
from offloaderd.spark.jobs.rewrite_task import rewrite_segment
from offloaderd.spark.jobs.stores import Share

TOPICS_AT_A_TIME = 8
SLOTS_HERE = 2
"""Objects that are written at a time without Spark: one is read while another is proven."""
LOOKS_PER_OBJECT = 9
"""Requests that look whether the three objects are there, and read their tables back."""
PUTS_PER_OBJECT = 4
"""Beside the parts: the upload is created and completed, index and manifest are put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a conversion is run. Sizes of 0: by each topic's policy, and half of it for what counts as small."""

    target: Target
    segment_bytes: int = 0
    small_bytes: int = 0
    share: Share = field(default_factory=Share)
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do: how many segments and bytes become how many objects, with about so many requests."""

    target: Target
    outlook: Outlook
    segment_bytes: int
    sources: int
    entries: int
    payload_bytes: int
    puts: int
    gets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of one topic: how it ended, or why it did not."""

    topic: TopicName
    progress: Progress | None = None
    error: OffloaderError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a topic's segments are now. `begun` objects are written, or being written, and not exchanged."""

    topic: TopicName
    driver: str
    ledgers: int
    segments: int
    payload_bytes: int
    begun: int
    trash: int


class LocalRunner:
    """Carries tasks out in this process."""

    def __init__(self, context: OffloadContext) -> None:
        self._context = context

    async def run(self, task: RewriteTask) -> Written:
        """Have an object written; see Runner."""
        return await rewrite_segment(self._context, task)


async def wish_of(context: OffloadContext, book: PolicyResolver, topic: TopicName, options: Options) -> Wish:
    """Return what is to be made of a topic's segments. Raises Transient."""
    policy = RollPolicy.of(await book.of(topic))
    size = segment_bytes_for(options.segment_bytes or policy.segment_bytes_max, context.layout)
    return Wish(target=options.target, segment_bytes=size, small_bytes=options.small_bytes or -(-size // 2))


async def plan(
    context: OffloadContext, book: PolicyResolver, topics: Sequence[TopicName], options: Options
) -> list[tuple[TopicName, Plan | OffloaderError]]:
    """Say what would be done of each topic, or why nothing. Raises Transient."""

    async def one(topic: TopicName) -> tuple[TopicName, Plan | OffloaderError]:
        try:
            return topic, await _plan(context, book, topic, options)
        except OffloaderError as error:
            return topic, error

    return await each(topics, one, in_flight_max=TOPICS_AT_A_TIME)


async def _plan(context: OffloadContext, book: PolicyResolver, topic: TopicName, options: Options) -> Plan:
    wish = await wish_of(context, book, topic, options)
    topic_map = await catalog.load(context.metadata, topic)
    found = outlook(topic_map, wish, context.places.buckets)
    size = sum(one.payload_bytes for one in found.goals)
    part_bytes = cut_of(context).part_bytes if options.target is Target.LEDGER_BASED else context.layout.part_bytes
    pieces = sum(-(-one.payload_bytes // min(PIECE_BYTES, part_bytes)) for one in found.goals)
    parts = sum(-(-one.payload_bytes // part_bytes) for one in found.goals)
    sources = {source.segment_id for one in found.goals for source in one.sources}
    return Plan(
        target=options.target,
        outlook=found,
        segment_bytes=wish.segment_bytes,
        sources=len(sources),
        entries=sum(one.entries for one in found.goals),
        payload_bytes=size,
        puts=parts + PUTS_PER_OBJECT * len(found.goals),
        gets=2 * pieces + len(sources) + LOOKS_PER_OBJECT * len(found.goals),
    )


async def run(
    context: OffloadContext, book: PolicyResolver, topics: Sequence[TopicName], options: Options, driver: Driver
) -> list[Ended]:
    """Rewrite topics' segments; one topic that fails does not end the others."""

    async def one(topic: TopicName) -> Ended:
        try:
            wish = await wish_of(context, book, topic, options)
            return Ended(topic=topic, progress=await TopicConversion(context, topic, driver, wish).run())
        except OffloaderError as error:
            return Ended(topic=topic, error=error)

    return await each(topics, one, in_flight_max=TOPICS_AT_A_TIME)


async def named(
    store: MetadataStore, topics: Sequence[TopicName], namespaces: Sequence[tuple[str, str]]
) -> list[TopicName]:
    """Return the topics by name, and all enabled ones of namespaces with segments. Raises Transient."""
    known = await enabled_topics(store) if namespaces else []
    known = [one for one in known if (one.tenant, one.namespace) in namespaces]
    held = await each(known, lambda one: store.children(paths.ledgers(one)))
    return list(dict.fromkeys([*topics, *(one for one, ledgers in zip(known, held, strict=True) if ledgers)]))


async def status(store: MetadataStore, topic: TopicName) -> Status:
    """Say what a topic's segments are. Raises CorruptData, Transient."""
    topic_map = await catalog.load(store, topic)
    held = await node(store, paths.history_holder(topic))
    whole = [one for one in topic_map.segments if one.method is OffloadMethod.LEDGER_BASED]
    return Status(
        topic=topic,
        driver=held.value.decode(errors="replace") if held is not None else "",
        ledgers=len(whole),
        segments=len(topic_map.segments) - len(whole),
        payload_bytes=sum(one.payload_bytes for one in topic_map.segments),
        begun=0 if topic_map.unfinished is not None else len(await store.children(paths.history_attempts(topic))),
        trash=len(await store.children(paths.trash(topic))),
    )


async def cancel(context: OffloadContext, topic: TopicName) -> int:
    """Depose whoever converts a topic; what was begun goes to the trash. Returns how much that is.

    Raises ConversionFailed while a backfill is not done, whose segments these would be.
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
