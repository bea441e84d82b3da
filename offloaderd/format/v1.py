"""Objects of whole ledgers (V1: PIP-17, ledger-based): FORMAT.md, section 2.

An object holds one whole closed ledger from entry 0. Block sizes follow Pulsar's arithmetic, but from the entries that
exist: a ledger whose declared size does not match them is refused, and an entry too large for a block gets a larger
block of its own. In both cases Pulsar's writer truncates the ledger and reports success.

An index has BookKeeper's LedgerMetadataFormat and at least one index entry per block. Further ones are valid: for an
entry inside a block, `offset` is its position less the length of a block header, because readers add that length. They
save Pulsar's own reader most of its requests.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offloaderd.core.entries import ENTRY_HEAD, ENTRY_OVERHEAD_BYTES, PAD, FramedEntries, decode_entries, framed_bytes
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format.manifest import BlockInfo
from offloaderd.format.parsing import demand, header_fields, parse_message
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
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

INDEX_MAGIC = 0xDE47DE47
INDEX_HEADER = struct.Struct(">Iiqqii")

_STEP = IndexEntry(1, 0, ENTRY_OVERHEAD_BYTES)


@dataclass(frozen=True, slots=True)
class LedgerObjectIndex:
    """A whole index; `metadata` is an encoded LedgerMetadataFormat, kept unchanged."""

    data_bytes: int
    header_bytes: int
    metadata: bytes
    entries: tuple[IndexEntry, ...]

    def ledger(self) -> LedgerMetadataFormat:
        """Return `metadata` as a message."""
        return LedgerMetadataFormat.FromString(self.metadata)

    def floor(self, entry_id: int) -> IndexEntry | None:
        """Return the last index entry with an id not above `entry_id`; None only for a negative one.

        For an entry after the ledger's last it is the last index entry.
        """
        return floor(self.entries, entry_id)


def encode_index(data_bytes: int, metadata: bytes, entries: Sequence[IndexEntry]) -> bytes:
    """Return the index of a data object. Raises InvalidInput if it could not be decoded (descending entries)."""
    index_bytes = INDEX_HEADER.size + len(metadata) + len(entries) * INDEX_ENTRY.size
    fields = (INDEX_MAGIC, index_bytes, data_bytes, DATA_HEADER_BYTES, len(entries), len(metadata))
    try:
        data = b"".join((INDEX_HEADER.pack(*fields), metadata, encode_index_run(entries)))
        decode_index(data, key="the index to be written")
    except (struct.error, CorruptData) as error:
        raise InvalidInput(f"index cannot be stored: {error}") from error
    return data


def index_entries(runs: Sequence[BlockInfo], *, dense: bool) -> list[IndexEntry]:
    """Return the index entries of an object whose manifest has these runs: one for each block, or each run if `dense`.

    Pulsar's reader expects an entry one header behind the offset of its index entry and never reads the header. So a
    run without a header is listed one header's length before its begin.
    """
    entries: list[IndexEntry] = []
    number = 0
    for run in runs:
        number += run.head_bytes > 0
        if run.head_bytes or dense:
            entries.append(IndexEntry(run.first_entry_id, number, run.offset - DATA_HEADER_BYTES + run.head_bytes))
    return entries


def decode_index(data: bytes | memoryview, *, key: str) -> LedgerObjectIndex:
    """Read an index, ours or Pulsar's, with any density; `key` names the object in errors. Raises CorruptData."""
    check_length(data, key=key)
    data = bytes(data)
    data_bytes, count, metadata_bytes = _decode_header(data, key)
    run = INDEX_HEADER.size + metadata_bytes
    metadata = data[INDEX_HEADER.size : run]
    ledger = parse_message(LedgerMetadataFormat, metadata, key=key, at=INDEX_HEADER.size)
    entries = decode_index_run(data, start=run, count=count)
    check_index_run(
        entries, key=key, at=run, lowest=IndexEntry(0, 1, 0), step=_STEP, offset_max=data_bytes - DATA_BYTES_MIN
    )
    if entries[0].first_entry_id:
        raise CorruptData(key=key, offset=run, expected="entry id 0", found=entries[0].first_entry_id)
    if not ledger.HasField("lastEntryId") or ledger.lastEntryId < entries[-1].first_entry_id:
        expected = f"a last entry id of at least {entries[-1].first_entry_id} in the LedgerMetadataFormat"
        found = ledger.lastEntryId if ledger.HasField("lastEntryId") else "none"
        raise CorruptData(key=key, offset=INDEX_HEADER.size, expected=expected, found=found)
    return LedgerObjectIndex(data_bytes, DATA_HEADER_BYTES, metadata, entries)


def _decode_header(data: bytes, key: str) -> tuple[int, int, int]:
    """Check the header; returns length of the data object, number of index entries, length of the metadata."""
    index_bytes, data_bytes, header_bytes, count, metadata_bytes = header_fields(
        INDEX_HEADER, INDEX_MAGIC, data, header="index header", of=" of a V1 index", key=key
    )
    rest = len(data) - INDEX_HEADER.size
    room, wanted = rest // INDEX_ENTRY.size, rest - count * INDEX_ENTRY.size
    demand(key, 4, f"index length {len(data)}", index_bytes, holds=index_bytes == len(data))
    demand(key, 8, f"data length of at least {DATA_BYTES_MIN}", data_bytes, holds=data_bytes >= DATA_BYTES_MIN)
    demand(key, 16, f"header length {DATA_HEADER_BYTES}", header_bytes, holds=header_bytes == DATA_HEADER_BYTES)
    demand(key, 24, f"from 1 to {room} index entries", count, holds=1 <= count <= room)
    demand(key, 28, f"metadata of {wanted} bytes", metadata_bytes, holds=metadata_bytes == wanted)
    return data_bytes, count, metadata_bytes


MAGIC = 0xFBDBABCB
BLOCK_HEADER = struct.Struct(">Iqqq100s")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size

_RESERVED = bytes(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLayout:
    """The values that decide the bytes of a whole ledger's object (PIP-17): the settings, and the ledger.

    A block is at most `block_bytes` long unless one entry is longer. The manifest has a checksum for each run of about
    `run_bytes`; a `dense_index` has an entry for each. `metadata` is BookKeeper's LedgerMetadataFormat.
    """

    block_bytes: int
    part_bytes: int
    run_bytes: int
    dense_index: bool
    entries: int
    payload_bytes: int
    metadata: bytes

    @property
    def preamble_bytes(self) -> int:
        """No pad bytes."""
        return 0


class BlockHeader(NamedTuple):
    """Header of a block; `block_bytes` is the length of the block with header and padding."""

    block_bytes: int
    first_entry_id: int


def block_length(*, block_bytes_max: int, entries_left: int, payload_bytes_left: int) -> int:
    """Return the length of the next block by Pulsar's rule: all but the last are full, the last is exact."""
    return min(block_bytes_max, framed_bytes(payload_bytes_left, entries_left) + BLOCK_HEADER_BYTES)


def encode_header(header: BlockHeader) -> bytes:
    """Return the 128 bytes of the header; raises InvalidInput for a number that is negative or too large."""
    return encode_block_header(BLOCK_HEADER, MAGIC, header, _RESERVED)


def decode_header(data: bytes | memoryview, *, key: str, at: int) -> BlockHeader:
    """Read the header at the begin of `data`, which is at byte `at` of the object `key`. Raises CorruptData."""
    return BlockHeader(*decode_block_header(BLOCK_HEADER, MAGIC, data, of="V1", key=key, at=at))


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


class BlockSpan(NamedTuple):
    """One block according to the index: bytes `offset` to `end` (exclusive), entries `first_entry_id` to the last."""

    offset: int
    end: int
    first_entry_id: int
    last_entry_id: int


def block_spans(index: LedgerObjectIndex) -> list[BlockSpan]:
    """Return the blocks of an object in order; index entries inside a block have no span."""
    starts: list[IndexEntry] = []
    for entry in index.entries:
        if not starts or entry.part_id != starts[-1].part_id:
            starts.append(entry)
    ends = [*(start.offset for start in starts[1:]), index.data_bytes]
    lasts = [*(start.first_entry_id - 1 for start in starts[1:]), index.ledger().lastEntryId]
    return [
        BlockSpan(start.offset, end, start.first_entry_id, last)
        for start, end, last in zip(starts, ends, lasts, strict=True)
    ]


class BlockScan:
    """Takes the bytes of a block, from its header or an entry on, and returns the complete entries.

    The block itself does not name its ledger. The bytes begin at entry `entry_id`, at byte `at` of the object `key`, or
    without it at the block's header.
    """

    def __init__(self, span: BlockSpan, *, ledger_id: int, key: str, entry_id: int | None = None, at: int = 0) -> None:
        self.next_entry_id = span.first_entry_id if entry_id is None else entry_id
        """The first entry that was not returned yet."""
        self.at = span.offset if entry_id is None else at
        """Offset of that entry, or of the header or the padding."""
        self._span = span
        self._ledger_id = ledger_id
        self._key = key
        self._head = entry_id is None
        self._rest = b""
        self._padded = 0

    @property
    def wanted_at(self) -> int:
        """Offset of the next byte to feed."""
        return self.at + len(self._rest)

    @property
    def inside(self) -> bool:
        """Whether entries of the block are still missing."""
        return self.next_entry_id <= self._span.last_entry_id

    @property
    def done(self) -> bool:
        """Whether the block has been read to its end."""
        return self.at >= self._span.end

    def feed(self, data: bytes) -> FramedEntries:
        """Take the next bytes, cut at the block's end. Return complete entries, heads checked. Raises CorruptData."""
        span = self._span
        data = (self._rest + data if self._rest else data)[: span.end - self.at]
        start = 0
        if self._head:
            if len(data) < min(BLOCK_HEADER_BYTES, span.end - self.at):
                self._rest = data
                return self._whole(data, 0, 0, 0)
            self._check_header(data)
            start, self._head = BLOCK_HEADER_BYTES, False
        count, stop = self._entries(data, start)
        found = self._whole(data, count, start, stop)
        self.next_entry_id += count
        if self.next_entry_id > span.last_entry_id:
            self._check_padding(data[stop:], self.at + stop)
            stop = len(data)
        elif self.at + len(data) >= span.end:
            raise self._corrupt(self.at + stop, f"entry {self.next_entry_id}", "the end of its block")
        self.at += stop
        self._rest = data[stop:]
        return found

    def _whole(self, data: bytes, count: int, start: int, end: int) -> FramedEntries:
        """Return the next `count` entries, which are `data[start:end]`."""
        return FramedEntries(self._ledger_id, self.next_entry_id, count, data, start, end, self._key, self.at)

    def _check_header(self, data: bytes) -> None:
        span = self._span
        header = decode_header(data, key=self._key, at=span.offset)
        if header.first_entry_id != span.first_entry_id:
            raise self._corrupt(span.offset + 20, f"a block from entry {span.first_entry_id} on", header.first_entry_id)
        if header.block_bytes != span.end - span.offset:
            raise self._corrupt(span.offset + 12, f"a block of {span.end - span.offset} bytes", header.block_bytes)

    def _entries(self, data: bytes, start: int) -> tuple[int, int]:
        """Return the number of whole entries in `data` from `start` on, and the offset of the next one."""
        unpack = ENTRY_HEAD.unpack_from
        first = self.next_entry_id
        wanted, last, head_last = first, self._span.last_entry_id, len(data) - ENTRY_OVERHEAD_BYTES
        room = self._span.end - self.at
        while wanted <= last and start <= head_last:
            length, entry_id = unpack(data, start)
            body = start + ENTRY_OVERHEAD_BYTES
            if not 0 <= length <= room - body:
                raise self._corrupt(self.at + start, f"entry {wanted} of at most {room - body} bytes", length)
            if entry_id != wanted:
                raise self._corrupt(self.at + start + 4, f"entry id {wanted}", entry_id)
            if body + length > len(data):
                break
            start = body + length
            wanted += 1
        return wanted - first, start

    def _check_padding(self, data: bytes, at: int) -> None:
        phase = self._padded % len(PAD)
        expected = (PAD * (len(data) // len(PAD) + 2))[phase : phase + len(data)]
        if data != expected:
            wrong = next(number for number, byte in enumerate(data) if byte != expected[number])
            bytes_there = data[wrong : wrong + 4].hex()
            raise self._corrupt(at + wrong, f"padding {expected[wrong : wrong + 4].hex()}", bytes_there)
        self._padded += len(data)

    def _corrupt(self, at: int, expected: object, found: object) -> CorruptData:
        return CorruptData(
            key=self._key,
            offset=at,
            expected=expected,
            found=found,
            hint="the object is not what its index says; read from the ledger source if it still has the ledger",
        )
