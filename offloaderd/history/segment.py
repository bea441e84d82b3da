"""Segments of history, in a daemon or an executor: feed, layout, committer into the topic's map, facts for manifests.

The feed's entries are read as fast as they can be stored, without the tailing buffer. Transient errors are retried
here. A loss is yielded as a Gap; reading continues behind it once the chain has accepted it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from offloaderd.core.aio import Signal
from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerInfo, Loss, Position, TopicName
from offloaderd.core.retry import Backoff, Turn
from offloaderd.format.manifest import LedgerPart, SegmentManifest
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.history.record import HistoryRecord
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.builder import ledger_layout
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import HeadKeeper
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.committer import FindManifest, Surroundings, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import Empty, Gap, ReadAheadFeed, Reading
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import SourceCheck
from offloaderd.segment.states import state_of
from offloaderd.segment.upload import UploadContext


class OwnedTopic(Protocol):
    """One topic under one claim; `changed` is notified of each change."""

    topic: TopicName
    claim: Claim
    head: HeadKeeper | None
    identity: TopicIdentity
    record: TopicRecord
    source_check: SourceCheck
    failure_tracker: FailureTracker
    changed: Signal
    policy_changed: Signal

    @property
    def map(self) -> TopicMap:
        """The committed segments, and what else is recorded of the topic."""
        ...

    @property
    def policy(self) -> RollPolicy:
        """The policy in force."""
        ...

    @property
    def attempt(self) -> Attempt | None:
        """The open segment's record."""
        ...

    def notify(self) -> None:
        """Wake the loop, the tailer and all that wait for a change."""
        ...

    def resting(self) -> AbstractContextManager[object]:
        """Return a context in which the duty that enters it rests."""
        ...


READ_BYTES = 1 << 20
"""Bytes of one read of the source; less if a part is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    """The way to read one topic's ledgers: `chain` has the known ones, `refresh` reads the source's list again.

    `failing` gets each failure, and None when it ends; `pace` times the pauses before a retry.
    """

    source: LedgerSource
    topic: TopicName
    chain: LedgerChain
    refresh: Callable[[], Awaitable[object]]
    failing: Callable[[OffloaderError | None], None]
    pace: Clock | Turn
    metrics: Metrics


def ledger_feed(
    reading: LedgerReading, attempt: Attempt, planned: Position, *, layout: SegmentLayout, uploads: UploadContext
) -> ReadAheadFeed:
    """Return the feed of an attempt's entries: up to its end if that is decided, else to the `planned` one."""
    end = planned if attempt.end is None else attempt.end
    part_bytes = (attempt.layout or layout).part_bytes
    batches = partial(ledger_batches, reading, end=end, batch_bytes=min(READ_BYTES, part_bytes))
    holder = uploads.holder(attempt.bucket, attempt.segment_id)
    return ReadAheadFeed(batches, uploads.budget, reserve_bytes=part_bytes, holder=holder)


async def ledger_batches(reading: LedgerReading, after: Position, *, end: Position, batch_bytes: int) -> Reading:
    """Yield the entries behind `after` up to `end`. Raises what `refresh` raises, and errors that do not pass."""
    backoff, failure = Backoff(reading.pace), None
    while after < end:
        if failure is not None:
            reading.failing(failure)
            yield Empty()
            await backoff.wait(failure)
            failure = None
        step = reading.chain.next_after(after)
        if isinstance(step, Loss):
            yield Gap(step)
            if reading.chain.next_after(after) == step:
                return
            continue
        if step is None or step.first > end:
            return
        last = min(step.last_entry_id, end.entry_id) if step.ledger_id == end.ledger_id else step.last_entry_id
        entries = reading.source.read(reading.topic, step.ledger_id, step.first_entry_id, last, batch_bytes=batch_bytes)
        try:
            async with aclosing(entries) as batches:
                async for batch in batches:
                    reading.metrics.source_entries.inc(len(batch.payloads))
                    reading.metrics.source_bytes.inc(batch.payload_bytes())
                    yield batch
                    after = batch.last
        except NotFound:
            yield Empty()  # the refresh may wait for the source: nothing is reserved meanwhile
            await reading.refresh()
            if step.ledger_id in reading.chain.ledgers:
                failure = Transient(f"ledger {step.ledger_id} is listed, and not there")
        except Transient as error:
            failure = error
        else:
            reading.failing(None)
            backoff.reset()


log = structlog.get_logger(__name__)


class MapCommitter:
    """Commits to a topic's map by a record: to the ranges of its history, or to its end. See Committer."""

    manifest = ObjectKind.MANIFEST
    events = "history.segment_committed", "history.segment_failed"
    """Log events of a commit, and of a segment that is given up."""

    def __init__(
        self, record: HistoryRecord | TopicRecord, attempts: AttemptLog, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._record = record
        self._attempts = attempts
        self._clock = clock
        self._metrics = metrics
        self._claim = attempts.fence.claim

    async def begin(self, attempt: Attempt) -> None:
        """See Committer; the attempt's range of history is claimed too."""
        await self._record.begin(attempt)
        self._metrics.segments.labels(state="assigned").inc()

    async def record_loss(self, gap: Gap) -> None:
        """See Committer."""
        await self._record.lost(gap.loss)

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer."""
        await self._attempts.check_head(self._record.map, attempt)

    async def before_manifest(self, described: SegmentManifest) -> None:
        """Accept any manifest: the segment replaces nothing."""

    async def commit(self, segment: VerifiedSegment) -> None:
        """See Committer. Raises Conflict, HistoryGap."""
        with segment.trace.step("commit"):
            await self._record.commit(segment.committed, segment.ends)
        segment.count(self._metrics)
        log.info(
            self.events[0],
            topic=str(self._claim.topic),
            segment_id=str(segment.attempt.segment_id),
            range=str(segment.described.range),
            entries=segment.entries,
            payload_bytes=segment.payload_bytes,
            object_bytes=segment.described.data_bytes,
            reason=segment.reason,
            duration_s=round(self._clock.monotonic() - segment.opened_s, 3),
            epoch=self._claim.epoch,
        )

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """See Committer; the attempt's range of history is planned again."""
        topic, segment_id = str(self._claim.topic), str(attempt.segment_id)
        log.error(self.events[1], topic=topic, segment_id=segment_id, state=state_of(attempt), error=why)
        self._metrics.segments.labels(state="failed").inc()
        self._metrics.uploads_aborted.labels(reason="failed").inc()
        await self._record.give_up(attempt, why)


class MapFacts:
    """The facts of a record around its next segment; see SealFacts."""

    def __init__(self, record: HistoryRecord | TopicRecord, pasts: Pasts) -> None:
        self._record = record
        self._pasts = pasts

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts; as of the last refresh."""
        return self._record.chain.ledgers

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """See SealFacts."""
        return Surroundings(
            losses=self._record.losses_before(parts),
            ends=self._record.known_ends(parts, infos),
            past=await self._pasts.before(self._record.map, begin, infos, find),
        )


async def layout_of(
    context: OffloadContext, topic: TopicName, info: LedgerInfo | None, *, whole: bool, count: bool
) -> LedgerLayout | SegmentLayout:
    """Return the layout of a segment; `info` describes its ledger, which goes `whole` by its plan or policy.

    A ledger that the source has deleted streams, if it can be read. Raises Transient, InvalidInput.
    """
    if context.ledgers is None or info is None or not whole:
        return context.layout
    try:
        return await ledger_layout(context.ledgers, context.source, topic, info, count=count)
    except NotFound:
        return context.layout
