"""Columns of a table of Iceberg that are renamed, there or in the schema of a topic, and that become wider."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from offloaderd.core.errors import Conflict, InvalidConfig
from offloaderd.spark.export import commit as export_commit
from offloaderd.spark.export import iceberg as export_iceberg
from offloaderd.spark.export.commit import DELETED
from offloaderd.spark.export.export import BY_DAY
from offloaderd.tables.layout import Layout, Partition
from tests.unit.spark.iceberg_lake import COLUMNS, DAY, SOURCE, Lake, called, local_lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An empty lake, without Java."""
    with local_lake(tmp_path / "lake") as found:
        yield found


def test_a_column_that_was_renamed_in_the_table(lake: Lake) -> None:
    """Rounds behind it write to it by its new name, and the old one does not come back; nor does it in mid-round."""
    lake.round(1, 5)
    with lake.table() as table, table.update_schema() as schema:
        schema.rename_column("entry_id", "number").rename_column("time", "written")
    lake.round(2, 4)
    with lake.table() as table:
        rows = table.scan().to_arrow().to_pylist()
        assert table.schema().column_names == [
            {"entry_id": "number", "time": "written"}.get(name, name) for name in COLUMNS.names
        ]
        days = {one["partition"]["day"] for one in table.inspect.partitions().to_pylist()}
    assert sorted((row["ledger_id"], row["number"]) for row in rows) == [
        *((1, entry_id) for entry_id in range(5)),
        *((2, entry_id) for entry_id in range(4)),
    ]
    assert days == {DAY.date(), DAY.date() + timedelta(days=1)}
    with lake.target() as target:
        last = target.recover(SOURCE)
        names = target.named(COLUMNS).names
        staging = target.staging(last)
        lake.write(staging, 3, 4, names)
        with lake.table() as table, table.update_schema() as schema:
            schema.rename_column("number", "entry")
        with pytest.raises(Conflict, match="were renamed while a round was written"):
            target.commit(last, staging, {"orders": "3:3"}, 4)
    assert lake.last() == (2, {"orders": "2:3"})
    lake.round(3, 4)
    assert lake.counts() == {1: 5, 2: 4, 3: 4}


def test_a_field_with_an_alias_takes_over_the_column(lake: Lake) -> None:
    """Rows of before have its new name, for other engines as well; one that has it is left alone."""
    lake.round(1, 5)
    columns = called({"entry_id": "number", "time": "written"})
    names = columns.names
    aliases = {"number": ["position", "entry_id"], "written": ["time"]}
    for ledger_id in (2, 3):
        with export_iceberg.opened(
            cast("SparkSession", None), lake.where, columns, layout=Layout(time="written"), aliases=aliases
        ) as target:
            last = target.recover(SOURCE)
            assert target.named(columns).names == names
            staging = target.staging(last)
            lake.write(staging, ledger_id, 4, names)
            target.commit(last, staging, {"orders": f"{ledger_id}:3"}, 4)
        with lake.table() as table:
            assert table.schema().column_names == names
            assert len(table.schemas()) == 2
    with lake.table() as table:
        rows = table.scan(row_filter="number < 2").to_arrow().to_pylist()
    assert sorted((row["ledger_id"], row["number"]) for row in rows) == [(n, at) for n in (1, 2, 3) for at in (0, 1)]
    assert all(row["written"] for row in rows)
    lake.round(4, 4)  # an application that still has the schema of before
    assert lake.counts() == {1: 5, 2: 4, 3: 4, 4: 4}


def test_a_field_with_an_alias_of_another_type_renames_nothing(lake: Lake) -> None:
    """The table stops, as it is."""
    lake.round(1, 5)
    columns = StructType([StructField("number", StringType())])
    with (
        export_iceberg.opened(
            cast("SparkSession", None), lake.where, columns, layout=BY_DAY, aliases={"number": ["entry_id"]}
        ) as target,
        pytest.raises(InvalidConfig, match="the schema has entry_id as string, and the table has it as bigint"),
    ):
        target.named(columns)
    with lake.table() as table:
        assert table.schema().column_names == COLUMNS.names


def test_a_field_with_an_alias_is_not_mixed_with_a_dropped_column(lake: Lake) -> None:
    """Files of before have a column of its name: rows would have what was dropped, and not what the alias had."""
    lake.round(1, 4)
    with lake.table() as table, table.update_schema() as schema:
        schema.delete_column("entry_id")
    columns = StructType([one for one in COLUMNS if one.name != "ledger_id"])
    with export_iceberg.opened(
        cast("SparkSession", None), lake.where, columns, layout=BY_DAY, aliases={"entry_id": ["ledger_id"]}
    ) as target:
        assert target.named(columns) == columns
    assert lake.counts() == {1: 4}


def test_a_column_may_become_wider(lake: Lake) -> None:
    """Rows from before and after are read as the wider type, also those that come later with the narrow one."""
    spark = cast("SparkSession", None)
    counts = [(1, IntegerType()), (2, LongType()), (3, IntegerType())]
    for number, kind in counts:
        columns = StructType([*COLUMNS.fields, StructField("count", kind)])
        with export_iceberg.opened(spark, lake.where, columns, layout=BY_DAY) as target:
            last = target.recover(SOURCE)
            named = target.named(columns)
            assert named["count"].dataType == (IntegerType() if number == 1 else LongType())
            staging = target.staging(last)
            folder = Path(staging.removeprefix("file:")) / "day=2026-11-21"
            folder.mkdir(parents=True)
            row = {"ledger_id": number, "time": DAY, "count": number}
            found = pa.Table.from_pylist([row], schema=to_arrow_schema(named, timezone="UTC"))
            pq.write_table(found, folder / "part-0.parquet")
            target.commit(last, staging, {"orders": f"{number}:0"}, 1)
    with lake.table() as table:
        assert sorted(table.scan().to_arrow()["count"].to_pylist()) == [1, 2, 3]
    text = StructType([*COLUMNS.fields, StructField("count", StringType())])
    with (
        export_iceberg.opened(spark, lake.where, text, layout=BY_DAY) as target,
        pytest.raises(InvalidConfig, match="count as string"),
    ):
        target.named(text)


def test_a_renamed_column_is_sorted_by(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its new name, in the table's order as well; rows without a value are last."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    lake.layout = Layout(partition=Partition.NONE, time="time", sort=("entry_id",))
    lake.round(1, 4)
    with lake.table() as table, table.update_schema() as schema:
        schema.rename_column("entry_id", "number")
    lake.round(2, 4)
    with lake.table() as table:
        table.append(pa.Table.from_pylist([{"number": None}], schema=pa.schema([("number", pa.int64())])))
    with lake.target() as target:
        assert target.upkeep(3600.0).joined == 5
    with lake.table() as table:
        assert table.scan().to_arrow()["number"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, None]


@pytest.mark.parametrize("joined", [False, True])
def test_a_long_text_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch, joined: bool) -> None:
    """Its row group has no least and no greatest value, so the file has none: those of others would hide it."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, row_group_size=1))
    columns = StructType([StructField("item", StringType()), StructField("note", StringType())])
    layout, long = Layout(partition=Partition.NONE), "a" * 5000
    rows = [{"item": "x", "note": "n"}, {"item": long, "note": None}, {"item": None, "note": "m"}]
    with export_iceberg.opened(cast("SparkSession", None), lake.where, columns, layout=layout) as target:
        for number in range(1 + joined):
            last = target.recover(SOURCE)
            staging = target.staging(last)
            folder = Path(staging.removeprefix("file:"))
            folder.mkdir(parents=True)
            found = pa.Table.from_pylist(rows, to_arrow_schema(target.named(columns)))
            pq.write_table(found, folder / "part-0.parquet")
            target.commit(last, staging, {"orders": f"{number + 1}:1"}, len(rows))
        if joined:
            assert target.upkeep(3600.0).joined == 2
    with lake.table() as table:
        (file,) = (one.file for one in table.scan().plan_files())
        assert file.lower_bounds == {2: b"m"}, "a group without a value is no reason"
        scans = [table.scan(row_filter=EqualTo(term="item", value=one)) for one in (long, "x")]
        assert [len(one.to_arrow()) for one in scans] == [1 + joined] * 2
        assert not [*table.scan(row_filter=EqualTo(term="note", value="a")).plan_files()], (
            "another column has its bounds"
        )


@pytest.mark.parametrize("key", [(), ("id",)])
def test_missing_arrays_stay_missing(lake: Lake, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]) -> None:
    """Arrays and maps of records: for readers, in files that were joined, and where rows are replaced."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    inside = StructType([StructField("x", LongType())])
    both = StructType([StructField("list", ArrayType(inside)), StructField("map", MapType(StringType(), inside))])
    columns = StructType([StructField("id", LongType()), *both.fields, StructField("around", both)])
    values: list[dict[str, Any]] = [
        {"list": None, "map": None},
        {"list": [], "map": []},
        {"list": [None, {"x": None}], "map": [("k", None)]},
    ]
    rows: list[dict[str, Any]] = [{"id": at, **one, "around": one} for at, one in enumerate(values)]
    rows.append({"id": len(rows), "list": [{"x": 1}], "map": [("k", {"x": 1})], "around": None})
    sent = columns.add(DELETED, BooleanType()) if key else columns
    layout = Layout(partition=Partition.NONE)
    with export_iceberg.opened(cast("SparkSession", None), lake.where, columns, layout=layout, key=key) as target:
        for number in range(2):
            last = target.recover(SOURCE)
            staging = target.staging(last)
            folder = Path(staging.removeprefix("file:"))
            folder.mkdir(parents=True)
            found = [{**one, "id": one["id"] + 10 * number, DELETED: False} for one in rows]
            pq.write_table(pa.Table.from_pylist(found, to_arrow_schema(sent)), folder / "part-0.parquet")
            target.commit(last, staging, {"orders": f"{number + 1}:1"}, len(rows))
        assert target.upkeep(3600.0).joined == (0 if key else 2)
    with lake.table() as table:
        scan = table.scan()
        files = [pq.ParquetFile(one.file.file_path.removeprefix("file://")) for one in scan.plan_files()]
        told = scan.to_arrow().to_pylist()
    written = [row for one in files for row in one.read().to_pylist()]
    for found in (told, written):
        assert sorted(found, key=lambda one: one["id"]) == [
            {**one, "id": one["id"] + 10 * number} for number in range(2) for one in rows
        ]
