"""Live segments: their feed from the tailing buffer, their attempts, their committer, and facts for their manifests.

Only the feed sets the position of the newest taken entry, behind which the tailer reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from offloaderd.core.clock import Clock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerInfo, OffloadMethod, Position, RollReason
from offloaderd.core.retry import until_answered
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.history.segment import MapCommitter, MapFacts, layout_of
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.places import Place
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.committer import Assignment, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import Answer, Empty, Entries, Lost
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.segment.resume import LeftBehind, abandon, as_finished, unrecorded
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import created_times
from offloaderd.segment.upload import SegmentFailed
from offloaderd.topic.buffer import TailingBuffer
from offloaderd.topic.chooser import Begin
from offloaderd.topic.tailer import Tailer

OVERDRAW_S = 10.0
"""Longest wait for a segment's next entries before another segment may overdraw the memory instead."""


class TailingFeed:
    """The next entries of one topic; see EntryFeed. It answers no Gap: the tailer records losses.

    `source` is None for a topic without one.
    """

    def __init__(self, buffer: TailingBuffer, clock: Clock, *, resume: Position) -> None:
        self.position = resume
        """Newest entry that was taken before the last step, or is committed."""
        self.changed = buffer.changed
        """Notified of entries, and of every other event that may end the segment."""
        self.source: Tailer | None = None
        self._buffer = buffer
        self._clock = clock
        self._came_s = clock.monotonic()

    @property
    def rereadable(self) -> bool:
        """See EntryFeed: true with a source."""
        return self._buffer.rereadable

    def first(self, after: Position | None = None) -> Position | None:
        """Return the first entry behind `after` (None: the position); None while it is not in memory."""
        return self._buffer.first_after(self.position if after is None else after)

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """See EntryFeed. While required entries are missing it may overdraw the memory, unless none come."""
        self.position = max(self.position, after)
        batches = self._buffer.take(after, bytes_max)
        if required is not None and (batches[0].first > required if batches else self.out_of_reach(required)):
            return Lost()
        now_s = self._clock.monotonic()
        if batches:
            self._came_s = now_s
            return Entries(tuple(batches))
        if required is not None:
            if now_s - self._came_s >= OVERDRAW_S:
                self._buffer.let_others()
            self._buffer.starve()
        return Empty()

    def out_of_reach(self, end: Position) -> bool:
        """Return whether no listed ledger has, or may get, the entries behind the position up to `end`."""
        source, taken = self.source, self.position
        if source is None or source.refreshed_s is None:
            return False
        between = [info for info in source.chain.ledgers.values() if taken.ledger_id <= info.ledger_id <= end.ledger_id]
        return not any(not info.closed or taken < (info.ledger_id, info.entries - 1) for info in between)

    async def wait(self, timeout_s: float) -> None:
        """See EntryFeed."""
        await self.changed.wait_at_most(self._clock, timeout_s)

    def restart(self, at: Position) -> None:
        """See EntryFeed. Entries before a later position are stored, and may be dropped."""
        if at > self.position:
            self._buffer.mark_cut(at)
        elif at < self.position or self._buffer.starving:
            self._buffer.restart(at)
        self.position = at
        self._came_s = self._clock.monotonic()

    def sent(self, through: Position) -> None:
        """See EntryFeed. The position moves too, so that dropped entries are not read again."""
        self._buffer.mark_cut(through)
        self.position = max(self.position, through)

    def committed(self, through: Position) -> None:
        """See EntryFeed. Entries that were not taken here, as of an adopted ledger, are not read any more."""
        taken, self.position = self.position, max(self.position, through)
        self._buffer.release(through)
        if taken < through:
            self._buffer.restart(through)

    async def close(self) -> None:
        """Keep the entries: the next segment takes them."""


_ROLLED = {one.value for one in RollReason}


class LiveCommitter(MapCommitter):
    """Commits to the end of a topic; see Committer."""

    events = "segment.committed", "segment.failed"

    def __init__(
        self,
        record: TopicRecord,
        attempts: AttemptLog,
        failure_tracker: FailureTracker,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        super().__init__(record, attempts, clock=clock, metrics=metrics)
        self._failure_tracker = failure_tracker

    async def commit(self, segment: VerifiedSegment) -> None:
        """See Committer. Raises Conflict, HistoryGap."""
        await super().commit(segment)
        if segment.reason in _ROLLED:
            self._metrics.segment_rolls.labels(reason=segment.reason).inc()

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """See Committer."""
        self._failure_tracker.record(SegmentFailed(why))
        await super().give_up(attempt, why)


class LiveAttempts:
    """The attempts of one topic under one claim: first that of an earlier owner, then new ones."""

    def __init__(
        self,
        context: OffloadContext,
        attempts: AttemptLog,
        record: TopicRecord,
        failure_tracker: FailureTracker,
        identity: TopicIdentity,
        left: LeftBehind,
    ) -> None:
        self.left = left.attempt
        """The attempt of an earlier owner, until it is finished."""
        self.settled = left.attempt is None
        """Whether its state in the bucket is known; until then the source is not read."""
        self._context = context
        self._attempts = attempts
        self._record = record
        self._failure_tracker = failure_tracker
        self._identity = identity
        self._clock = context.upload_context.clock
        self._claimed_s = self._clock.monotonic()
        self._tries, self._last_error = left.failures  # of the segment that begins at the present position

    async def settle(self) -> Attempt | None:
        """Compare an earlier owner's attempt with the bucket, and return it. Raises IdentityRefused, Fenced."""
        if self.left is None:
            return None
        record, tracker = self._record, self._failure_tracker
        # First, since old metadata should not cause a whole read of a finished segment.
        await self._attempts.check_head(record.map, self.left)
        self.left = await as_finished(self._context, self.left, failure_tracker=tracker, identity=self._identity)
        for loss in unrecorded(record.map, self.left):
            await record.lost(loss)
        self.settled = True
        return self.left

    async def abandon(self, left: Attempt) -> None:
        """Give up an earlier owner's attempt. Raises Fenced."""
        metrics = self._context.upload_context.metrics
        await abandon(self._attempts, left, "the source has lost its first entry", metrics)
        self.left = None

    def failed(self, error: str) -> None:
        """Note that the segment was given up."""
        self.left = None
        self._tries, self._last_error = self._tries + 1, error

    def committed(self) -> None:
        """Note that the segment was committed."""
        self.left = None
        self._tries, self._last_error = 0, ""

    async def assigned(self, begin: Begin, policy: Callable[[], RollPolicy]) -> Attempt:
        """Return an attempt that begins with an entry, once its place and layout are known.

        Each try uses the place of the present policy, so that a corrected policy ends the wait.
        """
        tracker = self._failure_tracker
        info = self._record.chain.ledgers.get(begin.first.ledger_id)
        layout = await self._layout(begin, info)

        async def place() -> Place:
            return self._context.place_for(policy(), self._record.map.topic)

        found = await until_answered(self._clock, place, on_error=lambda error: tracker.record(error, "place"))
        tracker.clear("place")
        epoch, failures = self._attempts.fence.claim.epoch, (self._tries, self._last_error)
        attempt = self._context.attempt(begin.first, layout, found, epoch=epoch, failures=failures)
        return replace(attempt, created=created_times([info]) if info is not None else {})

    async def _layout(self, begin: Begin, info: LedgerInfo | None) -> SegmentLayout | LedgerLayout:
        context, topic = self._context, self._record.map.topic
        if begin.method is not OffloadMethod.LEDGER_BASED or info is None:
            return context.layout
        return await self._failure_tracker.until_answered(
            lambda: layout_of(context, topic, info, whole=True, count=bool(self._tries)), "source"
        )

    def work(self, attempt: Attempt, after: Position, policy: RollPolicy) -> Assignment:
        """Return the assignment of an attempt whose first entry directly follows `after`."""
        resumed = attempt is self.left
        return Assignment(
            attempt=attempt,
            after=after,
            resumed=resumed,
            opened_s=self._opened_s(attempt, policy),
            claimed_s=self._claimed_s if resumed else None,
            chain=self._record.chain,
        )

    def _opened_s(self, attempt: Attempt, policy: RollPolicy) -> float:
        """Return since when a segment counts as open, limited to its greatest age in case of a wrong clock.

        Without a source its entries are pushed again, so it counts from now on.
        """
        age_s = 0.0 if self._context.source is None else (self._clock.wall_ms() - attempt.assigned_ms) / 1000
        return self._clock.monotonic() - min(max(0.0, age_s), policy.segment_age_max_s)


class LiveFacts(MapFacts):
    """Facts around a live segment; `closed_ledgers` are those that a pusher has closed. See SealFacts."""

    def __init__(
        self,
        record: TopicRecord,
        pasts: Pasts,
        tailer: Tailer | None,
        closed_ledgers: Mapping[int, LedgerInfo],
        failure_tracker: FailureTracker,
    ) -> None:
        super().__init__(record, pasts)
        self._tailer = tailer
        self._closed_ledgers = closed_ledgers
        self._failure_tracker = failure_tracker

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts; after a refresh from the source."""
        if self._tailer is None:
            return self._closed_ledgers
        await self._failure_tracker.until_answered(self._tailer.refresh, "source")
        return {**self._closed_ledgers, **await super().infos()}
