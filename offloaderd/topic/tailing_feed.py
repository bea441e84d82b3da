"""The entries of a live topic as they come, from its tailing buffer: the feed of one segment after the other.

It alone writes how far the topic's entries are taken, which is what the tailer reads behind.
"""

from typing import Protocol

from offloaderd.core.clock import Clock
from offloaderd.core.model import Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.feed import Answer, Empty, Entries, Lost
from offloaderd.topic.buffer import TailingBuffer

OVERDRAW_S = 10.0
"""How long a segment may wait for its next entries before another one may exceed the memory in its place."""


class SourceState(Protocol):
    """What is known of the topic's source."""

    @property
    def chain(self) -> LedgerChain:
        """Its ledgers."""
        ...

    @property
    def looked_s(self) -> float | None:
        """When their end was last asked for with success (monotonic); None: not yet."""
        ...


class TailingFeed:
    """What comes next of one topic; see EntryFeed. It tells of no Gap: the tailer has losses recorded as it sees them.

    `source` is what is known of the source, None without one.
    """

    def __init__(self, buffer: TailingBuffer, clock: Clock, *, resume: Position) -> None:
        self.position = resume
        """Newest entry that was taken for the open segment, up to the last step, or is committed."""
        self.changed = buffer.changed
        """Wakes whoever waits for entries, or for anything else that may have the segment end."""
        self.source: SourceState | None = None
        self._buffer = buffer
        self._clock = clock
        self._came_s = clock.monotonic()

    @property
    def rereadable(self) -> bool:
        """See EntryFeed: with a source to read them from."""
        return self._buffer.rereadable

    def first(self, after: Position | None = None) -> Position | None:
        """Return the first entry behind `after`, the position if None; None while it is not there."""
        found = self._buffer.take(self.position if after is None else after, 1)
        return found[0].first if found else None

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """See EntryFeed. While it lacks what is required it may take more memory than there is, unless none comes."""
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
        """Say whether the source lists no ledger any more that has, or may get, what follows up to `end`."""
        source, taken = self.source, self.position
        if source is None or source.looked_s is None:
            return False
        between = [info for info in source.chain.ledgers.values() if taken.ledger_id <= info.ledger_id <= end.ledger_id]
        return not any(not info.closed or taken < (info.ledger_id, info.entries - 1) for info in between)

    async def wait(self, timeout_s: float) -> None:
        """See EntryFeed."""
        await self.changed.wait_at_most(self._clock, timeout_s)

    def restart(self, at: Position) -> None:
        """See EntryFeed. Ahead of where it was: what lies before is stored, and may be dropped."""
        if at > self.position:
            self._buffer.mark_cut(at)
        elif at < self.position or self._buffer.starving:
            self._buffer.restart(at)
        self.position = at
        self._came_s = self._clock.monotonic()

    def sent(self, through: Position) -> None:
        """See EntryFeed. What may be dropped now is not to be read again."""
        self._buffer.mark_cut(through)
        self.position = max(self.position, through)

    def committed(self, through: Position) -> None:
        """See EntryFeed. Of what was not taken here, as a broker's ledger, nothing more is read."""
        taken, self.position = self.position, max(self.position, through)
        self._buffer.release(through)
        if taken < through:
            self._buffer.restart(through)

    async def close(self) -> None:
        """Keep what there is: the next segment goes on with it."""
