"""Layouts of tables: the names of partitions, and tables that have another one."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import InvalidConfig
from offloaderd.tables.layout import Layout, Partition


def test_a_partition_is_named_as_its_column() -> None:
    """By what of the time it is; without partitions there is no name."""
    assert [Layout(partition=one).name for one in Partition] == ["_hour", "_day", "_month", ""]
    assert Layout(time="time").name == "day"


@pytest.mark.parametrize("there", ["day", "none", "day,region"])
def test_a_table_with_another_partition_is_refused(there: str) -> None:
    """With what it has, and what to do."""
    Layout().check("the table", "day")
    with pytest.raises(InvalidConfig, match=rf"the table has the partition {there}, and not month \(keep"):
        Layout(partition=Partition.MONTH).check("the table", there)
