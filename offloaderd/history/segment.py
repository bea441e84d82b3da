"""The committer into a topic's map, the facts for manifests, and the layout of segments of history."""

from collections.abc import Mapping, Sequence

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerInfo, Position, TopicName
from offloaderd.format.manifest import LedgerPart, SegmentManifest
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.history.record import HistoryRecord
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.records.history import HistoryPlan
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.builders.ledger_builder import ledger_layout
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.committer import FindManifest, Surroundings, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.feed import Gap
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.segment.states import state_of

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
        await self._attempts.check_head(self._record.map, attempt.segment_id)

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


async def layout_in_history(
    context: OffloadContext,
    topic: TopicName,
    plan: HistoryPlan,
    begin: Position,
    info: LedgerInfo | None,
    *,
    count: bool,
) -> LedgerLayout | SegmentLayout:
    """Return the layout of a segment of history by the plan's method; `info` describes its ledger.

    A ledger that the source has deleted streams, if it can be read. Raises Transient, InvalidInput.
    """
    if context.ledgers is None or info is None or not plan.goes_whole(begin):
        return context.layout
    try:
        return await ledger_layout(context.ledgers, context.source, topic, info, count=count)
    except NotFound:
        return context.layout
