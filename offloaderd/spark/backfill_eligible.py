"""Whether a topic's history is a job's to offload, and if not, why; looked at before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.metadata import catalog, paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.records import policy as policy_record
from offloaderd.metadata.records.history import Worker
from offloaderd.spark.backfill_job import AlreadyDone, BackfillFailed

if TYPE_CHECKING:
    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.records.history import HistoryPlan
    from offloaderd.model import TopicName


async def eligible(store: MetadataStore, topic: TopicName) -> TopicMap:
    """Return the map of a topic with history for a job. Raises BackfillFailed, AlreadyDone, CorruptData, Transient."""
    path = paths.policy(topic)
    known = await node(store, path)
    if known is None or not policy_record.decode(known.value, path=path).active:
        raise BackfillFailed(
            f"{topic} is not enabled",
            hint=f"offloadctl topics enable {topic}: its daemon records what is history",
        )
    topic_map = await catalog.load(store, topic)
    plan_for_job(topic_map)
    return topic_map


def plan_for_job(topic_map: TopicMap) -> HistoryPlan:
    """Return the plan of a history that is a job's to offload. Raises BackfillFailed, AlreadyDone."""
    plan, topic = topic_map.history, topic_map.topic
    if plan is None:
        raise BackfillFailed(
            f"{topic} has no planned history",
            hint="a topic that had none when it was enabled, or less than history.daemon_bytes_max, needs no job; "
            "nor does one whose method is ledger-based: its daemon takes closed ledgers one by one",
        )
    if plan.done_ms:
        raise AlreadyDone(f"the history of {topic} is offloaded already", hint="nothing to do")
    if plan.worker is not Worker.JOB:
        raise BackfillFailed(
            f"the history of {topic} is being offloaded by its daemon",
            hint=f"wait for it: offloadctl history status {topic}",
        )
    return plan
