"""Runs of entries as rows of the embedded store, and back: pure, checked, one copy of each payload.

A row holds consecutive entries of one ledger: two columns of bytes and their check sums.

| column         | content                                                              |
|----------------|----------------------------------------------------------------------|
| first_entry_id | id of the first entry                                                |
| entry_count    | number of entries, >= 1                                              |
| bytes_before   | payload bytes of the ledger in front of the row                      |
| lengths        | one length for each entry, 4 bytes, unsigned, little-endian          |
| lengths_crc32c | CRC-32C of the three numbers (8 bytes each, little-endian) + lengths |
| payloads       | the payloads, nothing between them                                   |
| payloads_crc32c| CRC-32C of payloads                                                  |

The lengths have a check sum of their own because they are read far more often than the payloads.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import google_crc32c

from offloaderd.core.errors import CorruptData
from offloaderd.ledgers.book import Run

ROW_BYTES = 1024 * 1024
"""Payload bytes of a full row: large enough to be cheap per entry, small enough to be read for one."""
ROW_ENTRIES = 8192
"""Entries of a full row, for small ones."""
_HEAD = struct.Struct("<qqq")


@dataclass(frozen=True, slots=True)
class Head:
    """A row without its payloads; `lengths` are those of its entries."""

    ledger_id: int
    first_entry_id: int
    bytes_before: int
    lengths: "array[int]"

    @property
    def last_entry_id(self) -> int:
        """Id of the row's last entry."""
        return self.first_entry_id + len(self.lengths) - 1

    def length_at(self, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including an entry of this row."""
        return self.bytes_before + sum(self.lengths[: entry_id - self.first_entry_id + 1])


def rows(runs: Iterable[Run]) -> Iterator[tuple[int | bytes, ...]]:
    """Yield rows to insert, ledger id first; runs of a ledger share rows: many small appends in a commit cost few."""
    for run in _joined(runs):
        ends = list(accumulate(map(len, run.payloads)))
        taken = 0
        while taken < len(ends):
            before = ends[taken - 1] if taken else 0
            end = min(max(bisect_right(ends, before + ROW_BYTES), taken + 1), taken + ROW_ENTRIES)
            payloads = b"".join(run.payloads[taken:end])
            first, length_before = run.first_entry_id + taken, run.bytes_before + before
            lengths = _little_endian(array("I", map(len, run.payloads[taken:end]))).tobytes()
            check = _head_crc32c(run.ledger_id, first, length_before, lengths)
            yield (
                run.ledger_id,
                first,
                end - taken,
                length_before,
                lengths,
                check,
                payloads,
                google_crc32c.value(payloads),
            )
            taken = end


def head(row: Sequence[int | bytes], *, key: str) -> Head:
    """Check a row without its payloads (ledger_id to lengths_crc32c); raises CorruptData."""
    match row:
        case (int(ledger_id), int(first), int(count), int(before), bytes(lengths), int(crc32c)):
            pass
        case _:
            raise CorruptData(key=key, offset=0, expected="a row of entries", found="other types")
    where = f"{key}, ledger {ledger_id}, row {first}"
    found = _head_crc32c(ledger_id, first, before, lengths)
    if found != crc32c:
        raise CorruptData(key=where, offset=0, expected=f"lengths with CRC-32C {crc32c:08x}", found=f"{found:08x}")
    if len(lengths) != 4 * count or not count:
        raise CorruptData(key=where, offset=0, expected=f"{count} lengths", found=f"{len(lengths)} bytes")
    return Head(ledger_id, first, before, _little_endian(array("I", lengths)))


def slice_payloads(
    of: Head, data: bytes, crc32c: int, *, first: int, last: int, bytes_max: int, key: str
) -> list[bytes]:
    """Return payloads from `first` to at most `last`: one, then more up to `bytes_max`. Raises CorruptData."""
    where = f"{key}, ledger {of.ledger_id}, row {of.first_entry_id}"
    found = google_crc32c.value(data)
    if found != crc32c:
        raise CorruptData(key=where, offset=0, expected=f"payloads with CRC-32C {crc32c:08x}", found=f"{found:08x}")
    offsets = list(accumulate(of.lengths, initial=0))
    if offsets[-1] != len(data):
        raise CorruptData(key=where, offset=0, expected=f"{offsets[-1]} bytes of payloads", found=f"{len(data)} bytes")
    low = first - of.first_entry_id
    high = min(last - of.first_entry_id + 1, len(of.lengths))
    high = min(high, max(bisect_right(offsets, offsets[low] + bytes_max) - 1, low + 1))
    return [data[start:end] for start, end in pairwise(offsets[low : high + 1])]


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    by_ledger: dict[int, list[Run]] = {}
    for run in runs:
        by_ledger.setdefault(run.ledger_id, []).append(run)
    for same in by_ledger.values():
        yield same[0] if len(same) == 1 else same[0]._replace(payloads=[one for run in same for one in run.payloads])


def _head_crc32c(ledger_id: int, first_entry_id: int, bytes_before: int, lengths: bytes) -> int:
    numbers = _HEAD.pack(ledger_id, first_entry_id, bytes_before)
    return int(google_crc32c.extend(google_crc32c.value(numbers), lengths))


def _little_endian(lengths: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths
