"""Data blocks of a V2 object (PIP-76, streaming): FORMAT.md, section 3. Names of `index.py` are offered here too.

A block holds consecutive entries of one ledger. Every block that is written ends in at least 4 pad bytes: without them
Pulsar's own reader fails at the end of the object, or reads the next header as an entry. Blocks that are read may have
any padding, or none.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.core.entries import PAD, decode_entries, frame, framed_bytes, padding
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format.index_entries import IndexEntry
from offloaderd.format.v2.index import LedgerIndex, SegmentIndex, decode_index, encode_index

__all__ = [
    "BLOCK_HEADER",
    "BLOCK_HEADER_BYTES",
    "MAGIC",
    "PAD_BYTES_MIN",
    "PREAMBLE",
    "Block",
    "BlockHeader",
    "IndexEntry",
    "LedgerIndex",
    "SegmentIndex",
    "decode_block",
    "decode_header",
    "decode_index",
    "decode_whole_header",
    "encode_block",
    "encode_header",
    "encode_index",
]

MAGIC = 0x26A66D32
BLOCK_HEADER = struct.Struct(">Iqqqq92s")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size
PAD_BYTES_MIN = 4
PREAMBLE = PAD
"""Optional bytes before the first block, which Pulsar's reader needs for segments that begin inside a ledger."""

_RESERVED = bytes(92)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """Header of a block; `block_bytes` is the length of the block with header and padding."""

    block_bytes: int
    first_entry_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class Block:
    """An encoded block: chunks to be joined once, and the sum of their lengths."""

    chunks: list[bytes]
    length: int


def encode_header(header: BlockHeader) -> bytes:
    """Return the 128 bytes of the header; raises InvalidInput for a number that is negative or too large."""
    fields = (header.block_bytes, header.first_entry_id, header.ledger_id)
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
    magic, header_bytes, block_bytes, first_entry_id, ledger_id, reserved = BLOCK_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(key=key, offset=at, expected=f"magic {MAGIC:08x} of a V2 block", found=f"{magic:08x}")
    if header_bytes != BLOCK_HEADER_BYTES:
        raise CorruptData(key=key, offset=at + 4, expected=f"header length {BLOCK_HEADER_BYTES}", found=header_bytes)
    if block_bytes < BLOCK_HEADER_BYTES:
        expected = f"block length of at least {BLOCK_HEADER_BYTES}"
        raise CorruptData(key=key, offset=at + 12, expected=expected, found=block_bytes)
    if first_entry_id < 0:
        raise CorruptData(key=key, offset=at + 20, expected="entry id of at least 0", found=first_entry_id)
    if ledger_id < 0:
        raise CorruptData(key=key, offset=at + 28, expected="ledger id of at least 0", found=ledger_id)
    if reserved != _RESERVED:
        raise CorruptData(key=key, offset=at + 36, expected="92 reserved zeros", found="other bytes")
    return BlockHeader(block_bytes, first_entry_id, ledger_id)


def encode_block(ledger_id: int, first_entry_id: int, payloads: Sequence[bytes], *, block_bytes_min: int = 0) -> Block:
    """Return the block of these entries, padded to `block_bytes_min` and by at least 4 bytes.

    Raises InvalidInput if there is no entry, or if an id or a length does not fit its field.
    """
    if not payloads:
        raise InvalidInput("a block without entries cannot be stored")
    used = BLOCK_HEADER_BYTES + framed_bytes(sum(map(len, payloads)), len(payloads))
    length = max(block_bytes_min, used + PAD_BYTES_MIN)
    header = encode_header(BlockHeader(length, first_entry_id, ledger_id))
    return Block([header, *frame(first_entry_id, payloads), padding(length - used)], length)


def decode_whole_header(data: bytes, *, key: str, at: int) -> BlockHeader:
    """Read the header of a whole block; `data` has to end with the block. Raises CorruptData."""
    header = decode_header(data, key=key, at=at)
    if header.block_bytes != len(data):
        raise CorruptData(key=key, offset=at + 12, expected=f"block length {len(data)}", found=header.block_bytes)
    return header


def decode_block(data: bytes | memoryview, *, key: str, at: int) -> EntryBatch:
    """Read one whole block, header, entries and padding; `data` has to end with the block.

    `at` is the offset of the block in the object `key`. Raises CorruptData.
    """
    data = bytes(data)
    header = decode_whole_header(data, key=key, at=at)
    payloads = decode_entries(data, start=BLOCK_HEADER_BYTES, first_entry_id=header.first_entry_id, key=key, at=at)
    if not payloads:
        raise CorruptData(key=key, offset=at + BLOCK_HEADER_BYTES, expected="at least one entry", found="none")
    return EntryBatch(header.ledger_id, header.first_entry_id, payloads)
