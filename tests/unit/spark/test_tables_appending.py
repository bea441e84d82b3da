"""The files of a task that writes rows itself: how much it holds, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, IntegerType, LongType, MapType, StructType

from offloaderd.core.errors import OffloaderError
from offloaderd.spark.scan.columns import full_schema
from offloaderd.spark.tables import appending
from offloaderd.spark.tables.appending import Appending, Wrote, as_type
from offloaderd.spark.tables.rows import TableRows
from offloaderd.spark.value_schema import Encoding, ValueSchema
from offloaderd.spark.value_types import kind_of
from offloaderd.spark.values import SameVersion, ValueDecoder
from offloaderd.tables.layout import Layout, Partition
from tests.unit.spark.test_value_columns import nested
from tests.unit.spark.test_value_schema import written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offloaderd.spark.scan.query import EntryQuery
    from offloaderd.spark.scan.share import Task

DAY = datetime(2026, 11, 21, tzinfo=UTC)
SOURCE = to_arrow_schema(full_schema(messages=True, skips=False), timezone="UTC")
VALUE_BYTES, BATCH_ROWS = 1000, 100
KIB = 1024


def renamed(kind: DataType) -> DataType:
    """Return a type with other names of fields, and wider numbers."""
    if isinstance(kind, StructType):
        found = StructType()
        for one in kind.fields:
            found = found.add(f"{one.name}_now", renamed(one.dataType))
        return found
    if isinstance(kind, ArrayType):
        return ArrayType(renamed(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, renamed(kind.valueType))
    wider: dict[DataType, DataType] = {IntegerType(): LongType(), FloatType(): DoubleType()}
    return wider.get(kind, kind)


def work(folder: Path, *, sort: tuple[str, ...] = ()) -> Appending:
    """Return the work of a task that writes a table by hours."""
    rows = TableRows(None, (), Layout(partition=Partition.HOUR, sort=sort))
    return Appending(
        task=cast("Task", None),
        query=cast("EntryQuery", None),
        folder=folder,
        origins=rows.origins,
        schema=to_arrow_schema(rows.columns, timezone="UTC"),
        layout=rows.layout,
    )


def source(count: int, *, hours: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of messages, each with some of all hours."""
    for number in range(count):
        rows: list[dict[str, Any]] = [
            {
                "topic": "persistent://public/default/orders",
                "entry_id": number * BATCH_ROWS + at,
                "time": DAY + timedelta(hours=at % hours),
                "key": bytes([(number * 31 + at * 7) % 251]) if at % 10 else None,
                "value": bytes([at]) * VALUE_BYTES,
                "state": "plain",
            }
            for at in range(BATCH_ROWS)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=SOURCE)


def files(folder: Path) -> list[pq.ParquetFile]:
    """Return the files that are there."""
    return [pq.ParquetFile(path) for path in sorted(folder.rglob("*.parquet"))]


def test_a_task_holds_few_rows_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, of however many hours; a row group is as large as what is held of an hour."""
    held_bytes, make = 512 * KIB, pq.ParquetWriter
    writers: list[Any] = []
    monkeypatch.setattr(appending, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(appending, "OPEN_FILES", 2)
    begin, peaks, opened = pa.total_allocated_bytes(), [], []

    def begun(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - as it takes
        writers.append(make(*given, **more))
        return writers[-1]

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in source(100, hours=5):
            peaks.append(pa.total_allocated_bytes() - begin)
            opened.append(sum(one.is_open for one in writers))
            yield batch

    monkeypatch.setattr(pq, "ParquetWriter", begun)
    wrote = work(tmp_path).write(watched())
    assert (wrote.rows, wrote.apart, len(wrote.files or ())) == (100 * BATCH_ROWS, 0, len(files(tmp_path)))
    assert max(peaks) < held_bytes + 4 * BATCH_ROWS * VALUE_BYTES, "of ten million bytes"
    assert max(opened) == 2
    assert {one.name for one in tmp_path.iterdir()} == {f"_hour=2026-11-21-0{hour}" for hour in range(5)}
    groups = [
        one.metadata.row_group(at).num_rows for one in files(tmp_path) for at in range(one.metadata.num_row_groups)
    ]
    assert len(groups) < 2 * 100 * BATCH_ROWS * VALUE_BYTES * 5 / held_bytes, "not one for each batch"


def test_messages_that_are_no_rows_make_no_file(tmp_path: Path) -> None:
    """They are counted, entries that are lost as well, but not parts of messages."""
    states = ["encrypted", "raw", "malformed", None, "chunk"]
    batch = pa.RecordBatch.from_pylist([{"state": one} for one in states], schema=SOURCE)
    unpartitioned = replace(work(tmp_path), layout=Layout(partition=Partition.NONE))
    assert unpartitioned.write([batch]) == Wrote(0, 4, [])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("codec", "said"),
    [("none", "UNCOMPRESSED"), ("UNCOMPRESSED", "UNCOMPRESSED"), ("lz4_raw", "LZ4"), ("ZSTD", "ZSTD")],
)
def test_files_are_compressed_as_spark_is_told(tmp_path: Path, codec: str, said: str) -> None:
    """By its names of compressions, in any case."""
    replace(work(tmp_path), codec=codec).write(source(1, hours=1))
    (file,) = files(tmp_path)
    assert file.metadata.row_group(0).column(0).compression == said


def test_rows_of_a_file_are_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls last, also where a task has more rows than it holds: these are in further files."""
    monkeypatch.setattr(appending, "HELD_BYTES", 512 * KIB)
    wrote = work(tmp_path, sort=("_key", "_entry_id")).write(source(20, hours=3))
    assert len(wrote.files or ()) > 2
    for file in files(tmp_path):
        rows = [(one["_key"] is None, one["_key"], one["_entry_id"]) for one in file.read().to_pylist()]
        assert rows == sorted(rows)
        assert {missing for missing, *_ in rows} == {False, True}
        assert file.metadata.row_group(0).column(0).has_column_index, "of pages, so that queries leave them out"


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that it has begun, and of those that it has ended."""
    monkeypatch.setattr(appending, "HELD_BYTES", 0)
    monkeypatch.setattr(appending, "OPEN_FILES", 1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from source(2, hours=3)
        assert len([*tmp_path.rglob("*.parquet")]) >= 3
        raise OffloaderError("broken")

    with pytest.raises(OffloaderError, match="broken"):
        work(tmp_path).write(broken())
    assert files(tmp_path) == []


def test_an_attempt_that_outlives_its_job_makes_nothing(tmp_path: Path) -> None:
    """The folder of the round was deleted: it is not made again, and the error names it."""
    gone = tmp_path / "gone"
    with pytest.raises(OffloaderError, match=f"{gone}: cannot write rows: .*No such file"):
        work(gone).write(source(1, hours=1))
    assert not gone.exists()


def with_names(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value
    """Return a value whose records have the names of a type, field by field."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = zip(kind, value.values(), strict=True)
        return {field.name: with_names(one, field.type) for field, one in fields}
    if pa.types.is_map(kind):
        return [(key, with_names(one, kind.item_type)) for key, one in value]
    return [with_names(one, kind.value_type) for one in value] if pa.types.is_list(kind) else value


@given(st.data())
def test_values_keep_their_places_under_other_names(data: st.DataObject) -> None:
    """At any depth, missing ones too; numbers may be wider."""
    one = data.draw(st.composite(nested)(3))
    values = data.draw(st.lists(one.values | st.none(), max_size=4))
    contents = [None if value is None else written(one.avro, value) for value in values]
    kind = kind_of(one.avro).spark
    decoder = ValueDecoder(ValueSchema(encoding=Encoding.AVRO, newest=one.avro, versions={}))
    found, wrong = decoder.array([SameVersion(contents)], to_arrow_type(kind, timezone="UTC"))
    assert not wrong
    other = to_arrow_type(renamed(kind), timezone="UTC")
    made = as_type(found, other)
    made.validate(full=True)
    assert made.type == other
    assert repr(made.to_pylist()) == repr([with_names(value, other) for value in found.to_pylist()])
