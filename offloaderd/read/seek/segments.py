"""Seeking among committed segments, by what their manifests say.

The first entry that reaches a goal is in the first block whose greatest time does. Segments in a row also have the
greatest time before them (`Past`), which never falls from one segment to the next: one binary search over manifests
finds the segment, its blocks are searched in memory, and at most one block is fetched. That is exact with any disorder.

Manifests of older versions have none of that. Such segments, and such blocks, are searched like entries of the source:
by the first entries of segments and of blocks, exact up to a disorder of `DISORDER_MS`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from operator import attrgetter

from offloaderd.core.entries import FramedEntries
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.format.manifest import SegmentManifest
from offloaderd.format.pulsar.entry_time import EntryTime, time_of
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.seek.goal import Cost, Hit, first_of, greatest_before, greatest_of, key_of, value_of
from offloaderd.read.seek.source import EntrySeek
from offloaderd.read.segments.reader import SegmentReader
from offloaderd.read.segments.table import SegmentTable


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


class SequenceSeek:
    """Entries of all tiers in the order of the log, by number (FORMAT.md, 4.4): manifests have the first of segments.

    Entries of only the source are counted from there: on behind the segment before them, back before the first segment.
    Without a number in a manifest (older versions), the existing entries before its segment are counted.
    """

    def __init__(self, pieces: Sequence[SegmentSeek | EntrySeek]) -> None:
        self._pieces = pieces
        self._before = list(accumulate((piece.entries for piece in pieces), initial=0))
        """Number of entries before each piece."""

    async def find(self, wanted: int) -> Hit | None:
        """Return the first entry whose number is `wanted` or more. Raises what reading raises."""
        number = 0
        for at, piece in enumerate(self._pieces):
            if isinstance(piece, SegmentSeek):
                end = await self._end(at, piece)
                if wanted < end:
                    return await self._in_segments(at, piece, wanted)
            else:
                number = number if at else await self._front()
                end = number + piece.entries
                if wanted < end:
                    return await _in_source(piece, max(0, wanted - number), max(wanted, number))
            number = end
        return None

    async def _front(self) -> int:
        """Return the number of the oldest entry, counted back from the first segment."""
        for at, piece in enumerate(self._pieces):
            if isinstance(piece, SegmentSeek):
                return max(0, await self._begin(at, piece, 0) - self._before[at])
        return 0

    async def _begin(self, at: int, piece: SegmentSeek, number: int) -> int:
        async with piece.table(number) as table:
            past = table.manifest.past
        if past is not None:
            return past.entries
        return self._before[at] + sum(one.entries for one in piece.segments[:number])

    async def _end(self, at: int, piece: SegmentSeek) -> int:
        """Return the number of the entry behind some segments."""
        last = len(piece.segments) - 1
        begin = await self._begin(at, piece, last)
        async with piece.table(last) as table:
            parts = table.manifest.ledgers
            return begin + sum(part.last_entry_id - part.first_entry_id + 1 for part in parts)

    async def _in_segments(self, at: int, piece: SegmentSeek, wanted: int) -> Hit | None:
        """Find the entry in the last segment that does not begin behind it, or the one after a gap in the numbers."""
        last = len(piece.segments) - 1
        begin = await self._begin(at, piece, last)
        before = list(accumulate((one.entries for one in reversed(piece.segments[:-1])), initial=0))
        guess = last - bisect_right(before, max(0, begin - wanted - 1)) if wanted < begin else last

        async def behind(number: int) -> bool:
            return await self._begin(at, piece, number) > wanted

        first = max(0, await first_true(0, last + 1, max(0, guess) + 1, behind) - 1)
        for number in range(first, last + 1):
            begin = await self._begin(at, piece, number)
            if (hit := await _in_segment(piece, number, begin, wanted)) is not None:
                return hit
        return None


def surveyed(manifest: SegmentManifest) -> bool:
    """Whether all blocks have the range of times of their entries."""
    return all(block.survey is not None for block in manifest.blocks)


def reaches(goal: Goal, manifest: SegmentManifest) -> bool:
    """Whether an entry of a surveyed segment, or of those before it in its row, reaches the goal."""
    keys = [greatest_of(goal, block.survey) for block in manifest.blocks if block.survey is not None]
    keys += [greatest_before(goal, manifest.past)] if manifest.past is not None else []
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


async def _in_segment(piece: SegmentSeek, number: int, begin: int, wanted: int) -> Hit | None:
    """Return the first entry of a segment that is kept and has `wanted` or a greater number; it is read."""
    kept = {part.ledger_id for part in piece.segments[number].slices}
    async with piece.table(number) as table:
        for part in table.manifest.ledgers:
            entries = part.last_entry_id - part.first_entry_id + 1
            if part.ledger_id in kept and wanted < begin + entries:
                sequence = max(begin, wanted)
                position = Position(part.ledger_id, part.first_entry_id + sequence - begin)
                found = time_of(await piece.entry(table, position))
                return Hit(position=position, time=found, tier=Tier.OBJECTS, sequence=sequence)
            begin += entries
    return None


async def _in_source(piece: EntrySeek, number: int, sequence: int) -> Hit:
    payload, tier = await piece.entry(number)
    return Hit(position=piece.position(number), time=time_of(payload), tier=tier, sequence=sequence)


async def first_true(low: int, high: int, guess: int, true_at: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first of low..high from which on `true_at` holds; it is assumed for `high`.

    Goes from `guess` in steps that double: a good guess costs two calls.
    """
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
