"""Commits of exports to tables of Iceberg: exactly once, whatever dies and whoever else commits. On real SQLite."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from offloaderd.core.errors import Conflict, CorruptData, InvalidConfig, OffloaderError
from offloaderd.spark.export import commit as export_commit
from offloaderd.spark.export import iceberg as export_iceberg
from offloaderd.spark.export.commit import DELETED, Upkeep
from offloaderd.spark.export.export import BY_DAY
from offloaderd.spark.export.iceberg import COMMIT, ExportTable, IcebergTable
from offloaderd.tables.layout import Layout, Partition
from tests.unit.spark.iceberg_lake import DAY, KEYED, SCHEMA, SOURCE, Lake, before, local_lake

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from offloaderd.spark.export.commit import Commit


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An empty lake, without Java."""
    with local_lake(tmp_path / "lake") as found:
        yield found


def test_positions_come_with_the_data(lake: Lake) -> None:
    """A snapshot has files and positions; one without a row moves the positions, rows without files do not."""
    assert lake.last() == (0, {})
    assert not lake.folder.exists(), "looking makes nothing"
    lake.round(1, 5)
    lake.round(2, 0)
    with lake.target() as target, pytest.raises(CorruptData, match="expected files with 2 rows, found none"):
        target.commit(last := target.recover(SOURCE), target.staging(last), {"orders": "3:1"}, 2)
    assert lake.last() == (2, {"orders": "2:-1"})
    assert lake.counts() == {1: 5}
    with lake.table() as table:
        days = {one["partition"]["day"]: one["record_count"] for one in table.inspect.partitions().to_pylist()}
        assert [snapshot.summary.operation.value for snapshot in table.snapshots() if snapshot.summary] == [
            "append"
        ] * 2
    assert days == {DAY.date(): 3, DAY.date() + timedelta(days=1): 2}


def test_files_of_other_attempts_are_not_committed(lake: Lake) -> None:
    """Of a round whose files are named no others count; they are deleted behind the commit."""
    with lake.target() as target:
        last = target.recover(SOURCE)
        staging = target.staging(last)
        lake.write(staging, 1, 5)
        kept = [f"day={DAY.date()}/part-0.parquet"]
        target.commit(last, staging, {"orders": "1:4"}, 3, None, kept)
        assert target._files.parquet(f"data/{staging.rpartition('/')[2]}") == kept
        last = target.recover(SOURCE)
        staging = target.staging(last)
        lake.write(staging, 2, 5)
        target.commit(last, staging, {"orders": "1:5"}, 0, None, [])
    assert lake.counts() == {1: 3}


def test_a_round_loads_the_metadata_four_times(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """To go on, to name its columns, to commit, and to read back: with a catalogue far away each is a request."""
    lake.round(1, 5)
    loads, load = [], SqlCatalog.load_table

    def counted(self: SqlCatalog, name: str) -> Table:
        loads.append(name)
        return load(self, name)

    monkeypatch.setattr(SqlCatalog, "load_table", counted)
    lake.round(2, 5)
    assert len(loads) - 1 == 4, "one is the library's, before the commit"


@pytest.mark.parametrize("crash", ["commit", "_clear"])
def test_a_crash_loses_and_repeats_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    """Before the commit there is nothing of the round, after it all; what was left of it is deleted by the next."""
    lake.round(1, 5)

    def dies(_: ExportTable, made: Commit, *__: Any) -> None:  # noqa: ANN401 - whatever it takes
        if crash == "commit" or made.number == 2:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(ExportTable, crash, dies)
        with pytest.raises(ZeroDivisionError):
            lake.round(2, 4)
    done = crash == "_clear"
    assert lake.last()[0] == 1 + done
    assert lake.counts() == ({1: 5, 2: 4} if done else {1: 5})
    with lake.target() as target:
        left = target.staging(target.last(SOURCE))
        lake.write(left, 3, 2)
    lake.round(3, 6)
    assert lake.counts() == ({1: 5, 2: 4, 3: 6} if done else {1: 5, 3: 6})
    assert left.rpartition("/")[2] not in lake.rounds()
    assert len(lake.rounds()) == len(lake.counts())


def test_an_answer_that_was_lost_is_looked_up(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was done counts as done; one that was refused ends the round, of which nothing is seen."""
    lake.round(1, 5)
    commit_table = SqlCatalog.commit_table

    def lost(*arguments: Any) -> None:  # noqa: ANN401 - whatever it takes
        commit_table(*arguments)
        raise OSError("the line is dead")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lost)
        assert lake.round(2, 4).number == 2
    assert lake.counts() == {1: 5, 2: 4}

    def refused(*_: Any) -> None:  # noqa: ANN401 - whatever it takes
        raise OSError("no right to write")

    monkeypatch.setattr(SqlCatalog, "commit_table", refused)
    with pytest.raises(OffloaderError, match="cannot commit: OSError no right to write"):
        lake.round(3, 6)
    assert (lake.last()[0], lake.counts()) == (2, {1: 5, 2: 4})


def test_of_two_exports_one_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes second adds nothing, even if it had looked before the other committed."""
    lake.round(1, 5)
    monkeypatch.setattr(ExportTable, "_try", before(lambda: lake.round(2, 4)))
    with pytest.raises(Conflict, match="another export has committed"):
        lake.round(2, 4)
    assert lake.counts() == {1: 5, 2: 4}
    assert len(lake.rounds()) == 2
    lake.round(3, 1)
    monkeypatch.setattr(ExportTable, "_try", lambda *_: None)
    with pytest.raises(Conflict, match="others commit to"):
        lake.round(4, 1)


def test_what_others_do_to_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commits hold up nothing; positions outlive expired snapshots, and go back with the data in a rollback."""

    def deleted(ledger_id: int) -> None:
        with lake.table() as table:
            table.delete(f"ledger_id = {ledger_id}")

    def expired() -> None:
        with lake.table() as table:
            old = [one.snapshot_id for one in table.snapshots()[:-1]]
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def rolled_back(count: int) -> None:
        with lake.table() as table:
            at = table.current_snapshot()
            for _ in range(count):
                at = table.snapshot_by_id(at.parent_snapshot_id) if at and at.parent_snapshot_id else None
            assert at is not None
            table.manage_snapshots().rollback_to_snapshot(at.snapshot_id).commit()

    lake.round(1, 5)
    with monkeypatch.context() as patch:
        patch.setattr(ExportTable, "_try", before(lambda: deleted(1)))
        lake.round(2, 4)
    assert lake.counts() == {2: 4}
    lake.round(3, 3)
    deleted(2)
    assert lake.last()[0] == 3, "of the snapshot before"
    expired()
    assert lake.last()[0] == 3, "of the table"
    lake.round(4, 2)
    lake.round(5, 1)
    kept = lake.rounds()
    rolled_back(1)
    assert (lake.counts(), lake.last()) == ({3: 3, 4: 2}, (4, {"orders": "4:1"}))
    lake.round(5, 2)
    assert lake.counts() == {3: 3, 4: 2, 5: 2}
    assert set(kept) < set(lake.rounds()), "snapshots that were left may be looked at, and need their files"
    with lake.table() as table:
        records = [one.summary.additional_properties.get(COMMIT, "") for one in table.snapshots() if one.summary]
        assert json.loads(table.properties[COMMIT])["positions"] == {"orders": "5:1"}
    assert json.loads(records[-1])["moved"] == {"orders": ["4:1", "5:1"]}, "not what it did not touch"
    rolled_back(2)
    with lake.target() as target, pytest.raises(OffloaderError, match="is not known any more"):
        target.recover(SOURCE)


def test_tables_and_folders_of_others_are_refused(lake: Lake, tmp_path: Path) -> None:
    """Another source, a table of somebody else's, a folder with something else, and catalogues that cannot be."""
    lake.round(1, 5)
    with lake.target() as target, pytest.raises(InvalidConfig, match="export of something else: cluster c"):
        target.recover({**SOURCE, "rows": "messages"})
    catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{lake.folder}/catalog.db", warehouse=lake.folder.as_uri())
    catalog.create_table("shop.theirs", schema=SCHEMA)
    catalog.close()
    lake.where = IcebergTable(folder=str(lake.folder), name="shop.theirs")
    with lake.target() as target, pytest.raises(InvalidConfig, match=r"shop.theirs in .* is no export"):
        target.last(SOURCE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    for where, said in (
        (IcebergTable(folder=str(tmp_path / "full"), name="shop.orders"), "holds letter.txt"),
        (IcebergTable(folder="s3://bucket/lake", name="shop.orders"), "cannot have a catalogue of its own"),
        (IcebergTable(folder=str(tmp_path / "new"), name="orders"), "names no table"),
        (IcebergTable(catalog="nowhere", name="shop.orders"), "catalogue nowhere: "),
    ):
        lake.where = where
        with pytest.raises(InvalidConfig, match=said), lake.target():
            pytest.fail("it was opened")


def test_a_table_that_is_dropped_meanwhile(lake: Lake) -> None:
    """It is not made again under the hands of whoever dropped it."""
    with lake.target() as target:
        last = target.recover(SOURCE)
        staging = target.staging(last)
        lake.write(staging, 1, 2)
        assert target._catalog is not None
        target._catalog.drop_table("shop.orders")
        with pytest.raises(OffloaderError, match="was dropped meanwhile"):
            target.commit(last, staging, {}, 2)


def test_a_rollback_over_many_topics(lake: Lake) -> None:
    """Each snapshot has only what its commit moved, and yet the positions of all topics come back with the data."""
    every: list[dict[str, str]] = []
    for number in range(1, 5):
        with lake.target() as target:
            last = target.recover(SOURCE)
            staging = target.staging(last)
            lake.write(staging, number, 2)
            moved = {f"t{number}": f"{number}:1", "busy": f"{number}:1"}
            every.append(target.commit(last, staging, {**last.positions, **moved}, 2).positions)

    def rolled_back_to(number: int) -> tuple[int, dict[str, str]]:
        with lake.table() as table:
            table.manage_snapshots().rollback_to_snapshot(table.snapshots()[number - 1].snapshot_id).commit()
        return lake.last()

    for number in (3, 1):
        assert rolled_back_to(number) == (number, every[number - 1])
    with lake.table() as table:
        left = [one.snapshot_id for one in table.snapshots()[2:]]
        table.maintenance.expire_snapshots().by_ids(left).commit()
    with lake.target() as target, pytest.raises(OffloaderError, match="it was rolled back from, have expired"):
        target.last(SOURCE)


def test_a_table_of_an_earlier_release_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshots have all positions each: a rollback finds them there."""
    with monkeypatch.context() as patch:
        patch.setattr(export_commit, "VERSION", 1)
        patch.setattr(export_commit.Commit, "encode_move", lambda made, _: made.encode())
        lake.round(1, 5)
        lake.round(2, 4)
    lake.round(3, 3)
    assert lake.last() == (3, {"orders": "3:2"})
    with lake.table() as table:
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    assert lake.last() == (1, {"orders": "1:4"})


def test_upkeep(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small files of a day become one; rows and positions stay; old snapshots expire, the newest stays."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 3)
    for ledger_id in range(1, 4):
        lake.round(ledger_id, 4)
    with lake.target() as target:
        done = target.upkeep(3600.0)
    assert (done.joined, done.deleted) == (6, 0)
    assert sum(1 for _ in (lake.folder / "shop" / "orders" / "data").rglob("*.parquet")) == 8
    assert lake.counts() == {1: 4, 2: 4, 3: 4}
    with lake.table() as table:
        assert len(table.inspect.files()) == 2
    assert lake.last() == (3, {"orders": "3:3"})
    with lake.target() as target:
        target.upkeep(-3600.0)
        assert target.last(SOURCE).number == 3
    with lake.table() as table:
        assert len(table.snapshots()) == 1
    assert sum(1 for _ in (lake.folder / "shop" / "orders" / "data").rglob("*.parquet")) == 2
    lake.round(4, 2)
    assert lake.counts() == {1: 4, 2: 4, 3: 4, 4: 2}


def keyed(lake: Lake, rows: Sequence[tuple[str, int | None, int]], layout: Layout = KEYED) -> dict[str, int]:
    """Write a round of a table with a key: key, value (None: deleted) and place; return what the table has then."""
    names = {"_key": StringType(), "value": IntegerType(), "_entry_id": LongType(), DELETED: BooleanType()}
    columns = StructType([StructField(name, kind) for name, kind in names.items()])
    with export_iceberg.opened(
        cast("SparkSession", None), lake.where, columns, layout=layout, key=("_key",), order=("_entry_id",)
    ) as target:
        last = target.recover(SOURCE)
        staging = target.staging(last)
        folder = Path(staging.removeprefix("file:"))
        folder.mkdir(parents=True)
        found = [{"_key": key, "value": value, "_entry_id": at, DELETED: value is None} for key, value, at in rows]
        schema = to_arrow_schema(columns, timezone="UTC")
        pq.write_table(pa.Table.from_pylist(found, schema=schema), folder / "part-0.parquet")
        target.commit(last, staging, {"orders": f"1:{last.number}"}, len(rows))
        assert not folder.exists(), "its rows are in other files"
    with lake.table() as table:
        return {one["_key"]: one["value"] for one in table.scan().to_arrow().to_pylist()}


def test_the_last_message_of_a_key(lake: Lake) -> None:
    """A newer row replaces that of its key or deletes it; an older one changes nothing, and the positions move."""
    assert keyed(lake, [("a", 1, 1), ("b", 2, 2)]) == {"a": 1, "b": 2}
    assert keyed(lake, [("a", 5, 5), ("b", None, 6), ("c", None, 7), ("d", 8, 8)]) == {"a": 5, "d": 8}
    assert keyed(lake, [("a", None, 4), ("d", 3, 3)]) == {"a": 5, "d": 8}
    lake.layout = KEYED
    assert lake.last() == (3, {"orders": "1:2"})


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_upkeep_of_a_table_without_a_row(lake: Lake, rounds: int) -> None:
    """There is nothing to do but to forget old snapshots: the topic has no message that is a row."""
    for number in range(rounds):
        lake.round(number + 1, 0)
    with lake.target() as target:
        target.recover(SOURCE)
        assert target.upkeep(0.0) == Upkeep(deleted=int(rounds == 2)), "the list of the manifests of the first"
    with lake.table() as table:
        assert len(table.snapshots()) == min(rounds, 1)
    lake.round(9, 3)
    assert lake.counts() == {9: 3}


def test_files_of_expired_snapshots_go(lake: Lake) -> None:
    """Those that no snapshot names any more; the others stay."""
    for number in range(3):
        keyed(lake, [("a", number, number)])
    columns = StructType([StructField("_key", StringType())])
    spark = cast("SparkSession", None)
    with export_iceberg.opened(spark, lake.where, columns, layout=KEYED, key=("_key",)) as target:
        assert target.upkeep(3600.0).deleted == 0
        assert target.upkeep(-3600.0).deleted == 10  # two files of rows, lists and manifests
    with lake.table() as table:
        assert table.scan().to_arrow()["value"].to_pylist() == [2]
    assert len(list((lake.folder / "shop" / "orders" / "data").rglob("*.parquet"))) == 1


def test_old_files_of_the_metadata_go(lake: Lake) -> None:
    """Each commit writes one with all snapshots; so many of the earlier ones stay as the table's properties say."""
    lake.round(1, 4)
    with lake.table() as table, table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    for ledger_id in range(2, 6):
        lake.round(ledger_id, 4)
    assert len(list((lake.folder / "shop" / "orders" / "metadata").glob("*.metadata.json"))) == 3
    assert lake.counts() == dict.fromkeys(range(1, 6), 4)


def test_a_large_day_is_left_as_it_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not fit into memory."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    monkeypatch.setattr(export_commit, "JOINED_BYTES_MAX", 1)
    for ledger_id in range(1, 4):
        lake.round(ledger_id, 4)
    with lake.target() as target:
        assert target.upkeep(3600.0).joined == 0


def order_of_files(lake: Lake, *columns: str) -> list[list[tuple[Any, ...]]]:
    """Return the values of columns in each file of the newest snapshot, as they are in the file."""
    with lake.table() as table:
        paths = [one["file_path"].removeprefix("file://") for one in table.inspect.files().to_pylist()]
    found = [pq.ParquetFile(path).read(columns=list(columns)).to_pylist() for path in sorted(paths)]
    return [[tuple(row[name] for name in columns) for row in rows] for rows in found]


@pytest.mark.parametrize(
    ("partition", "values"),
    [
        (Partition.HOUR, [int(DAY.timestamp()) // 3600, int(DAY.timestamp()) // 3600 + 24]),
        (Partition.MONTH, [(DAY.year - 1970) * 12 + DAY.month - 1]),
        (Partition.NONE, []),
    ],
)
def test_a_table_by_another_partition(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, partition: Partition, values: list[int]
) -> None:
    """Its files are in that one, also those of upkeep, which are sorted; another is refused then."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 3)
    lake.layout = Layout(partition=partition, time="time", sort=("entry_id", "ledger_id"))
    for ledger_id in range(1, 4):
        lake.round(ledger_id, 4)
    with lake.table() as table:
        assert {one.name: str(one.transform) for one in table.spec().fields} == (
            {str(partition): str(partition)} if values else {}
        )
        found = [table.schema().find_column_name(one.source_id) for one in table.sort_order().fields]
        assert (found, {one.null_order.name for one in table.sort_order().fields}) == (
            ["entry_id", "ledger_id"],
            {"NULLS_LAST"},
        )
        assert len(table.metadata.sort_orders) == 2, "the one without order, and this"
    with lake.target() as target:
        assert target.upkeep(3600.0).joined == 6
    with lake.table() as table:
        partitions = [one["partition"] for one in table.inspect.files().to_pylist()] if values else []
    assert sorted(one[str(partition)] for one in partitions) == values
    files = order_of_files(lake, "entry_id", "ledger_id")
    assert all(rows == sorted(rows) for rows in files)
    assert sorted(len(rows) for rows in files) == ([6, 6] if partition is Partition.HOUR else [12])
    assert lake.counts() == {1: 4, 2: 4, 3: 4}
    lake.round(4, 2)
    assert lake.last() == (4, {"orders": "4:1"})
    lake.layout = BY_DAY
    with pytest.raises(InvalidConfig, match=f"has the partition {partition}, and not day"):
        lake.round(5, 2)
    assert lake.counts() == {1: 4, 2: 4, 3: 4, 4: 2}


def test_a_partition_that_is_changed_under_a_round(lake: Lake) -> None:
    """The round is refused before it adds a file; a partition of another column, and an order, are left to its user."""
    lake.round(1, 4)
    with lake.table() as table, table.update_spec() as spec:
        spec.add_identity("ledger_id")
    with lake.table() as table, table.update_sort_order() as order:
        order.desc("entry_id", IdentityTransform())
    lake.round(2, 4)
    with lake.table() as table:
        assert {one["partition"]["ledger_id"] for one in table.inspect.files().to_pylist()} == {None, 2}
        assert [str(one.direction) for one in table.sort_order().fields] == ["DESC"]
    with lake.target() as target:
        last = target.recover(SOURCE)
        staging = target.staging(last)
        lake.write(staging, 3, 4)
        with lake.table() as table, table.update_spec() as spec:
            spec.remove_field("day").add_field("time", "hour", "hour")
        with pytest.raises(InvalidConfig, match="has the partition hour, and not day"):
            target.commit(last, staging, {"orders": "3:3"}, 4)
    assert lake.counts() == {1: 4, 2: 4}
    lake.layout = Layout(partition=Partition.HOUR, time="time")
    lake.round(3, 4)
    assert lake.counts() == {1: 4, 2: 4, 3: 4}


def test_a_table_with_a_key_is_sorted(lake: Lake) -> None:
    """Each file, also one of which a step replaces a row; files without such a row stay as they are."""
    layout = Layout(partition=Partition.NONE, sort=("value",))
    keyed(lake, [("a", 9, 1), ("b", 2, 2), ("c", 5, 3), ("d", 1, 4)], layout)
    keyed(lake, [("e", 8, 5), ("f", 7, 6)], layout)
    lake.layout = layout
    assert sorted(order_of_files(lake, "value")) == [[(1,), (2,), (5,), (9,)], [(7,), (8,)]]
    with lake.table() as table:
        before = {one["file_path"] for one in table.inspect.files().to_pylist()}
    assert keyed(lake, [("c", 6, 7), ("g", 3, 8)], layout)["c"] == 6
    assert sorted(order_of_files(lake, "value")) == [[(1,), (2,), (9,)], [(3,), (6,)], [(7,), (8,)]]
    with lake.table() as table:
        after = {one["file_path"] for one in table.inspect.files().to_pylist()}
    assert (len(before & after), len(after)) == (1, 3)


def test_as_many_files_are_joined_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each partition some at a time; few, and large ones, stay."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    monkeypatch.setattr(export_commit, "SMALL_BYTES", 10)
    monkeypatch.setattr(export_commit, "JOINED_BYTES_MAX", 12)
    sizes = [("a", 5), ("b", 9), ("a", 10), ("a", 7), ("a", 1), ("b", 9), ("a", 3), ("a", 9), ("a", 9)]
    found = export_commit.to_join((partition, (partition, size), size) for partition, size in sizes)
    assert list(found) == [("a", [("a", 5), ("a", 7)]), ("a", [("a", 1), ("a", 3)])]
