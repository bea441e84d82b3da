"""Entries that stay framed: cut anywhere between entries, taken apart, and never believed further than their heads."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.entries import FramedEntries, frame, framed_bytes
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import EntryBatch, Position

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "data"


def framed(payloads: list[bytes], *, first: int = 41, every: int = 0, before: int = 3) -> FramedEntries:
    """Frame entries of ledger 7, behind some other bytes and before more; a place is known of each `every`-th."""
    data = b"".join(frame(first, payloads))
    sizes = [framed_bytes(len(payload), 1) for payload in payloads]
    starts = list(accumulate(sizes, initial=before))
    places = [(number, starts[number]) for number in range(every, len(payloads), every)] if every else []
    return FramedEntries(
        7,
        first,
        len(payloads),
        b"\xff" * before + data + b"\0" * 20,
        start=before,
        end=before + len(data),
        key=KEY,
        at=1000,
        places=places,
    )


def entries(batch: FramedEntries) -> list[tuple[int, bytes]]:
    """Return ids and payloads."""
    return list(enumerate(batch.decoded().payloads, batch.first_entry_id))


@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    every=st.integers(0, 5),
    low=st.integers(35, 75),
    high=st.integers(35, 75),
    bytes_max=st.integers(0, 300),
)
def test_cuts_are_those_of_the_entries(payloads: list[bytes], every: int, low: int, high: int, bytes_max: int) -> None:
    """A part, and each piece of it, has the same entries as if they had been taken apart first."""
    whole = framed(payloads, every=every)
    batch = EntryBatch(7, 41, payloads)
    assert whole.decoded() == batch
    assert (whole.first, whole.last, whole.payload_bytes()) == (batch.first, batch.last, batch.payload_bytes())
    assert list(whole.numbered()) == list(enumerate(payloads, 41))
    part, wanted = whole.between(low, high), batch.between(low, high)
    assert part.count == wanted.count == len(entries(part))
    if part.count:
        assert part.decoded() == wanted
        assert whole.payload(part.first_entry_id) == wanted.payloads[0]
    pieces = list(part.pieces(bytes_max)) if part.count else []
    assert [entry for piece in pieces for entry in entries(piece)] == (entries(part) if part.count else [])
    for piece in pieces:
        assert piece.count == 1 or len(piece.frames) <= bytes_max
    assert b"".join(piece.frames for piece in pieces) == bytes(part.frames)


def test_pieces_are_as_large_as_they_may_be() -> None:
    """A piece ends where the next entry would be too much."""
    assert [piece.count for piece in framed([b"x" * 8] * 7).pieces(60)] == [3, 3, 1]
    assert [piece.first for piece in framed([b"x" * 8] * 4).pieces(1)] == [Position(7, 41 + at) for at in range(4)]


def test_a_place_saves_the_way_to_it() -> None:
    """What lies before the nearest place is not looked at."""
    whole = framed([b"abc"] * 10, every=4)
    whole = replace(whole, data=b"\xff" * 63 + whole.data[63:])
    assert whole.payload(46) == b"abc"
    with pytest.raises(CorruptData, match="entry id 41"):
        whole.payload(43)


@pytest.mark.parametrize(
    ("at", "change", "said"),
    [
        (19, struct.pack(">q", 9), "entry id 42"),
        (15, struct.pack(">i", -1), "at most|3 entries"),
        (15, struct.pack(">i", 1 << 30), "at most|3 entries"),
        (15, struct.pack(">i", 2), "entry id 43"),
        (30, struct.pack(">i", 2), "the end"),
        (30, struct.pack(">i", 1), "the end"),
    ],
)
def test_a_wrong_frame_is_told(at: int, change: bytes, said: str) -> None:
    """Whichever way they are looked at, wrong heads give CorruptData that says where."""
    ways: list[Callable[[FramedEntries], object]] = [
        lambda batch: list(batch.numbered()),
        lambda batch: [piece.decoded() for piece in batch.pieces(30)],
        lambda batch: batch.decoded(),
    ]
    for way in ways:
        batch = framed([b"abc"] * 3, before=0)
        batch = replace(batch, data=batch.data[:at] + change + batch.data[at + len(change) :])
        with pytest.raises(CorruptData, match=said) as error:
            way(batch)
        assert error.value.key == KEY
        assert 1015 <= error.value.offset <= 1045


def test_entries_that_end_too_early_are_told() -> None:
    """A count that the frames do not reach is found where they end."""
    batch = replace(framed([b"abc"] * 3), count=4)
    for way in (lambda: list(batch.numbered()), batch.decoded):
        with pytest.raises(CorruptData) as error:
            way()
        assert error.value.offset == 1000 + 3 + 45
