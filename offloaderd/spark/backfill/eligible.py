"""Whether a topic's history is a job's to offload, and if not, why; looked at before anything is written.

A plan that the topic's daemon left to a job is there already. One that the daemon carries out itself is taken over. A
topic whose ledgers go as a whole has no plan, since its daemon takes them one by one as they become due: a job plans
all of its closed ledgers before the newest, behind what is offloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.core.errors import NotFound
from offloaderd.core.model import LedgerInfo, OffloadMethod, TopicName
from offloaderd.history.plan import brokers_have, extent_of
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import record
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.records import topic as policy_record
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.source_check import listing_of_job
from offloaderd.spark.jobs.job import Aim, AlreadyDone, BackfillFailed, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What a run would work on: the plan as it is recorded, or of a NEW one as it would be."""

    map: TopicMap
    plan: HistoryPlan
    origin: Origin


async def prospect(context: OffloadContext, topic: TopicName, aim: Aim) -> Prospect:
    """Say what a run would work on. Raises BackfillFailed, AlreadyDone, CorruptData, Transient."""
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
    policy = await record(store, paths.policy(topic), policy_record.decode)
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
    if not topic_map.segments and floor is not None and _is_inside(floor.entry_id, floor.ledger_id, infos):
        raise BackfillFailed(
            f"retention has deleted all of {topic} up to {floor}, in the middle of a ledger",
            hint="its daemon goes on there; run it again when that ledger is offloaded",
        )
    after = -1
    if standing is not None:
        after = standing.ledger_id - _is_inside(standing.entry_id, standing.ledger_id, infos)
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


def _is_inside(entry_id: int, ledger_id: int, infos: Sequence[LedgerInfo]) -> bool:
    """Say whether the source has more of a ledger behind an entry."""
    return any(info.ledger_id == ledger_id and entry_id + 1 < info.entries for info in infos)
