"""Takeover of a history from the topic's daemon by a job, in one transaction under the driver's claim.

If the daemon carries out a plan, the plan names the job as its worker from then on; each record of the daemon checks
the plan's version. Without a plan, the owner of the topic might begin with any ledger: the transaction that records the
plan also ends its claim, as another owner would, and the next owner begins behind the boundary. An attempt that the
daemon has begun moves to those of the job, which resumes the same upload: the parts that the daemon may still send are
the same as the job's.
"""

from dataclasses import replace
from functools import partial

import structlog

from offloaderd.core.errors import Conflict, Fenced, NotFound, Transient
from offloaderd.core.model import Position
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Create, Delete, Replace, Step
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import epoch as epoch_record
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.store import ensure
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.segment.context import OffloadContext
from offloaderd.spark.backfill.eligible import Aim, Origin, Prospect, prospect

log = structlog.get_logger(__name__)

HOLD_S = 90.0
"""Seconds for which a plan names its driver, unless the driver renews that."""

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
    epoch = epoch_record.decode(known.value, path=path).epoch + 1 if known is not None else 1
    value = epoch_record.encode(epoch_record.Epoch(epoch=epoch, daemon_id=me, claimed_ms=clock.wall_ms()))
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


def with_hold(plan: HistoryPlan, me: str, now_ms: int) -> HistoryPlan:
    """Return the plan with a driver's hold on it."""
    return replace(plan, holder=me, holder_until_ms=now_ms + round(HOLD_S * 1000))
