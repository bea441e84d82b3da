"""Blocks of a V2 object, and what Pulsar's reader needs of them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import PAD
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format import v2
from tests.unit.format import builders
from tests.unit.format.builders import KEY, payload_lists

INT63 = st.integers(0, 2**63 - 1)


def joined(ledger_id: int, first_entry_id: int, payloads: list[bytes], *, block_bytes_min: int = 0) -> bytes:
    """Return an encoded block in one piece."""
    block = v2.encode_block(ledger_id, first_entry_id, payloads, block_bytes_min=block_bytes_min)
    data = b"".join(block.chunks)
    assert len(data) == block.length
    return data


def patched(data: bytes, offset: int, kind: str, value: int) -> bytes:
    """Return `data` with one field overwritten."""
    copy = bytearray(data)
    struct.pack_into(kind, copy, offset, value)
    return bytes(copy)


@given(INT63, st.integers(0, 2**62), payload_lists, st.integers(0, 600))
def test_round_trip(ledger_id: int, first_entry_id: int, payloads: list[bytes], block_bytes_min: int) -> None:
    """A block is read back as it was written, at least of the wanted length, ending in 4 or more pad bytes."""
    data = joined(ledger_id, first_entry_id, payloads, block_bytes_min=block_bytes_min)
    used = 128 + 12 * len(payloads) + sum(map(len, payloads))
    assert len(data) == max(block_bytes_min, used + 4)
    assert data[used : used + 4] == PAD
    assert v2.decode_block(data, key=KEY, at=0) == EntryBatch(ledger_id, first_entry_id, payloads)


@given(INT63, INT63, INT63)
def test_header_round_trip(block_bytes: int, first_entry_id: int, ledger_id: int) -> None:
    """Every header that can be written is read back, from the begin of longer data too."""
    header = v2.BlockHeader(max(block_bytes, 128), first_entry_id, ledger_id)
    encoded = v2.encode_header(header)
    assert len(encoded) == v2.BLOCK_HEADER_BYTES == 128
    assert v2.decode_header(encoded + b"more", key=KEY, at=0) == header


@given(builders.segments)
def test_every_block_leads_pulsars_reader_on(segment: builders.Segment) -> None:
    """Trap T1 and T2: after the last entry of every block, the last one too, a negative length is met."""
    end = 0
    for block, run in zip(segment.manifest.blocks, segment.runs, strict=True):
        used = block.offset + 128 + 12 * block.entry_count + sum(map(len, run.payloads))
        end = block.offset + block.length
        assert end - used >= v2.PAD_BYTES_MIN
        assert struct.unpack_from(">i", segment.data, used)[0] < 0
    assert end == len(segment.data)


def test_block_before_entry_128_is_padded() -> None:
    """Trap T2: a block whose successor begins at entry 128 does not run into the successor's magic."""
    data = joined(1, 0, [b"x"] * 128) + joined(1, 128, [b"y"])
    assert struct.unpack_from(">i", data, 128 + 128 * 13)[0] < 0


@pytest.mark.parametrize(
    ("ledger_id", "first_entry_id", "payloads"),
    [(1, 0, []), (-1, 0, [b"x"]), (2**63, 0, [b"x"]), (1, -1, [b"x"]), (1, 2**63 - 1, [b"x", b"y"])],
)
def test_what_cannot_be_stored_is_refused(ledger_id: int, first_entry_id: int, payloads: list[bytes]) -> None:
    """No entries, and ids outside their fields, raise InvalidInput."""
    with pytest.raises(InvalidInput):
        v2.encode_block(ledger_id, first_entry_id, payloads)


@pytest.mark.parametrize(
    ("offset", "kind", "value", "expected"),
    [
        (0, ">I", 0xFBDBABCB, "magic 26a66d32 of a V2 block"),
        (4, ">q", 127, "header length 128"),
        (12, ">q", 127, "block length of at least 128"),
        (12, ">q", 2**62, "block length 160"),
        (20, ">q", -1, "entry id of at least 0"),
        (28, ">q", -1, "ledger id of at least 0"),
        (36, ">B", 1, "92 reserved zeros"),
        (127, ">B", 1, "92 reserved zeros"),
    ],
)
def test_each_field_of_the_header_is_checked(offset: int, kind: str, value: int, expected: str) -> None:
    """A wrong field is named with its place in the object."""
    data = patched(joined(7, 0, [b"abc"], block_bytes_min=160), offset, kind, value)
    with pytest.raises(CorruptData) as caught:
        v2.decode_block(data, key=KEY, at=5000)
    assert caught.value.key == KEY
    assert caught.value.offset == 5000 + min(offset, 36)
    assert caught.value.expected == expected


def test_fields_are_checked_in_order() -> None:
    """Of several wrong fields the first is named: garbage is no block rather than a block of wrong length."""
    with pytest.raises(CorruptData, match="magic 26a66d32 of a V2 block, found 00000000"):
        v2.decode_block(bytes(200), key=KEY, at=0)


def test_header_entry_id_has_to_be_that_of_the_first_entry() -> None:
    """A header that names another first entry is corrupt."""
    with pytest.raises(CorruptData, match="at byte 132: expected entry id 3, found 0"):
        v2.decode_block(patched(joined(7, 0, [b"abc"]), 20, ">q", 3), key=KEY, at=0)


def test_block_without_entries_is_corrupt() -> None:
    """A header with nothing but padding after it is no block."""
    data = v2.encode_header(v2.BlockHeader(136, 0, 7)) + PAD + PAD
    with pytest.raises(CorruptData, match="at byte 128: expected at least one entry, found none"):
        v2.decode_block(data, key=KEY, at=0)


def test_block_without_padding_is_read() -> None:
    """A foreign block that ends with its last entry is readable."""
    data = v2.encode_header(v2.BlockHeader(143, 0, 7)) + joined(7, 0, [b"abc"])[128:143]
    assert v2.decode_block(memoryview(data), key=KEY, at=0) == EntryBatch(7, 0, [b"abc"])


def test_encoded_block_references_payloads() -> None:
    """Encoding copies no payload."""
    payload = b"x" * 100
    assert any(chunk is payload for chunk in v2.encode_block(1, 0, [payload]).chunks)
