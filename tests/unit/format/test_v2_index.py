"""Index of a V2 object."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import Position
from offloaderd.format import v2
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.format.v2 import GROUP_HEAD, INDEX_HEADER
from tests.unit.format import builders
from tests.unit.format.builders import KEY, ledger_info

INT63 = st.integers(0, 2**63 - 1)
ONE_ENTRY = (IndexEntry(0, 1, 0),)


def raw_index(
    *groups: tuple[int, bytes, list[tuple[int, int, int]]], data_bytes: int = 10_000, tail: bytes = b""
) -> bytes:
    """Return an index without any check, its groups in the order given."""
    body = b"".join(
        GROUP_HEAD.pack(ledger_id, len(entries), len(metadata))
        + metadata
        + b"".join(struct.pack(">qiq", *entry) for entry in entries)
        for ledger_id, metadata, entries in groups
    )
    header = INDEX_HEADER.pack(0x3D1FB0BC, INDEX_HEADER.size + len(body) + len(tail), data_bytes, 128)
    return header + body + tail


def corrupt(data: bytes) -> CorruptData:
    """Return the error that decoding raises."""
    with pytest.raises(CorruptData) as caught:
        v2.decode_index(data, key=KEY)
    assert caught.value.key == KEY
    return caught.value


@given(builders.segments)
def test_round_trip(segment: builders.Segment) -> None:
    """What was written is read back, and written again gives the same bytes: nothing follows the last group (T10)."""
    index = v2.decode_index(segment.index, key=KEY)
    assert index.groups == tuple(builders.index_groups(segment.manifest.blocks))
    assert index.header_bytes == 128
    assert v2.encode_index(index.data_bytes, index.groups) == segment.index
    counts = sum(16 + len(group.metadata) + 20 * len(group.entries) for group in index.groups)
    assert len(segment.index) == 24 + counts


@given(builders.segments, INT63, INT63)
def test_floor_against_a_plain_search(segment: builders.Segment, ledger_id: int, entry_id: int) -> None:
    """The floor is the last block of the ledger that begins at or before the entry."""
    index = v2.decode_index(segment.index, key=KEY)
    wanted = [Position(ledger_id, entry_id)]
    for run in segment.runs:
        wanted += [
            Position(run.ledger_id, max(0, run.first_entry_id + delta)) for delta in (-1, 0, 1, len(run.payloads))
        ]
    for position in wanted:
        found = [
            (block.first_entry_id, number, block.offset)
            for number, block in enumerate(segment.manifest.blocks, start=1)
            if block.ledger_id == position.ledger_id and block.first_entry_id <= position.entry_id
        ]
        assert index.floor(position) == (found[-1] if found else None)


@given(builders.segments)
def test_extents_are_the_blocks(segment: builders.Segment) -> None:
    """The index alone tells where every block lies, so that a segment without its manifest is readable."""
    found = [v2.decode_block(segment.data[e.offset : e.offset + e.length], key=KEY, at=e.offset)
             for e in v2.decode_index(segment.index, key=KEY).extents()]  # fmt: skip
    assert [(batch.ledger_id, batch.first_entry_id, batch.payloads) for batch in found] == [
        (run.ledger_id, run.first_entry_id, run.payloads) for run in segment.runs
    ]


def test_groups_are_written_by_ledger() -> None:
    """Groups are sorted, whatever order they come in."""
    groups = [v2.LedgerIndex(n, ledger_info(n), (IndexEntry(0, n, n * 200),)) for n in (1, 2, 3)]
    assert v2.encode_index(1000, reversed(groups)) == v2.encode_index(1000, groups)


def test_groups_in_the_order_of_a_hash_map_are_read() -> None:
    """Pulsar writes ledgers 15, 16, 17, 33 as 16, 17, 33, 15."""
    parts = {15: 1, 16: 2, 17: 3, 33: 4}
    data = raw_index(*((n, ledger_info(n), [(0, parts[n], 200 * parts[n])]) for n in (16, 17, 33, 15)))
    index = v2.decode_index(data, key=KEY)
    assert [group.ledger_id for group in index.groups] == [15, 16, 17, 33]
    assert index.floor(Position(33, 8)) == (0, 4, 800)
    assert index.group(20) is None
    assert index.group(34) is None


@pytest.mark.parametrize(
    ("data_bytes", "groups"),
    [
        (1000, []),
        (1000, [v2.LedgerIndex(1, ledger_info(1), ())]),
        (1000, [v2.LedgerIndex(1, ledger_info(2), ONE_ENTRY)]),
        (1000, [v2.LedgerIndex(1, b"", ONE_ENTRY)]),
        (1000, [v2.LedgerIndex(1, ledger_info(1), ONE_ENTRY)] * 2),
        (2**63, [v2.LedgerIndex(1, ledger_info(1), ONE_ENTRY)]),
        (139, [v2.LedgerIndex(1, ledger_info(1), ONE_ENTRY)]),
        (1000, [v2.LedgerIndex(1, ledger_info(1), (IndexEntry(0, 1, 861),))]),
        (1000, [v2.LedgerIndex(1, ledger_info(1), (IndexEntry(0, 1, 0), IndexEntry(0, 2, 200)))]),
        (1000, [v2.LedgerIndex(1, ledger_info(1), (IndexEntry(0, 2**31, 0),))]),
    ],
)
def test_what_would_not_be_read_is_not_written(data_bytes: int, groups: list[v2.LedgerIndex]) -> None:
    """An index that contradicts itself raises InvalidInput."""
    with pytest.raises(InvalidInput):
        v2.encode_index(data_bytes, groups)


@pytest.mark.parametrize(
    ("offset", "kind", "value", "expected"),
    [
        (0, ">I", 0xDE47DE47, "magic 3d1fb0bc of a V2 index"),
        (4, ">i", 72, "index length 73"),
        (4, ">i", -1, "index length 73"),
        (8, ">q", 139, "data length of at least 140"),
        (16, ">q", 64, "header length 128"),
        (24, ">q", -1, "ledger id of at least 0"),
        (32, ">i", 0, "from 1 to 1 index entries"),
        (32, ">i", 2**31 - 1, "from 1 to 1 index entries"),
        (36, ">i", -1, "metadata of at most 13 bytes"),
        (36, ">i", 2**31 - 1, "metadata of at most 13 bytes"),
        (53, ">q", -1, "an entry id of at least 0"),
        (61, ">i", 0, "a part id of at least 1"),
        (65, ">q", -1, "an offset from 0 to 9860"),
        (65, ">q", 9861, "an offset from 0 to 9860"),
    ],
)
def test_each_field_is_checked(offset: int, kind: str, value: int, expected: str) -> None:
    """A wrong field is named with its place."""
    data = bytearray(raw_index((1, ledger_info(1), [(0, 1, 0)])))
    struct.pack_into(kind, data, offset, value)
    error = corrupt(bytes(data))
    assert (error.offset, error.expected) == (offset, expected)


@pytest.mark.parametrize(
    ("groups", "offset", "expected"),
    [
        ([(1, ledger_info(1), [(0, 1, 0), (0, 2, 200)])], 73, "an entry id of at least 1"),
        ([(1, ledger_info(1), [(0, 1, 0), (5, 1, 200)])], 81, "a part id of at least 2"),
        ([(1, ledger_info(1), [(0, 1, 0), (5, 2, 139)])], 85, "an offset from 140 to 9860"),
        ([(1, ledger_info(1), [(0, 1, 0)]), (2, ledger_info(2), [(0, 1, 200)])], 110, "a part id of at least 2"),
        ([(1, ledger_info(1), [(0, 1, 0)]), (2, ledger_info(2), [(0, 2, 0)])], 114, "an offset from 140 to 9860"),
        ([(1, ledger_info(1), [(0, 1, 0)]), (1, ledger_info(1), [(5, 2, 200)])], 73, "one group a ledger"),
        ([(1, ledger_info(2), [(0, 1, 0)])], 40, "LedgerInfo of ledger 1"),
        ([(1, b"\x10\x05", [(0, 1, 0)])], 40, "all required fields of LedgerInfo"),
        ([(1, b"\x08\x01\x0b", [(0, 1, 0)])], 40, "a LedgerInfo message"),
        ([(1, b"\x08" + b"\xff" * 11, [(0, 1, 0)])], 40, "a LedgerInfo message"),
        ([(1, b"\x08\x01\x32\x06\x0a\x01\xff\x12\x01a", [(0, 1, 0)])], 40, "UTF-8 text in the LedgerInfo message"),
    ],
)
def test_order_and_metadata_are_checked(
    groups: list[tuple[int, bytes, list[tuple[int, int, int]]]], offset: int, expected: str
) -> None:
    """Blocks have to ascend through ledgers and object; metadata has to be that of the ledger."""
    error = corrupt(raw_index(*groups))
    assert (error.offset, error.expected) == (offset, expected)


def test_properties_of_a_ledger_are_kept() -> None:
    """Metadata with fields that this version has no use for comes back as it was."""
    metadata = b"\x08\x01\x32\x06\x0a\x01k\x12\x01v\xfa\x7f\x01?"
    index = v2.decode_index(raw_index((1, metadata, [(0, 1, 0)])), key=KEY)
    assert index.groups[0].metadata == metadata
    assert index.groups[0].info().properties[0].value == "v"


@pytest.mark.parametrize("tail", [b"\0", bytes(15), bytes(16)])
def test_nothing_may_follow_the_last_group(tail: bytes) -> None:
    """Trailing bytes are corrupt, even if the header counts them."""
    assert corrupt(raw_index((1, ledger_info(1), [(0, 1, 0)]), tail=tail)).offset >= 73


def test_index_without_groups_is_corrupt() -> None:
    """An index has a group."""
    assert corrupt(raw_index()).expected == "a ledger's group of at least 16 bytes"
