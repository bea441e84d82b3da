"""When an open segment has had enough: a pure decision over its size, its age and what was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from offloaderd.model import RollReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """PIP-76's limits: `maxSizePerOffloadSegmentMbytes`, `maxOffloadSegmentRolloverTimeMinutes` and a minimum age."""

    segment_bytes_max: int
    segment_age_max_s: float
    segment_age_min_s: float = 0.0

    def decide(
        self, *, payload_bytes: int, age_s: float, full: bool, manual: bool, memory: bool, stopping: bool
    ) -> RollReason | None:
        """Say why a segment that holds entries is to be sealed now, or None.

        `full`: the object can take no more parts, whatever the limits. The minimum age holds back size alone.
        """
        if stopping:
            return RollReason.SHUTDOWN
        if manual:
            return RollReason.MANUAL
        if full or (payload_bytes >= self.segment_bytes_max and age_s >= self.segment_age_min_s):
            return RollReason.SIZE
        if age_s >= self.segment_age_max_s:
            return RollReason.AGE
        if memory:
            return RollReason.MEMORY
        return None
