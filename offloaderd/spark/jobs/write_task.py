"""An executor's work: one segment of history from its record to verified objects, by the daemon's own code.

It commits nothing and puts no manifest, only the draft of one: requests of an executor that was lost may still arrive
after the commit, and must not change what was committed. When all is stored it marks the attempt as offloaded, so that
whoever drives the job, now or after a crash, can commit it in its turn. Every write checks the driver's claim; one
executor at a time writes a segment.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import structlog

from offloaderd.core.aio.signal import race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, OffloaderError, Transient
from offloaderd.core.model import START, LedgerInfo, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.format.values import LedgerPart
from offloaderd.history.ledger_feed import LedgerReading, ledger_feed
from offloaderd.history.record import edge_at, ledgers_of
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore, Session
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import known_ends
from offloaderd.segment.committer import Assignment, FindManifest, Surroundings, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.source_check import listing_of_job
from offloaderd.segment.stop import OnGap, RangeStop
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter
from offloaderd.spark.jobs.job import Outcome, SegmentTask, Written
from offloaderd.spark.jobs.mark_stored import MarkStored
from offloaderd.spark.jobs.rewrite_job import RewriteTask

log = structlog.get_logger(__name__)

LOOK_S = 1.0
WRITER_S = 60.0
"""How long to wait for an executor that was lost to be forgotten: as long as a session may last."""


class TaskFacts:
    """What an executor knows of a topic: the ledgers of its history, and nothing of what is committed; see SealFacts.

    So its manifest says nothing of times before the segment; who commits it knows them.
    """

    def __init__(self, context: OffloadContext, task: SegmentTask, begin: Position) -> None:
        self.behind = Position(begin.ledger_id, begin.entry_id - 1) if begin.entry_id else START
        self.chain = LedgerChain(self.behind, end=None, begin=begin)
        self._map = TopicMap(task.claim.topic)
        self._context = context
        self._task = task

    async def refresh(self) -> None:
        """Take in what the source has. Raises Transient, HistoryTorn, IdentityRefused."""
        task = self._task
        old = await ledgers_of(listing_of_job(self._context, self._map), task.claim.topic, task.last, task.boundary)
        self.chain.look([*old, edge_at(task.boundary)])

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
    """Write a segment; every outcome that can be told is returned, none of our errors raised."""
    return await carried_out(context, task, lambda attempts, attempt: _write(context, source, task, attempts, attempt))


async def carried_out(
    context: OffloadContext, task: SegmentTask | RewriteTask, act: Callable[[AttemptLog, Attempt], Awaitable[int]]
) -> Written:
    """Bring a task's attempt to its end by `act`, as the only executor that writes it; tell how it ended.

    `act` returns payload bytes. An attempt whose objects are stored already is left alone.
    """
    clock, topic = context.upload_context.clock, task.claim.topic
    path = paths.history_job_attempt(topic, task.segment_id)
    attempts = AttemptLog(context.metadata, task.claim, clock=clock, metrics=context.upload_context.metrics, path=path)
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
        return Written(outcome=Outcome.HINDERED, error=str(error))
    return Written(outcome=Outcome.READY, seconds=clock.monotonic() - started, payload_bytes=written[0])


async def _known(attempts: AttemptLog, task: SegmentTask | RewriteTask) -> Attempt:
    attempt = await attempts.load()
    if attempt is None:
        raise Fenced(f"segment {task.segment_id} of {task.claim.topic} was given up or committed meanwhile")
    return attempt


async def _write(
    context: OffloadContext, source: LedgerSource, task: SegmentTask, attempts: AttemptLog, attempt: Attempt
) -> int:
    """Bring the attempt to its end; returns its payload bytes."""
    clock, topic = context.upload_context.clock, task.claim.topic
    failure_tracker = FailureTracker(topic, clock, lambda: None)

    def failing(error: OffloaderError | None) -> None:
        if error is None:
            failure_tracker.over("source")
        else:
            failure_tracker.met(error, "source")

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
    feed = ledger_feed(reading, attempt, task.end, layout=context.layout, budget=context.upload_context.budget)
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
        await until_answered(clock, facts.refresh, met=failing)
        failing(None)
        written.append(
            await SegmentWriter(context, attempts, committer, failure_tracker=failure_tracker).run(
                work, feed, stop, facts
            )
        )

    await race(write(), out_of_patience(failure_tracker, clock, task.patience_s))
    return sum(one.payload_bytes for one in written if one is not None)


async def out_of_patience(failure_tracker: FailureTracker, clock: Clock, patience_s: float) -> None:
    """Raise Transient once something has failed for so long."""
    while True:
        worst = failure_tracker.worst
        if worst is not None and clock.monotonic() - worst.since_s > patience_s:
            raise Transient(f"{worst.error} (for {patience_s:.0f} s, {worst.tries} tries)")
        await clock.sleep(min(LOOK_S, patience_s))


@asynccontextmanager
async def _alone(
    store: MetadataStore, session: Session, topic: TopicName, segment_id: UUID, clock: Clock
) -> AsyncIterator[None]:
    """Be the only executor that writes the segment. Raises Transient while another may still do it.

    The node goes with the session: what lies there once that is lost is a successor's.
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
        except OffloaderError as error:  # it goes with the session
            log.debug("backfill.writer_not_deleted", path=path, error=str(error))
