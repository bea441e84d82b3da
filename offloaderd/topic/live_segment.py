"""Live segments: their attempts, their committer, and the facts around them for their manifests."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerInfo, OffloadMethod, Position, RollReason
from offloaderd.core.retry import until_answered
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.history.segment import MapCommitter, MapFacts
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.places import Place
from offloaderd.segment.builders.ledger_builder import ledger_layout
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.committer import Assignment, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.segment.resume import LeftBehind, abandon, as_finished, unrecorded
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import created_times
from offloaderd.segment.upload import SegmentFailed
from offloaderd.topic.chooser import Begin
from offloaderd.topic.tailer import Tailer

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
        record, tracker, topic = self._record, self._failure_tracker, self._record.map.topic
        # First, since old metadata should not cause a whole read of a finished segment.
        await self._attempts.check_head(record.map, self.left.segment_id)
        self.left = await as_finished(self._context, topic, self.left, failure_tracker=tracker, identity=self._identity)
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
            return self._context.place_for(policy())

        found = await until_answered(self._clock, place, on_error=lambda error: tracker.record(error, "place"))
        tracker.clear("place")
        epoch, failures = self._attempts.fence.claim.epoch, (self._tries, self._last_error)
        attempt = self._context.attempt(begin.first, layout, found, epoch=epoch, failures=failures)
        return replace(attempt, created=created_times([info]) if info is not None else {})

    async def _layout(self, begin: Begin, info: LedgerInfo | None) -> SegmentLayout | LedgerLayout:
        """Return the layout of a segment; a ledger that the source has deleted meanwhile streams."""
        context, topic, again = self._context, self._record.map.topic, bool(self._tries)
        if begin.method is not OffloadMethod.LEDGER_BASED or info is None:
            return context.layout
        try:
            return await self._failure_tracker.until_answered(
                lambda: ledger_layout(context.ledgers, context.source, topic, info, count=again), "source"
            )
        except NotFound:
            return context.layout

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
    """Facts around a live segment; `told` has the ledgers that a pusher has closed. See SealFacts."""

    def __init__(
        self,
        record: TopicRecord,
        pasts: Pasts,
        tailer: Tailer | None,
        told: Mapping[int, LedgerInfo],
        failure_tracker: FailureTracker,
    ) -> None:
        super().__init__(record, pasts)
        self._tailer = tailer
        self._told = told
        self._failure_tracker = failure_tracker

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts; after a refresh from the source."""
        if self._tailer is None:
            return self._told
        await self._failure_tracker.until_answered(self._tailer.refresh, "source")
        return {**self._told, **await super().infos()}
