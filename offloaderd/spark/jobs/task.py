"""A task of a job: one segment of history, or one rewritten object; its description, and the work of its executor.

The executor works from the attempt's record to verified objects, by the daemon's own writer, except at the end: it
neither commits nor exchanges. When all objects are stored it marks the attempt as offloaded, and the driver, this one
or the next after a crash, commits it in its turn. Of history only the draft of a manifest is put, since requests of a
lost executor may still arrive after the commit, and must not change a committed object. Every write checks the driver's
claim; one executor at a time writes a segment. Tasks and answers are small, since a driver has any number of executors.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

import structlog

from offloaderd.core.aio import race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, OffloaderError, Transient
from offloaderd.core.model import START, LedgerInfo, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.format.manifest import LedgerPart, SegmentManifest
from offloaderd.history.record import edge_at, ledgers_of
from offloaderd.history.rewrite import RewriteFacts, SameEntries, look_up
from offloaderd.history.segment import LedgerReading, ledger_feed
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore, Session
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.topic_map import conversion
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal, goal_of
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.claim.attempt_log import AttemptLog, attempt_log
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.topic_record import known_ends
from offloaderd.segment.committer import Assignment, FindManifest, Surroundings, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import Gap
from offloaderd.segment.roll import OnGap, RangeStop
from offloaderd.segment.source_check import listing_of_job
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter

log = structlog.get_logger(__name__)

PATIENCE_S = 300.0
"""Seconds that one request may fail before the executor gives its task back, for another to resume it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One object to write; its attempt is recorded, with the layout. `begin` and `end` are inclusive.

    `again`: an executor may have begun it before.
    """

    claim: Claim
    segment_id: UUID
    begin: Position
    end: Position
    again: bool
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask(Task):
    """A segment of history, which ends at `end` or, unless that is None, with `limit_bytes` of payload.

    History ends with `last`, before entry 0 of ledger `boundary`.
    """

    limit_bytes: int | None
    last: Position
    boundary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask(Task):
    """An object that is made from stored ones; `whole`: it holds a ledger."""

    whole: bool


class Outcome(StrEnum):
    """The outcome of a task."""

    READY = "ready"
    """All objects are stored and verified, and the attempt records it."""
    BROKEN = "broken"
    """The attempt cannot become a segment, and has to be given up."""
    FENCED = "fenced"
    """Another driver has the topic's claim."""
    UNFINISHED = "unfinished"
    """The attempt can be resumed, here or by another executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An executor's answer."""

    outcome: Outcome
    error: str = ""
    seconds: float = 0.0
    payload_bytes: int = 0


LOOK_S = 1.0
"""Seconds between two checks of failures, and between two tries to be the only writer."""

WRITER_S = 60.0
"""Seconds to wait for the lock of a lost executor: as long as a session may last."""


class MarkStored:
    """Marks attempts as offloaded; see Committer. The driver begins attempts, records losses, commits and gives up."""

    def __init__(self, attempts: AttemptLog, *, manifest: ObjectKind, proof: SameEntries | None = None) -> None:
        """`proof`: of an object that is to replace others."""
        self.manifest = manifest
        self._attempts = attempts
        self._proof = proof

    async def begin(self, attempt: Attempt) -> None:
        """See Committer."""

    async def record_loss(self, gap: Gap) -> None:
        """See Committer; a segment of a job ends before a loss."""

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer; the driver compares the head when it commits."""

    async def before_manifest(self, described: SegmentManifest) -> None:
        """See Committer."""
        if self._proof is not None:
            await self._proof.check(described)

    async def commit(self, segment: VerifiedSegment) -> None:
        """Mark the attempt. Raises Conflict, and changes nothing, for one that a successor has written."""
        await self._attempts.update(replace(segment.attempt, status=AttemptStatus.OFFLOADED, parts=()))

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """See Committer."""


class TaskFacts:
    """The facts that an executor has: the ledgers of history, and no committed segments; see SealFacts.

    So the manifest that an executor writes has no times of entries before the segment; the driver adds them at the
    commit.
    """

    def __init__(self, context: OffloadContext, task: SegmentTask, begin: Position) -> None:
        self.behind = Position(begin.ledger_id, begin.entry_id - 1) if begin.entry_id else START
        self.chain = LedgerChain(self.behind, end=None, begin=begin)
        self._map = TopicMap(task.claim.topic)
        self._context = context
        self._task = task

    async def refresh(self) -> None:
        """Read the source's list of ledgers. Raises Transient, HistoryGap, IdentityRefused."""
        task = self._task
        old = await ledgers_of(listing_of_job(self._context, self._map), task.claim.topic, task.last, task.boundary)
        self.chain.update([*old, edge_at(task.boundary)])

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts."""
        return self.chain.ledgers

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """See SealFacts; it has no losses, since a segment of a job ends before them."""
        return Surroundings(
            ends=known_ends(self.chain, None, parts, infos),
            past=await self._context.pasts.before(self._map, begin, infos, find),
        )


async def write_segment(context: OffloadContext, source: LedgerSource, task: SegmentTask) -> Written:
    """Write a segment of history; errors of ours are returned as outcomes."""
    return await _carried_out(context, task, lambda attempts, attempt: _write(context, source, task, attempts, attempt))


async def rewrite_segment(context: OffloadContext, task: RewriteTask) -> Written:
    """Write an object from stored ones and prove that it has the same entries; errors as for `write_segment`."""
    return await _carried_out(context, task, lambda attempts, attempt: _rewrite(context, task, attempts, attempt))


async def _carried_out(
    context: OffloadContext, task: Task, act: Callable[[AttemptLog, Attempt], Awaitable[int]]
) -> Written:
    """Complete a task's attempt by `act`, as its only executor; `act` returns payload bytes.

    An attempt with stored objects is left unchanged.
    """
    clock, topic = context.upload_context.clock, task.claim.topic
    attempts = attempt_log(context, task.claim, paths.history_job_attempt(topic, task.segment_id))
    started = clock.monotonic()
    try:
        session = await context.metadata.session()
        written: list[int] = []

        async def work() -> None:
            async with _alone(context.metadata, session, topic, task.segment_id, clock):
                attempt = await until_answered(clock, lambda: _known(attempts, task))
                stored = attempt.status is AttemptStatus.OFFLOADED
                written.append(0 if stored else await act(attempts, attempt))

        await race(work(), session.lost.wait())
        if not written:
            raise Transient("the executor lost its session with the metadata store")
    except SegmentFailed as error:
        return Written(outcome=Outcome.BROKEN, error=str(error))
    except Fenced as error:
        return Written(outcome=Outcome.FENCED, error=str(error))
    except OffloaderError as error:
        return Written(outcome=Outcome.UNFINISHED, error=str(error))
    return Written(outcome=Outcome.READY, seconds=clock.monotonic() - started, payload_bytes=written[0])


async def _known(attempts: AttemptLog, task: Task) -> Attempt:
    attempt = await attempts.load()
    if attempt is None:
        raise Fenced(f"segment {task.segment_id} of {task.claim.topic} was given up or committed meanwhile")
    return attempt


async def _write(
    context: OffloadContext, source: LedgerSource, task: SegmentTask, attempts: AttemptLog, attempt: Attempt
) -> int:
    """Write a segment of history; return its payload bytes. Raises SegmentFailed, Fenced, Transient."""
    clock, topic = context.upload_context.clock, task.claim.topic
    failure_tracker = FailureTracker(topic, clock, lambda: None)

    def failing(error: OffloaderError | None) -> None:
        if error is None:
            failure_tracker.clear("source")
        else:
            failure_tracker.record(error, "source")

    facts = TaskFacts(context, task, attempt.begin)
    reading = LedgerReading(
        source=source,
        topic=topic,
        chain=facts.chain,
        refresh=facts.refresh,
        failing=failing,
        pace=clock,
        metrics=context.upload_context.metrics,
    )
    feed = ledger_feed(reading, attempt, task.end, layout=context.layout, uploads=context.upload_context)
    stop = RangeStop(payload_bytes=task.limit_bytes, gap=OnGap.END)
    committer = MarkStored(attempts, manifest=ObjectKind.DRAFT)
    work = Assignment(
        attempt=attempt,
        after=facts.behind,
        resumed=task.again,
        opened_s=clock.monotonic(),
        notes={"history": True, "job": True},
    )
    written: list[VerifiedSegment | None] = []

    async def write() -> None:
        await until_answered(clock, facts.refresh, on_error=failing)
        failing(None)
        written.append(
            await SegmentWriter(context, attempts, committer, failure_tracker=failure_tracker).run(
                work, feed, stop, facts
            )
        )

    await race(write(), _out_of_patience(failure_tracker, clock, task.patience_s))
    return sum(one.payload_bytes for one in written if one is not None)


async def _rewrite(context: OffloadContext, task: RewriteTask, attempts: AttemptLog, attempt: Attempt) -> int:
    """Write and prove an object; return its payload bytes. Raises SegmentFailed, Fenced, Transient."""
    clock, topic = context.upload_context.clock, task.claim.topic
    topic_map = await until_answered(clock, lambda: catalog.load(context.metadata, topic))
    goal = _goal_at(topic_map, task)
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

    await race(write(), _out_of_patience(failure_tracker, clock, task.patience_s))
    return goal.payload_bytes


def _goal_at(topic_map: TopicMap, task: RewriteTask) -> Goal | None:
    """Return the segments of a task's range and their entries, None when the map does not hold them so any more."""
    if task.whole:
        holders = conversion.holders_of(topic_map, task.begin.ledger_id)
        goal = goal_of(holders, ledger_id=task.begin.ledger_id) if holders else None
    else:
        sources = [one for one in topic_map.segments if one.begin <= task.end and task.begin <= one.end]
        goal = goal_of(sources) if sources else None
    return goal if goal is not None and (goal.begin, goal.end) == (task.begin, task.end) else None


async def _out_of_patience(failure_tracker: FailureTracker, clock: Clock, patience_s: float) -> None:
    """Raise Transient once a request has failed for that long."""
    while True:
        worst = failure_tracker.worst
        if worst is not None and clock.monotonic() - worst.since_s > patience_s:
            raise Transient(f"{worst.error} (for {patience_s:.0f} s, {worst.tries} tries)")
        await clock.sleep(min(LOOK_S, patience_s))


@asynccontextmanager
async def _alone(
    store: MetadataStore, session: Session, topic: TopicName, segment_id: UUID, clock: Clock
) -> AsyncIterator[None]:
    """Be the only executor that writes the segment. Raises Transient while another one has the lock.

    The lock's node goes with the session: a node that is there after the session was lost is a successor's.
    """
    path = paths.history_writer(topic, segment_id)
    deadline = clock.monotonic() + WRITER_S
    while True:
        try:
            await store.create(path, b"", ephemeral=True)
            break
        except Conflict:
            if clock.monotonic() > deadline:
                raise Transient(f"another executor still writes segment {segment_id}") from None
            await clock.sleep(LOOK_S)
    try:
        yield
    finally:
        try:
            if not session.lost.is_set():
                await store.delete(path)
        except OffloaderError as error:  # it is deleted with the session
            log.debug("backfill.writer_not_deleted", path=path, error=str(error))
