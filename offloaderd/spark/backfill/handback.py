"""Hand-back of the rest of a history from a job to the topic's daemon: the reverse of `takeover.py`.

A job writes many segments at a time and a daemon one after the other, so attempts are not handed over: stored segments
that come next are committed, the others go to the trash, and the daemon writes them again. If the source has deleted
their entries, the history stays with the job, whose next run commits them. One write of the plan, under the driver's
claim, names the daemon as its worker. The topic's owner follows the plan and its ranges, whole ledgers where the job
has split it so.
"""

from dataclasses import dataclass

import structlog

from offloaderd.core.model import Loss, OffloadMethod, TopicName
from offloaderd.history.plan import Left, left_of
from offloaderd.ledgers.chain import Run
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.backfill.eligible import BackfillFailed, enabled_map, plan_for_job
from offloaderd.spark.backfill.plan import aim_of
from offloaderd.spark.backfill.record import JobRecord
from offloaderd.spark.jobs.job import PATIENCE_S
from offloaderd.spark.jobs.lease import claimed
from offloaderd.spark.jobs.stores import Stores
from offloaderd.upkeep.gc.abandoned import only_here

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedBack:
    """A history that was handed back: segments committed, attempts discarded, and the rest for the daemon."""

    method: OffloadMethod
    committed: int
    discarded: int
    left: Left


async def hand_back(stores: Stores, topic: TopicName) -> HandedBack:
    """Depose the driver of a topic's backfill, and leave the rest of history to the topic's daemon.

    Raises BackfillFailed for a history that is not a job's, and for one with entries that are only in the bucket and
    cannot be committed yet; AlreadyDone, CorruptData, Conflict, HistoryGap.
    """
    context, clock = stores.context, stores.context.upload_context.clock
    plan_for_job(await enabled_map(context.metadata, topic))
    aim = await aim_of(stores, topic, 0)
    me = f"hand-back-{clock.uuid().hex[:8]}"
    async with claimed(context.metadata, topic, me, clock, depose=True) as claim:
        record = await JobRecord.open(context, stores.source, claim, me=me, patience_s=PATIENCE_S)
        await record.split(aim)
        begun = [one async for one in record.earlier_attempts()]
        rest = [
            (attempts, attempt)
            for attempts, attempt in sorted(begun, key=lambda one: one[1].begin)
            if not await _commit_next(record, attempts, attempt)
        ]
        for _, attempt in rest:
            await _check_at_source(stores, record, attempt)
        for attempts, attempt in rest:
            await record.give_up(attempt, attempts, "the history was given back to the topic's daemon")
        committed = len(begun) - len(rest)
        if record.next_after(record.standing) is None:
            await record.finish()
        else:
            await record.hand_back()
    left = left_of(record.history.map)
    log.info("backfill.handed_back", topic=str(topic), entries_left=left.entries, committed=committed)
    return HandedBack(method=record.plan.method, committed=committed, discarded=len(rest), left=left)


async def _check_at_source(stores: Stores, record: JobRecord, attempt: Attempt) -> None:
    """Raise BackfillFailed for a segment with stored entries that the topic's daemon could not write again.

    A job resumes an attempt that is stored in part, and ends it where the source has no more.
    """
    whole = attempt.status is AttemptStatus.OFFLOADED
    if not (whole or attempt.parts):
        return
    if why := await only_here(stores.source, record.claim.topic, attempt):
        raise BackfillFailed(
            f"segment {attempt.segment_id} from {attempt.begin} on is {'whole' if whole else 'in part'} in the bucket, "
            f"and {why}; {'what lies before it is not offloaded yet' if whole else 'it is not committed yet'}",
            hint="run the backfill again, which writes what lies before it and commits it; then give back what is left",
        )


async def _commit_next(record: JobRecord, attempts: AttemptLog, attempt: Attempt) -> bool:
    """Commit a stored segment that comes next, also behind a loss; return whether it was committed.

    Raises Fenced, HistoryGap.
    """
    if attempt.status is not AttemptStatus.OFFLOADED:
        return False
    step = record.next_after(record.standing)
    if isinstance(step, Loss) and step.before <= attempt.begin:
        await record.refresh()
        step = record.next_after(record.standing)
        if isinstance(step, Loss) and step.before <= attempt.begin:
            await record.record_loss(step)
            step = record.next_after(record.standing)
    if not isinstance(step, Run) or step.first != attempt.begin:
        return False
    try:
        await record.commit(attempt, attempts)
    except SegmentFailed:
        return False
    return True
