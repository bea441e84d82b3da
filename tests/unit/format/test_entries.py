"""Entries and padding inside a block."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import PAD, decode_entries, frame, framed_bytes, padding
from offloaderd.core.errors import CorruptData, InvalidInput
from tests.loops import both_loops
from tests.unit.format.builders import KEY, payload_lists

pytestmark = pytest.mark.usefixtures(both_loops.__name__)


class _Huge(bytes):
    """Says that it is longer than a length field can hold."""

    def __len__(self) -> int:
        return 2**31


def entry(entry_id: int, payload: bytes, *, length: int | None = None) -> bytes:
    """Return an entry, if wanted with a wrong length."""
    return struct.pack(">iq", len(payload) if length is None else length, entry_id) + payload


def decode(data: bytes, *, start: int = 0, first_entry_id: int = 5, count: int | None = None) -> list[bytes]:
    """Decode at byte 1000 of the object."""
    return decode_entries(data, start=start, first_entry_id=first_entry_id, count=count, key=KEY, at=1000)


def decode_exactly(data: bytes, *, start: int = 0, first_entry_id: int = 5, count: int) -> list[bytes]:
    """Decode what the compiled loop takes: a number of entries of which the end is known as well."""
    return decode_entries(
        data, start=start, end=len(data), first_entry_id=first_entry_id, count=count, key=KEY, at=1000
    )


@pytest.mark.parametrize("n", range(10))
def test_padding_is_cut_anywhere(n: int) -> None:
    """Padding begins with FE, repeats the pad word and has the wanted length."""
    assert padding(n) == (PAD * 3)[:n]


@given(st.integers(0, 2**62), payload_lists, st.integers(0, 30))
def test_round_trip(first_entry_id: int, payloads: list[bytes], pad_bytes: int) -> None:
    """What was framed is read back, whatever padding follows."""
    framed = b"".join(frame(first_entry_id, payloads))
    assert len(framed) == framed_bytes(sum(map(len, payloads)), len(payloads))
    assert decode(framed + padding(pad_bytes), first_entry_id=first_entry_id) == payloads
    assert decode(framed, first_entry_id=first_entry_id) == payloads
    assert decode_exactly(framed, first_entry_id=first_entry_id, count=len(payloads)) == payloads


def test_frame_references_payloads() -> None:
    """Payloads are handed on as they are, not copied."""
    payload = b"x" * 100
    assert frame(0, [payload])[1] is payload


def test_head_comes_before_each_payload() -> None:
    """Length and entry id stand before the payload, in this order."""
    assert b"".join(frame(7, [b"ab", b""])) == bytes.fromhex("00000002 0000000000000007 6162 00000000 0000000000000008")


@pytest.mark.parametrize(
    ("first_entry_id", "payloads"), [(-1, [b"x"]), (2**63, [b"x"]), (2**63 - 1, [b"x", b"y"]), (0, [_Huge()])]
)
def test_numbers_outside_their_field_are_refused(first_entry_id: int, payloads: list[bytes]) -> None:
    """An id or length that the fields cannot hold raises InvalidInput."""
    with pytest.raises(InvalidInput):
        frame(first_entry_id, payloads)


def test_start_and_count_select_entries() -> None:
    """Reading may begin at any entry and stop before the others, whatever follows."""
    data = entry(5, b"a") + entry(6, b"bb") + entry(7, b"ccc") + b"garbage"
    assert decode(data, start=13, first_entry_id=6, count=2) == [b"bb", b"ccc"]
    assert decode(data, count=0) == []


def test_views_are_read() -> None:
    """A memoryview is read like bytes, and gives bytes."""
    found = decode_entries(memoryview(entry(5, b"abc")), start=0, first_entry_id=5, key=KEY, at=0)
    assert found == [b"abc"]
    assert type(found[0]) is bytes


@pytest.mark.parametrize(
    ("data", "offset", "expected", "found"),
    [
        (entry(6, b"abc"), 1004, "entry id 5", 6),
        (entry(5, b"abc") + entry(5, b""), 1019, "entry id 6", 5),
        (entry(5, b"abc", length=4), 1000, "an entry of at most 3 bytes", 4),
        (entry(5, b"abc", length=2**31 - 1), 1000, "an entry of at most 3 bytes", 2**31 - 1),
        (entry(5, b"abc", length=2) + PAD, 1014, "an entry, or padding fe dc de ad", "63 fe dc de"),
        (entry(5, b"") + PAD + b"\xff", 1016, "an entry, or padding fe", "ff"),
        (entry(5, b"") + b"\xfe\xdc\xde", None, None, None),
        (entry(5, b"") + b"\xfe\xdc\xdf", 1014, "an entry, or padding de", "df"),
        (entry(5, b"", length=-1), 1000, "an entry, or padding fe dc de ad", "ff ff ff ff"),
        (entry(5, b"")[:-1], 1000, "an entry, or padding fe dc de ad", "00 00 00 00"),
    ],
)
def test_what_is_no_entry_has_to_be_padding(data: bytes, offset: int | None, expected: str, found: object) -> None:
    """Wrong ids, lengths beyond the end and spoilt padding are named with their place."""
    if offset is None:
        assert decode(data) == [b""]
        return
    with pytest.raises(CorruptData) as caught:
        decode(data)
    assert (caught.value.key, caught.value.offset) == (KEY, offset)
    assert (caught.value.expected, caught.value.found) == (expected, found)


@pytest.mark.parametrize("rest", [b"", PAD * 4, b"\0\0"])
def test_fewer_entries_than_counted(rest: bytes) -> None:
    """Padding or the end before the counted number of entries is corrupt."""
    with pytest.raises(CorruptData, match="expected 2 entries from 5 on, found 1") as caught:
        decode(entry(5, b"a") + rest, count=2)
    assert caught.value.offset == 1013


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (entry(5, b"a") + PAD, 1),
        (entry(5, b"a") + PAD[:1], 1),
        (entry(5, b"a") + entry(6, b""), 1),
        (entry(5, b"a"), 2),
        (entry(5, b"a") + PAD * 4, 2),
        (entry(5, b"a") + entry(7, b""), 2),
        (entry(5, b"", length=1), 1),
        (entry(5, b"", length=-1), 1),
        (entry(5, b"a"), 0),
        (entry(5, b"a"), -1),
    ],
)
def test_exactly_the_counted_entries(data: bytes, count: int) -> None:
    """With an end, no byte is left, and no entry is missing."""
    with pytest.raises(CorruptData):
        decode_exactly(data, count=count)


@pytest.mark.parametrize(("first", "count"), [(2**63 - 1, 2), (2**63, 2), (2**63 - 1, 2**63)])
def test_no_entry_is_behind_the_greatest_id(first: int, count: int) -> None:
    """Ids have 63 bits: none goes on from the greatest one at the least, and none is asked for by a larger number."""
    data = entry(2**63 - 1, b"a") + entry(-(2**63), b"b")
    with pytest.raises(CorruptData):
        decode_exactly(data, first_entry_id=first, count=count)
    assert decode_exactly(data[:13], first_entry_id=2**63 - 1, count=1) == [b"a"]


@pytest.mark.parametrize("start", [-1, 4])
def test_start_outside_the_data(start: int) -> None:
    """A sparse position beyond the data is corrupt."""
    with pytest.raises(CorruptData):
        decode(b"abc", start=start)


def test_start_at_the_end() -> None:
    """There is nothing to read at the very end, and nothing wrong with it."""
    assert decode(b"abc", start=3) == []
