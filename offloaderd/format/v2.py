"""Objects of segments (V2: PIP-76, streaming): FORMAT.md, section 3.

A block holds consecutive entries of one ledger. Every block that is written ends in at least 4 pad bytes: without them
Pulsar's own reader fails at the end of the object, or reads the next header as an entry. Blocks that are read may have
any padding, or none.

An index has one group per ledger, each with Pulsar's LedgerInfo and one index entry per block. The groups are not
counted, and Pulsar's reader fails for a single byte behind the last one. Groups are written by ascending ledger id;
Pulsar writes them in the order of a hash map, so any order is read.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from offloaderd.core.entries import PAD, decode_entries, frame, framed_bytes, padding
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch, Position
from offloaderd.format.parsing import demand, header_fields, parse_message
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo
from offloaderd.format.v1_and_v2 import (
    DATA_BYTES_MIN,
    DATA_HEADER_BYTES,
    INDEX_ENTRY,
    IndexEntry,
    check_index_run,
    check_length,
    decode_block_header,
    decode_index_run,
    encode_block_header,
    encode_index_run,
    floor,
)

INDEX_MAGIC = 0x3D1FB0BC
INDEX_HEADER = struct.Struct(">Iiqq")
GROUP_HEAD = struct.Struct(">qii")
_STEP = IndexEntry(1, 1, DATA_BYTES_MIN)


class BlockExtent(NamedTuple):
    """A block according to the index: `length` reaches to the next block or the end of the object."""

    ledger_id: int
    first_entry_id: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class LedgerIndex:
    """One ledger's group of an index; `metadata` is an encoded LedgerInfo, kept unchanged."""

    ledger_id: int
    metadata: bytes
    entries: tuple[IndexEntry, ...]

    def info(self) -> LedgerInfo:
        """Return `metadata` as a message."""
        return LedgerInfo.FromString(self.metadata)


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """A whole index: length of the data object, length of a block header, groups by ascending ledger id."""

    data_bytes: int
    header_bytes: int
    groups: tuple[LedgerIndex, ...]

    def group(self, ledger_id: int) -> LedgerIndex | None:
        """Return the group of a ledger, or None if the segment has no entries of it."""
        at = bisect_left(self.groups, ledger_id, key=attrgetter("ledger_id"))
        return self.groups[at] if at < len(self.groups) and self.groups[at].ledger_id == ledger_id else None

    def floor(self, position: Position) -> IndexEntry | None:
        """Return the index entry of the only block that may hold `position`.

        None if the ledger is not in the segment, or only with later entries. An index does not have the end of a
        ledger, so a position after it gives the ledger's last block.
        """
        group = self.group(position.ledger_id)
        return floor(group.entries, position.entry_id) if group else None

    def extents(self) -> list[BlockExtent]:
        """Return all blocks in the order of the data object."""
        blocks = [(group.ledger_id, entry) for group in self.groups for entry in group.entries]
        ends = chain((entry.offset for _, entry in blocks[1:]), (self.data_bytes,))
        return [
            BlockExtent(ledger_id, entry.first_entry_id, entry.offset, end - entry.offset)
            for (ledger_id, entry), end in zip(blocks, ends, strict=True)
        ]


def encode_index(data_bytes: int, groups: Iterable[LedgerIndex]) -> bytes:
    """Return an index, for groups in any order. Raises InvalidInput if it could not be decoded (descending offsets)."""
    chunks = [b""]
    try:
        for group in sorted(groups, key=attrgetter("ledger_id")):
            chunks += (
                GROUP_HEAD.pack(group.ledger_id, len(group.entries), len(group.metadata)),
                group.metadata,
                encode_index_run(group.entries),
            )
        index_bytes = INDEX_HEADER.size + sum(map(len, chunks))
        chunks[0] = INDEX_HEADER.pack(INDEX_MAGIC, index_bytes, data_bytes, DATA_HEADER_BYTES)
        data = b"".join(chunks)
        decode_index(data, key="the index to be written")
    except (struct.error, CorruptData) as error:
        raise InvalidInput(f"index cannot be stored: {error}") from error
    return data


def decode_index(data: bytes | memoryview, *, key: str) -> SegmentIndex:
    """Read an index, ours or Pulsar's; `key` names the object in errors. Raises CorruptData."""
    check_length(data, key=key)
    data = bytes(data)
    data_bytes = _decode_header(data, key)
    heads: list[int] = []
    groups: list[LedgerIndex] = []
    at = INDEX_HEADER.size
    while at < len(data) or not groups:
        group, end = _decode_group(data, at, key)
        groups.append(group)
        heads.append(at)
        at = end
    _check_order(groups, heads, key, data_bytes)
    return SegmentIndex(data_bytes, DATA_HEADER_BYTES, tuple(sorted(groups, key=attrgetter("ledger_id"))))


def _decode_header(data: bytes, key: str) -> int:
    index_bytes, data_bytes, header_bytes = header_fields(
        INDEX_HEADER, INDEX_MAGIC, data, header="index header", of=" of a V2 index", key=key
    )
    demand(key, 4, f"index length {len(data)}", index_bytes, holds=index_bytes == len(data))
    demand(key, 8, f"data length of at least {DATA_BYTES_MIN}", data_bytes, holds=data_bytes >= DATA_BYTES_MIN)
    demand(key, 16, f"header length {DATA_HEADER_BYTES}", header_bytes, holds=header_bytes == DATA_HEADER_BYTES)
    return int(data_bytes)


def _decode_group(data: bytes, at: int, key: str) -> tuple[LedgerIndex, int]:
    """Read the group at `at`; returns it with the offset after it."""
    rest = len(data) - at - GROUP_HEAD.size
    least = GROUP_HEAD.size
    demand(key, at, f"a ledger's group of at least {least} bytes", f"{len(data) - at} bytes", holds=rest >= 0)
    ledger_id, count, metadata_bytes = GROUP_HEAD.unpack_from(data, at)
    entries_max, room = rest // INDEX_ENTRY.size, rest - count * INDEX_ENTRY.size
    demand(key, at, "ledger id of at least 0", ledger_id, holds=ledger_id >= 0)
    demand(key, at + 8, f"from 1 to {entries_max} index entries", count, holds=1 <= count <= entries_max)
    demand(key, at + 12, f"metadata of at most {room} bytes", metadata_bytes, holds=0 <= metadata_bytes <= room)
    at += GROUP_HEAD.size
    metadata = data[at : at + metadata_bytes]
    info = parse_message(LedgerInfo, metadata, key=key, at=at)
    demand(key, at, f"LedgerInfo of ledger {ledger_id}", info.ledgerId, holds=info.ledgerId == ledger_id)
    at += metadata_bytes
    entries = decode_index_run(data, start=at, count=count)
    return LedgerIndex(ledger_id, metadata, entries), at + count * INDEX_ENTRY.size


def _check_order(groups: list[LedgerIndex], heads: list[int], key: str, data_bytes: int) -> None:
    """Check that each ledger has one group, and that offsets of blocks ascend with ledgers and entries."""
    lowest, seen = IndexEntry(0, 1, 0), -1
    for group, at in sorted(zip(groups, heads, strict=True), key=lambda pair: pair[0].ledger_id):
        if group.ledger_id == seen:
            raise CorruptData(key=key, offset=at, expected="one group a ledger", found=f"two of ledger {seen}")
        seen = group.ledger_id
        run = at + GROUP_HEAD.size + len(group.metadata)
        limit = data_bytes - DATA_BYTES_MIN
        lowest = check_index_run(group.entries, key=key, at=run, lowest=lowest, step=_STEP, offset_max=limit)
        lowest = lowest._replace(first_entry_id=0)  # entry ids begin at 0 in each ledger


MAGIC = 0x26A66D32
BLOCK_HEADER = struct.Struct(">Iqqqq92s")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size
PAD_BYTES_MIN = 4
PREAMBLE = PAD
"""Optional bytes before the first block, which Pulsar's reader needs for segments that begin inside a ledger."""

_RESERVED = bytes(92)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """The settings that decide an object's bytes: target sizes of blocks and parts, and the preamble option."""

    block_bytes: int
    part_bytes: int
    preamble: bool = False

    @property
    def preamble_bytes(self) -> int:
        """Pad bytes before the first block."""
        return len(PREAMBLE) if self.preamble else 0


class BlockHeader(NamedTuple):
    """Header of a block; `block_bytes` is the length of the block with header and padding."""

    block_bytes: int
    first_entry_id: int
    ledger_id: int


class Block(NamedTuple):
    """An encoded block: chunks to be joined once, and the sum of their lengths."""

    chunks: list[bytes]
    length: int


def encode_header(header: BlockHeader) -> bytes:
    """Return the 128 bytes of the header; raises InvalidInput for a number that is negative or too large."""
    return encode_block_header(BLOCK_HEADER, MAGIC, header, _RESERVED)


def decode_header(data: bytes | memoryview, *, key: str, at: int) -> BlockHeader:
    """Read the header at the begin of `data`, which is at byte `at` of the object `key`. Raises CorruptData."""
    return BlockHeader(*decode_block_header(BLOCK_HEADER, MAGIC, data, of="V2", key=key, at=at))


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
