"""Entries for tests, and whole ledgers' objects of them.

The bytes of an entry depend on its position, so that a mix-up is detected. A ledger's object (PIP-17, V1) is written
and read block by block, in the plainest code for the format: the real writer (`segment/builder.py`) cuts objects into
runs and never holds a block. It is compared with this one, and this one with the output of Pulsar's own offloader.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES, decode_entries, frame, framed_bytes, padding
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format import v1
from offloaderd.format.v1_and_v2 import IndexEntry


def payload(ledger_id: int, entry_id: int, payload_bytes: int) -> bytes:
    """Return bytes that depend on the position alone: two positions never share them (from 16 bytes on)."""
    if payload_bytes == 0:
        return b""
    seed = blake2b(f"{ledger_id}:{entry_id}".encode(), digest_size=64).digest()
    return (seed * (payload_bytes // len(seed) + 1))[:payload_bytes]


def payloads(count: int, payload_bytes: int = 100, *, ledger_id: int = 0, first_entry_id: int = 0) -> list[bytes]:
    """Return `count` payloads of consecutive entries."""
    return [payload(ledger_id, entry_id, payload_bytes) for entry_id in range(first_entry_id, first_entry_id + count)]


def batch(ledger_id: int, first_entry_id: int, count: int, payload_bytes: int = 100) -> EntryBatch:
    """Return a batch of consecutive entries."""
    return EntryBatch(
        ledger_id, first_entry_id, payloads(count, payload_bytes, ledger_id=ledger_id, first_entry_id=first_entry_id)
    )


def flights(count: int, *, first: int = 0) -> list[bytes]:
    """Return entries as a topic of flights would hold them: small JSON objects of different lengths."""
    carriers = ("AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")
    return [
        json.dumps(
            {
                "flight": number,
                "carrier": carriers[number % len(carriers)],
                "distance": 94 + number * 37 % 4889,
                "delay": number * 13 % 200 - 40,
            }
        ).encode()
        for number in range(first, first + count)
    ]


@dataclass(frozen=True, slots=True)
class Block:
    """An encoded block: its index entry, chunks to be joined once, and the sum of their lengths."""

    index_entry: IndexEntry
    chunks: list[bytes]
    length: int


def encode_block(first_entry_id: int, payloads: Sequence[bytes], *, block_bytes: int) -> list[bytes]:
    """Return the chunks of a block of exactly `block_bytes` with these entries.

    Raises InvalidInput if there is no entry, if they do not fit, or a number is outside its field.
    """
    used = v1.BLOCK_HEADER_BYTES + framed_bytes(sum(map(len, payloads)), len(payloads))
    if not payloads or used > block_bytes:
        raise InvalidInput(f"{len(payloads)} entries of {used} bytes in all are no block of {block_bytes} bytes")
    header = v1.encode_header(v1.BlockHeader(block_bytes, first_entry_id))
    return [header, *frame(first_entry_id, payloads), padding(block_bytes - used)]


def encode_ledger(
    payloads: Iterable[bytes], *, entry_count: int, payload_bytes: int, block_bytes_max: int
) -> Iterator[Block]:
    """Yield the blocks of a whole ledger as they fill up, holding one block's payloads at a time.

    `entry_count` and `payload_bytes` are those of the ledger's metadata. Raises InvalidInput at the first payload too
    many, or at the end if there were too few; the blocks yielded until then are no complete object.
    """
    entries_left, bytes_left = entry_count, payload_bytes
    first_entry_id, offset, part_id = 0, 0, 1
    open_block: list[bytes] = []
    used = v1.BLOCK_HEADER_BYTES

    def close() -> Block:
        rule = v1.block_length(
            block_bytes_max=block_bytes_max, entries_left=entries_left, payload_bytes_left=bytes_left
        )
        length = max(rule, used)  # larger than the rule only for an entry that no block of the rule could hold
        chunks = encode_block(first_entry_id, open_block, block_bytes=length)
        return Block(IndexEntry(first_entry_id, part_id, offset), chunks, length)

    for payload in payloads:
        framed = len(payload) + ENTRY_OVERHEAD_BYTES
        if open_block and used + framed > block_bytes_max:
            block = close()
            yield block
            entries_left -= len(open_block)
            bytes_left -= used - v1.BLOCK_HEADER_BYTES - len(open_block) * ENTRY_OVERHEAD_BYTES
            first_entry_id, offset, part_id = first_entry_id + len(open_block), offset + block.length, part_id + 1
            open_block, used = [], v1.BLOCK_HEADER_BYTES
        open_block.append(payload)
        used += framed
        count = len(open_block)
        if count > entries_left or used > v1.BLOCK_HEADER_BYTES + framed_bytes(bytes_left, count):
            raise InvalidInput(f"ledger has more than its {entry_count} entries or {payload_bytes} bytes")
    # Neither entries nor bytes can be too many here, so their sum is right only if both are.
    if used != v1.BLOCK_HEADER_BYTES + framed_bytes(bytes_left, entries_left):
        raise InvalidInput(f"ledger has less than its {entry_count} entries or {payload_bytes} bytes")
    yield close()


def decode_block(data: bytes | memoryview, *, ledger_id: int, key: str, at: int) -> EntryBatch:
    """Read one whole block, header, entries and padding; `data` has to end where the block does.

    The block does not contain its ledger's id. `at` is its offset in the object `key`. Raises CorruptData.
    """
    data = bytes(data)
    header = v1.decode_header(data, key=key, at=at)
    if header.block_bytes != len(data):
        raise CorruptData(key=key, offset=at + 12, expected=f"block length {len(data)}", found=header.block_bytes)
    payloads = decode_entries(data, start=v1.BLOCK_HEADER_BYTES, first_entry_id=header.first_entry_id, key=key, at=at)
    if not payloads:
        raise CorruptData(key=key, offset=at + v1.BLOCK_HEADER_BYTES, expected="at least one entry", found="none")
    return EntryBatch(ledger_id, header.first_entry_id, payloads)
