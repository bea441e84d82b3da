"""An executor's work: one object from its record to a copy that is proven to hold the same entries.

It exchanges nothing. When the proof is done it marks the attempt as offloaded, so that whoever drives the job, now or
after a crash, may exchange it for what it was made of. Every write checks the driver's claim.
"""

from offloaderd.core.aio.signal import race
from offloaderd.core.retry import until_answered
from offloaderd.history.rewriting.rewrite import RewriteFacts, SameEntries, look_up
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter
from offloaderd.spark.jobs.job import Written
from offloaderd.spark.jobs.mark_stored import MarkStored
from offloaderd.spark.jobs.rewrite_job import RewriteTask, goal_at
from offloaderd.spark.jobs.write_task import carried_out, out_of_patience


async def rewrite_segment(context: OffloadContext, task: RewriteTask) -> Written:
    """Write an object and prove it; every outcome that can be told is returned, none of our errors raised."""
    return await carried_out(context, task, lambda attempts, attempt: _rewrite(context, task, attempts, attempt))


async def _rewrite(context: OffloadContext, task: RewriteTask, attempts: AttemptLog, attempt: Attempt) -> int:
    """Bring the attempt to its end; returns its payload bytes. Raises SegmentFailed, Fenced, Transient."""
    clock, topic = context.upload_context.clock, task.claim.topic
    topic_map = await until_answered(clock, lambda: catalog.load(context.metadata, topic))
    goal = goal_at(topic_map, task)
    if goal is None:
        raise SegmentFailed(f"{topic} does not hold {task.begin} to {task.end} as it did")
    failure_tracker = FailureTracker(topic, clock, lambda: None)

    async def write() -> None:
        old = await look_up(context, topic, goal, failure_tracker=failure_tracker)
        feed = old.feed(attempt)
        proof = SameEntries(old, feed, attempt)
        committer = MarkStored(attempts, manifest=ObjectKind.MANIFEST, proof=proof)
        work = old.assignment(attempt, resumed=task.again, notes={"rewriting": True, "job": True})
        writer = SegmentWriter(context, attempts, committer, failure_tracker=failure_tracker)
        await writer.run(work, feed, old.stop(), RewriteFacts(old, lambda: topic_map))

    await race(write(), out_of_patience(failure_tracker, clock, task.patience_s))
    return goal.payload_bytes
