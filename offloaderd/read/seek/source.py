"""Seeking among entries without a survey: of the ledger source, the buffer, and ledgers that brokers offloaded.

A binary search reads one entry a probe. In a broker's own ledger (PIP-17) the probes are the entries with a known
place: those of its index, at least the first of each block, and some of earlier reads. That is exact while no entry is
`DISORDER_MS` or more older than one before it; message indexes must ascend. The entries from the last one that is
surely before the goal to the answer are all read: about as many as are written in that time. Entries without a time (or
index) are skipped. After `BLANK_MAX` in a row, the rest of their ledger is as well: an interceptor of a broker changes
with its settings, and a broker that starts begins a new ledger.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import NamedTuple

from offloaderd.core.errors import EntriesMissing
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.read_options import Goal, Tier
from offloaderd.format.pulsar.entry_time import EntryTime, time_of
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.reader import TopicReader
from offloaderd.read.seek.goal import Cost, Hit, key_of, value_of
from offloaderd.read.segments.reader import SegmentReader

BLANK_MAX = 1000


class Stretch(NamedTuple):
    """Consecutive entries of one ledger, both ends inclusive."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def begin(self) -> Position:
        """Position of the first entry."""
        return Position(self.ledger_id, self.first_entry_id)

    @property
    def end(self) -> Position:
        """Position of the last entry."""
        return Position(self.ledger_id, self.last_entry_id)


class EntrySeek(ABC):
    """Entries of several ranges of ledgers, numbered from 0 over all of them."""

    def __init__(self, topic: TopicName, stretches: Sequence[Stretch], cost: Cost) -> None:
        self._topic = topic
        self._stretches = stretches
        self._cost = cost
        self._ends = list(accumulate(stretch.entries for stretch in stretches))

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self._ends[-1] if self._ends else 0

    def position(self, number: int) -> Position:
        """Return the position of an entry."""
        at = bisect_right(self._ends, number)
        stretch = self._stretches[at]
        return Position(stretch.ledger_id, stretch.last_entry_id + 1 - (self._ends[at] - number))

    async def entry(self, number: int) -> tuple[bytes, Tier]:
        """Return the entry of a number, and the tier that it came from."""
        async with aclosing(self._batches(number, number + 1)) as batches:
            async for batch, tier in batches:
                return batch.payloads[0], tier
        raise _missing(self.position(number))

    async def find(self, goal: Goal) -> Hit | None:
        """Return the first entry that reaches the goal. Raises what reading raises."""
        probes = await self._probes()
        start, before, behind = 0, -1, len(probes)
        while behind - before > 1:
            middle = (before + behind) // 2
            found = await self._first_key(
                goal, probes[middle], probes[behind] if behind < len(probes) else self.entries
            )
            if found is None or found[1] >= goal.surely_before:
                behind = middle
            else:
                start, before = found[0] + 1, bisect_right(probes, found[0]) - 1
        async with aclosing(self._noted(goal, start)) as noted:
            async for _, position, time, tier in noted:
                key = value_of(goal, time)
                if key is not None and key >= goal.value:
                    return Hit(position=position, time=time, tier=tier)
        return None

    async def _probes(self) -> Sequence[int]:
        """Return the entries that can be probed, in order."""
        return range(self.entries)

    async def _first_key(self, goal: Goal, start: int, end: int) -> tuple[int, int] | None:
        """Return the first entry of [start, end) that has a time or index, and that."""
        key = key_of(goal, (await self.entry(start))[0])
        if key is not None:
            return start, key
        async with aclosing(self._noted(goal, start + 1)) as found:
            async for number, _, time, _ in found:
                key = value_of(goal, time)
                if number >= end:
                    return None
                if key is not None:
                    return number, key
        return None

    async def _noted(self, goal: Goal, start: int) -> AsyncGenerator[tuple[int, Position, EntryTime, Tier], None]:
        """Yield number, position and time of the entries from `start` on, without the rest of blank ledgers."""
        at = start
        while at < self.entries:
            blanks = 0
            end = self._ends[bisect_right(self._ends, at)]
            async with aclosing(self._batches(at, end)) as batches:
                async for batch, tier in batches:
                    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
                        time = time_of(payload)
                        yield at, Position(batch.ledger_id, entry_id), time, tier
                        at += 1
                        blanks = blanks + 1 if value_of(goal, time) is None else 0
                    if blanks >= BLANK_MAX:
                        self._cost.skipped = self._cost.skipped or self.position(at - 1)
                        break
            at = end

    @abstractmethod
    def _batches(self, start: int, end: int) -> AsyncGenerator[tuple[EntryBatch, Tier], None]:
        """Yield entries [start, end), which are of one ledger."""


class LedgerSeek(EntrySeek):
    """The entries of a ledger that a broker offloaded itself. Its cost counts pieces, cached ones as well."""

    def __init__(self, reader: SegmentReader, topic: TopicName, segment: CommittedSegment, cost: Cost) -> None:
        super().__init__(topic, [Stretch(segment.begin.ledger_id, segment.begin.entry_id, segment.end.entry_id)], cost)
        self._reader = reader
        self._segment = segment

    async def _probes(self) -> Sequence[int]:
        self._cost.at = self._segment
        return await self._reader.known_places(self._segment)

    async def _first_key(self, goal: Goal, start: int, end: int) -> tuple[int, int] | None:
        key = key_of(goal, (await self.entry(start))[0])
        return None if key is None else (start, key)

    async def _batches(self, start: int, end: int) -> AsyncGenerator[tuple[EntryBatch, Tier], None]:
        self._cost.at = self._segment
        reading = self._reader.read(self._topic, self._segment, self.position(start), self.position(end - 1))
        async with aclosing(reading) as batches:
            async for batch in batches:
                self._cost.blocks += 1
                self._cost.gets += 1
                self._cost.get_bytes += batch.payload_bytes()
                yield batch, Tier.OBJECTS


class SourceSeek(EntrySeek):
    """Entries that only the ledger source or the buffer has."""

    def __init__(self, reader: TopicReader, topic: TopicName, stretches: Sequence[Stretch], cost: Cost) -> None:
        super().__init__(topic, stretches, cost)
        self._reader = reader

    async def entry(self, number: int) -> tuple[bytes, Tier]:
        """Return one entry, and its tier, with retries of the source."""
        ask = super().entry
        return await self._reader.patiently(lambda: ask(number))

    async def _batches(self, start: int, end: int) -> AsyncGenerator[tuple[EntryBatch, Tier], None]:
        """Yield entries from the buffer if possible, else from the source."""
        self._cost.at = None
        cursor, last = self.position(start), self.position(end - 1)
        while cursor <= last:
            held = self._reader.hot.read(self._topic, cursor, last, self._reader.options.batch_bytes)
            if held is not None:
                yield held, Tier.BUFFER
                cursor = Position(held.ledger_id, held.last_entry_id + 1)
                continue
            async with aclosing(self._from_source(cursor, last)) as batches:
                async for batch in batches:
                    yield batch, Tier.SOURCE
                    cursor = Position(batch.ledger_id, batch.last_entry_id + 1)

    async def _from_source(self, first: Position, last: Position) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries of the source. Raises EntriesMissing without all of them."""
        source, cursor = self._reader.source, first
        if source is not None:
            batch_bytes = self._reader.options.batch_bytes
            reading = source.read(self._topic, first.ledger_id, first.entry_id, last.entry_id, batch_bytes=batch_bytes)
            async with aclosing(reading) as batches:
                async for batch in batches:
                    self._cost.source_reads += 1
                    self._cost.source_bytes += batch.payload_bytes()
                    yield batch
                    cursor = Position(batch.ledger_id, batch.last_entry_id + 1)
        if cursor <= last:
            raise _missing(cursor)


def _missing(at: Position) -> EntriesMissing:
    return EntriesMissing(f"entry {at} is in no tier", hint="`offloadctl segments` shows what is kept")
