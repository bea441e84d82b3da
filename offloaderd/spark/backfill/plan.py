"""The plan of a backfill before the first write: whether a job can offload a history, its ranges, and their cost.

A plan that the topic's daemon left to a job is recorded already. A plan that the daemon carries out itself is taken
over. A topic whose ledgers are offloaded whole has no plan, since its daemon takes each ledger when it is due: a job
plans all of its closed ledgers before the newest, behind the offloaded ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from offloaderd.api.history import first_left
from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import NotFound, OffloaderError
from offloaderd.core.model import HistoryOrder, LedgerInfo, OffloadMethod, Position, TopicName
from offloaderd.format import v2
from offloaderd.history.boundaries import GUESSED_BYTES, Split, Splitter, segment_bytes_for
from offloaderd.history.plan import Left, brokers_have, extent_of, left_of
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import history, paths
from offloaderd.metadata.nodes import record
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.history import HistoryPlan, HistoryRange, RangeState, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.places import Place
from offloaderd.policy.cost import GIB, Requests
from offloaderd.policy.records import decode_policy
from offloaderd.policy.settings import Prices
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import listing_of_job
from offloaderd.spark.jobs.executors import Stores


class BackfillFailed(OffloaderError):
    """The backfill of a topic cannot continue by itself. Committed segments stay, begun ones can be resumed."""


class AlreadyDone(BackfillFailed):
    """All of a topic's history is offloaded or lost."""


class Origin(StrEnum):
    """The worker of a plan before a run begins."""

    JOB = "job"
    DAEMON = "daemon"
    """The topic's daemon, from which the run takes the history over."""
    NEW = "new"
    """None: there is no plan yet, and the ledgers are offloaded whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """How a topic's history is to be offloaded, by its policy; `segment_bytes` of payload to a segment."""

    segment_bytes: int
    place: Place
    method: OffloadMethod = OffloadMethod.STREAMING
    order: HistoryOrder = HistoryOrder.HISTORY_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """The plan of a run: the recorded one, or with origin NEW the one that would be recorded."""

    map: TopicMap
    plan: HistoryPlan
    origin: Origin


async def prospect(context: OffloadContext, topic: TopicName, aim: Aim) -> Prospect:
    """Return the plan of a run. Raises BackfillFailed, AlreadyDone, CorruptData, Transient."""
    topic_map = await enabled_map(context.metadata, topic)
    plan = topic_map.unfinished
    if plan is not None:
        origin = Origin.JOB if plan.worker is Worker.JOB else Origin.DAEMON
        return Prospect(map=topic_map, plan=plan, origin=origin)
    if aim.method is not OffloadMethod.LEDGER_BASED:
        plan_for_job(topic_map)
    return Prospect(map=topic_map, plan=await _whole_ledgers(context, topic_map, aim), origin=Origin.NEW)


async def enabled_map(store: MetadataStore, topic: TopicName) -> TopicMap:
    """Return the map of a topic that is offloaded. Raises BackfillFailed, CorruptData, Transient."""
    policy = await record(store, paths.policy(topic), decode_policy)
    if policy is None or not policy.active:
        raise BackfillFailed(
            f"{topic} is not enabled", hint=f"offloadctl topics enable {topic}: its daemon records what is history"
        )
    return await catalog.load(store, topic)


def plan_for_job(topic_map: TopicMap) -> HistoryPlan:
    """Return the plan of a history that a job works on. Raises BackfillFailed, AlreadyDone."""
    plan, topic = topic_map.history, topic_map.topic
    if plan is None:
        raise BackfillFailed(
            f"{topic} has no planned history",
            hint="nothing lay before its first segment, or less than history.daemon_bytes_max: then its daemon streams "
            "it in one row with what is new, and there is no boundary between the two; see offloadctl status",
        )
    if plan.done_ms:
        raise AlreadyDone(f"the history of {topic} is offloaded already", hint="nothing to do")
    if plan.worker is not Worker.JOB:
        raise BackfillFailed(
            f"the history of {topic} is being offloaded by its daemon",
            hint=f"wait for it (offloadctl history status {topic}), or take it over: offloadctl backfill run {topic}",
        )
    return plan


async def _whole_ledgers(context: OffloadContext, topic_map: TopicMap, aim: Aim) -> HistoryPlan:
    """Return the plan of all closed ledgers to offload, without the newest. Raises BackfillFailed, AlreadyDone."""
    topic = topic_map.topic
    infos = await _listed(context, topic_map)
    floor, standing = topic_map.floor, topic_map.offloaded
    if not topic_map.segments and floor is not None and _is_inside(floor, infos):
        raise BackfillFailed(
            f"retention has deleted all of {topic} up to {floor}, in the middle of a ledger",
            hint="its daemon continues there; run it again when that ledger is offloaded",
        )
    after = standing.ledger_id - _is_inside(standing, infos) if standing is not None else -1
    extent = extent_of(infos, after=after)
    if extent is None:
        raise AlreadyDone(
            f"all ledgers of {topic} before the newest are offloaded, or there are none", hint="nothing to do"
        )
    if await brokers_have(context, topic_map, extent, after):
        raise BackfillFailed(
            f"brokers have offloaded ledgers of {topic} themselves that are not part of it yet",
            hint="its daemon takes them over one by one; run it again when offloadctl segments shows them",
        )
    return HistoryPlan(
        boundary=extent.boundary,
        first=extent.begin.ledger_id,
        last=extent.last,
        order=aim.order,
        worker=Worker.JOB,
        planned_ms=context.upload_context.clock.wall_ms(),
        epoch=0,
        daemon_id="",
        entries=extent.entries,
        payload_bytes=extent.payload_bytes,
        method=OffloadMethod.LEDGER_BASED,
    )


async def _listed(context: OffloadContext, topic_map: TopicMap) -> Sequence[LedgerInfo]:
    """Return the source's ledgers of a topic. Raises BackfillFailed for a topic that the source does not know."""
    try:
        return await listing_of_job(context, topic_map)()
    except NotFound as error:
        raise BackfillFailed(
            f"the source has no {topic_map.topic}: it was deleted, or another source is configured"
        ) from error


def _is_inside(at: Position, infos: Sequence[LedgerInfo]) -> bool:
    """Return whether the source has later entries of a position's ledger."""
    return any(info.ledger_id == at.ledger_id and at.entry_id + 1 < info.entries for info in infos)


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
    infos = await _listed(stores.context, found.map)
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
    """Return a topic's aim, with `segment_bytes` or, for 0, its policy's size. Raises BackfillFailed, Transient."""
    policy, context = RollPolicy.of(await stores.book.of(topic)), stores.context
    if policy.method is OffloadMethod.NONE:
        raise BackfillFailed(
            f"the policy of {topic} has the method none", hint=f"offloadctl topics get-offload-policies {topic}"
        )
    size = segment_bytes_for(segment_bytes or policy.segment_bytes_max, context.layout)
    return Aim(
        segment_bytes=size, place=context.place_for(policy, topic), method=policy.method, order=policy.history_order
    )


def object_bytes_of(one: HistoryRange, layout: SegmentLayout) -> int:
    """Return the estimated length of a range's data object: entries are framed, blocks have headers and padding."""
    framed = one.payload_bytes + one.entries * ENTRY_OVERHEAD_BYTES
    blocks = -(-framed // layout.block_bytes)
    return framed + blocks * (v2.BLOCK_HEADER_BYTES + v2.PAD_BYTES_MIN)
