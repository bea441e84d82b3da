"""What upkeep deletes of a table of Iceberg: files that nothing names, and no other. On real SQLite and folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetLocationUpdate, SetPartitionStatisticsUpdate

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.spark.export import expiry
from offloaderd.spark.export.expiry import ORPHAN_S_MIN, expire
from tests.unit.spark.iceberg_lake import Lake, local_lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyiceberg.table import Table

REAL_TIME = "ages of files"
WEEK_S = 7 * 86400.0
ORPHANS = {
    "data/0000000002-cafe/day=2026-11-21/part-0.parquet",
    "data/0000000002-cafe/_SUCCESS",
    "data/joined-cafe/part-0.parquet",
    "metadata/cafe-m0.avro",
    "metadata/snap-1-0-cafe.avro",
    "metadata/cafe.stats",
}


class OldLake(Lake):
    """A lake whose files are all older than any bound but that of a month."""

    @property
    def root(self) -> Path:
        """The location of the table."""
        return self.folder / "shop" / "orders"

    def put(self, *names: str, age_s: float = 30 * 86400.0, content: bytes = b"x") -> None:
        """Put files below the location, and make them old."""
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(content)
            self.age(name, age_s)

    def age(self, name: str, age_s: float) -> None:
        """Make a file old."""
        then_s = SystemClock().wall_ms() / 1000 - age_s
        os.utime(self.root / name, (then_s, then_s))

    def names(self) -> set[str]:
        """Return all files below the location."""
        return {str(one.relative_to(self.root)) for one in self.root.rglob("*") if one.is_file()}

    def all_old(self) -> set[str]:
        """Make all files old; return their names."""
        for name in (found := self.names()):
            self.age(name, 30 * 86400.0)
        return found

    def move(self) -> None:
        """Have the table say that it is elsewhere."""
        with self.table() as table, table.transaction() as transaction:
            transaction._apply((SetLocationUpdate(location=f"{table.location()}2"),))

    def upkeep(self, keep_s: float = WEEK_S) -> int:
        """Return how many files upkeep deletes."""
        with self.target() as target:
            return target.upkeep(keep_s).deleted


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OldLake]:
    """A table of three rounds, whose files are old."""
    with local_lake(tmp_path / "lake"):
        found = OldLake(tmp_path / "lake")
        for ledger_id in range(1, 4):
            found.round(ledger_id, 4)
        found.all_old()
        yield found


def test_orphans_go_and_nothing_else(lake: OldLake) -> None:
    """What snapshots, the log of the metadata and statistics name stays, and so does what is young or of others."""
    with lake.table() as table, table.update_statistics() as update:
        at = table.current_snapshot()
        assert at is not None
        kept = f"{table.location()}/metadata/named.stats"
        update.set_statistics(
            StatisticsFile.model_validate(
                {
                    "snapshot-id": at.snapshot_id,
                    "statistics-path": kept,
                    "file-size-in-bytes": 1,
                    "file-footer-size-in-bytes": 1,
                    "blob-metadata": [],
                }
            )
        )
        of_partitions = f"{table.location()}/metadata/partitions.parquet"
        said = PartitionStatisticsFile.model_validate(
            {"snapshot-id": at.snapshot_id, "statistics-path": of_partitions, "file-size-in-bytes": 1}
        )
    with lake.table() as table, table.transaction() as transaction:
        transaction._apply((SetPartitionStatisticsUpdate.model_validate({"partition-statistics": said}),))
    lake.put("metadata/partitions.parquet")
    lake.put("metadata/named.stats", "metadata/version-hint.text", "data/notes.txt", "notes.parquet")
    lake.put("inner/data/theirs.parquet", "inner/metadata/theirs.avro", "inner/metadata/0.metadata.json")
    there = lake.all_old()
    lake.put("data/0000000004-cafe/part-0.parquet", "metadata/young.avro", age_s=WEEK_S - 3600.0)
    young = lake.names() - there
    lake.put(*ORPHANS)
    (own,) = [name for name in lake.names() if name.startswith("metadata/00001")]
    lake.put("metadata/00001-cafe.metadata.json", content=(lake.root / own).read_bytes())
    with lake.table() as table:
        before = table.snapshots()[0].snapshot_id
        assert len([name for name in there if name.endswith(".metadata.json")]) > 2, "a log, and others' files"
    assert lake.upkeep() == len(ORPHANS) + 1
    assert lake.names() == there | young
    assert lake.counts() == {1: 4, 2: 4, 3: 4}
    with lake.table() as table:
        assert table.scan(snapshot_id=before).to_arrow()["ledger_id"].to_pylist() == [1] * 4
    lake.round(4, 2)
    assert lake.counts() == {1: 4, 2: 4, 3: 4, 4: 2}


def test_no_file_is_an_orphan_before_three_days(lake: OldLake) -> None:
    """However short old versions are kept: another program may be about to commit it."""
    lake.put("data/young.parquet", age_s=ORPHAN_S_MIN - 600.0)
    lake.put("data/old.parquet", age_s=ORPHAN_S_MIN + 600.0)
    lake.upkeep(3600.0)
    assert "data/young.parquet" in lake.names()
    assert "data/old.parquet" not in lake.names()


def test_a_reader_of_an_older_snapshot_goes_on(lake: OldLake) -> None:
    """One that has planned its scan reads to the end, while all that is left of other commits is deleted."""
    lake.put(*ORPHANS)
    with lake.table() as table:
        scan = table.scan(snapshot_id=table.snapshots()[0].snapshot_id)
        (first, *rest) = scan.to_arrow_batch_reader()
        assert lake.upkeep() == len(ORPHANS)
        assert scan.to_arrow().num_rows == 4 == first.num_rows + sum(one.num_rows for one in rest)


def test_files_of_expired_snapshots_go_with_their_manifests(lake: OldLake) -> None:
    """Nothing is left of them but what the newest snapshot needs."""
    with lake.table() as table:
        table.delete("ledger_id = 1")
        lists = {one.manifest_list for one in table.snapshots()}
    lake.upkeep(-3600.0)
    with lake.table() as table:
        (newest,) = table.snapshots()
        needed = {newest.manifest_list, *(one.manifest_path for one in newest.manifests(table.io))}
    assert {name for name in lake.names() if name.endswith(".avro")} == {f"metadata/{_last(url)}" for url in needed}
    assert len(lists) == 4
    assert lake.counts() == {2: 4, 3: 4}


def test_a_snapshot_is_kept_from_when_another_took_its_place(lake: OldLake) -> None:
    """Readers may have begun with it until then, however long it had been the newest; a tag keeps it for ever."""
    with lake.table() as table:
        first, second, _ = (one.timestamp_ms for one in table.snapshots())
        assert first < second
        expire(table, second)
    with lake.table() as table:
        assert len(table.snapshots()) == 3
        table.manage_snapshots().create_tag(table.snapshots()[1].snapshot_id, "kept").commit()
        expire(table, SystemClock().wall_ms() + 1000)
    with lake.table() as table:
        assert len(table.snapshots()) == 2


@pytest.mark.parametrize(
    ("kept", "left"), [({"min_snapshots_to_keep": 2}, 3), ({"max_snapshot_age_ms": 10**9}, 4), ({}, 2)]
)
def test_a_branch_keeps_what_it_says_itself(lake: OldLake, kept: dict[str, int], left: int) -> None:
    """So many of its snapshots, or those of so long, whatever the upkeep of the table says."""
    with lake.table() as table:
        at = table.snapshots()[-1].snapshot_id
        table.manage_snapshots().create_branch(at, "audit", **kept).commit()
    lake.round(4, 2)
    with lake.table() as table:
        expire(table, SystemClock().wall_ms() + 1000)
    with lake.table() as table:
        assert len(table.snapshots()) == left


@pytest.mark.parametrize("doubt", ["listing", "another table", "no table", "packed", "link", "commit", "location"])
def test_doubt_deletes_no_orphan(lake: OldLake, monkeypatch: pytest.MonkeyPatch, doubt: str) -> None:
    """A listing that fails, a table that changes or has moved, metadata of another table, a link to elsewhere."""
    lake.put(*ORPHANS)
    doubts = expiry._doubt
    if doubt == "listing":
        monkeypatch.setattr(expiry, "FileSelector", _fails)
    elif doubt == "another table":
        with lake.table() as table:
            said = table.io.new_input(table.metadata_location).open().read()
        lake.put("metadata/00000-x.metadata.json", content=said.replace(_id(table), b"0"), age_s=0.0)
    elif doubt == "no table":
        lake.put("metadata/00000-x.metadata.json", content=b"{}")
    elif doubt == "packed":
        lake.put("data/inner/metadata/v1.metadata.json.gz", content=b"\x1f\x8b")
    elif doubt == "link":
        lake.put("../theirs/part-0.parquet")
        (lake.root / "data" / "link").symlink_to(lake.root.parent / "theirs")
    elif doubt == "commit":
        monkeypatch.setattr(expiry, "_doubt", lambda *found: (lake.round(4, 2), doubts(*found))[1])
    else:
        monkeypatch.setattr(expiry, "_listed", _then(lake.move))
    before = lake.names()
    assert lake.upkeep() == 0
    assert lake.names() >= before


def test_a_client_of_a_store_that_cannot_list(lake: OldLake) -> None:
    """It is named, and no file is taken for an orphan."""
    with lake.table() as table:
        table.io = ""  # type: ignore[assignment] # any other client
        with pytest.raises(OffloaderError, match="str of pyiceberg lists no files"):
            expiry._listed(table)


def test_a_manifest_that_cannot_be_read_stops_all(lake: OldLake) -> None:
    """What it names is not known, so nothing is deleted, and the failure is told."""
    lake.put(*ORPHANS)
    with lake.table() as table:
        at = table.snapshots()[0]
        manifest = at.manifests(table.io)[0].manifest_path
    (lake.root / "metadata" / _last(manifest)).write_bytes(b"")
    before = lake.names()
    with pytest.raises(OffloaderError):
        lake.upkeep(-3600.0)
    assert lake.names() >= before


def test_a_file_that_is_named_behind_the_listing_stays(lake: OldLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has added it between the two, however old it is."""
    with lake.table() as table:
        (old, *_) = [one.file.file_path for one in table.scan("ledger_id = 3").plan_files()]
    name = old.partition("/orders/")[2]
    lake.put("data/again.parquet", *ORPHANS, content=(lake.root / name).read_bytes())

    def added() -> None:
        with lake.table() as table:
            table.add_files([f"file:{lake.root}/data/again.parquet"])

    monkeypatch.setattr(expiry, "_listed", _then(added))
    assert lake.upkeep() == len(ORPHANS)
    assert "data/again.parquet" in lake.names()
    assert sum(lake.counts().values()) > 12


@pytest.mark.parametrize(
    "url",
    [
        "file:/lake/t/data/a=%201/x.parquet",
        "file:///elsewhere/t//data/a= 1/x.parquet",
        "s3a://bucket/t/data/a=%201/x.parquet",
        "hdfs://name:8020/data/t/data/a=%201/x.parquet",
    ],
)
def test_one_place_is_spelt_in_many_ways(url: str) -> None:
    """Scheme, host, folder above and percents may differ from what a listing says."""
    assert "data/a= 1/x.parquet" in set(expiry._tails(url))


def test_so_many_go_at_a_time(lake: OldLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of metadata first: while not all of them are read, one of them may be of another table."""
    monkeypatch.setattr(expiry, "ORPHANS_MAX", 2)
    lake.put(*ORPHANS)
    with lake.table() as table:
        said = table.io.new_input(table.metadata_location).open().read()
    lake.put(*(f"metadata/0000{number}-x.metadata.json" for number in range(3)), content=said)
    assert lake.upkeep() == 2
    assert lake.names() >= ORPHANS
    assert len([name for name in lake.names() if name.endswith("-x.metadata.json")]) == 1
    deleted = [lake.upkeep() for _ in range(5)]
    assert deleted == [2, 2, 2, 1, 0]


def test_a_table_that_does_not_own_its_files(lake: OldLake) -> None:
    """gc.enabled=false: other tables may name them."""
    with lake.table() as table, table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    lake.put(*ORPHANS)
    before = lake.names()
    assert lake.upkeep(-3600.0) == 0
    assert lake.names() >= before


def _then(act: Callable[[], object]) -> Callable[[Table], list[expiry._File]]:
    """Return a listing behind which something happens."""
    listed = expiry._listed

    def found(table: Table) -> list[expiry._File]:
        files = listed(table)
        act()
        return files

    return found


def _fails(*_: object, **__: object) -> None:
    raise OSError("no answer")


def _last(url: str) -> str:
    return url.rpartition("/")[2]


def _id(table: Table) -> bytes:
    return str(table.metadata.table_uuid).encode()


def test_a_snapshot_that_another_program_goes_back_to_is_not_expired(lake: OldLake) -> None:
    """A rollback that comes after the table was loaded: nothing expires, and the rows stay."""
    with lake.table() as table:
        first = table.snapshots()[0].snapshot_id
        with lake.table() as other:
            other.manage_snapshots().rollback_to_snapshot(first).commit()
        with pytest.raises(CommitFailedException, match="main has changed"):
            expire(table, SystemClock().wall_ms() + 1000)
    lake.upkeep(-3600.0)
    assert lake.counts() == {1: 4}


def test_a_tag_that_is_made_while_manifests_are_read_stays(lake: OldLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What expires is chosen behind that, which takes long for a large table."""
    named = expiry.snapshot_files

    def read(table: Table) -> set[str]:
        with lake.table() as other:
            other.manage_snapshots().create_tag(other.snapshots()[0].snapshot_id, "kept").commit()
        return named(table)

    monkeypatch.setattr("offloaderd.spark.export.iceberg.snapshot_files", read)
    lake.upkeep(-3600.0)
    with lake.table() as table:
        assert set(table.refs()) == {"main", "kept"}
        assert table.scan(snapshot_id=table.refs()["kept"].snapshot_id).to_arrow()["ledger_id"].to_pylist() == [1] * 4
