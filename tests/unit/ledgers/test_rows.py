"""Rows give back what was put into them, and notice when they were changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.ledgers.book import Run
from offloaderd.ledgers.embedded import rows

Row = tuple[int | bytes, ...]


def stored(runs: list[Run]) -> list[Row]:
    """Return the rows of runs."""
    return list(rows.rows(runs))


def payloads_of(row: Row, *, first: int | None = None, bytes_max: int = 1 << 40) -> list[bytes]:
    """Read a row back, whole or from an entry on."""
    head = rows.head(row[:6], key="db")
    data, crc32c = row[6], row[7]
    assert isinstance(data, bytes)
    assert isinstance(crc32c, int)
    return rows.slice_payloads(
        head,
        data,
        crc32c,
        first=head.first_entry_id if first is None else first,
        last=head.last_entry_id,
        bytes_max=bytes_max,
        key="db",
    )


def test_large_runs_are_cut_into_rows_by_bytes() -> None:
    """No row is much larger than its limit, and a huge entry has one for itself."""
    written = [bytes([number]) * 300_000 for number in range(8)] + [bytes(3_000_000), b"small"]
    found = stored([Run(3, 10, 77, written)])
    heads = [rows.head(row[:6], key="db") for row in found]
    assert [len(head.lengths) for head in heads] == [3, 3, 2, 1, 1]
    assert [head.first_entry_id for head in heads] == [10, 13, 16, 18, 19]
    assert [head.bytes_before for head in heads] == [77, 900_077, 1_800_077, 2_400_077, 5_400_077]
    assert [one for row in found for one in payloads_of(row)] == written


def test_small_entries_are_cut_by_count() -> None:
    """Entries without bytes do not fill a row without end."""
    found = stored([Run(0, 0, 0, [b""] * (rows.ROW_ENTRIES + 1))])
    assert [row[2] for row in found] == [rows.ROW_ENTRIES, 1]


def test_runs_of_one_ledger_share_a_row() -> None:
    """Appends of one commit that mix topics cost one row a ledger."""
    runs = [Run(number % 2, number // 2, 5 * (number // 2), [b"%05d" % number]) for number in range(10)]
    found = stored(runs)
    assert [row[:4] for row in found] == [(0, 0, 5, 0), (1, 0, 5, 0)]
    assert payloads_of(found[1]) == [b"%05d" % number for number in (1, 3, 5, 7, 9)]


@settings(max_examples=50)
@given(
    written=st.lists(st.binary(max_size=40), min_size=1, max_size=40),
    start=st.integers(0, 39),
    bytes_max=st.integers(1, 200),
)
def test_slices_fill_the_limit(written: list[bytes], start: int, bytes_max: int) -> None:
    """A slice is the longest run from its start that fits, and one entry at least."""
    start = min(start, len(written) - 1)
    (row,) = stored([Run(1, 100, 0, written)])
    found = payloads_of(row, first=100 + start, bytes_max=bytes_max)
    assert found == written[start : start + len(found)]
    assert len(found) == 1 or sum(map(len, found)) <= bytes_max
    following = written[start : start + len(found) + 1]
    assert len(following) == len(found) or sum(map(len, following)) > bytes_max


@settings(max_examples=100)
@given(data=st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    """Whatever field is changed, reading raises CorruptData and names the ledger."""
    (row,) = stored([Run(7, 5, 1000, [b"first", b"", b"third" * 20])])
    field = data.draw(st.integers(0, 7))
    value = row[field]
    if isinstance(value, bytes):
        bit = data.draw(st.integers(0, len(value) * 8 - 1))
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        bad: int | bytes = bytes(changed)
    else:
        bad = value ^ (1 << data.draw(st.integers(0, 31)))
    with pytest.raises(CorruptData, match="ledger"):
        payloads_of((*row[:field], bad, *row[field + 1 :]))


def test_missing_bytes_and_other_types_are_noticed() -> None:
    """A shortened column, and a column of another type, are CorruptData too."""
    (row,) = stored([Run(7, 5, 1000, [b"first", b"second"])])
    for bad in ((*row[:6], b"", 0), (*row[:4], "text", *row[5:]), (*row[:4], None, *row[5:])):
        with pytest.raises(CorruptData):
            payloads_of(bad)  # type: ignore[arg-type]
