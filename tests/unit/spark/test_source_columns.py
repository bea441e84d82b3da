"""Columns of entries that are made from buffers, and the stream of batches that a task gives to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, TopicName
from offloaderd.spark.scan import columns
from offloaderd.spark.scan.columns import ENTRY_COLUMNS, Columns, joined
from offloaderd.spark.scan.read import iterate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

TOPIC = TopicName.parse("orders")
SCHEMA = StructType([StructField(name, ENTRY_COLUMNS[name]) for name in ("payload", "entry_id")])


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(0, 2**62), st.data())
def test_payloads_and_numbers_are_what_arrow_makes_of_them(
    payloads: list[bytes], first: int, data: st.DataObject
) -> None:
    """Columns from buffers are valid, and equal those of the same values one by one, with a mask and without."""
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=len(payloads), max_size=len(payloads)))
    kept = [one for one in range(len(payloads)) if mask is None or mask[one]]
    made = Columns(SCHEMA).entries(TOPIC, EntryBatch(7, first, payloads), mask)
    if not kept:
        assert made is None
        return
    assert made is not None
    made.validate(full=True)
    assert made.column("payload").equals(pa.array([payloads[one] for one in kept], pa.binary()))
    assert made.column("entry_id").equals(pa.array([first + one for one in kept], pa.int64()))


def test_no_offset_is_larger_than_arrow_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of 2 GiB in one batch are an error, and one byte less is a column."""
    monkeypatch.setattr(columns, "PLACE_MAX", 5)
    assert joined([b"abc", b"de"]).to_pylist() == [b"abc", b"de"]
    with pytest.raises(InvalidInput, match="2 payloads with 6 bytes"):
        joined([b"abc", b"def"])


def test_columns_that_are_not_named_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query for numbers alone joins no payload."""

    def never(_: object) -> pa.Array:
        raise AssertionError

    monkeypatch.setattr(columns, "joined", never)
    made = Columns(StructType([StructField("entry_id", LongType())])).entries(TOPIC, EntryBatch(7, 1, [b"a"]), None)
    assert made is not None
    assert made.to_pydict() == {"entry_id": [1]}


def test_no_item_is_written_as_a_text() -> None:
    """Batches pass through as they are: a text of each would take more time than to make it."""
    shown = []

    class Large:
        def __repr__(self) -> str:
            shown.append(self)
            return "large"

    async def stream() -> AsyncGenerator[Large, None]:
        for _ in range(5):
            yield Large()

    assert len(list(iterate(stream()))) == 5
    assert not shown
