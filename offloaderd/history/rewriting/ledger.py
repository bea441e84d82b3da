"""The rewriting of one ledger from streaming segments into its own object, by the topic's owner.

It is written and compared by `rewrite.py`, and replaces the slices in one transaction.
"""

from collections.abc import Callable

from offloaderd.format.manifest import SegmentManifest
from offloaderd.history.owned_topic import OwnedTopic
from offloaderd.history.rewriting.rewrite import RewriteFacts, SameEntries, exchange, look_up
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map import conversion
from offloaderd.metadata.topic_map.conversion import LedgerState
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import goal_of
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.committer import VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import Gap
from offloaderd.segment.states import SegmentState
from offloaderd.segment.stop import SegmentProgress
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter


class Stopped(SegmentFailed):
    """The order was withdrawn while the ledger was being rewritten."""


class ExchangeCommitter:
    """Replaces old objects by new ones in the owner's map; see Committer.

    `ready` is called before long steps, and may raise SegmentFailed.
    """

    manifest = ObjectKind.MANIFEST

    def __init__(
        self, record: TopicRecord, attempts: AttemptLog, proof: SameEntries, ready: Callable[[], None]
    ) -> None:
        self._record = record
        self._attempts = attempts
        self._proof = proof
        self._ready = ready

    async def begin(self, attempt: Attempt) -> None:
        """See Committer."""
        await self._attempts.begin(attempt)

    async def record_loss(self, gap: Gap) -> None:
        """Record none: a gap in stored entries is a failure."""

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer."""
        self._ready()

    async def before_manifest(self, described: SegmentManifest) -> None:
        """See Committer: the new object has to hold the same entries."""
        await self._proof.check(described)

    async def commit(self, segment: VerifiedSegment) -> None:
        """See Committer. Raises SegmentFailed if the map does not have the replaced segments any more."""
        record, made = self._record, segment.committed

        async def reload() -> TopicMap:
            await record.reload()
            return record.map

        with segment.trace.step("commit"):
            await exchange(lambda: record.exchange(self._attempts, made), reload, made.segment_id)

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """See Committer."""
        await self._attempts.give_up(attempt, why)


class LedgerRewrite:
    """The rewriting of one ledger; `stopped` returns whether its order was withdrawn."""

    def __init__(
        self,
        offloader: OwnedTopic,
        context: OffloadContext,
        attempts: AttemptLog,
        row: LedgerState,
        stopped: Callable[[], bool],
    ) -> None:
        self.row = row
        self.failure_tracker = FailureTracker(offloader.topic, context.upload_context.clock, offloader.changed.notify)
        self._offloader = offloader
        self._context = context
        self._attempts = attempts
        self._stopped = stopped
        self._writer: SegmentWriter | None = None

    @property
    def _progress(self) -> SegmentProgress | None:
        return self._writer.progress if self._writer is not None else None

    @property
    def phase(self) -> str:
        """The phase, by its name in the API."""
        state = self._progress.state if self._progress is not None else SegmentState.ASSIGNED
        return _PHASES.get(state, "writing")

    @property
    def done_bytes(self) -> int:
        """Payload bytes that are in the new object."""
        return self._progress.payload_bytes if self._progress is not None else 0

    async def run(self, left: Attempt | None) -> CommittedSegment:
        """Rewrite the ledger, or resume `left`; returns the committed segment.

        Raises SegmentFailed, Unreadable and Stopped after its attempt was given up, and Fenced.
        """
        topic = self._offloader
        goal = goal_of(conversion.holders_of(topic.map, self.row.ledger_id), ledger_id=self.row.ledger_id)
        try:
            old = await look_up(
                self._context,
                topic.topic,
                goal,
                failure_tracker=self.failure_tracker,
                ready=self._ready,
                closed_ms=self._closed_ms,
            )
        except SegmentFailed as error:
            if left is not None:
                await self._attempts.give_up(left, str(error))
            raise
        attempt = left or await old.new_attempt(topic.claim.epoch)
        feed = old.feed(attempt)
        proof = SameEntries(old, feed, attempt)
        committer = ExchangeCommitter(topic.record, self._attempts, proof, self._ready)
        self._writer = SegmentWriter(self._context, self._attempts, committer, failure_tracker=self.failure_tracker)
        work = old.assignment(attempt, resumed=left is not None, notes={"rollback": True})
        written = await self._writer.run(work, feed, old.stop(), RewriteFacts(old, lambda: topic.map))
        assert written is not None  # noqa: S101 - no rewriting is left unfinished to the next owner
        return written.committed

    def _ready(self) -> None:
        """Raise Stopped if the order was withdrawn."""
        if self._stopped():
            raise Stopped(f"ledger {self.row.ledger_id} is not to be rewritten any more")

    def _closed_ms(self, ledger_id: int) -> int | None:
        known = self._offloader.record.chain.ledgers.get(ledger_id)
        return known.closed_at_ms if known is not None and known.closed else None


_PHASES = {
    SegmentState.COMPLETED: "verifying",
    SegmentState.VERIFIED: "committing",
    SegmentState.COMMITTED: "committing",
}
