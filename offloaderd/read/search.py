"""Searches for the goal of a seek in one piece of a topic: neighbouring segments, or entries without a survey.

Segments are searched by what their manifests say. The first entry that reaches a goal is in the first block whose
greatest time does. Segments in a row also have the greatest time before them (`Past`), which never falls from one
segment to the next: one binary search over manifests finds the segment, its blocks are searched in memory, and at most
one block is fetched. That is exact with any disorder. Manifests of older versions have none of that. Such segments, and
such blocks, are searched like entries: by the first entries of segments and of blocks, exact up to a disorder of
`DISORDER_MS`.

Entries without a survey are those of the ledger source, the buffer, and ledgers that brokers offloaded (PIP-17). A
binary search reads one entry a probe. In a broker's own ledger the probes are the entries with a known place: those of
its index, at least the first of each block, and some of earlier reads. That is exact while no entry is `DISORDER_MS` or
more older than one before it; message indexes must ascend. The entries from the last one that is surely before the goal
to the answer are all read: about as many as are written in that time. Entries without a time (or index) are skipped.
After `BLANK_MAX` in a row, the rest of their ledger is as well: an interceptor of a broker changes with its settings,
and a broker that starts begins a new ledger.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from operator import attrgetter

from offloaderd.core.entries import FramedEntries
from offloaderd.core.errors import EntriesMissing
from offloaderd.core.model import EntryBatch, Position, SegmentRange, TopicName
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.format.manifest import BlockInfo, Past, SegmentManifest
from offloaderd.format.pulsar.entry_time import EntryTime, Survey, time_of
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.reader import TopicReader
from offloaderd.read.segments import SegmentReader
from offloaderd.read.tables import SegmentTable


class Answered(StrEnum):
    """The reads of a seek, as metrics name them; each includes those before it."""

    MANIFEST = "manifest"
    """Tables of segments alone, and the buffer."""
    BLOCK = "block"
    """One block, or one entry of the source."""
    SCAN = "scan"
    """Several blocks or entries."""


def key_of(goal: Goal, payload: bytes) -> int | None:
    """Return the time or index of an entry, by the kind of seek."""
    return value_of(goal, time_of(payload))


def value_of(goal: Goal, found: EntryTime) -> int | None:
    """Return an entry's time or index, by the kind of seek."""
    return found.time_ms if goal.kind is SeekKind.TIME else found.message_index


def greatest_of(goal: Goal, entries: Survey | Past) -> int | None:
    """Return the greatest value of a block's survey, or before a segment."""
    return entries.time_max if goal.kind is SeekKind.TIME else entries.index_max


def first_of(goal: Goal, block: BlockInfo) -> int | None:
    """Return the value of a block's first entry in the manifest."""
    return block.first_time if goal.kind is SeekKind.TIME else block.first_index


@dataclass(slots=True)
class Cost:
    """The reads of a seek: ranges of data objects and their bytes, tables that were not cached, reads of the source."""

    gets: int = 0
    get_bytes: int = 0
    blocks: int = 0
    tables: int = 0
    source_reads: int = 0
    source_bytes: int = 0
    at: CommittedSegment | None = None
    """The segment that was read last; None for the source."""
    skipped: Position | None = None
    """Where entries without a time or index were skipped."""

    @property
    def answered(self) -> Answered:
        """The outcome, for metrics."""
        reads = self.blocks + self.source_reads
        return Answered.MANIFEST if not reads else Answered.BLOCK if reads == 1 else Answered.SCAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A found entry. `sequence` is None if not counted."""

    position: Position
    time: EntryTime
    tier: Tier
    sequence: int | None = None


BLANK_MAX = 1000


class EntrySeek(ABC):
    """Entries of several ranges, each of one ledger, numbered from 0 over all of them."""

    def __init__(self, topic: TopicName, stretches: Sequence[SegmentRange], cost: Cost) -> None:
        self._topic = topic
        self._stretches = stretches
        self._cost = cost
        self._ends = list(accumulate(one.end.entry_id - one.begin.entry_id + 1 for one in stretches))

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self._ends[-1] if self._ends else 0

    def position(self, number: int) -> Position:
        """Return the position of an entry."""
        at = bisect_right(self._ends, number)
        last = self._stretches[at].end
        return Position(last.ledger_id, last.entry_id + 1 - (self._ends[at] - number))

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
        super().__init__(topic, [segment.range], cost)
        self._reader = reader
        self._segment = segment

    async def _probes(self) -> Sequence[int]:
        self._cost.at = self._segment
        return await self._reader.known_places(self._topic, self._segment)

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

    def __init__(self, reader: TopicReader, topic: TopicName, stretches: Sequence[SegmentRange], cost: Cost) -> None:
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
                    cursor = batch.last.next()

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
                    cursor = batch.last.next()
        if cursor <= last:
            raise _missing(cursor)


def _missing(at: Position) -> EntriesMissing:
    return EntriesMissing(f"entry {at} is in no tier", hint="`offloadctl segments` shows what is stored")


class SegmentSeek:
    """Neighbouring segments, without entries of another tier between them."""

    def __init__(
        self, reader: SegmentReader, topic: TopicName, segments: Sequence[CommittedSegment], cost: Cost
    ) -> None:
        self.segments = segments
        self.entries = sum(one.entries for one in segments)
        self._reader = reader
        self._topic = topic
        self._cost = cost

    @asynccontextmanager
    async def table(self, number: int) -> AsyncIterator[SegmentTable]:
        """Load the table (index and manifest) of a segment by its number, and keep it loaded in the context."""
        segment = self._cost.at = self.segments[number]
        self._cost.tables += not self._reader.has_table(segment)
        async with self._reader.table(self._topic, segment) as table:
            yield table

    async def find(self, goal: Goal) -> Hit | None:
        """Return the first entry that reaches the goal. Raises what reading a segment raises."""
        return await self._find(goal, 0, len(self.segments) - 1)

    async def _find(self, goal: Goal, low: int, high: int) -> Hit | None:
        """Search segments `low` to `high`: those before the row of the last one, then that row."""
        async with self.table(high) as table:
            manifest = table.manifest
        if manifest.past is None or not surveyed(manifest):
            return await self._find_unsurveyed(goal, low, high)
        start = max(low, bisect_left(self.segments, manifest.past.since, hi=high, key=attrgetter("begin")))
        if low < start and (hit := await self._find(goal, low, start - 1)) is not None:
            return hit
        if not reaches(goal, manifest):
            return None
        return await self._first_from(goal, await self._first_in_row(goal, start, high), high)

    async def _first_in_row(self, goal: Goal, start: int, end: int) -> int:
        """Return the first segment of a row that reaches the goal; the last one does.

        Entries are offloaded soon after they are written, so the search for a time begins at the time of offload.
        """

        async def reached(number: int) -> bool:
            async with self.table(number) as table:
                return reaches(goal, table.manifest)

        guess = (start + end) // 2
        if goal.kind is SeekKind.TIME:
            guess = bisect_left(self.segments, goal.value, lo=start, hi=end, key=lambda one: one.offloaded_ms)
        return await first_true(start, end, guess, reached)

    async def _first_from(self, goal: Goal, first: int, last: int) -> Hit | None:
        """Search one segment after the other. The first has the answer, unless that was deleted meanwhile."""
        for number in range(first, last + 1):
            if (hit := await self._in_segment(goal, number)) is not None:
                return hit
        return None

    async def _in_segment(self, goal: Goal, number: int) -> Hit | None:
        """Search one segment, block by block, fetching only those that must or may hold the answer."""
        kept = {part.ledger_id for part in self.segments[number].slices}
        async with self.table(number) as table:
            start = 0 if surveyed(table.manifest) else await self._last_before(goal, table, kept)
            for at in range(start, len(table.manifest.blocks)):
                block = table.manifest.blocks[at]
                greatest = greatest_of(goal, block.survey) if block.survey is not None else goal.value
                if block.ledger_id not in kept or greatest is None or greatest < goal.value:
                    continue
                key = first_of(goal, block)
                if key is not None and key >= goal.value:
                    found = EntryTime(block.first_time, block.first_index)
                    return _hit(table.manifest, Position(block.ledger_id, block.first_entry_id), found)
                for entry_id, payload in (await self.block(table, at)).numbered():
                    found = time_of(payload)
                    key = value_of(goal, found)
                    if key is not None and key >= goal.value:
                        return _hit(table.manifest, Position(block.ledger_id, entry_id), found)
        return None

    async def block(self, table: SegmentTable, number: int) -> FramedEntries:
        """Return the entries of a block."""
        batch, fetched = await self._reader.block(table, number)
        self._cost.blocks += 1
        if fetched:
            self._cost.gets += 1
            self._cost.get_bytes += table.manifest.blocks[number].length
        return batch

    async def _find_unsurveyed(self, goal: Goal, low: int, high: int) -> Hit | None:
        """Search segments, some without a survey, from the last one that begins surely before the goal."""

        async def behind(number: int) -> bool:
            kept = {part.ledger_id for part in self.segments[number].slices}
            async with self.table(number) as table:
                for at, block in enumerate(table.manifest.blocks):
                    if block.ledger_id in kept and (key := await self._first_key(goal, table, at)) is not None:
                        return key >= goal.surely_before
            return True

        first = await first_true(low, high + 1, (low + high + 1) // 2, behind)
        return await self._first_from(goal, max(low, first - 1), high)

    async def entry(self, table: SegmentTable, position: Position) -> bytes:
        """Return the payload of one entry, with as little of its block as can be checked."""
        payload, fetched_bytes = await self._reader.entry(table, position)
        self._cost.blocks += 1
        self._cost.gets += fetched_bytes > 0
        self._cost.get_bytes += fetched_bytes
        return payload

    async def _last_before(self, goal: Goal, table: SegmentTable, kept: set[int]) -> int:
        """Return the last block whose first entry is surely before the goal, the first block if none is."""
        numbers = [at for at, block in enumerate(table.manifest.blocks) if block.ledger_id in kept]

        async def behind(number: int) -> bool:
            key = await self._first_key(goal, table, numbers[number])
            return key is None or key >= goal.surely_before

        first = await first_true(0, len(numbers), len(numbers) // 2, behind)
        return numbers[max(0, first - 1)]

    async def _first_key(self, goal: Goal, table: SegmentTable, number: int) -> int | None:
        """Return the time or index of the first entry of a block that has one."""
        block = table.manifest.blocks[number]
        key = first_of(goal, block)
        if key is not None or (block.survey is not None and greatest_of(goal, block.survey) is None):
            return key
        keys = (key_of(goal, payload) for _, payload in (await self.block(table, number)).numbered())
        return next((key for key in keys if key is not None), None)


def surveyed(manifest: SegmentManifest) -> bool:
    """Whether all blocks have the range of times of their entries."""
    return all(block.survey is not None for block in manifest.blocks)


def reaches(goal: Goal, manifest: SegmentManifest) -> bool:
    """Whether an entry of a surveyed segment, or of those before it in its row, reaches the goal."""
    keys = [greatest_of(goal, block.survey) for block in manifest.blocks if block.survey is not None]
    keys += [greatest_of(goal, manifest.past)] if manifest.past is not None else []
    return any(key is not None and key >= goal.value for key in keys)


def sequence_in(manifest: SegmentManifest, position: Position) -> int | None:
    """Return the sequence number of an entry of the segment, if the manifest has one for it."""
    if manifest.past is None:
        return None
    number = manifest.past.entries
    for part in manifest.ledgers:
        if part.ledger_id == position.ledger_id:
            return number + position.entry_id - part.first_entry_id
        number += part.last_entry_id - part.first_entry_id + 1
    return None


def _hit(manifest: SegmentManifest, position: Position, found: EntryTime) -> Hit:
    return Hit(position=position, time=found, tier=Tier.OBJECTS, sequence=sequence_in(manifest, position))


async def first_true(low: int, high: int, guess: int, true_at: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first of low..high (assumed) with `true_at`, by steps from `guess` that double: two calls if good."""
    guess, step = min(max(guess, low), high), 1
    if guess < high and not await true_at(guess):
        low = guess + 1
        while low < high:
            probe = min(low + step - 1, high)
            if probe == high or await true_at(probe):
                high = probe
                break
            low, step = probe + 1, 2 * step
    else:
        high = guess
        while low < high:
            probe = max(high - step, low)
            if not await true_at(probe):
                low = probe + 1
                break
            high, step = probe, 2 * step
    while low < high:
        middle = (low + high) // 2
        if await true_at(middle):
            high = middle
        else:
            low = middle + 1
    return low
