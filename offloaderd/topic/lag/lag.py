"""How far a topic is behind: samples of its newest entry over time, compared with the offloaded position. Pure."""

from collections import deque
from typing import NamedTuple

from offloaderd.core.model import Position

SAMPLES_MAX = 4096
SAMPLE_GAP_S = 0.05
"""Samples closer than this are merged into the earlier one's time, so an age is never understated by more."""


class Sample(NamedTuple):
    """The newest entry that was known at a time (monotonic seconds)."""

    newest: Position
    seen_s: float


class LagTracker:
    """Remembers when entries were first seen, to say how old the oldest is that is not durable."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._watched = False
        self._before: Position | None = None

    @property
    def newest(self) -> Position | None:
        """Newest entry seen and not yet durable."""
        return self._samples[-1].newest if self._samples else None

    def saw(self, newest: Position, now_s: float) -> None:
        """Note that entries up to `newest` exist. Older news than what is known is ignored."""
        if self._samples:
            last = self._samples[-1]
            if newest <= last.newest:
                return
            if now_s - last.seen_s < SAMPLE_GAP_S or len(self._samples) >= SAMPLES_MAX:
                self._samples[-1] = Sample(newest, last.seen_s)
                return
        self._samples.append(Sample(newest, now_s))

    def watch(self, newest: Position | None) -> None:
        """Note that what follows `newest` is seen as it comes; only the first call counts."""
        if not self._watched:
            self._watched, self._before = True, newest

    def arrived(self, position: Position) -> bool:
        """Say whether an entry came while this was watched, so that its first sight is its time."""
        return self._watched and (self._before is None or position > self._before)

    def durable(self, upto: Position) -> list[Sample]:
        """Entries up to `upto` are durable: returns the samples that are done with."""
        done = []
        while self._samples and self._samples[0].newest <= upto:
            done.append(self._samples.popleft())
        return done

    def age_s(self, now_s: float) -> float:
        """Age of the oldest entry that is not durable, in seconds; 0 when all are."""
        return max(0.0, now_s - self._samples[0].seen_s) if self._samples else 0.0
