"""The check whether a job can offload a topic's history, made before the first write.

A plan that the topic's daemon left to a job is recorded already. A plan that the daemon carries out itself is taken
over. A topic whose ledgers are offloaded whole has no plan, since its daemon takes each ledger when it is due: a job
plans all of its closed ledgers before the newest, behind the offloaded ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import NotFound, OffloaderError
from offloaderd.core.model import HistoryOrder, LedgerInfo, OffloadMethod, Position, TopicName
from offloaderd.history.plan import brokers_have, extent_of
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import record
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.places import Place
from offloaderd.policy.records import decode_policy
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.source_check import listing_of_job


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
            f"{topic} is not enabled",
            hint=f"offloadctl topics enable {topic}: its daemon records what is history",
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
    """Return the plan of all closed ledgers that are not offloaded, without the newest of the topic.

    Raises BackfillFailed, AlreadyDone.
    """
    topic = topic_map.topic
    try:
        infos = await listing_of_job(context, topic_map)()
    except NotFound as error:
        raise no_such_topic(topic) from error
    floor, standing = topic_map.floor, topic_map.offloaded
    if not topic_map.segments and floor is not None and _is_inside(floor, infos):
        raise BackfillFailed(
            f"retention has deleted all of {topic} up to {floor}, in the middle of a ledger",
            hint="its daemon goes on there; run it again when that ledger is offloaded",
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


def no_such_topic(topic: TopicName) -> BackfillFailed:
    """Return the error for a topic that the source does not know."""
    return BackfillFailed(f"the source has no {topic}: it was deleted, or another source is configured")


def _is_inside(at: Position, infos: Sequence[LedgerInfo]) -> bool:
    """Return whether the source has later entries of a position's ledger."""
    return any(info.ledger_id == at.ledger_id and at.entry_id + 1 < info.entries for info in infos)
