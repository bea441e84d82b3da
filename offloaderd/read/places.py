"""Which of a segment's places a read uses: its own, or the mirror when its own does not give the bytes.

An object that is missing, denied, unreachable after the retries, or damaged is read from the segment's other place. A
bucket that did not answer is the last choice for a while, so that not every block waits for its retries. Damage is
reported all the same.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Archived, BucketMissing, CorruptData, Denied, NotFound, OffloaderError, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment

log = structlog.get_logger(__name__)

PASSED_ON = (NotFound, CorruptData, Denied, Transient)
"""Errors of one place after which the other is read."""
AWAY_S = 30.0
"""How long a bucket that did not answer is the last choice."""
REMEMBERED_MAX = 10_000
"""Segments whose fallback was logged, by reason; the one that was logged longest ago is forgotten first."""

Damaged = Callable[[TopicName, CommittedSegment, OffloaderError], None]


class Places:
    """The order of the places of segments for one reader. `damaged` gets segments that are damaged, or lack objects."""

    def __init__(self, clock: Clock, metrics: Metrics, damaged: Damaged) -> None:
        self._clock = clock
        self._metrics = metrics
        self._damaged = damaged
        self._away: dict[str, float] = {}
        self._logged: Bounded[tuple[UUID, str], bool] = Bounded(REMEMBERED_MAX)

    def of(self, segment: CommittedSegment) -> Sequence[CommittedSegment]:
        """Return a segment as it lies in each of its places, in the order in which to read them."""
        now_s = self._clock.monotonic()
        return sorted(segment.each_place, key=lambda one: self._away.get(one.bucket, now_s) > now_s)

    def passed_on(self, topic: TopicName, one: CommittedSegment, error: OffloaderError) -> None:
        """Note that a segment is read from its other place, because of an error of this one."""
        reason = "damaged" if isinstance(error, CorruptData) else "missing"
        if isinstance(error, Denied | Transient | BucketMissing):
            reason = "denied" if isinstance(error, Denied) else "unreachable"
            if not isinstance(error, Archived):  # which concerns one object alone
                self._away[one.bucket] = self._clock.monotonic() + AWAY_S
        self._metrics.read_fallbacks.labels(reason=reason).inc()
        if reason in {"damaged", "missing"}:
            self._damaged(topic, one, error)
        if (one.segment_id, reason) in self._logged:
            return
        self._logged[one.segment_id, reason] = True
        log.warning(
            "segment.read_elsewhere",
            topic=str(topic),
            segment_id=str(one.segment_id),
            bucket=one.bucket,
            prefix=one.prefix,
            reason=reason,
            error=str(error),
        )


def graver(before: OffloaderError | None, now: OffloaderError) -> OffloaderError:
    """Return which error of two places a caller gets: one after which it may try again, else the first."""
    if before is None or (isinstance(now, Transient) and not isinstance(before, Transient)):
        return now
    return before


def located(segment: CommittedSegment, error: BucketMissing) -> BucketMissing:
    """Return the error of a bucket that is not there with the entries that cannot be read, and their places."""
    places = " and ".join("/".join(one.place) for one in segment.each_place)
    message = f"entries {segment.range} lie in {places}, and cannot be read: {error.message}"
    return BucketMissing(message, hint=error.hint)
