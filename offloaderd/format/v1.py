"""Data blocks of a V1 object (PIP-17, ledger-based): FORMAT.md, section 2. `v1_index` has the index, offered here too.

An object holds one whole closed ledger from entry 0. Block sizes follow Pulsar's arithmetic, but from the entries
that are really there: a ledger whose declared size does not match them is refused, and an entry too large for a block
gets a larger block of its own. Pulsar's writer cuts the ledger short in both cases and reports success.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.errors import CorruptData, InvalidInput
from offloaderd.format.entries import ENTRY_OVERHEAD_BYTES, decode_entries, frame, framed_bytes, padding
from offloaderd.format.index_entries import IndexEntry
from offloaderd.format.v1_index import LedgerObjectIndex, decode_index, encode_index, index_entries
from offloaderd.model import EntryBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from offloaderd.format.manifest import BlockInfo

__all__ = [
    "BLOCK_HEADER",
    "BLOCK_HEADER_BYTES",
    "MAGIC",
    "Block",
    "BlockHeader",
    "IndexEntry",
    "LedgerObjectIndex",
    "block_length",
    "decode_block",
    "decode_header",
    "decode_index",
    "decode_run",
    "encode_block",
    "encode_header",
    "encode_index",
    "encode_ledger",
    "index_entries",
]

MAGIC = 0xFBDBABCB
BLOCK_HEADER = struct.Struct(">Iqqq100s")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size

_RESERVED = bytes(100)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """Header of a block; `block_bytes` is the whole block with header and padding."""

    block_bytes: int
    first_entry_id: int


@dataclass(frozen=True, slots=True)
class Block:
    """An encoded block: its index entry, chunks to be joined once, and the sum of their lengths."""

    index_entry: IndexEntry
    chunks: list[bytes]
    length: int


def block_length(*, block_bytes_max: int, entries_left: int, payload_bytes_left: int) -> int:
    """Return the length of the next block by Pulsar's rule: all but the last are full, the last is exact."""
    return min(block_bytes_max, framed_bytes(payload_bytes_left, entries_left) + BLOCK_HEADER_BYTES)


def encode_header(header: BlockHeader) -> bytes:
    """Return the 128 bytes of the header; raises InvalidInput for a number that is negative or too large."""
    fields = (header.block_bytes, header.first_entry_id)
    try:
        data = BLOCK_HEADER.pack(MAGIC, BLOCK_HEADER_BYTES, *fields, _RESERVED)
    except struct.error as error:
        raise InvalidInput(f"{header} cannot be stored: {error}") from None
    if min(fields) < 0:
        raise InvalidInput(f"{header} cannot be stored: a number is negative")
    return data


def decode_header(data: bytes | memoryview, *, key: str, at: int) -> BlockHeader:
    """Read the header at the begin of `data`, which is at byte `at` of the object `key`. Raises CorruptData."""
    if len(data) < BLOCK_HEADER_BYTES:
        expected = f"a block header of {BLOCK_HEADER_BYTES} bytes"
        raise CorruptData(key=key, offset=at, expected=expected, found=f"{len(data)} bytes")
    magic, header_bytes, block_bytes, first_entry_id, reserved = BLOCK_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(key=key, offset=at, expected=f"magic {MAGIC:08x} of a V1 block", found=f"{magic:08x}")
    if header_bytes != BLOCK_HEADER_BYTES:
        raise CorruptData(key=key, offset=at + 4, expected=f"header length {BLOCK_HEADER_BYTES}", found=header_bytes)
    if block_bytes < BLOCK_HEADER_BYTES:
        expected = f"block length of at least {BLOCK_HEADER_BYTES}"
        raise CorruptData(key=key, offset=at + 12, expected=expected, found=block_bytes)
    if first_entry_id < 0:
        raise CorruptData(key=key, offset=at + 20, expected="entry id of at least 0", found=first_entry_id)
    if reserved != _RESERVED:
        raise CorruptData(key=key, offset=at + 28, expected="100 reserved zeros", found="other bytes")
    return BlockHeader(block_bytes, first_entry_id)


def encode_block(first_entry_id: int, payloads: Sequence[bytes], *, block_bytes: int) -> list[bytes]:
    """Return the chunks of a block of exactly `block_bytes` with these entries.

    Raises InvalidInput if there is no entry, if they do not fit, or a number is outside its field.
    """
    used = BLOCK_HEADER_BYTES + framed_bytes(sum(map(len, payloads)), len(payloads))
    if not payloads or used > block_bytes:
        raise InvalidInput(f"{len(payloads)} entries of {used} bytes in all are no block of {block_bytes} bytes")
    header = encode_header(BlockHeader(block_bytes, first_entry_id))
    return [header, *frame(first_entry_id, payloads), padding(block_bytes - used)]


def encode_ledger(
    payloads: Iterable[bytes], *, entry_count: int, payload_bytes: int, block_bytes_max: int
) -> Iterator[Block]:
    """Yield the blocks of a whole ledger as they fill up, holding one block's payloads at a time.

    `entry_count` and `payload_bytes` are what the ledger's metadata says. Raises InvalidInput as soon as, or at the
    end when, the entries turn out to be others than that: what was yielded until then is no complete object.
    """
    entries_left, bytes_left = entry_count, payload_bytes
    first_entry_id, offset, part_id = 0, 0, 1
    open_block: list[bytes] = []
    used = BLOCK_HEADER_BYTES

    def close() -> Block:
        rule = block_length(block_bytes_max=block_bytes_max, entries_left=entries_left, payload_bytes_left=bytes_left)
        length = max(rule, used)  # larger than the rule only for an entry that no block of the rule could hold
        chunks = encode_block(first_entry_id, open_block, block_bytes=length)
        return Block(IndexEntry(first_entry_id, part_id, offset), chunks, length)

    for payload in payloads:
        framed = len(payload) + ENTRY_OVERHEAD_BYTES
        if open_block and used + framed > block_bytes_max:
            block = close()
            yield block
            entries_left -= len(open_block)
            bytes_left -= used - BLOCK_HEADER_BYTES - len(open_block) * ENTRY_OVERHEAD_BYTES
            first_entry_id, offset, part_id = first_entry_id + len(open_block), offset + block.length, part_id + 1
            open_block, used = [], BLOCK_HEADER_BYTES
        open_block.append(payload)
        used += framed
        count = len(open_block)
        if count > entries_left or used > BLOCK_HEADER_BYTES + framed_bytes(bytes_left, count):
            raise InvalidInput(f"ledger has more than its {entry_count} entries or {payload_bytes} bytes")
    # Neither entries nor bytes can be too many here, so their sum is right only if both are.
    if used != BLOCK_HEADER_BYTES + framed_bytes(bytes_left, entries_left):
        raise InvalidInput(f"ledger has less than its {entry_count} entries or {payload_bytes} bytes")
    yield close()


def decode_block(data: bytes | memoryview, *, ledger_id: int, key: str, at: int) -> EntryBatch:
    """Read one whole block, header, entries and padding; `data` has to end where the block does.

    The block itself does not say its ledger. `at` is its offset in the object `key`. Raises CorruptData.
    """
    data = bytes(data)
    header = decode_header(data, key=key, at=at)
    if header.block_bytes != len(data):
        raise CorruptData(key=key, offset=at + 12, expected=f"block length {len(data)}", found=header.block_bytes)
    payloads = decode_entries(data, start=BLOCK_HEADER_BYTES, first_entry_id=header.first_entry_id, key=key, at=at)
    if not payloads:
        raise CorruptData(key=key, offset=at + BLOCK_HEADER_BYTES, expected="at least one entry", found="none")
    return EntryBatch(ledger_id, header.first_entry_id, payloads)


def decode_run(data: bytes, run: BlockInfo, *, key: str) -> EntryBatch:
    """Read neighbouring entries of one block, with its header if they are its first, and with what pads it.

    `run` says where in the object `key` they lie. Raises CorruptData.
    """
    if run.head_bytes:
        header = decode_header(data, key=key, at=run.offset)
        if header.first_entry_id != run.first_entry_id:
            expected = f"entry id {run.first_entry_id}"
            raise CorruptData(key=key, offset=run.offset + 20, expected=expected, found=header.first_entry_id)
    payloads = decode_entries(data, start=run.head_bytes, first_entry_id=run.first_entry_id, key=key, at=run.offset)
    return EntryBatch(run.ledger_id, run.first_entry_id, payloads)
