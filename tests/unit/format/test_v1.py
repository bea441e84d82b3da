"""Blocks of a V1 object, and the arithmetic that cuts a ledger into them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import PAD
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format import v1
from offloaderd.testing.builders import decode_block, encode_block, encode_ledger
from tests.unit.format.builders import KEY, build_ledger

ledgers = st.lists(st.binary(max_size=60), min_size=1, max_size=40)
INT63 = st.integers(0, 2**63 - 1)


def one_block(payloads: list[bytes], block_bytes: int) -> bytes:
    """Return a block from entry 0 on."""
    return b"".join(encode_block(0, payloads, block_bytes=block_bytes))


@given(ledgers, st.integers(180, 500))
def test_ledger_round_trip(payloads: list[bytes], block_bytes_max: int) -> None:
    """Every entry of a ledger is read back from its blocks, which lie where their index entries say."""
    blocks, data, _ = build_ledger(payloads, block_bytes_max=block_bytes_max)
    found: list[bytes] = []
    for number, block in enumerate(blocks, start=1):
        entry = block.index_entry
        assert (entry.first_entry_id, entry.part_id) == (len(found), number)
        piece = data[entry.offset : entry.offset + block.length]
        found += decode_block(piece, ledger_id=12, key=KEY, at=entry.offset).payloads
    assert found == payloads


@given(ledgers, st.integers(200, 500))
def test_blocks_are_cut_by_pulsars_rule(payloads: list[bytes], block_bytes_max: int) -> None:
    """All blocks but the last are full, the last is exact, as long as every entry fits a block."""
    blocks, data, _ = build_ledger(payloads, block_bytes_max=block_bytes_max)
    assert {block.length for block in blocks[:-1]} <= {block_bytes_max}
    last = payloads[blocks[-1].index_entry.first_entry_id :]
    assert blocks[-1].length == 128 + 12 * len(last) + sum(map(len, last))
    assert len(data) == sum(block.length for block in blocks)


@pytest.mark.parametrize(
    ("entries_left", "payload_bytes_left", "length"),
    [(5, 36, 180), (2, 21, 173), (4, 4, 180), (3, 16, 180), (0, 0, 128)],
)
def test_block_length(entries_left: int, payload_bytes_left: int, length: int) -> None:
    """A block takes what is left of the ledger, up to the greatest length."""
    assert length == v1.block_length(
        block_bytes_max=180, entries_left=entries_left, payload_bytes_left=payload_bytes_left
    )


def test_entry_larger_than_a_block_gets_its_own() -> None:
    """Where Pulsar's writer ends the ledger and reports success, a larger block holds the entry."""
    payloads = [b"a", b"b" * 200, b"c"]
    blocks, data, _ = build_ledger(payloads, block_bytes_max=180)
    assert [block.length for block in blocks] == [180, 340, 141]
    assert decode_block(data[180:520], ledger_id=1, key=KEY, at=180).payloads == [b"b" * 200]


@pytest.mark.parametrize(
    ("entry_count", "payload_bytes", "more"),
    [
        (3, 9, False),
        (5, 9, False),
        (4, 8, False),
        (4, 10, False),
        (3, 8, True),
        (5, 12, False),
        (0, 0, True),
        (3, 21, True),
    ],
)
def test_ledger_that_is_not_as_declared_is_refused(entry_count: int, payload_bytes: int, more: bool) -> None:
    """Entries or bytes other than the metadata says never end in a complete object."""
    payloads = [b"ab", b"cd", b"ef", b"ghi"]
    blocks = encode_ledger(payloads, entry_count=entry_count, payload_bytes=payload_bytes, block_bytes_max=160)
    with pytest.raises(InvalidInput, match="ledger has more than" if more else "ledger has (more|less) than"):
        list(blocks)


def test_entry_that_just_fits_stays_in_the_block() -> None:
    """A block is filled to its last byte if entries do, as Pulsar fills it."""
    blocks, _, _ = build_ledger([b"a" * 14, b"b" * 14, b"c"], block_bytes_max=180)
    assert [(block.index_entry.first_entry_id, block.length) for block in blocks] == [(0, 180), (2, 141)]
    assert blocks[0].chunks[-1] == b""


def test_wrong_count_and_wrong_size_do_not_make_up_for_each_other() -> None:
    """An entry too many that is declared with 12 bytes too few, its head's length, is still noticed."""
    blocks = encode_ledger([b"x" * 20] * 4, entry_count=5, payload_bytes=68, block_bytes_max=500)
    with pytest.raises(InvalidInput, match="ledger has more than its 5 entries or 68 bytes"):
        list(blocks)


def test_empty_ledger_is_refused() -> None:
    """A ledger without entries has no object."""
    with pytest.raises(InvalidInput, match="0 entries"):
        list(encode_ledger([], entry_count=0, payload_bytes=0, block_bytes_max=180))


def test_blocks_are_yielded_as_they_fill() -> None:
    """The writer holds the payloads of one block, not of the ledger."""
    taken: list[int] = []

    def source() -> list[bytes]:
        return [b"x" * 30] * 10

    def watched() -> object:
        for number, payload in enumerate(source()):
            taken.append(number)
            yield payload

    blocks = encode_ledger(watched(), entry_count=10, payload_bytes=300, block_bytes_max=220)  # type: ignore[arg-type]
    next(blocks)
    assert taken == [0, 1, 2]


@pytest.mark.parametrize(("payloads", "block_bytes"), [([], 180), ([b"abc"], 142)])
def test_entries_that_do_not_fit_are_refused(payloads: list[bytes], block_bytes: int) -> None:
    """A block of no entries, or too short for them, raises InvalidInput."""
    with pytest.raises(InvalidInput):
        encode_block(0, payloads, block_bytes=block_bytes)


@given(INT63, INT63)
def test_header_round_trip(block_bytes: int, first_entry_id: int) -> None:
    """Every header that can be written is read back."""
    header = v1.BlockHeader(max(block_bytes, 128), first_entry_id)
    encoded = v1.encode_header(header)
    assert len(encoded) == v1.BLOCK_HEADER_BYTES == 128
    assert v1.decode_header(encoded, key=KEY, at=0) == header


@pytest.mark.parametrize("header", [v1.BlockHeader(2**63, 0), v1.BlockHeader(128, -1)])
def test_header_that_cannot_be_stored(header: v1.BlockHeader) -> None:
    """Numbers outside their fields raise InvalidInput."""
    with pytest.raises(InvalidInput):
        v1.encode_header(header)


@pytest.mark.parametrize(
    ("offset", "kind", "value", "expected"),
    [
        (0, ">I", 0x26A66D32, "magic fbdbabcb of a V1 block"),
        (4, ">q", 127, "header length 128"),
        (12, ">q", 127, "block length of at least 128"),
        (12, ">q", 144, "block length 143"),
        (20, ">q", -1, "entry id of at least 0"),
        (28, ">B", 1, "100 reserved zeros"),
        (127, ">B", 1, "100 reserved zeros"),
    ],
)
def test_each_field_of_the_header_is_checked(offset: int, kind: str, value: int, expected: str) -> None:
    """A wrong field is named with its place in the object."""
    data = bytearray(one_block([b"abc"], 143))
    struct.pack_into(kind, data, offset, value)
    with pytest.raises(CorruptData) as caught:
        decode_block(bytes(data), ledger_id=1, key=KEY, at=5000)
    assert (caught.value.offset, caught.value.expected) == (5000 + min(offset, 28), expected)


def test_block_is_read_from_a_view() -> None:
    """A view gives the same entries."""
    assert decode_block(memoryview(one_block([b"abc"], 180)), ledger_id=3, key=KEY, at=0) == EntryBatch(3, 0, [b"abc"])


def test_empty_block_is_corrupt() -> None:
    """A block without entries, which Pulsar's writer leaves behind for an oversized entry, is corrupt."""
    with pytest.raises(CorruptData, match="at least one entry"):
        decode_block(v1.encode_header(v1.BlockHeader(132, 0)) + PAD, ledger_id=1, key=KEY, at=0)


def test_short_header_is_corrupt() -> None:
    """Less than a header is no block."""
    with pytest.raises(CorruptData, match="a block header of 128 bytes, found 127 bytes"):
        v1.decode_header(bytes(127), key=KEY, at=0)
