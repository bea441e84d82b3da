"""Data blocks of a V1 object (PIP-17, ledger-based): FORMAT.md, section 2. Names of `index.py` are offered here too.

An object holds one whole closed ledger from entry 0. Block sizes follow Pulsar's arithmetic, but from the entries that
exist: a ledger whose declared size does not match them is refused, and an entry too large for a block gets a larger
block of its own. In both cases Pulsar's writer truncates the ledger and reports success.
"""

import struct
from dataclasses import dataclass

from offloaderd.core.entries import decode_entries, framed_bytes
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format.index_entries import IndexEntry
from offloaderd.format.v1.index import LedgerObjectIndex, decode_index, encode_index, index_entries
from offloaderd.format.values import BlockInfo

__all__ = [
    "BLOCK_HEADER",
    "BLOCK_HEADER_BYTES",
    "MAGIC",
    "BlockHeader",
    "IndexEntry",
    "LedgerObjectIndex",
    "block_length",
    "decode_header",
    "decode_index",
    "decode_run",
    "encode_header",
    "encode_index",
    "index_entries",
    "run_begin",
]

MAGIC = 0xFBDBABCB
BLOCK_HEADER = struct.Struct(">Iqqq100s")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size

_RESERVED = bytes(100)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """Header of a block; `block_bytes` is the length of the block with header and padding."""

    block_bytes: int
    first_entry_id: int


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


def run_begin(data: bytes, run: BlockInfo, *, key: str) -> int:
    """Return the first entry of a run, compared with its block's header if it has one. Raises CorruptData."""
    if run.head_bytes:
        header = decode_header(data, key=key, at=run.offset)
        if header.first_entry_id != run.first_entry_id:
            expected = f"entry id {run.first_entry_id}"
            raise CorruptData(key=key, offset=run.offset + 20, expected=expected, found=header.first_entry_id)
    return run.first_entry_id


def decode_run(data: bytes, run: BlockInfo, *, key: str) -> EntryBatch:
    """Read neighbouring entries of one block, with the header before its first and the padding behind its last.

    `run` has their place in the object `key`. Raises CorruptData.
    """
    first = run_begin(data, run, key=key)
    payloads = decode_entries(data, start=run.head_bytes, first_entry_id=first, key=key, at=run.offset)
    return EntryBatch(run.ledger_id, first, payloads)
