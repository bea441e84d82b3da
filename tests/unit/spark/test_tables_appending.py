"""The files of a task that writes rows itself: how much it holds, and what it leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from offloaderd.core.errors import OffloaderError
from offloaderd.spark.scan.columns import full_schema
from offloaderd.spark.tables import appending
from offloaderd.spark.tables.appending import Appending
from offloaderd.spark.tables.rows import TableRows
from offloaderd.tables.layout import Layout, Partition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offloaderd.spark.scan.query import EntryQuery
    from offloaderd.spark.scan.share import Task

DAY = datetime(2026, 11, 21, tzinfo=UTC)
SOURCE = to_arrow_schema(full_schema(messages=True, skips=False), timezone="UTC")
VALUE_BYTES, BATCH_ROWS = 1000, 100
KIB = 1024


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
    held_bytes, writers = 512 * KIB, []
    monkeypatch.setattr(appending, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(appending, "OPEN_FILES", 2)
    begin, peaks, opened = pa.total_allocated_bytes(), [], []

    class Writer(pq.ParquetWriter):
        def __init__(self, *given: Any, **more: Any) -> None:  # noqa: ANN401 - as it takes
            super().__init__(*given, **more)
            writers.append(self)

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in source(100, hours=5):
            peaks.append(pa.total_allocated_bytes() - begin)
            opened.append(sum(one.is_open for one in writers))
            yield batch

    monkeypatch.setattr(appending.parquet, "ParquetWriter", Writer)
    wrote = work(tmp_path).write(watched())
    assert (wrote.rows, wrote.apart, len(wrote.files or ())) == (100 * BATCH_ROWS, 0, len(files(tmp_path)))
    assert max(peaks) < held_bytes + 4 * BATCH_ROWS * VALUE_BYTES, "of ten million bytes"
    assert max(opened) == 2
    assert {one.name for one in tmp_path.iterdir()} == {f"_hour=2026-11-21-0{hour}" for hour in range(5)}
    groups = [
        one.metadata.row_group(at).num_rows for one in files(tmp_path) for at in range(one.metadata.num_row_groups)
    ]
    assert len(groups) < 2 * 100 * BATCH_ROWS * VALUE_BYTES * 5 / held_bytes, "not one for each batch"


def test_rows_of_a_file_are_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls last, also where a task has more rows than it holds: these are in further files."""
    monkeypatch.setattr(appending, "HELD_BYTES", 512 * KIB)
    wrote = work(tmp_path, sort=("_key", "_entry_id")).write(source(20, hours=3))
    assert len(wrote.files or ()) > 2
    for file in files(tmp_path):
        rows = [(one["_key"] is None, one["_key"], one["_entry_id"]) for one in file.read().to_pylist()]
        assert rows == sorted(rows)
        assert {missing for missing, *_ in rows} == {False, True}


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
