"""How many calls somebody may make in a second: a bucket of tokens for each name, and a bound on the names."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offloaderd.clock import Clock

NAMES_MAX = 10_000
"""Of more, the one that was idle for longest is forgotten, and begins again with a full bucket."""


class CallRate:
    """At most `per_s` calls a second for each name, in bursts of as many; 0 is no limit."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> bool:
        """Count one call; whether it is within the limit."""
        if not self._per_s:
            return True
        now_s = self._clock.monotonic()
        left, then_s = self._buckets.pop(name, (float(self._per_s), now_s))
        left = min(float(self._per_s), left + (now_s - then_s) * self._per_s)
        within = left >= 1
        self._buckets[name] = (left - 1 if within else left, now_s)
        if len(self._buckets) > NAMES_MAX:
            self._buckets.popitem(last=False)
        return within
