"""Layouts of tables: the names of partitions, and tables that have another one."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import InvalidConfig, InvalidInput
from offloaderd.tables.layout import Layout, Partition, parse_partition


def test_a_partition_is_named_as_its_column() -> None:
    """By what of the time it is; without partitions there is no name."""
    assert [Layout(partition=one).name for one in Partition] == ["_hour", "_day", "_month", "_bucket", ""]
    assert Layout(time="time").name == "day"


def test_a_partition_is_read_as_it_is_declared() -> None:
    """With the number of its buckets; anything else is told."""
    for text, found in (
        ("hour", (Partition.HOUR, 0)),
        ("none", (Partition.NONE, 0)),
        ("bucket:7", (Partition.BUCKET, 7)),
    ):
        partition, buckets = parse_partition(text)
        assert (partition, buckets) == found
        assert Layout(partition=partition, buckets=buckets).text == text
    for text in ("bucket", "bucket:", "bucket:0", "bucket:-4", "bucket:4.5", "bucket[4]", "bucket:9999999", "year", ""):
        with pytest.raises(InvalidInput, match="write hour, day, month, none or bucket:N"):
            parse_partition(text)


def test_the_column_of_a_partition() -> None:
    """The time, or the key; and the transform of it."""
    layout = Layout(partition=Partition.BUCKET, buckets=16, time="time")
    assert (layout.column, layout.transform) == ("_key", "bucket[16]")
    assert (Layout().column, Layout().transform) == ("_time", "day")
    layout.check("the table", "bucket:16")
    with pytest.raises(InvalidConfig, match="the table has the partition bucket:8, and not bucket:16"):
        layout.check("the table", "bucket:8")


@pytest.mark.parametrize("there", ["day", "none", "day,region", "bucket:4"])
def test_a_table_with_another_partition_is_refused(there: str) -> None:
    """With what it has, and what to do."""
    Layout().check("the table", "day")
    with pytest.raises(InvalidConfig, match=rf"the table has the partition {there}, and not month \(keep"):
        Layout(partition=Partition.MONTH).check("the table", there)
