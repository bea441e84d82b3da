"""Entries in their stored form, heads and payloads in turn (FORMAT.md, section 1), decoded on demand.

A block is passed on without reading its entries: its manifest has the begin and end of its frames. A cut between
entries reads heads from the nearest known place on; payloads need all entries to be read.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from offloaderd.core.entries import ENTRY_HEAD, ENTRY_OVERHEAD_BYTES, decode_entries
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import EntryBatch, Position

_NUMBER, _START = itemgetter(0), itemgetter(1)


@dataclass(frozen=True, slots=True, eq=False)
class FramedEntries:
    """Consecutive entries of one ledger, `count` of them from `first_entry_id` on: the frames `data[start:end]`.

    `data` begins at byte `at` of the object `key`, which is for errors. `places` are ascending pairs (number, start):
    the frame of entry `first_entry_id + number` begins at `data[start]`. Frames are checked when they are first read,
    so each method that reads them raises CorruptData.
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
        """Id of the last entry; one less than the first if there is none."""
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
        """The payloads, decoded at each use. Raises CorruptData."""
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
        """Yield each entry's id and payload, decoded as the iteration reaches it. Raises CorruptData."""
        for entry_id, start, end in self._walk(self.first_entry_id, self.start):
            yield entry_id, self.data[start + ENTRY_OVERHEAD_BYTES : end]

    def payload(self, entry_id: int) -> bytes:
        """Return the payload of one of the entries. Raises CorruptData."""
        start, end = self._find(entry_id)
        return self.data[start + ENTRY_OVERHEAD_BYTES : end]

    def between(self, first_entry_id: int, last_entry_id: int) -> "FramedEntries":
        """Return the part within [first_entry_id, last_entry_id]; may be empty. Raises CorruptData."""
        low, high = max(first_entry_id, self.first_entry_id), min(last_entry_id, self.last_entry_id)
        if (low, high) == (self.first_entry_id, self.last_entry_id):
            return self
        if low > high:
            return self._part(low, 0, self.start, self.start)
        start = self._find(low)[0]
        end = self.end if high == self.last_entry_id else self._find(high)[1]
        return self._part(low, high - low + 1, start, end)

    def pieces(self, bytes_max: int) -> "Iterator[FramedEntries]":
        """Yield the entries in pieces with at most `bytes_max` bytes of frames, or one entry. Raises CorruptData."""
        if self.end - self.start <= bytes_max or self.count == 1:
            yield self
            return
        first, begin = self.first_entry_id, self.start
        while begin < self.end:
            following, stop = self._cut(first, begin, bytes_max)
            yield self._part(first, following - first, begin, stop)
            first, begin = following, stop

    def _cut(self, first: int, begin: int, bytes_max: int) -> tuple[int, int]:
        """Return the entry behind a piece that begins with `first` at `begin`, and that entry's offset."""
        if self.end - begin <= bytes_max:
            return self.last_entry_id + 1, self.end
        known = bisect_right(self.places, begin + bytes_max, key=_START)
        near, at = self.places[known - 1] if known else (0, begin)
        near, at = (self.first_entry_id + near, at) if at > begin else (first, begin)
        entry_id, start, end = next(one for one in self._walk(near, at) if one[2] - begin > bytes_max)
        return (entry_id, start) if entry_id > first else (entry_id + 1, end)

    def _part(self, first_entry_id: int, count: int, start: int, end: int) -> "FramedEntries":
        return FramedEntries(self.ledger_id, first_entry_id, count, self.data, start, end, self.key, self.at)

    def _find(self, entry_id: int) -> tuple[int, int]:
        """Return begin and end of an entry's frame."""
        known = bisect_right(self.places, entry_id - self.first_entry_id, key=_NUMBER)
        number, at = self.places[known - 1] if known else (0, self.start)
        walk = self._walk(self.first_entry_id + number, at)
        return next((start, end) for found, start, end in walk if found == entry_id)

    def _walk(self, entry_id: int, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield id, begin and end of each frame, from the entry whose frame begins at `start`."""
        data, unpack, last_end = self.data, ENTRY_HEAD.unpack_from, self.end
        for wanted in range(entry_id, self.last_entry_id + 1):
            body = start + ENTRY_OVERHEAD_BYTES
            if body > last_end:
                raise self._corrupt(start, f"entry {wanted}", "the end of the entries")
            length, found = unpack(data, start)
            if found != wanted:
                raise self._corrupt(start + 4, f"entry id {wanted}", found)
            end = body + length
            if not body <= end <= last_end:
                raise self._corrupt(start, f"an entry of at most {last_end - body} bytes", length)
            yield wanted, start, end
            start = end
        if start != last_end:
            raise self._corrupt(start, f"the end of the entries behind entry {self.last_entry_id}", "more")

    def _corrupt(self, offset: int, expected: object, found: object) -> CorruptData:
        return CorruptData(key=self.key, offset=self.at + offset, expected=expected, found=found)


Entries = EntryBatch | FramedEntries
"""Consecutive entries of one ledger, decoded or not."""
