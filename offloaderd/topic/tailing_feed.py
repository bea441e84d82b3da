"""The live feed: entries of a topic from its tailing buffer, for one segment after the other.

Only this feed sets the position of the newest taken entry, behind which the tailer reads.
"""

from typing import Protocol

from offloaderd.core.clock import Clock
from offloaderd.core.model import Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.feed import Answer, Empty, Entries, Lost
from offloaderd.topic.buffer import TailingBuffer

OVERDRAW_S = 10.0
"""Longest wait for a segment's next entries before another segment may overdraw the memory instead."""


class SourceState(Protocol):
    """The known state of the topic's source."""

    @property
    def chain(self) -> LedgerChain:
        """Its ledgers."""
        ...

    @property
    def looked_s(self) -> float | None:
        """Time of the last successful refresh (monotonic), None before the first."""
        ...


class TailingFeed:
    """The next entries of one topic; see EntryFeed. It answers no Gap: the tailer records losses.

    `source` is None for a topic without one.
    """

    def __init__(self, buffer: TailingBuffer, clock: Clock, *, resume: Position) -> None:
        self.position = resume
        """Newest entry that was taken before the last step, or is committed."""
        self.changed = buffer.changed
        """Notified of entries, and of every other event that may end the segment."""
        self.source: SourceState | None = None
        self._buffer = buffer
        self._clock = clock
        self._came_s = clock.monotonic()

    @property
    def rereadable(self) -> bool:
        """See EntryFeed: true with a source."""
        return self._buffer.rereadable

    def first(self, after: Position | None = None) -> Position | None:
        """Return the first entry behind `after` (None: the position); None while it is not in memory."""
        found = self._buffer.take(self.position if after is None else after, 1)
        return found[0].first if found else None

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """See EntryFeed. While required entries are missing it may overdraw the memory, unless none come."""
        self.position = max(self.position, after)
        batches = self._buffer.take(after, bytes_max)
        if required is not None and (batches[0].first > required if batches else self.out_of_reach(required)):
            return Lost()
        now_s = self._clock.monotonic()
        if batches:
            self._came_s = now_s
            return Entries(tuple(batches))
        if required is not None:
            if now_s - self._came_s >= OVERDRAW_S:
                self._buffer.let_others()
            self._buffer.starve()
        return Empty()

    def out_of_reach(self, end: Position) -> bool:
        """Return whether no listed ledger has, or may get, the entries behind the position up to `end`."""
        source, taken = self.source, self.position
        if source is None or source.looked_s is None:
            return False
        between = [info for info in source.chain.ledgers.values() if taken.ledger_id <= info.ledger_id <= end.ledger_id]
        return not any(not info.closed or taken < (info.ledger_id, info.entries - 1) for info in between)

    async def wait(self, timeout_s: float) -> None:
        """See EntryFeed."""
        await self.changed.wait_at_most(self._clock, timeout_s)

    def restart(self, at: Position) -> None:
        """See EntryFeed. Entries before a later position are stored, and may be dropped."""
        if at > self.position:
            self._buffer.mark_cut(at)
        elif at < self.position or self._buffer.starving:
            self._buffer.restart(at)
        self.position = at
        self._came_s = self._clock.monotonic()

    def sent(self, through: Position) -> None:
        """See EntryFeed. The position moves too, so that dropped entries are not read again."""
        self._buffer.mark_cut(through)
        self.position = max(self.position, through)

    def committed(self, through: Position) -> None:
        """See EntryFeed. Entries that were not taken here, as of an adopted ledger, are not read any more."""
        taken, self.position = self.position, max(self.position, through)
        self._buffer.release(through)
        if taken < through:
            self._buffer.restart(through)

    async def close(self) -> None:
        """Keep the entries: the next segment takes them."""
