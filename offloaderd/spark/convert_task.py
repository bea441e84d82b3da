"""An executor's work: one object from its record to a copy that is proven to hold the same entries.

It exchanges nothing. When the proof is done it marks the attempt as offloaded, so that whoever drives the job, now or
after a crash, may exchange it for what it was made of. Every write checks the driver's claim.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.metadata import catalog
from offloaderd.metadata.records.attempt import AttemptStatus
from offloaderd.offload.budget import until_answered
from offloaderd.offload.rewriting import Rewriting
from offloaderd.offload.rollback_read import Unreadable
from offloaderd.offload.signal import race
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed
from offloaderd.spark.backfill_task import carried_out, out_of_patience
from offloaderd.spark.convert_job import goal_at

if TYPE_CHECKING:
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.offload.commit import AttemptLog
    from offloaderd.offload.workshop import Workshop
    from offloaderd.spark.backfill_job import Written
    from offloaderd.spark.convert_job import RewriteTask


async def rewrite_segment(shop: Workshop, task: RewriteTask) -> Written:
    """Write an object and prove it; every outcome that can be told is returned, none of our errors raised."""
    return await carried_out(shop, task, lambda attempts, attempt: _rewrite(shop, task, attempts, attempt))


async def _rewrite(shop: Workshop, task: RewriteTask, attempts: AttemptLog, attempt: Attempt) -> int:
    """Bring the attempt to its end; returns its payload bytes. Raises SegmentFailed, Fenced, Transient."""
    clock, topic = shop.uplink.clock, task.claim.topic
    topic_map = await until_answered(clock, lambda: catalog.load(shop.metadata, topic))
    goal = goal_at(topic_map, task)
    if goal is None:
        raise SegmentFailed(f"{topic} does not hold {task.begin} to {task.end} as it did")
    troubles = Troubles(topic, clock, lambda: None)
    work = Rewriting(shop, attempts, lambda: topic_map, goal, troubles=troubles)
    segment = work.segment(attempt, continued=task.again)

    async def store() -> None:
        await work.open()
        await work.store(segment)
        await attempts.update(replace(segment.attempt, status=AttemptStatus.OFFLOADED, parts=()))

    try:
        with segment.trace as trace:
            trace.say(rewriting=True, job=True)
            await race(store(), out_of_patience(troubles, clock, task.patience_s))
    except Unreadable as error:
        raise SegmentFailed(str(error)) from error
    return goal.payload_bytes
