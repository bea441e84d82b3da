"""Entries inside a block, and the padding after them: the same in V1 and V2 (FORMAT.md, section 1).

An entry is a head of 12 bytes (payload length, entry id) and the payload as in BookKeeper. Padding marks the end of the
entries, as its first byte makes the length field negative. This code is performance-critical: `decode_entries` creates
one `bytes` object per entry and no other.

A block is passed on as FramedEntries without reading its entries: its manifest has the begin and end of its frames. A
cut between entries reads heads from the nearest known place on; payloads need all entries to be read.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from offloaderd.core import native
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch, Position

ENTRY_HEAD = struct.Struct(">iq")
ENTRY_OVERHEAD_BYTES = ENTRY_HEAD.size
PAD = b"\xfe\xdc\xde\xad"


def padding(n: int) -> bytes:
    """Return `n` bytes of padding: the pad word, repeated and truncated."""
    return (PAD * (n // len(PAD) + 1))[:n]


def framed_bytes(payload_bytes: int, count: int) -> int:
    """Return the bytes in a block of `count` entries with `payload_bytes` in all."""
    return payload_bytes + count * ENTRY_OVERHEAD_BYTES


def frame(first_entry_id: int, payloads: Sequence[bytes]) -> list[bytes]:
    """Return heads and payloads in turn; the caller joins them once, and payloads are not copied.

    Raises InvalidInput for an entry id outside 0 to 2^63-1 or a payload of 2 GiB or more.
    """
    count = len(payloads)
    chunks = [b""] * (2 * count)
    try:
        chunks[::2] = map(ENTRY_HEAD.pack, map(len, payloads), range(first_entry_id, first_entry_id + count))
    except struct.error as error:
        raise InvalidInput(f"entries from {first_entry_id} on cannot be stored: {error}") from None
    if first_entry_id < 0:
        raise InvalidInput(f"entry id {first_entry_id} is negative")
    chunks[1::2] = payloads
    return chunks


def decode_entries(
    data: bytes | memoryview,
    *,
    start: int,
    end: int | None = None,
    first_entry_id: int,
    count: int | None = None,
    key: str,
    at: int,
) -> list[bytes]:
    """Return the payloads of the entries from `data[start]` on; the first has the id `first_entry_id`.

    With a `count`, exactly that many are read. Bytes after them are not checked, unless `end` gives the end of the last
    one. Without a `count`, entries are read up to the padding or the end of `data`; all other bytes must be padding.
    `key` and `at`, the offset of `data[0]` in the object, are for the error. Raises CorruptData.
    """
    data = bytes(data)  # no copy if it is bytes already; slicing bytes is twice as fast as slicing a view
    exact = end is not None
    end = len(data) if end is None else end
    if not 0 <= start <= end <= len(data):
        raise CorruptData(key=key, offset=at + end, expected=f"entries from byte {at + start} on", found="the end")
    if exact and count is not None:
        compiled = native.framed_payloads(data, start, end, first_entry_id, count)
        if compiled is not None:
            return compiled
    unpack = ENTRY_HEAD.unpack_from
    payloads: list[bytes] = []
    append = payloads.append
    head_last = end - ENTRY_OVERHEAD_BYTES
    position = start
    wanted = first_entry_id
    stop = -1 if count is None else first_entry_id + count
    while wanted != stop and position <= head_last:
        length, entry_id = unpack(data, position)
        if length < 0:
            break
        if entry_id != wanted:
            raise CorruptData(key=key, offset=at + position + 4, expected=f"entry id {wanted}", found=entry_id)
        body = position + ENTRY_OVERHEAD_BYTES
        if length > end - body:
            raise CorruptData(
                key=key, offset=at + position, expected=f"an entry of at most {end - body} bytes", found=length
            )
        position = body + length
        append(data[body:position])
        wanted += 1
    if count is None:
        check_padding(data, position, key=key, at=at)
    elif wanted != stop:
        raise CorruptData(
            key=key, offset=at + position, expected=f"{count} entries from {first_entry_id} on", found=len(payloads)
        )
    elif exact and position != end:
        raise CorruptData(key=key, offset=at + position, expected=f"the end of {count} entries", found="more")
    return payloads


def check_padding(data: bytes, start: int, *, key: str, at: int) -> None:
    """Check that `data` from `start` on is only padding. Raises CorruptData at the first other byte."""
    found = data[start:]
    expected = padding(len(found))
    if found != expected:
        wrong = next(index for index, byte in enumerate(found) if byte != expected[index])
        raise CorruptData(
            key=key,
            offset=at + start + wrong,
            expected=f"an entry, or padding {expected[wrong : wrong + 4].hex(' ')}",
            found=found[wrong : wrong + 4].hex(" "),
        )


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
