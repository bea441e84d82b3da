"""What a topic's effective policy means to its offloader; and when an open segment has had enough.

A pure decision over a segment's size, its age and what was asked for.
"""

from dataclasses import dataclass, replace
from typing import TypeVar, cast

from offloaderd.core.model import HistoryOrder, OffloadMethod, RollReason
from offloaderd.policy.merge import Effective
from offloaderd.policy.records.topic import Paused

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """How to offload, and PIP-76's limits: `maxSizePerOffloadSegmentMbytes`, `maxOffloadSegmentRolloverTimeMinutes`.

    The thresholds are those of closed ledgers (PIP-17): what the tier is to leave alone, in bytes and in seconds since
    the close; 0 is nothing, None is no threshold. The running offloader is given another one whenever it changes.
    """

    segment_bytes_max: int
    segment_age_max_s: float
    segment_age_min_s: float = 0.0
    method: OffloadMethod = OffloadMethod.STREAMING
    threshold_bytes: int | None = None
    threshold_s: float | None = None
    history_order: HistoryOrder = HistoryOrder.HISTORY_FIRST
    place: tuple[str, str] | None = None
    """Bucket and prefix of the segments that are begun; None is wherever the daemon stores."""
    paused: Paused | None = None
    """Since when an operator has the topic stand still, and who; None: it does not."""

    @classmethod
    def of(cls, effective: Effective) -> "RollPolicy":
        """Return what a merged policy means to an offloader; it has every one of these values."""
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
        """Return the policy of a topic that an operator has paused, or this one.

        Under the method `none` the open segment is sealed and nothing begins. What was pushed and accepted exists
        nowhere else, so of a topic without a source it is still offloaded; it is told to take no more.
        """
        if paused is None:
            return self
        return replace(self, paused=paused, method=self.method if push_only else OffloadMethod.NONE)

    def decide(
        self, *, payload_bytes: int, age_s: float, full: bool, manual: bool, switch: bool, memory: bool, stopping: bool
    ) -> RollReason | None:
        """Say why a segment that holds entries is to be sealed now, or None.

        `switch`: what follows is offloaded by another method, or not at all. `full`: the object can take no more parts,
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
