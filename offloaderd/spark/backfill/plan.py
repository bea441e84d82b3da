"""What a backfill would do and cost, before anything is written: segments, bytes, requests; what finding out took."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offloaderd.api.services.history import first_left
from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import NotFound
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.format.v2 import blocks as v2
from offloaderd.history.boundaries import Split, segment_bytes_for
from offloaderd.history.plan import Left, extent_of, left_of
from offloaderd.metadata import history
from offloaderd.metadata.records.history import HistoryPlan, HistoryRange, RangeState
from offloaderd.policy.cost import GIB, Prices, Requests
from offloaderd.segment.builders.builder import SegmentLayout
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import listing_of_job
from offloaderd.spark.backfill.eligible import Prospect, no_such_topic, prospect
from offloaderd.spark.backfill.split import split_history
from offloaderd.spark.jobs.job import Aim, BackfillFailed, Origin
from offloaderd.spark.jobs.stores import Stores

PUTS_PER_SEGMENT = 5
"""Beside the parts: the upload is created and completed, the index is put, the manifest twice."""

GETS_PER_SEGMENT = 8
"""Each object is looked at after it was stored, and once more before the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What is left to be done of one topic, and who would have done it. `split`: its boundaries are on record."""

    topic: TopicName
    ranges: Sequence[HistoryRange]
    entries: int
    payload_bytes: int
    segment_bytes: int
    layout: SegmentLayout
    probes: int
    boundaries: int
    seconds: float
    doubtful: int
    split: bool
    method: OffloadMethod
    origin: Origin

    @property
    def object_bytes(self) -> int:
        """About how many bytes the bucket is to hold."""
        return sum(object_bytes_of(one, self.layout) for one in self.ranges)

    @property
    def puts(self) -> int:
        """Requests that write."""
        parts = sum(-(-object_bytes_of(one, self.layout) // self.layout.part_bytes) for one in self.ranges)
        return parts + PUTS_PER_SEGMENT * len(self.ranges)

    @property
    def gets(self) -> int:
        """Requests that look whether what was written is there."""
        return GETS_PER_SEGMENT * len(self.ranges)

    def costs(self, prices: Prices) -> tuple[float, float]:
        """Return what the requests cost once, and the bytes a month."""
        once = prices.of(Requests(puts=self.puts, gets=self.gets))
        return once, self.object_bytes / GIB * prices.stored_gib_month


async def plan_topic(stores: Stores, topic: TopicName, segment_bytes: int = 0) -> TopicPlan:
    """Find what segments what is left of a topic's history makes. Raises BackfillFailed, AlreadyDone, Transient.

    `segment_bytes` is used instead of what the topic's policy says, unless its boundaries are on record.
    """
    context = stores.context
    aim = await aim_of(stores, topic, segment_bytes)
    found = await prospect(context, topic, aim)
    plan, left = found.plan, left_of(found.map)
    if found.origin is not Origin.NEW and plan.ranges and plan.method is aim.method:
        stored = await history.load(context.metadata, topic, plan.ranges)
        split, segment_bytes, recorded = _split_of(plan, stored.ranges), plan.segment_bytes, True
    else:
        split, segment_bytes, recorded = await _split(stores, found, aim), aim.segment_bytes, False
        entries = sum(one.entries for one in split.ranges)
        left = Left(entries, sum(one.payload_bytes for one in split.ranges))
    return TopicPlan(
        topic=topic,
        method=aim.method,
        origin=found.origin,
        ranges=split.ranges,
        layout=context.layout,
        entries=left.entries,
        payload_bytes=left.payload_bytes,
        segment_bytes=segment_bytes,
        probes=split.probes,
        boundaries=split.boundaries,
        seconds=split.seconds,
        doubtful=plan.doubtful_ledgers if recorded else len(split.doubts),
        split=recorded,
    )


def _split_of(plan: HistoryPlan, ranges: Sequence[HistoryRange]) -> Split:
    """Return what is on record, without what is done."""
    return Split(
        ranges=tuple(one for one in ranges if one.state is not RangeState.DONE),
        probes=plan.probes,
        boundaries=plan.ranges - 1,
        seconds=plan.split_ms / 1000,
    )


async def _split(stores: Stores, found: Prospect, aim: Aim) -> Split:
    """Split what is left. Raises BackfillFailed, Transient."""
    topic, plan, source = found.map.topic, found.plan, stores.source
    try:
        infos = await listing_of_job(stores.context, found.map)()
    except NotFound as error:
        raise no_such_topic(topic) from error
    extent = extent_of(infos, plan.boundary)
    begin = first_left(replace(found.map, history=plan), extent) if extent is not None else None
    if extent is None or begin is None:
        raise BackfillFailed(
            f"the source has nothing before ledger {plan.boundary} of {topic} any more",
            hint="offloadctl backfill run records that as a loss, and ends the history",
        )
    return await split_history(stores.context, source, topic, extent.infos, begin, extent.last, aim)


async def _policy(stores: Stores, topic: TopicName) -> RollPolicy:
    policy = RollPolicy.of(await stores.book.of(topic))
    if policy.method is OffloadMethod.NONE:
        raise BackfillFailed(
            f"the policy of {topic} has the method none", hint=f"offloadctl topics get-offload-policies {topic}"
        )
    return policy


async def aim_of(stores: Stores, topic: TopicName, asked_bytes: int) -> Aim:
    """Return how a topic's segments are made: as asked for, else by its policy. Raises BackfillFailed, Transient."""
    policy, context = await _policy(stores, topic), stores.context
    size = segment_bytes_for(asked_bytes or policy.segment_bytes_max, context.layout)
    return Aim(segment_bytes=size, place=context.place_for(policy), method=policy.method, order=policy.history_order)


def object_bytes_of(one: HistoryRange, layout: SegmentLayout) -> int:
    """Return about how long a range's data object is: entries are framed, blocks have headers and padding."""
    framed = one.payload_bytes + one.entries * ENTRY_OVERHEAD_BYTES
    blocks = -(-framed // layout.block_bytes)
    return framed + blocks * (v2.BLOCK_HEADER_BYTES + v2.PAD_BYTES_MIN)
