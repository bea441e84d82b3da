"""The plan of a backfill before the first write: the ranges of history, and their cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offloaderd.api.history import first_left
from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import NotFound
from offloaderd.core.model import LedgerInfo, OffloadMethod, Position, TopicName
from offloaderd.format.v2 import blocks as v2
from offloaderd.history.boundaries import GUESSED_BYTES, Split, Splitter, segment_bytes_for
from offloaderd.history.plan import Left, extent_of, left_of
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import history
from offloaderd.metadata.records.history import HistoryRange, RangeState
from offloaderd.policy.cost import GIB, Requests
from offloaderd.policy.settings import Prices
from offloaderd.segment.builders.builder import SegmentLayout
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import listing_of_job
from offloaderd.spark.backfill.eligible import Aim, BackfillFailed, Origin, Prospect, no_such_topic, prospect
from offloaderd.spark.jobs.stores import Stores

PUTS_PER_SEGMENT = 5
"""Requests beside the parts: the upload is created and completed, the index is put once, the manifest twice."""

GETS_PER_SEGMENT = 8
"""Each object is checked after it was stored, and once more before the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The rest of one topic's history, and its planned worker. `split`: its boundaries are recorded."""

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
        """Bytes of objects, estimated."""
        return sum(object_bytes_of(one, self.layout) for one in self.ranges)

    @property
    def puts(self) -> int:
        """Requests that write."""
        parts = sum(-(-object_bytes_of(one, self.layout) // self.layout.part_bytes) for one in self.ranges)
        return parts + PUTS_PER_SEGMENT * len(self.ranges)

    @property
    def gets(self) -> int:
        """Requests that check written objects."""
        return GETS_PER_SEGMENT * len(self.ranges)

    def costs(self, prices: Prices) -> tuple[float, float]:
        """Return the price of the requests, and that of the bytes for a month."""
        once = Requests(puts=self.puts, gets=self.gets).price(prices)
        return once, self.object_bytes / GIB * prices.stored_gib_month


async def plan_topic(stores: Stores, topic: TopicName, segment_bytes: int = 0) -> TopicPlan:
    """Return the segments that the rest of a topic's history makes. Raises BackfillFailed, AlreadyDone, Transient.

    `segment_bytes` takes precedence over the topic's policy, unless the boundaries are recorded.
    """
    context = stores.context
    aim = await aim_of(stores, topic, segment_bytes)
    found = await prospect(context, topic, aim)
    plan, left = found.plan, left_of(found.map)
    if found.origin is not Origin.NEW and plan.ranges and plan.method is aim.method:
        stored = await history.load(context.metadata, topic, plan.ranges)
        split = Split(
            ranges=tuple(one for one in stored.ranges if one.state is not RangeState.DONE),
            probes=plan.probes,
            boundaries=plan.ranges - 1,
            seconds=plan.split_ms / 1000,
        )
        segment_bytes, recorded = plan.segment_bytes, True
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


async def _split(stores: Stores, found: Prospect, aim: Aim) -> Split:
    """Split the rest of a history. Raises BackfillFailed, Transient."""
    topic, plan = found.map.topic, found.plan
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
    return await split_history(stores.context, stores.source, topic, extent.infos, begin, extent.last, aim)


async def split_history(
    context: OffloadContext,
    source: LedgerSource,
    topic: TopicName,
    infos: Sequence[LedgerInfo],
    begin: Position,
    last: Position,
    aim: Aim,
) -> Split:
    """Split the entries from `begin` to `last` into ranges; `infos` has the ledgers between. Raises Transient.

    The rest of a ledger that was offloaded in part becomes streaming segments under any method: an object of PIP-17
    holds whole ledgers only.
    """
    clock, metrics = context.upload_context.clock, context.upload_context.metrics
    splitter = Splitter(source, topic, segment_bytes=aim.segment_bytes, clock=clock, metrics=metrics)
    if aim.method is not OffloadMethod.LEDGER_BASED:
        return await splitter.split(infos, begin, last)
    head, whole = Split(ranges=()), [info for info in infos if begin.ledger_id <= info.ledger_id and info.entries]
    if begin.entry_id and whole and whole[0].ledger_id == begin.ledger_id:
        rest, whole = whole[:1], whole[1:]
        head = await splitter.split(rest, begin, Position(begin.ledger_id, rest[0].entries - 1))
    ranges = [_range(info) for info in whole if info.ledger_id <= last.ledger_id]
    return replace(head, ranges=(*head.ranges, *ranges))


def _range(info: LedgerInfo) -> HistoryRange:
    return HistoryRange(
        begin=Position(info.ledger_id, 0),
        end=Position(info.ledger_id, info.entries - 1),
        entries=info.entries,
        payload_bytes=max(info.size_bytes, 0) or info.entries * GUESSED_BYTES,
    )


async def aim_of(stores: Stores, topic: TopicName, segment_bytes: int) -> Aim:
    """Return the aim for a topic, with `segment_bytes` or, if that is 0, its policy's size.

    Raises BackfillFailed, Transient.
    """
    policy, context = RollPolicy.of(await stores.book.of(topic)), stores.context
    if policy.method is OffloadMethod.NONE:
        raise BackfillFailed(
            f"the policy of {topic} has the method none", hint=f"offloadctl topics get-offload-policies {topic}"
        )
    size = segment_bytes_for(segment_bytes or policy.segment_bytes_max, context.layout)
    return Aim(segment_bytes=size, place=context.place_for(policy), method=policy.method, order=policy.history_order)


def object_bytes_of(one: HistoryRange, layout: SegmentLayout) -> int:
    """Return the estimated length of a range's data object: entries are framed, blocks have headers and padding."""
    framed = one.payload_bytes + one.entries * ENTRY_OVERHEAD_BYTES
    blocks = -(-framed // layout.block_bytes)
    return framed + blocks * (v2.BLOCK_HEADER_BYTES + v2.PAD_BYTES_MIN)
