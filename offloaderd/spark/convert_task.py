"""An executor's work: one object from its record to a copy that is proven to hold the same entries.

It exchanges nothing. When the proof is done it marks the attempt as offloaded, so that whoever drives the job, now or
after a crash, may exchange it for what it was made of. Every write checks the driver's claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.metadata import catalog
from offloaderd.objects.keys import ObjectKind
from offloaderd.offload.budget import until_answered
from offloaderd.offload.rewrite import RewriteFacts, SameEntries, look_up
from offloaderd.offload.signal import race
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed
from offloaderd.offload.writer import SegmentWriter
from offloaderd.spark.backfill_task import carried_out, out_of_patience
from offloaderd.spark.convert_job import goal_at
from offloaderd.spark.mark_stored import MarkStored

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

    async def write() -> None:
        old = await look_up(shop, topic, goal, troubles=troubles)
        feed = old.feed(attempt)
        proof = SameEntries(old, feed, attempt)
        committer = MarkStored(attempts, manifest=ObjectKind.MANIFEST, proof=proof)
        work = old.assignment(attempt, resumed=task.again, notes={"rewriting": True, "job": True})
        writer = SegmentWriter(shop, attempts, committer, troubles=troubles)
        await writer.run(work, feed, old.stop(), RewriteFacts(old, lambda: topic_map))

    await race(write(), out_of_patience(troubles, clock, task.patience_s))
    return goal.payload_bytes
