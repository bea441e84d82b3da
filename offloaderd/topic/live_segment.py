"""Live segments on their way into the map: who records them, and what their manifests say around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from offloaderd.core.model import RollReason
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.committer import Surroundings
from offloaderd.segment.states import state_of
from offloaderd.segment.upload import SegmentFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from offloaderd.core.clock import Clock
    from offloaderd.core.metrics.metrics import Metrics
    from offloaderd.core.model import LedgerInfo, Position
    from offloaderd.format.values import LedgerPart, SegmentManifest
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.segment.claim.attempt_log import AttemptLog
    from offloaderd.segment.claim.topic_record import TopicRecord
    from offloaderd.segment.committer import FindManifest, VerifiedSegment
    from offloaderd.segment.failures import FailureTracker
    from offloaderd.segment.feed import Gap
    from offloaderd.segment.prefix_totals import Pasts

log = structlog.get_logger(__name__)

_ROLLED = {one.value for one in RollReason}


class LiveCommitter:
    """Commits to the end of a topic; see Committer."""

    manifest = ObjectKind.MANIFEST

    def __init__(
        self,
        record: TopicRecord,
        attempts: AttemptLog,
        failure_tracker: FailureTracker,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._record = record
        self._attempts = attempts
        self._failure_tracker = failure_tracker
        self._clock = clock
        self._metrics = metrics
        self._claim = attempts.fence.claim

    async def begin(self, attempt: Attempt) -> None:
        """See Committer."""
        await self._attempts.begin(attempt)
        self._metrics.segments.labels(state="assigned").inc()

    async def record_loss(self, gap: Gap) -> None:
        """See Committer."""
        await self._record.lost(gap.loss)

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer."""
        await self._attempts.check_head(self._record.map, attempt.segment_id)

    async def before_manifest(self, described: SegmentManifest) -> None:
        """Believe it: it replaces nothing."""

    async def commit(self, segment: VerifiedSegment) -> None:
        """See Committer. Raises Conflict, HistoryTorn."""
        with segment.trace.step("commit"):
            await self._record.commit(segment.committed, segment.ends)
        segment.count(self._metrics)
        if segment.reason in _ROLLED:
            self._metrics.segment_rolls.labels(reason=segment.reason).inc()
        log.info(
            "segment.committed",
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
        """See Committer."""
        topic, segment_id = str(self._claim.topic), str(attempt.segment_id)
        log.error("segment.failed", topic=topic, segment_id=segment_id, state=state_of(attempt), error=why)
        self._metrics.segments.labels(state="failed").inc()
        self._metrics.uploads_aborted.labels(reason="failed").inc()
        self._failure_tracker.met(SegmentFailed(why))
        await self._attempts.give_up(attempt, why)
        self._record.trash_due = True


class LiveFacts:
    """What is known around a live segment; `look` asks the source for the topic's ledgers. See SealFacts."""

    def __init__(
        self, record: TopicRecord, look: Callable[[], Awaitable[Mapping[int, LedgerInfo]]], pasts: Pasts
    ) -> None:
        self._record = record
        self._look = look
        self._pasts = pasts

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts; as fresh as the source can say."""
        return await self._look()

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """See SealFacts."""
        return Surroundings(
            losses=self._record.losses_before(parts),
            ends=self._record.known_ends(parts, infos),
            past=await self._pasts.before(self._record.map, begin, infos, find),
        )
