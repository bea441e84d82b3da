"""Seeking by the sequence number of an entry (FORMAT.md, 4.4): manifests say at which number their segments begin.

What only the source has is counted from there: on behind the segment before it, back before the first segment. Where a
manifest says nothing (older versions), the entries that are kept before its segment are counted.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from offloaderd.format.entry_time import time_of
from offloaderd.model import Position
from offloaderd.read.plan import Tier
from offloaderd.read.seek_goal import Hit
from offloaderd.read.seek_segments import SegmentSeek, first_true

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.format.values import SegmentManifest
    from offloaderd.read.seek_ledgers import LedgerSeek
    from offloaderd.read.seek_source import SourceSeek


class SequenceSeek:
    """Entries of all tiers in the order of the log, numbered."""

    def __init__(self, pieces: Sequence[SegmentSeek | LedgerSeek | SourceSeek]) -> None:
        self._pieces = pieces
        self._kept: dict[int, int] = {}
        """How many entries are kept before each piece of segments."""
        kept = 0
        for at, piece in enumerate(pieces):
            self._kept[at] = kept
            kept += sum(one.entries for one in piece.segments) if isinstance(piece, SegmentSeek) else piece.entries

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
        """Return the number of the oldest entry, counted back from the first segment that says its own."""
        for at, piece in enumerate(self._pieces):
            if isinstance(piece, SegmentSeek):
                return max(0, await self._begin(at, piece, 0) - self._kept[at])
        return 0

    async def _begin(self, at: int, piece: SegmentSeek, number: int) -> int:
        """Return the number of the first entry of a segment."""
        async with piece.table(number) as table:
            past = table.manifest.past
        if past is not None:
            return past.entries
        return self._kept[at] + sum(one.entries for one in piece.segments[:number])

    async def _end(self, at: int, piece: SegmentSeek) -> int:
        """Return the number of the entry that comes behind some segments."""
        last = len(piece.segments) - 1
        begin = await self._begin(at, piece, last)
        async with piece.table(last) as table:
            return begin + _entries(table.manifest)

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


async def _in_source(piece: LedgerSeek | SourceSeek, number: int, sequence: int) -> Hit:
    payload, tier = await piece.entry(number)
    return Hit(position=piece.position(number), time=time_of(payload), tier=tier, sequence=sequence)


def _entries(manifest: SegmentManifest) -> int:
    return sum(part.last_entry_id - part.first_entry_id + 1 for part in manifest.ledgers)
