"""Parts that V1 and V2 objects share: headers of blocks, and index entries of 20 bytes (FORMAT.md, section 1).

An index entry is a pointer from an entry id into the data. Lookups are by floor: the wanted entry is at or behind the
place of the last index entry whose id is not above its own.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import add, itemgetter
from typing import NamedTuple

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.format.parsing import demand, header_fields

INDEX_ENTRY = struct.Struct(">qiq")
DATA_HEADER_BYTES = 128
"""Length of a block header, in V1 and V2."""

DATA_BYTES_MIN = DATA_HEADER_BYTES + ENTRY_OVERHEAD_BYTES
"""Length of the smallest block, which holds one entry without payload."""


INDEX_BYTES_MAX = 16 * 1024 * 1024
"""Largest index that is read: 800,000 blocks. It takes fifteen times as much in memory."""


def encode_block_header(form: struct.Struct, magic: int, header: tuple[int, ...], reserved: bytes) -> bytes:
    """Return the bytes of a block's header; raises InvalidInput for a number that is negative or too large."""
    try:
        data = form.pack(magic, DATA_HEADER_BYTES, *header, reserved)
    except struct.error as error:
        raise InvalidInput(f"{header} cannot be stored: {error}") from None
    if min(header) < 0:
        raise InvalidInput(f"{header} cannot be stored: a number is negative")
    return data


def decode_block_header(
    form: struct.Struct, magic: int, data: bytes | memoryview, *, of: str, key: str, at: int
) -> list[int]:
    """Return length, first entry and further ids of the block header at the begin of `data`. Raises CorruptData."""
    header_bytes, block_bytes, *ids, reserved = header_fields(
        form, magic, data, header="block header", of=f" of a {of} block", key=key, at=at
    )
    least = DATA_HEADER_BYTES
    demand(key, at + 4, f"header length {least}", header_bytes, holds=header_bytes == least)
    demand(key, at + 12, f"block length of at least {least}", block_bytes, holds=block_bytes >= least)
    for number, (name, found) in enumerate(zip(("entry", "ledger"), ids, strict=False)):
        demand(key, at + 20 + 8 * number, f"{name} id of at least 0", found, holds=found >= 0)
    zeros = not any(reserved)
    demand(key, at + 20 + 8 * len(ids), f"{len(reserved)} reserved zeros", "other bytes", holds=zeros)
    return [block_bytes, *ids]


class IndexEntry(NamedTuple):
    """Pointer to the entries from `first_entry_id` on.

    `part_id` counts the blocks of the data object from 1. The entry's bytes begin at `offset` plus the length of a
    block header, so for the first entry of a block `offset` is that of the header.
    """

    first_entry_id: int
    part_id: int
    offset: int


def check_length(data: bytes | memoryview, *, key: str) -> None:
    """Refuse an index that is too large for the memory. Raises CorruptData."""
    if len(data) > INDEX_BYTES_MAX:
        raise CorruptData(key=key, offset=0, expected=f"an index of at most {INDEX_BYTES_MAX} bytes", found=len(data))


def floor(entries: Sequence[IndexEntry], entry_id: int) -> IndexEntry | None:
    """Return the last index entry whose id is not above `entry_id`, or None."""
    at = bisect_right(entries, entry_id, key=itemgetter(0))
    return entries[at - 1] if at else None


def encode_index_run(entries: Sequence[IndexEntry]) -> bytes:
    """Return the bytes of the index entries. Raises struct.error for a number that is too large."""
    return b"".join(INDEX_ENTRY.pack(*entry) for entry in entries)


def decode_index_run(data: bytes, *, start: int, count: int) -> tuple[IndexEntry, ...]:
    """Return `count` index entries from `data[start]` on, unchecked; `data` has to be long enough."""
    stop = start + count * INDEX_ENTRY.size
    return tuple(map(IndexEntry._make, INDEX_ENTRY.iter_unpack(data[start:stop])))


def check_index_run(
    entries: Sequence[IndexEntry], *, key: str, at: int, lowest: IndexEntry, step: IndexEntry, offset_max: int
) -> IndexEntry:
    """Check that no number is below `lowest` or, from the second index entry on, the one before plus `step`.

    `at` is the first one's offset in the object `key`. Returns the lowest that may follow. Raises CorruptData.
    """
    for number, entry in enumerate(entries):
        here = at + number * INDEX_ENTRY.size
        if entry.first_entry_id < lowest.first_entry_id:
            expected = f"an entry id of at least {lowest.first_entry_id}"
            raise CorruptData(key=key, offset=here, expected=expected, found=entry.first_entry_id)
        if entry.part_id < lowest.part_id:
            expected = f"a part id of at least {lowest.part_id}"
            raise CorruptData(key=key, offset=here + 8, expected=expected, found=entry.part_id)
        if not lowest.offset <= entry.offset <= offset_max:
            expected = f"an offset from {lowest.offset} to {offset_max}"
            raise CorruptData(key=key, offset=here + 12, expected=expected, found=entry.offset)
        lowest = IndexEntry(*map(add, entry, step))
    return lowest
