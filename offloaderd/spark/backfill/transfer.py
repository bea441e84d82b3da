"""Takeover of a history from the topic's daemon by a job, and the hand-back of its rest to the daemon.

A takeover is one transaction under the driver's claim. If the daemon carries out a plan, the plan names the job as its
worker from then on; each record of the daemon checks the plan's version. Without a plan, the owner of the topic might
begin with any ledger: the transaction that records the plan also ends its claim, as another owner would, and the next
owner begins behind the boundary. An attempt that the daemon has begun moves to those of the job, which resumes the same
upload: the parts that the daemon may still send are the same as the job's.

A job writes many segments at a time and a daemon one after the other, so a hand-back gives no attempts: stored segments
that come next are committed, the others go to the trash, and the daemon writes them again. If the source has deleted
their entries, the history stays with the job, whose next run commits them. One write of the plan, under the driver's
claim, names the daemon as its worker. The topic's owner follows the plan and its ranges, whole ledgers where the job
has split it so.
"""

from dataclasses import dataclass, replace
from functools import partial

import structlog

from offloaderd.core.errors import Conflict, Fenced, NotFound, Transient
from offloaderd.core.model import Loss, OffloadMethod, Position, TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.history.plan import Left, left_of
from offloaderd.ledgers.chain import Run
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Create, Delete, Replace, Step
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.history import Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.store import ensure
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import SegmentFailed
from offloaderd.spark.backfill.plan import (
    Aim,
    BackfillFailed,
    Origin,
    Prospect,
    aim_of,
    enabled_map,
    plan_for_job,
    prospect,
)
from offloaderd.spark.backfill.record import JobRecord, with_hold
from offloaderd.spark.jobs.executors import Stores
from offloaderd.spark.jobs.lease import claimed
from offloaderd.spark.jobs.task import PATIENCE_S
from offloaderd.upkeep.gc.abandoned import only_here

log = structlog.get_logger(__name__)

TRIES = 20
"""Tries while the daemon notes its progress in the attempt that is to be moved."""


async def take_up(context: OffloadContext, claim: Claim, aim: Aim, *, me: str) -> None:
    """Make a topic's history this job's, if it is not. Raises Fenced, BackfillFailed, AlreadyDone, Transient."""
    backoff = Backoff(context.upload_context.clock)
    for _ in range(TRIES):
        found = await until_answered(context.upload_context.clock, lambda: prospect(context, claim.topic, aim))
        if found.origin is Origin.JOB:
            return
        try:
            await _take(context, claim, found, me)
        except Fenced:
            raise
        except (Conflict, NotFound) as error:
            await backoff.wait(error)
            continue
        plan = found.plan
        log.info("backfill.history_taken", topic=str(claim.topic), origin=str(found.origin), last=str(plan.last))
        return
    raise Transient(f"the history of {claim.topic} changes faster than it can be taken over")


async def _take(context: OffloadContext, claim: Claim, found: Prospect, me: str) -> None:
    """Make the transaction. Raises Fenced, Conflict and NotFound when something was changed meanwhile."""
    store, topic, clock = context.metadata, claim.topic, context.upload_context.clock
    plan = with_hold(replace(found.plan, worker=Worker.JOB), me, clock.wall_ms())
    path = paths.history_plan(topic)
    steps: list[Step] = []
    if found.origin is Origin.NEW:
        await until_answered(clock, partial(ensure, store, paths.history_ranges(topic)))
        steps, epoch = await _without_owner(context, claim, me)
        plan = replace(plan, epoch=epoch, daemon_id=me)
        steps += await _moved(context, claim, paths.attempt(topic), plan.last)
    else:
        steps += await _moved(context, claim, paths.history_attempt(topic), plan.last)
    value = history_record.encode(plan)
    known = found.map.history is not None
    steps.append(Replace(path, value, found.map.history_version) if known else Create(path, value))

    async def recorded() -> bool:
        return (await catalog.load(store, topic)).history == plan

    await Fence(store, claim, clock=clock, metrics=context.upload_context.metrics).settle(steps, recorded)


async def _without_owner(context: OffloadContext, claim: Claim, me: str) -> tuple[list[Step], int]:
    """Return the steps that end the claim of the topic's owner, and the epoch that comes with them."""
    store, topic, clock = context.metadata, claim.topic, context.upload_context.clock
    path = paths.epoch(topic)
    known = await until_answered(clock, lambda: node(store, path))
    owner = await until_answered(clock, lambda: node(store, paths.owner(topic)))
    epoch = ownership.decode_epoch(known.value, path=path).epoch + 1 if known is not None else 1
    raised = ownership.Epoch(epoch=epoch, daemon_id=me, claimed_ms=clock.wall_ms(), format=ownership.format_of(topic))
    value = ownership.encode_epoch(raised)
    steps: list[Step] = [Replace(path, value, known.version) if known is not None else Create(path, value)]
    if owner is not None:
        steps.append(Delete(paths.owner(topic), owner.version))
    return steps, epoch


async def _moved(context: OffloadContext, claim: Claim, path: str, last: Position) -> list[Step]:
    """Return the steps that move the daemon's attempt at history, if it has one, to those of the job."""
    found = await until_answered(context.upload_context.clock, lambda: node(context.metadata, path))
    if found is None:
        return []
    attempt = attempt_record.decode(found.value, path=path)
    if attempt.begin > last:
        return []
    ours = paths.history_job_attempt(claim.topic, attempt.segment_id)
    return [Delete(path, found.version), Create(ours, found.value)]


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
        if record.next_step() is None:
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
    """Commit a stored segment if it is next, also behind a loss; return whether it was. Raises Fenced, HistoryGap."""
    if attempt.status is not AttemptStatus.OFFLOADED:
        return False
    step = record.next_step()
    if isinstance(step, Loss) and step.before <= attempt.begin:
        await record.refresh()
        step = record.next_step()
        if isinstance(step, Loss) and step.before <= attempt.begin:
            await record.record_loss(step)
            step = record.next_step()
    if not isinstance(step, Run) or step.first != attempt.begin:
        return False
    try:
        await record.commit(attempt, attempts)
    except SegmentFailed:
        return False
    return True
