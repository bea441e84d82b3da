"""Index of a V1 object (PIP-17, ledger-based): FORMAT.md, section 2.

It has BookKeeper's LedgerMetadataFormat and at least one index entry per block. Further ones are valid: for an entry
inside a block, `offset` is its position less the length of a block header, because readers add that length. They save
Pulsar's own reader most of its requests.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.format.index_entries import (
    DATA_BYTES_MIN,
    DATA_HEADER_BYTES,
    INDEX_ENTRY,
    IndexEntry,
    check_length,
    check_run,
    decode_run,
    encode_run,
    floor,
)
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.values import BlockInfo

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
        data = b"".join((INDEX_HEADER.pack(*fields), metadata, encode_run(entries)))
    except struct.error as error:
        raise InvalidInput(f"index cannot be stored: {error}") from None
    try:
        decode_index(data, key="the index to be written")
    except CorruptData as error:
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
    entries = decode_run(data, start=run, count=count)
    check_run(entries, key=key, at=run, lowest=IndexEntry(0, 1, 0), step=_STEP, offset_max=data_bytes - DATA_BYTES_MIN)
    if entries[0].first_entry_id:
        raise CorruptData(key=key, offset=run, expected="entry id 0", found=entries[0].first_entry_id)
    if not ledger.HasField("lastEntryId") or ledger.lastEntryId < entries[-1].first_entry_id:
        expected = f"a last entry id of at least {entries[-1].first_entry_id} in the LedgerMetadataFormat"
        found = ledger.lastEntryId if ledger.HasField("lastEntryId") else "none"
        raise CorruptData(key=key, offset=INDEX_HEADER.size, expected=expected, found=found)
    return LedgerObjectIndex(data_bytes, DATA_HEADER_BYTES, metadata, entries)


def _decode_header(data: bytes, key: str) -> tuple[int, int, int]:
    """Check the header; returns length of the data object, number of index entries, length of the metadata."""
    rest = len(data) - INDEX_HEADER.size
    if rest < 0:
        expected = f"an index header of {INDEX_HEADER.size} bytes"
        raise CorruptData(key=key, offset=0, expected=expected, found=f"{len(data)} bytes")
    magic, index_bytes, data_bytes, header_bytes, count, metadata_bytes = INDEX_HEADER.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise CorruptData(key=key, offset=0, expected=f"magic {INDEX_MAGIC:08x} of a V1 index", found=f"{magic:08x}")
    if index_bytes != len(data):
        raise CorruptData(key=key, offset=4, expected=f"index length {len(data)}", found=index_bytes)
    if data_bytes < DATA_BYTES_MIN:
        expected = f"data length of at least {DATA_BYTES_MIN}"
        raise CorruptData(key=key, offset=8, expected=expected, found=data_bytes)
    if header_bytes != DATA_HEADER_BYTES:
        raise CorruptData(key=key, offset=16, expected=f"header length {DATA_HEADER_BYTES}", found=header_bytes)
    if not 1 <= count <= rest // INDEX_ENTRY.size:
        expected = f"from 1 to {rest // INDEX_ENTRY.size} index entries"
        raise CorruptData(key=key, offset=24, expected=expected, found=count)
    if metadata_bytes != rest - count * INDEX_ENTRY.size:
        expected = f"metadata of {rest - count * INDEX_ENTRY.size} bytes"
        raise CorruptData(key=key, offset=28, expected=expected, found=metadata_bytes)
    return data_bytes, count, metadata_bytes
