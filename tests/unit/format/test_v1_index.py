"""Index of a V1 object."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import decode_entries
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.format import v1
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.testing.builders import decode_block
from tests.unit.format.builders import KEY, build_ledger, ledger_metadata

METADATA = ledger_metadata(10, 100)
RUN = 32 + len(METADATA)


def corrupt(data: bytes) -> CorruptData:
    """Return the error that decoding raises."""
    with pytest.raises(CorruptData) as caught:
        v1.decode_index(data, key=KEY)
    assert caught.value.key == KEY
    return caught.value


def patched(offset: int, kind: str, value: int) -> bytes:
    """Return an index of two entries with one field overwritten."""
    data = bytearray(v1.encode_index(10_000, METADATA, [IndexEntry(0, 1, 0), IndexEntry(4, 2, 500)]))
    struct.pack_into(kind, data, offset, value)
    return bytes(data)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=40), st.integers(180, 500))
def test_round_trip(payloads: list[bytes], block_bytes_max: int) -> None:
    """What was written is read back, and written again gives the same bytes."""
    blocks, data, encoded = build_ledger(payloads, block_bytes_max=block_bytes_max)
    index = v1.decode_index(encoded, key=KEY)
    assert index.entries == tuple(block.index_entry for block in blocks)
    assert (index.data_bytes, index.header_bytes) == (len(data), 128)
    assert index.ledger().lastEntryId == len(payloads) - 1
    assert v1.encode_index(index.data_bytes, index.metadata, index.entries) == encoded


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=40), st.integers(1, 5))
def test_denser_index_leads_to_every_entry(payloads: list[bytes], every: int) -> None:
    """Index entries in the middle of blocks are read, and offset plus 128 is where their entry begins."""
    blocks, data, _ = build_ledger(payloads, block_bytes_max=300)
    entries: list[IndexEntry] = []
    for block in blocks:
        position = block.index_entry.offset
        batch = decode_block(data[position : position + block.length], ledger_id=1, key=KEY, at=position)
        for number, payload in enumerate(batch.payloads):
            if number % every == 0:
                entries.append(IndexEntry(batch.first_entry_id + number, block.index_entry.part_id, position))
            position += 12 + len(payload)
    encoded = v1.encode_index(len(data), ledger_metadata(len(payloads), sum(map(len, payloads))), entries)
    index = v1.decode_index(memoryview(encoded), key=KEY)
    assert len(index.entries) == len(entries)
    for entry_id, payload in enumerate(payloads):
        floor = index.floor(entry_id)
        assert floor is not None
        assert entry_id - every < floor.first_entry_id <= entry_id
        count = entry_id - floor.first_entry_id + 1
        start = floor.offset + index.header_bytes
        found = decode_entries(data, start=start, first_entry_id=floor.first_entry_id, count=count, key=KEY, at=0)
        assert found[-1] == payload


def test_floor() -> None:
    """The floor is the last index entry that is not beyond the wanted id."""
    index = v1.decode_index(patched(0, ">I", 0xDE47DE47), key=KEY)
    assert [index.floor(entry_id) for entry_id in (-1, 0, 3, 4, 99)] == [
        None,
        (0, 1, 0),
        (0, 1, 0),
        (4, 2, 500),
        (4, 2, 500),
    ]


@pytest.mark.parametrize(
    ("offset", "kind", "value", "expected"),
    [
        (0, ">I", 0x3D1FB0BC, "magic de47de47 of a V1 index"),
        (4, ">i", 0, f"index length {RUN + 40}"),
        (8, ">q", 139, "data length of at least 140"),
        (16, ">q", 0, "header length 128"),
        (24, ">i", 0, "from 1 to 5 index entries"),
        (24, ">i", 2**31 - 1, "from 1 to 5 index entries"),
        (24, ">i", 3, None),
        (28, ">i", -1, f"metadata of {len(METADATA)} bytes"),
        (28, ">i", 2**31 - 1, f"metadata of {len(METADATA)} bytes"),
        (RUN, ">q", 1, "entry id 0"),
        (RUN, ">q", -1, "an entry id of at least 0"),
        (RUN + 8, ">i", 0, "a part id of at least 1"),
        (RUN + 12, ">q", -1, "an offset from 0 to 9860"),
        (RUN + 20, ">q", 0, "an entry id of at least 1"),
        (RUN + 28, ">i", 0, "a part id of at least 1"),
        (RUN + 32, ">q", 11, "an offset from 12 to 9860"),
        (RUN + 32, ">q", 9861, "an offset from 12 to 9860"),
    ],
)
def test_each_field_is_checked(offset: int, kind: str, value: int, expected: str | None) -> None:
    """A wrong field is named with its place."""
    error = corrupt(patched(offset, kind, value))
    if expected is not None:
        assert (error.offset, error.expected) == (offset, expected)


@pytest.mark.parametrize(
    ("spoil", "expected", "found"),
    [
        ("lastEntryId", "a last entry id of at least 4 in the LedgerMetadataFormat", "none"),
        ("state", "all required fields of LedgerMetadataFormat", "not all of them"),
    ],
)
def test_metadata_has_to_be_complete(spoil: str, expected: str, found: str) -> None:
    """Metadata without a required field, or without the last entry id, is corrupt."""
    message = LedgerMetadataFormat.FromString(METADATA)
    message.ClearField(spoil)  # type: ignore[arg-type]
    metadata = message.SerializePartialToString()
    run = struct.pack(">qiqqiq", 0, 1, 0, 4, 2, 500)
    header = struct.pack(">Iiqqii", 0xDE47DE47, 72 + len(metadata), 10_000, 128, 2, len(metadata))
    error = corrupt(header + metadata + run)
    assert (error.offset, error.expected, error.found) == (32, expected, found)


def test_last_entry_before_an_index_entry() -> None:
    """Metadata that says the ledger ends before an entry that the index points to is corrupt."""
    with pytest.raises(
        InvalidInput, match="expected a last entry id of at least 10 in the LedgerMetadataFormat, found 9"
    ):
        v1.encode_index(10_000, METADATA, [IndexEntry(0, 1, 0), IndexEntry(10, 2, 500)])


@pytest.mark.parametrize(
    ("data_bytes", "entries"), [(2**63, [IndexEntry(0, 1, 0)]), (1000, [IndexEntry(0, 1, 2**63)]), (1000, [])]
)
def test_what_would_not_be_read_is_not_written(data_bytes: int, entries: list[IndexEntry]) -> None:
    """An index that contradicts itself raises InvalidInput."""
    with pytest.raises(InvalidInput):
        v1.encode_index(data_bytes, METADATA, entries)


def test_members_that_are_not_text() -> None:
    """A bookie's name that is no UTF-8 is corrupt, not a surprise for who reads it later."""
    with pytest.raises(InvalidInput, match="expected UTF-8 text in the LedgerMetadataFormat message"):
        v1.encode_index(1000, METADATA.replace(b"127.0.0.1", b"127.0.0.\xff"), [IndexEntry(0, 1, 0)])
