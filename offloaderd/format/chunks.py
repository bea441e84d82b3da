"""Chunks of a block with a checksum each, so that one entry can be read without the rest of its block.

FORMAT.md, section 4.5. A block is cut every `chunk_bytes` from its first byte on, so a chunk may begin inside an entry.
The block's sparse positions are the first entry that begins in each chunk; they enclose the entries between them.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import google_crc32c

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES, FramedEntries, decode_entries, framed_bytes
from offloaderd.core.errors import CorruptData
from offloaderd.format.manifest import BlockInfo

CHUNK_BYTES = 64 * 1024
"""Length of new chunks."""

CHECKSUM_BYTES = 4


def packed(checksums: Sequence[int]) -> bytes:
    """Return checksums in their compact form, 4 bytes each."""
    return struct.pack(f">{len(checksums)}I", *checksums)


def unpacked(chunks: bytes) -> tuple[int, ...]:
    """Return the checksums in a compact form."""
    return struct.unpack(f">{len(chunks) // CHECKSUM_BYTES}I", chunks)


def chunk_count(length: int, chunk_bytes: int) -> int:
    """Return the number of chunks of `length` bytes; the last one may be shorter."""
    return -(-length // chunk_bytes)


def chunk_checksums(data: bytes, start: int, length: int, chunk_bytes: int) -> list[int]:
    """Return the CRC-32C of each chunk of the `length` bytes at `data[start]`; each chunk is copied once."""
    end = start + length
    return [google_crc32c.value(data[at : min(at + chunk_bytes, end)]) for at in range(start, end, chunk_bytes)]


def checksums(data: bytes, start: int, length: int, chunk_bytes: int) -> tuple[int, bytes]:
    """Return the CRC-32C of the block of `length` bytes at `data[start]`, and those of its chunks, packed.

    A block of at most one chunk has none. The block's checksum is computed from those of its whole chunks; only the
    bytes behind them are read twice.
    """
    end = start + length
    if length <= chunk_bytes:
        return google_crc32c.value(data[start:end]), b""
    each, whole = chunk_checksums(data, start, length, chunk_bytes), 0
    first, second, third, fourth = _behind(chunk_bytes)
    for one in each[: length // chunk_bytes]:
        whole = first[whole & 255] ^ second[whole >> 8 & 255] ^ third[whole >> 16 & 255] ^ fourth[whole >> 24] ^ one
    return google_crc32c.extend(whole, data[end - length % chunk_bytes : end]), packed(each)


@lru_cache(maxsize=4)
def _behind(length: int) -> tuple[list[int], ...]:
    """Return how `length` further bytes change a checksum, without their own: a table for each of its bytes.

    The change is linear: CRC-32C(A + B) is CRC-32C(B) exclusive-or a sum over the bits of CRC-32C(A), as in zlib's
    crc32_combine. Zeros as B show what each value of a byte adds.
    """
    zeros = bytes(length)
    own = google_crc32c.value(zeros)
    return tuple([google_crc32c.extend(value << at, zeros) ^ own for value in range(256)] for at in (0, 8, 16, 24))


def sparse_positions(lengths: Iterable[int], head_bytes: int, chunk_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return the first entry that begins in each chunk, with its byte, for payloads of these lengths.

    The chunk in which entry 0 begins, and chunks in which none begins, are left out. `head_bytes` are before entry 0.
    """
    sums = list(accumulate(lengths, initial=0))
    count = len(sums) - 1

    def start(entry: int) -> int:
        """Offset of an entry in the block; computed for the ends of chunks, not for each entry."""
        return head_bytes + sums[entry] + ENTRY_OVERHEAD_BYTES * entry

    found: list[tuple[int, int]] = []
    entry = 0
    for wanted in range(chunk_bytes, start(count), chunk_bytes):
        # `sums` has no heads of entries: the wanted entry has at least those of the entries passed already before it,
        # and at most those of all entries that would fit if they had no heads.
        payload_bytes = wanted - head_bytes - ENTRY_OVERHEAD_BYTES * entry
        high = bisect_left(sums, payload_bytes, lo=entry, hi=count)
        low = bisect_left(sums, payload_bytes - ENTRY_OVERHEAD_BYTES * (high - entry), lo=entry, hi=high)
        following = low + bisect_left(range(low, high), wanted, key=start) if low < high else low
        if entry < following < count:
            found.append((following, start(following)))
        entry = following
    return tuple(found)


class Piece(NamedTuple):
    """Neighbouring chunks, `first_chunk` to `last_chunk`, that hold entries `first` to `last` of a block.

    All are counted from 0. Entry `known` begins at byte `at` of the block, and is the first wanted or an earlier one;
    the last one ends at byte `end`, None if that is unknown.
    """

    first_chunk: int
    last_chunk: int
    first: int
    last: int
    known: int
    at: int
    end: int | None

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return self.last_chunk - self.first_chunk + 1


def piece_of(block: BlockInfo, chunk_bytes: int, first_entry_id: int, last_entry_id: int) -> Piece:
    """Return the chunks with a range of entries of a block. The block has to have chunks, and these entries."""
    first, last = first_entry_id - block.first_entry_id, last_entry_id - block.first_entry_id
    index = bisect_right(block.sparse, first, key=itemgetter(0))
    known, at = block.sparse[index - 1] if index else (0, block.head_bytes)
    index = bisect_right(block.sparse, last, lo=index, key=itemgetter(0))
    following, limit = (
        block.sparse[index] if index < len(block.sparse) else (block.entry_count, block.length - block.pad_bytes)
    )
    end = None
    if last == following - 1:
        end = limit
    else:
        # All entries up to the next position begin in one chunk, so all but the last of them end in it.
        limit = ((block.sparse[index - 1][1] if index else block.head_bytes) // chunk_bytes + 1) * chunk_bytes
    return Piece(at // chunk_bytes, (limit - 1) // chunk_bytes, first, last, known, at, end)


def extent(block: BlockInfo, chunk_bytes: int, first_chunk: int, last_chunk: int) -> tuple[int, int]:
    """Return offset in the object and length of neighbouring chunks of a block."""
    start = first_chunk * chunk_bytes
    return block.offset + start, min((last_chunk + 1) * chunk_bytes, block.length) - start


def checked_chunk(data: bytes, block: BlockInfo, chunk_bytes: int, number: int, *, key: str) -> bytes:
    """Return `data` if its checksum is that of chunk `number` of a block. Raises CorruptData."""
    at = CHECKSUM_BYTES * number
    wanted = int.from_bytes(block.chunks[at : at + CHECKSUM_BYTES], "big")
    found = google_crc32c.value(data)
    if found != wanted:
        offset, length = extent(block, chunk_bytes, number, number)
        expected = f"a chunk of {length} bytes with checksum {wanted:08x}"
        raise CorruptData(key=key, offset=offset, expected=expected, found=f"{found:08x}")
    return data


def decode_piece(data: bytes, block: BlockInfo, chunk_bytes: int, piece: Piece, *, key: str) -> FramedEntries:
    """Return the wanted entries in their stored form from the bytes of a piece's chunks, which are checked already.

    Ids and lengths are compared with the manifest, which detects one of another object. Raises CorruptData.
    """
    start = piece.first_chunk * chunk_bytes
    payloads = decode_entries(
        data,
        start=piece.at - start,
        end=None if piece.end is None else piece.end - start,
        first_entry_id=block.first_entry_id + piece.known,
        count=piece.last - piece.known + 1,
        key=key,
        at=block.offset + start,
    )
    sizes, before = list(map(len, payloads)), piece.first - piece.known
    return FramedEntries(
        block.ledger_id,
        block.first_entry_id + piece.first,
        piece.last - piece.first + 1,
        data,
        start=piece.at - start + framed_bytes(sum(sizes[:before]), before),
        end=piece.at - start + framed_bytes(sum(sizes), len(sizes)),
        key=key,
        at=block.offset + start,
    )
