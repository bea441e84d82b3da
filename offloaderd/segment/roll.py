"""The effective policy of a topic for its offloader, and the decision to seal an open segment.

The decision is pure: it follows from the segment's size, its age and the requests.
"""

from dataclasses import dataclass, replace
from typing import TypeVar, cast

from offloaderd.core.model import HistoryOrder, OffloadMethod, RollReason
from offloaderd.policy.policies import Effective
from offloaderd.policy.records import Paused

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """How to offload, and PIP-76's limits: `maxSizePerOffloadSegmentMbytes`, `maxOffloadSegmentRolloverTimeMinutes`.

    The thresholds are those of closed ledgers (PIP-17): how much BookKeeper keeps, in bytes and in seconds since the
    close; 0 keeps nothing, None is no threshold. The running offloader gets another policy whenever it changes.
    """

    segment_bytes_max: int
    segment_age_max_s: float
    segment_age_min_s: float = 0.0
    method: OffloadMethod = OffloadMethod.STREAMING
    threshold_bytes: int | None = None
    threshold_s: float | None = None
    history_order: HistoryOrder = HistoryOrder.HISTORY_FIRST
    place: tuple[str, str] | None = None
    """Bucket and prefix of new segments; None is the daemon's own place."""
    paused: Paused | None = None
    """Since when the topic is paused, and by which operator; None if it is not."""

    @classmethod
    def of(cls, effective: Effective) -> "RollPolicy":
        """Return a merged policy, which has every one of these values, for an offloader."""
        values = effective.values
        return cls(
            segment_bytes_max=cast("int", values.segment_bytes_max),
            segment_age_max_s=cast("float", values.segment_age_max_s),
            segment_age_min_s=cast("float", values.segment_age_min_s),
            method=cast("OffloadMethod", values.method),
            threshold_bytes=_limit(values.threshold_bytes),
            threshold_s=_limit(values.threshold_s),
            history_order=cast("HistoryOrder", values.history_order),
            place=(cast("str", values.bucket), cast("str", values.prefix)),
        )

    def held(self, paused: Paused | None, *, push_only: bool) -> "RollPolicy":
        """Return the policy while an operator has paused the topic (`paused`), else this one.

        Under the method `none` the open segment is sealed and none begins. Entries that were pushed to a topic without
        a source exist nowhere else, so they are still offloaded, and no more are taken.
        """
        if paused is None:
            return self
        return replace(self, paused=paused, method=self.method if push_only else OffloadMethod.NONE)

    def decide(
        self, *, payload_bytes: int, age_s: float, full: bool, manual: bool, switch: bool, memory: bool, stopping: bool
    ) -> RollReason | None:
        """Return why a segment that holds entries has to be sealed now, or None.

        `switch`: the next entries go by another method, or not at all. `full`: the object can hold no more parts,
        whatever the limits. The minimum age holds back size alone.
        """
        if stopping:
            return RollReason.SHUTDOWN
        if manual:
            return RollReason.MANUAL
        if switch:
            return RollReason.SWITCH
        if full or (payload_bytes >= self.segment_bytes_max and age_s >= self.segment_age_min_s):
            return RollReason.SIZE
        if age_s >= self.segment_age_max_s:
            return RollReason.AGE
        if memory:
            return RollReason.MEMORY
        return None


def _limit(value: N | None) -> N | None:
    """Return a threshold, None for one that is off."""
    return value if value is not None and value >= 0 else None
