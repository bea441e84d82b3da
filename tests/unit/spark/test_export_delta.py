"""Commits to tables of Delta Lake: exactly once, whatever dies and whoever else commits. On a real folder."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from offloaderd.core.errors import Conflict, CorruptData, InvalidConfig, OffloaderError
from offloaderd.spark.export import commit as export_commit
from offloaderd.spark.export import delta as export_delta
from offloaderd.spark.export.commit import DELETED
from offloaderd.spark.export.delta import NUMBER, DeltaTarget
from offloaderd.tables.layout import Layout, Partition
from tests.unit.spark.local_files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from offloaderd.spark.export.commit import Commit

SOURCE = {"cluster": "c", "topic": "orders"}
TOPICS = ("orders",)
DAY = datetime(2026, 11, 21, tzinfo=UTC)
PARTITIONS = {
    Partition.HOUR: "%Y-%m-%d-%H",
    Partition.DAY: "%Y-%m-%d",
    Partition.MONTH: "%Y-%m",
    Partition.NONE: "",
}
COLUMNS = StructType(
    [
        StructField("id", IntegerType()),
        StructField("_time", TimestampType()),
        StructField("_key", StringType()),
        StructField("_entry_id", LongType()),
        StructField(DELETED, BooleanType()),
    ]
)


class Table:
    """A folder, its target, and what any reader of Delta Lake sees of it."""

    def __init__(self, folder: Path, key: Sequence[str] = (), layout: Layout | None = None) -> None:
        self.folder, self.key = folder, key
        self.layout = layout or Layout(partition=Partition.NONE if key else Partition.DAY)

    def target(self, columns: StructType = COLUMNS, topics: Sequence[str] = TOPICS) -> DeltaTarget:
        """Return it as a target."""
        spark = cast("SparkSession", None)
        return DeltaTarget(
            spark, self.folder.as_uri(), columns, topics, layout=self.layout, order=("_entry_id",), key=self.key
        )

    def write(self, staging: str, rows: Sequence[dict[str, Any]], columns: StructType = COLUMNS) -> None:
        """Write what Spark would write of a round, by day."""
        schema = to_arrow_schema(columns, timezone="UTC")
        name, form = self.layout.name, PARTITIONS[self.layout.partition]
        for number, row in enumerate(rows):
            value = row["_time"].strftime(form) if row.get("_time") else "__HIVE_DEFAULT_PARTITION__"
            folder = Path(staging.removeprefix("file:")) / (f"{name}={value}" if name else "")
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist([row], schema=schema), folder / f"part-{number}.parquet")

    def round(self, rows: Sequence[dict[str, Any]], at: str, columns: StructType = COLUMNS, apart: int = 0) -> Commit:
        """Commit a round that reaches a position."""
        target = self.target(columns)
        last = target.recover(SOURCE)
        staging = target.staging(last)
        self.write(staging, rows, target.named(columns))
        return target.commit(last, staging, {"orders": at}, len(rows), last.apart + apart)

    def last(self) -> tuple[int, dict[str, str], int]:
        """Return number, positions and what is apart of the last commit."""
        found = self.target().last(SOURCE)
        return found.number, found.positions, found.apart

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, in order."""
        return sorted(DeltaTable(self.folder).to_pyarrow_table().to_pylist(), key=lambda one: one["_entry_id"])


def row(number: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any column
    """Return a row."""
    return {"id": number, "_time": DAY + timedelta(hours=number), "_key": f"k{number}", "_entry_id": number} | more


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """An empty folder, without Java."""
    monkeypatch.setattr(export_delta, "SparkFiles", LocalFiles)
    return Table(tmp_path / "table")


def test_files_of_other_attempts_are_not_committed(table: Table) -> None:
    """Of a round whose files are named no others count; they are deleted behind the commit."""
    target = table.target()
    last = target.recover(SOURCE)
    staging = target.staging(last)
    table.write(staging, [row(1), row(2), row(3), row(30)])
    kept = ["_day=2026-11-21/part-0.parquet", "_day=2026-11-22/part-3.parquet"]
    target.commit(last, staging, {"orders": "1:3"}, 2, 0, kept)
    assert [one["id"] for one in table.rows()] == [1, 30]
    assert target._files.parquet(f"data/{staging.rpartition('/')[2]}") == kept
    last = target.recover(SOURCE)
    staging = target.staging(last)
    table.write(staging, [row(4)])
    target.commit(last, staging, {"orders": "1:4"}, 0, 0, [])
    assert [one["id"] for one in table.rows()] == [1, 30], "none was named"


def test_positions_come_with_the_data(table: Table) -> None:
    """A commit has files and positions; a round without a row moves the positions alone; days are partitions."""
    assert table.last() == (0, {}, 0)
    table.round([row(1), row(25), row(2, _time=None)], "1:25@17", apart=2)
    table.round([], "3:4")
    assert table.last() == (2, {"orders": "3:4"}, 2)
    assert [one["id"] for one in table.rows()] == [1, 2, 25]
    days = {str(one["_day"]) for one in table.rows()}
    assert days == {"2026-11-21", "2026-11-22", "None"}
    assert DeltaTable(table.folder).count() == 3
    table.round([row(30)], "3:5@18")
    assert table.last() == (3, {"orders": "3:5@18"}, 2)


def test_rows_without_files_are_not_committed(table: Table) -> None:
    """A listing that lacks the files of a round moves no position past its rows."""
    table.round([row(1)], "1:1")
    target = table.target()
    last = target.recover(SOURCE)
    with pytest.raises(CorruptData, match="expected files with 2 rows, found none"):
        target.commit(last, target.staging(last), {"orders": "1:3"}, 2)
    assert table.last() == (1, {"orders": "1:1"}, 0)


def test_of_two_writers_one_is_told(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both began at the same commit: the second adds nothing, also when they meet at the commit itself."""
    late = table.target()
    last = late.recover(SOURCE)
    staging = late.staging(last)
    table.write(staging, [row(9)])
    append = DeltaTarget._append

    def raced(self: DeltaTarget, loaded: DeltaTable, name: str, files: Sequence[str], made: Commit) -> None:
        monkeypatch.setattr(DeltaTarget, "_append", append)
        table.round([row(1)], "1:1")
        append(self, loaded, name, files, made)

    monkeypatch.setattr(DeltaTarget, "_append", raced)
    for _ in range(2):
        with pytest.raises(Conflict, match="another writer has committed"):
            late.commit(last, staging, {"orders": "1:9"}, 1)
    assert [one["id"] for one in table.rows()] == [1]
    assert table.last() == (1, {"orders": "1:1"}, 0)


def test_a_writer_that_adds_columns_first_is_told_as_well(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding them moves it to the newest version, which has the commit of another."""
    table.round([row(0)], "1:0")
    wider = StructType([*COLUMNS.fields, StructField("note", StringType())])
    late = table.target(wider)
    last = late.recover(SOURCE)
    staging = late.staging(last)
    table.write(staging, [row(1, note="x")], wider)
    evolve = DeltaTarget._evolve

    def raced(self: DeltaTarget, loaded: DeltaTable) -> None:
        monkeypatch.setattr(DeltaTarget, "_evolve", evolve)
        table.round([row(1)], "1:1")
        evolve(self, loaded)

    monkeypatch.setattr(DeltaTarget, "_evolve", raced)
    with pytest.raises(Conflict, match="another writer has committed"):
        late.commit(last, staging, {"orders": "1:1"}, 1)
    assert [one["id"] for one in table.rows()] == [0, 1]


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_looked_up(table: Table, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """A commit that was done is found; one that was not is an error, and the next run adds its rows once."""
    append = DeltaTarget._append

    def lost(self: DeltaTarget, *given: Any) -> None:  # noqa: ANN401 - as it takes
        if done:
            append(self, *given)
        raise CommitFailedError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTarget, "_append", lost)
        if done:
            assert table.round([row(1)], "1:1").number == 1
        else:
            with pytest.raises(OffloaderError, match="nothing of this round was added"):
                table.round([row(1)], "1:1")
    assert table.last() == ((1, {"orders": "1:1"}, 0) if done else (0, {}, 0))
    if not done:
        table.round([row(1)], "1:1")
    assert [one["id"] for one in table.rows()] == [1]


def test_staging_of_a_crash_goes(table: Table) -> None:
    """Files that a crash left are deleted once another round has their number; committed ones, and newer, stay."""
    target = table.target()
    stagings = []
    for number in range(2):
        stagings.append(Path(target.staging(target.recover(SOURCE)).removeprefix("file:")))
        table.write(stagings[-1].as_uri(), [row(9)])
        target.recover(SOURCE)
        assert stagings[-1].exists(), "it may be that of a running writer"
        table.round([row(number)], f"1:{number}")
        target.recover(SOURCE)
        assert not stagings[-1].exists()
    assert [one["id"] for one in table.rows()] == [0, 1]


def test_others_may_work_on_the_table(table: Table) -> None:
    """Compaction and checkpoints leave the positions; a restored table is refused."""
    for number in range(3):
        table.round([row(number)], f"1:{number}")
    found = DeltaTable(table.folder)
    found.optimize.compact()
    found.create_checkpoint()
    found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert table.last() == (3, {"orders": "1:2"}, 0)
    table.round([row(3)], "1:3")
    assert [one["id"] for one in table.rows()] == [0, 1, 2, 3]


@pytest.mark.parametrize("others", [0, 60])
def test_a_restored_table_is_refused(table: Table, others: int) -> None:
    """However many commits of others there are behind it; restored to our last commit, or later, it is taken again."""
    for number in range(3):
        table.round([row(number)], f"1:{number}")
    DeltaTable(table.folder).restore(2)
    for number in range(others):
        DeltaTable(table.folder).alter.set_table_properties({"others": str(number)}, raise_if_not_exists=False)
    with pytest.raises(OffloaderError, match="was restored to an older version"):
        table.last()
    DeltaTable(table.folder).restore(4 if others else 1)
    with pytest.raises(OffloaderError, match="was restored to an older version"):
        table.last()
    DeltaTable(table.folder).restore(3)
    assert table.last() == (3, {"orders": "1:2"}, 0)
    table.round([row(3)], "1:3")
    assert [one["id"] for one in table.rows()] == [0, 1, 2, 3]


def test_columns_come_and_widen(table: Table) -> None:
    """New columns are null in rows from before; a narrow type keeps the wide one; another type is refused."""
    table.round([row(1)], "1:1")
    wider = StructType([*COLUMNS.fields, StructField("note", StructType([StructField("a", StringType())]))])
    table.round([row(2, note={"a": "x"})], "1:2", wider)
    deeper = StructType(
        [
            *COLUMNS.fields,
            StructField("note", StructType([StructField("a", StringType()), StructField("b", LongType())])),
        ]
    )
    table.round([row(3, note={"a": "y", "b": 1})], "1:3", deeper)
    assert [one["note"] for one in table.rows()] == [None, {"a": "x", "b": None}, {"a": "y", "b": 1}]
    narrow = StructType([StructField("_entry_id", IntegerType()), *COLUMNS.fields[:3], COLUMNS.fields[4]])
    assert table.target(narrow).named(narrow)["_entry_id"].dataType == LongType()
    other = StructType([StructField("id", StringType()), *COLUMNS.fields[1:]])
    with pytest.raises(InvalidConfig, match="the schema has id as string, and the table has it as int"):
        table.target(other).named(other)
    upper = StructType([StructField("ID", IntegerType()), *COLUMNS.fields[1:]])
    with pytest.raises(InvalidConfig, match="the schema has ID, and the table has id"):
        table.target(upper).named(upper)


def test_another_table_is_refused(table: Table) -> None:
    """One of another topic, one that somebody else made, and a folder that holds other files."""
    table.round([row(1)], "1:1")
    with pytest.raises(InvalidConfig, match="is made of something else"):
        table.target().last({**SOURCE, "topic": "payments"})
    other = Table(table.folder.parent / "other")
    write_deltalake(other.folder, pa.table({"a": [1]}))
    with pytest.raises(InvalidConfig, match="was not made by offloaderd"):
        other.target().last(SOURCE)
    (table.folder.parent / "notes").mkdir()
    (table.folder.parent / "notes" / "letter.txt").touch()
    with pytest.raises(InvalidConfig, match="the folder holds letter"):
        Table(table.folder.parent / "notes").target().recover(SOURCE)


def test_the_last_message_of_a_key(tmp_path: Path, table: Table) -> None:
    """A newer row replaces that of its key or deletes it; an older one changes nothing; the round's files go."""
    keyed = Table(tmp_path / "keyed", key=("_key",))
    keyed.round([row(1, **{DELETED: False}), row(2, **{DELETED: False})], "1:2")
    keyed.round(
        [
            row(5, _key="k1", **{DELETED: False}),
            row(6, _key="k2", **{DELETED: True}),
            row(7, **{DELETED: True}),
        ],
        "1:7",
    )
    assert [(one["_key"], one["id"]) for one in keyed.rows()] == [("k1", 5)]
    assert DELETED not in keyed.rows()[0]
    keyed.round([row(3, _key="k1", _entry_id=None, **{DELETED: True})], "1:7")
    assert [(one["_key"], one["id"]) for one in keyed.rows()] == [("k1", 5)]
    keyed.round([row(4, _key="k1", **{DELETED: True})], "1:8")
    assert [(one["_key"], one["id"]) for one in keyed.rows()] == [("k1", 5)]
    assert keyed.last()[:2] == (4, {"orders": "1:8"})
    assert list((keyed.folder / "data").iterdir()) == []


def test_a_field_that_is_gone_is_null(tmp_path: Path, table: Table) -> None:
    """Also in a row that was there before, and within a struct."""
    keyed = Table(tmp_path / "keyed", key=("_key",))
    note = StructType([StructField("a", StringType()), StructField("b", LongType())])
    wide = StructType([*COLUMNS.fields, StructField("note", note), StructField("more", StringType())])
    one = {DELETED: False, "_key": "k"}
    keyed.round([row(1, **one, note={"a": "x", "b": 1}, more="m")], "1:1", wide)
    narrow = StructType([*COLUMNS.fields, StructField("note", StructType([note["a"]]))])
    keyed.round([row(2, **one, note={"a": "y"})], "1:2", narrow)
    assert [(one["note"], one["more"]) for one in keyed.rows()] == [({"a": "y", "b": None}, None)]


def test_the_number_of_a_commit_is_the_formats_own(table: Table) -> None:
    """Who commits with the same number as application transaction is refused by the library."""
    table.round([row(1)], "1:1")
    stale = DeltaTable(table.folder)
    table.round([row(2)], "1:2")
    with pytest.raises(CommitFailedError):
        stale.create_write_transaction(
            [],
            "append",
            stale.schema(),
            [],
            commit_properties=CommitProperties(app_transactions=[Transaction(NUMBER, 2)]),
        )
    assert json.loads(DeltaTable(table.folder).metadata().configuration["offloaderd.source"]) == SOURCE


def test_upkeep(table: Table) -> None:
    """Small files of a day become one; rows and positions stay, and files that no kept version needs go."""
    for number in range(3):
        table.round([row(number)], f"1:{number}")
    done = table.target().upkeep(3600.0)
    assert (done.joined, done.deleted) == (3, 0), "older versions stay readable"
    assert len(DeltaTable(table.folder).file_uris()) == 1
    assert [one["id"] for one in table.rows()] == [0, 1, 2]
    assert table.last() == (3, {"orders": "1:2"}, 0)
    assert table.target().upkeep(3600.0).joined == 0


def test_a_newer_row_is_told_by_all_of_its_place(tmp_path: Path, table: Table) -> None:
    """By the ledger first, and only then by the entry; a number that is missing is the least."""
    spark = cast("SparkSession", None)
    order = ("_ledger_id", "_entry_id")
    columns = StructType([StructField("_ledger_id", LongType()), *COLUMNS.fields])
    for number, (ledger_id, entry_id, current) in enumerate(
        [(2, None, 0), (2, 1, 1), (1, 5, 1), (2, 1, 1), (2, 2, 4), (3, 0, 5), (None, 9, 5)]
    ):
        folder, layout = (tmp_path / "keyed").as_uri(), Layout(partition=Partition.NONE)
        target = DeltaTarget(spark, folder, columns, TOPICS, layout=layout, order=order, key=("_key",))
        last = target.recover(SOURCE)
        staging = target.staging(last)
        Table(tmp_path, ("_key",)).write(
            staging, [row(number, _key="k", _ledger_id=ledger_id, _entry_id=entry_id, **{DELETED: False})], columns
        )
        target.commit(last, staging, {"orders": f"1:{number}"}, 1)
        (found,) = DeltaTable(tmp_path / "keyed").to_pyarrow_table().to_pylist()
        assert found["id"] == current, number


def test_a_failed_first_commit_is_no_conflict(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what failed, in one line; and what was written can be discarded."""

    def full(*_: object) -> None:
        raise Exception("External error: disk quota\n  0: <unknown>")  # noqa: TRY002 - as the library raises it

    monkeypatch.setattr(DeltaTarget, "_append", full)
    with pytest.raises(OffloaderError, match=r"cannot commit: Exception External error: disk quota \(run") as told:
        table.round([row(1)], "1:1")
    assert not isinstance(told.value, Conflict)
    (staged,) = (table.folder / "data").iterdir()
    table.target().discard(staged.as_uri())
    assert not staged.exists()


def files_of(table: Table, column: str) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return the partition of each file, and the values of a column as they are in it."""
    actions = pa.table(DeltaTable(table.folder).get_add_actions()).to_pylist()
    found = [
        (one.get("partition", {}), pq.ParquetFile(table.folder / one["path"]).read([column])[column].to_pylist())
        for one in actions
    ]
    return sorted(found, key=lambda one: one[1][0])


@pytest.mark.parametrize(
    ("partition", "values"),
    [
        (Partition.HOUR, ["2026-11-21-01", "2026-11-21-02", "2026-11-22-01"]),
        (Partition.MONTH, ["2026-11"]),
    ],
)
def test_a_table_by_another_partition(tmp_path: Path, table: Table, partition: Partition, values: list[str]) -> None:
    """It is a column with a text; a row without a time has none; another is refused then."""
    other = Table(tmp_path / "other", layout=Layout(partition=partition))
    other.round([row(1), row(25), row(2), row(3, _time=None)], "1:3")
    assert sorted({str(one[f"_{partition}"]) for one in other.rows()}) == [*values, "None"]
    assert DeltaTable(other.folder).metadata().partition_columns == [f"_{partition}"]
    assert other.target().upkeep(3600.0).joined == (0 if partition is Partition.HOUR else 3)
    other.layout = Layout()
    with pytest.raises(InvalidConfig, match=f"has the partition {partition}, and not day"):
        other.round([row(5)], "1:5")
    assert other.folder.is_dir()
    assert not table.folder.exists()


@pytest.mark.parametrize("partition", [Partition.DAY, Partition.HOUR, Partition.NONE])
def test_upkeep_keeps_the_order(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch, partition: Partition
) -> None:
    """Small files of a partition become one that is sorted, rows without a value last; the rest stays as it is."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 3)
    sorted_ = Table(tmp_path / "sorted", layout=Layout(partition=partition, sort=("_key", "id")))
    wide = StructType([*COLUMNS.fields, StructField("note", StringType())])
    sorted_.round([row(3, _time=DAY, _key="b"), row(2, _time=DAY, _key=None)], "1:1")
    sorted_.round([row(1, _time=DAY, _key="b", note="x"), row(30)], "1:2", wide)
    sorted_.round([row(4, _time=DAY, _key="a"), *(row(one, _time=None) for one in (7, 6, 5))], "1:3", wide)
    before = sorted_.rows()
    with_day = partition is not Partition.NONE
    assert sorted_.target(wide).upkeep(3600.0).joined == (7 if with_day else 8)
    assert sorted_.rows() == before
    found = [ids for _, ids in files_of(sorted_, "id")]
    assert found == ([[4, 1, 3, 2], [5, 6, 7], [30]] if with_day else [[4, 1, 3, 30, 5, 6, 7, 2]])
    assert sorted_.last() == (3, {"orders": "1:3"}, 0)
    assert sorted_.target(wide).upkeep(3600.0).joined == 0
    sorted_.round([row(8)], "1:4", wide)
    assert [one["id"] for one in sorted_.rows()] == [1, 2, 3, 4, 5, 6, 7, 8, 30]
    assert sorted_.target(wide).upkeep(0.0).deleted == (7 if with_day else 8)
    assert len(sorted_.rows()) == 9


def test_a_key_in_partitions(tmp_path: Path, table: Table) -> None:
    """A row is in the partition of its last message; files of other partitions stay as they are."""
    keyed = Table(tmp_path / "keyed", key=("_key",), layout=Layout())
    kept = {DELETED: False}
    keyed.round([row(1, **kept), row(2, **kept), row(30, **kept), row(60, **kept)], "1:4")
    before = set(DeltaTable(keyed.folder).file_uris())

    def current() -> list[tuple[str, str, int]]:
        return sorted((str(one["_day"]), one["_key"], one["id"]) for one in keyed.rows())

    assert current() == [
        *(("2026-11-21", "k1", 1), ("2026-11-21", "k2", 2), ("2026-11-22", "k30", 30), ("2026-11-23", "k60", 60))
    ]
    keyed.round([row(31, _key="k1", **kept), row(32, _key="k2", **{DELETED: True})], "1:6")
    assert current() == [("2026-11-22", "k1", 31), ("2026-11-22", "k30", 30), ("2026-11-23", "k60", 60)]
    after = set(DeltaTable(keyed.folder).file_uris())
    assert {one.rpartition("_day=")[2][:10] for one in before & after} == {"2026-11-22", "2026-11-23"}
    assert {one.rpartition("_day=")[2][:10] for one in after - before} == {"2026-11-22"}
    keyed.round([row(33, _key="k30", _time=None, **kept)], "1:7")
    assert current() == [("2026-11-22", "k1", 31), ("2026-11-23", "k60", 60), ("None", "k30", 33)]
    assert list((keyed.folder / "data").iterdir()) == []
