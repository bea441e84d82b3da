"""What a backfill would do and cost, before anything is written: segments, bytes, requests; what finding out took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.errors import NotFound
from offloaderd.format import v2
from offloaderd.format.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.metadata import history
from offloaderd.metadata.records.history import RangeState
from offloaderd.model import OffloadMethod
from offloaderd.offload.boundaries import Splitter, segment_bytes_for
from offloaderd.offload.history import extent_of, left_of
from offloaderd.offload.roll import RollPolicy
from offloaderd.policy.cost import GIB, Requests
from offloaderd.rpc.history import first_left
from offloaderd.spark.backfill_eligible import eligible, plan_for_job
from offloaderd.spark.backfill_job import Aim, BackfillFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.records.history import HistoryRange
    from offloaderd.model import TopicName
    from offloaderd.offload.segment import SegmentLayout
    from offloaderd.policy.cost import Prices
    from offloaderd.spark.backfill_stores import Stores

PUTS_PER_SEGMENT = 5
"""Beside the parts: the upload is created and completed, the index is put, the manifest twice."""

GETS_PER_SEGMENT = 8
"""Each object is looked at after it was stored, and once more before the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What is left to be done of one topic. `split` says that its boundaries are on record already."""

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
    """Find the boundaries of what is left of a topic's history. Raises BackfillFailed, AlreadyDone, Transient.

    `segment_bytes` is used instead of what the topic's policy says, unless its boundaries are on record.
    """
    shop, source = stores.shop, stores.source
    topic_map = await eligible(shop.metadata, topic)
    plan = plan_for_job(topic_map)
    if plan.ranges:
        stored = await history.load(shop.metadata, topic, plan.ranges)
        left = left_of(topic_map)
        return TopicPlan(
            topic=topic,
            ranges=[one for one in stored.ranges if one.state is not RangeState.DONE],
            layout=shop.layout,
            entries=left.entries,
            payload_bytes=left.payload_bytes,
            segment_bytes=plan.segment_bytes,
            probes=plan.probes,
            boundaries=plan.ranges - 1,
            seconds=plan.split_ms / 1000,
            doubtful=plan.doubtful_ledgers,
            split=True,
        )
    wanted = (await aim_of(stores, topic, segment_bytes)).segment_bytes
    try:
        extent = extent_of(await source.ledgers(topic), plan.boundary)
    except NotFound as error:
        raise BackfillFailed(f"the source has no {topic}: it was deleted, or another source is configured") from error
    begin = first_left(topic_map, extent) if extent is not None else None
    if extent is None or begin is None:
        raise BackfillFailed(
            f"the source has nothing before ledger {plan.boundary} of {topic} any more",
            hint="offloadctl backfill run records that as a loss, and ends the history",
        )
    clock, metrics = shop.uplink.clock, shop.uplink.metrics
    splitter = Splitter(source, topic, segment_bytes=wanted, clock=clock, metrics=metrics)
    split = await splitter.split(extent.infos, begin, extent.last)
    return TopicPlan(
        topic=topic,
        ranges=split.ranges,
        layout=shop.layout,
        entries=sum(one.entries for one in split.ranges),
        payload_bytes=sum(one.payload_bytes for one in split.ranges),
        segment_bytes=wanted,
        probes=split.probes,
        boundaries=split.boundaries,
        seconds=split.seconds,
        doubtful=len(split.doubts),
        split=False,
    )


async def _policy(stores: Stores, topic: TopicName) -> RollPolicy:
    policy = RollPolicy.of(await stores.book.of(topic))
    if policy.method is OffloadMethod.NONE:
        raise BackfillFailed(
            f"the policy of {topic} has the method none", hint=f"offloadctl topics get-offload-policies {topic}"
        )
    return policy


async def aim_of(stores: Stores, topic: TopicName, asked_bytes: int) -> Aim:
    """Return how a topic's segments are made: as asked for, else by its policy. Raises BackfillFailed, Transient."""
    policy, shop = await _policy(stores, topic), stores.shop
    size = segment_bytes_for(asked_bytes or policy.segment_bytes_max, shop.layout)
    return Aim(segment_bytes=size, place=shop.place_for(policy))


def object_bytes_of(one: HistoryRange, layout: SegmentLayout) -> int:
    """Return about how long a range's data object is: entries are framed, blocks have headers and padding."""
    framed = one.payload_bytes + one.entries * ENTRY_OVERHEAD_BYTES
    blocks = -(-framed // layout.block_bytes)
    return framed + blocks * (v2.BLOCK_HEADER_BYTES + v2.PAD_BYTES_MIN)
