"""Entries that stay as they lie in a block, head and payload in turn (FORMAT.md, section 1), until somebody wants them.

To pass a block on takes no look at its entries: where its frames begin and end is known from its manifest. Whoever
cuts between entries looks at heads, from the nearest place that is known on; whoever wants payloads looks at all.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from offloaderd.errors import CorruptData
from offloaderd.format.entries import ENTRY_HEAD, ENTRY_OVERHEAD_BYTES, decode_entries
from offloaderd.model import EntryBatch, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NUMBER = itemgetter(0)


@dataclass(frozen=True, slots=True, eq=False)
class FramedEntries:
    """Consecutive entries of one ledger, `count` of them from `first_entry_id` on: the frames `data[start:end]`.

    `data` begins at byte `at` of the object `key`, which is for errors. `places` are ascending pairs (number, start):
    the frame of entry `first_entry_id + number` begins at `data[start]`. Nobody may have looked at the frames yet, so
    whatever does raises CorruptData for one that is not right.
    """

    ledger_id: int
    first_entry_id: int
    count: int
    data: bytes
    start: int
    end: int
    key: str
    at: int
    places: Sequence[tuple[int, int]] = ()

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry; one less than the first when there is none."""
        return self.first_entry_id + self.count - 1

    @property
    def first(self) -> Position:
        """Position of the first entry."""
        return Position(self.ledger_id, self.first_entry_id)

    @property
    def last(self) -> Position:
        """Position of the last entry."""
        return Position(self.ledger_id, self.last_entry_id)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads, taken out anew at every use. Raises CorruptData."""
        return decode_entries(
            self.data,
            start=self.start,
            end=self.end,
            first_entry_id=self.first_entry_id,
            count=self.count,
            key=self.key,
            at=self.at,
        )

    @property
    def frames(self) -> memoryview:
        """The frames, not copied."""
        return memoryview(self.data)[self.start : self.end]

    def payload_bytes(self) -> int:
        """Sum of the payload lengths."""
        return self.end - self.start - self.count * ENTRY_OVERHEAD_BYTES

    def decoded(self) -> EntryBatch:
        """Return the entries. Raises CorruptData."""
        return EntryBatch(self.ledger_id, self.first_entry_id, self.payloads)

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """Yield each entry's id and payload, looking no further than asked. Raises CorruptData."""
        for entry_id, start, end in self._walk(self.first_entry_id):
            yield entry_id, self.data[start + ENTRY_OVERHEAD_BYTES : end]

    def payload(self, entry_id: int) -> bytes:
        """Return the payload of one entry that is among them. Raises CorruptData."""
        _, start, end = next(self._walk(entry_id))
        return self.data[start + ENTRY_OVERHEAD_BYTES : end]

    def between(self, first_entry_id: int, last_entry_id: int) -> FramedEntries:
        """Return the part within [first_entry_id, last_entry_id]; may be empty. Raises CorruptData."""
        low, high = max(first_entry_id, self.first_entry_id), min(last_entry_id, self.last_entry_id)
        if (low, high) == (self.first_entry_id, self.last_entry_id):
            return self
        if low > high:
            return self._part(low, 0, self.start, self.start)
        start = self._start_of(low)
        end = self.end if high == self.last_entry_id else self._start_of(high + 1)
        return self._part(low, high - low + 1, start, end)

    def pieces(self, bytes_max: int) -> Iterator[FramedEntries]:
        """Yield all in pieces of at most `bytes_max` bytes of frames, or one entry. Raises CorruptData."""
        if self.end - self.start <= bytes_max or self.count == 1:
            yield self
            return
        first, begin = self.first_entry_id, self.start
        for entry_id, start, end in self._walk(first):
            if end - begin > bytes_max and start > begin:
                yield self._part(first, entry_id - first, begin, start)
                first, begin = entry_id, start
        yield self._part(first, self.last_entry_id + 1 - first, begin, self.end)

    def _part(self, first_entry_id: int, count: int, start: int, end: int) -> FramedEntries:
        return FramedEntries(self.ledger_id, first_entry_id, count, self.data, start, end, self.key, self.at)

    def _start_of(self, entry_id: int) -> int:
        """Return where the frame of one of the entries begins."""
        return next(self._walk(entry_id))[1]

    def _walk(self, from_entry_id: int) -> Iterator[tuple[int, int, int]]:
        """Yield, from one of the entries on, the id and where the frame begins and ends."""
        known = bisect_right(self.places, from_entry_id - self.first_entry_id, key=_NUMBER)
        number, start = self.places[known - 1] if known else (0, self.start)
        data, unpack, last_end = self.data, ENTRY_HEAD.unpack_from, self.end
        for entry_id in range(self.first_entry_id + number, self.last_entry_id + 1):
            body = start + ENTRY_OVERHEAD_BYTES
            if body > last_end:
                raise self._corrupt(start, f"entry {entry_id}", "the end of the entries")
            length, found = unpack(data, start)
            if found != entry_id:
                raise self._corrupt(start + 4, f"entry id {entry_id}", found)
            end = body + length
            if not body <= end <= last_end:
                raise self._corrupt(start, f"an entry of at most {last_end - body} bytes", length)
            if entry_id >= from_entry_id:
                yield entry_id, start, end
            start = end
        if start != last_end:
            raise self._corrupt(start, f"the end of the entries behind entry {self.last_entry_id}", "more")

    def _corrupt(self, offset: int, expected: object, found: object) -> CorruptData:
        return CorruptData(key=self.key, offset=self.at + offset, expected=expected, found=found)


Entries = EntryBatch | FramedEntries
"""Consecutive entries of one ledger, taken apart or not."""
