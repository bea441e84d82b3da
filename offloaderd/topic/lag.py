"""The lag of a topic, and the age of its oldest entry that is not offloaded.

The age follows from stored values, so every owner reports the same. An entry has the time when it was written (the
broker's timestamp, else the publish time). An entry without one was written after its ledger was created; one that
arrived while this daemon watched is as old as its first sight. Otherwise the age is unknown, which is not 0.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from offloaderd.core.model import LedgerInfo, Position
from offloaderd.format.pulsar.entry_time import time_of
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.topic.buffer import TailingBuffer

SAMPLES_MAX = 4096
SAMPLE_GAP_S = 0.05
"""Samples closer than this are merged under the earlier time, so an age is never too low."""


class Sample(NamedTuple):
    """The newest entry that was known at a time (monotonic seconds)."""

    newest: Position
    seen_s: float


class LagTracker:
    """Remembers when entries were first seen, for the age of the oldest that is not durable."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._watched = False
        self._before: Position | None = None

    @property
    def newest(self) -> Position | None:
        """Newest entry seen and not yet durable."""
        return self._samples[-1].newest if self._samples else None

    def saw(self, newest: Position, now_s: float) -> None:
        """Note that entries up to `newest` exist; an older position is ignored."""
        if self._samples:
            last = self._samples[-1]
            if newest <= last.newest:
                return
            if now_s - last.seen_s < SAMPLE_GAP_S or len(self._samples) >= SAMPLES_MAX:
                self._samples[-1] = Sample(newest, last.seen_s)
                return
        self._samples.append(Sample(newest, now_s))

    def watch(self, newest: Position | None) -> None:
        """Note that entries behind `newest` are seen on arrival; only the first call counts."""
        if not self._watched:
            self._watched, self._before = True, newest

    def arrived(self, position: Position) -> bool:
        """Return whether an entry arrived while this watched, so that its first sight is its time."""
        return self._watched and (self._before is None or position > self._before)

    def durable(self, upto: Position) -> list[Sample]:
        """Drop and return the samples up to a durable position."""
        done = []
        while self._samples and self._samples[0].newest <= upto:
            done.append(self._samples.popleft())
        return done

    def age_s(self, now_s: float) -> float:
        """Age of the oldest entry that is not durable, in seconds; 0 when all are."""
        return max(0.0, now_s - self._samples[0].seen_s) if self._samples else 0.0


class OldestEntry:
    """The oldest entry that is not offloaded, and when it was written."""

    def __init__(
        self,
        record: TopicRecord,
        buffer: TailingBuffer,
        lag: LagTracker,
        *,
        pushed: Callable[[], Position | None] | None = None,
    ) -> None:
        """`pushed` returns the oldest entry of a topic without a source; with one it follows from the ledgers."""
        self._record = record
        self._buffer = buffer
        self._lag = lag
        self._pushed = pushed
        self._dated: tuple[Position, int | None] | None = None

    @property
    def position(self) -> Position | None:
        """Its position, None when all known entries are offloaded."""
        if self._pushed is not None:
            return self._pushed()
        topic_map = self._record.map
        plan = topic_map.unfinished
        after = topic_map.standing if plan is None else topic_map.history_end or Position(plan.first, -1)
        return first_after(self._record.chain.ledgers, after)

    @property
    def undated(self) -> Position | None:
        """The entry if its time has to be read from the source, None if it is known or in memory."""
        position = self.position
        return position if position is not None and not self._is_dated(position) else None

    def date(self, position: Position, payload: bytes) -> None:
        """Take the time of an entry from its payload."""
        self._dated = position, time_of(payload).time_ms

    def _is_dated(self, position: Position) -> bool:
        """Return whether the entry's time is known; it is taken from memory if the entry is there."""
        if self._dated is None or self._dated[0] != position:
            batch = self._buffer.read(position, position, 1)
            if batch is None:
                return False
            self.date(position, batch.payloads[0])
        return True

    def age_s(self, now_s: float, wall_ms: int) -> float | None:
        """Return its age in seconds at a monotonic time, which is also a wall time; None: unknown."""
        position, lag, chain = self.position, self._lag, self._record.chain
        if position is None:
            return lag.age_s(now_s) if self._pushed is not None else None
        info = chain.ledgers.get(position.ledger_id) if self._pushed is None else None
        written_ms = self._dated[1] if self._is_dated(position) and self._dated is not None else None
        if info is not None and written_ms is not None:
            written_ms = max(written_ms, info.created_ms or 0)  # a producer's clock may be wrong
        elif info is not None and not lag.arrived(position):
            written_ms = info.created_ms or info.closed_at_ms or None
        if written_ms is None and not lag.arrived(position):
            return None
        seen_s = lag.age_s(now_s)
        return seen_s if written_ms is None else max(seen_s, (wall_ms - written_ms) / 1000)


def first_after(ledgers: dict[int, LedgerInfo], after: Position | None) -> Position | None:
    """Return the first entry that ledgers, which are in order, hold behind a position (None: at all)."""
    found: Position | None = None
    for ledger_id, info in reversed(ledgers.items()):
        if after is not None and ledger_id < after.ledger_id:
            break
        first = after.entry_id + 1 if after is not None and ledger_id == after.ledger_id else 0
        if first < info.entries:
            found = Position(ledger_id, first)
    return found
