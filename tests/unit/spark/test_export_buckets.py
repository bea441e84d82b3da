"""Tables of Iceberg in buckets of a key: the hash of the format, and what any reader has of it. On real SQLite."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, In, IsNull
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.spark.export import commit as export_commit
from offloaderd.spark.export import iceberg as export_iceberg
from offloaderd.spark.export.buckets import buckets
from offloaderd.spark.export.commit import NO_ALIASES
from offloaderd.tables.layout import Layout, Partition
from tests.unit.spark.iceberg_lake import SOURCE, Lake, local_lake

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import SparkSession

COUNT = 4
LAYOUT = Layout(partition=Partition.BUCKET, buckets=COUNT, sort=("id",))
COLUMNS = StructType([StructField("_key", BinaryType()), StructField("id", LongType())])
KEYS = (*(f"key-{number}".encode() for number in range(12)), b"", None, b"x" * 10_000, b"y" * 10_000)
"""Of the long ones a Parquet file may have no least and no greatest value."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An empty lake, without Java."""
    with local_lake(tmp_path / "lake") as found:
        yield found


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"iceberg", 1210000089),
        (b"\x00\x01\x02\x03", -188683207),
        (struct.pack("<q", 34), 2017239379),
        (struct.pack("<q", 1510871468000000), -2047944441),
    ],
)
def test_the_hash_of_the_format(key: bytes, hashed: int) -> None:
    """The values of its specification, without the sign; no key has no bucket, and an empty one has."""
    for count in (2, 16, 1000, 2**31):
        assert buckets(pa.array([key, None, b""], pa.binary()), count).to_pylist() == [
            (hashed & 0x7FFF_FFFF) % count,
            None,
            0,
        ]


def write(lake: Lake, rows: Sequence[tuple[bytes | None, int]], layout: Layout = LAYOUT) -> None:
    """Write a round as Spark would: a folder for each bucket."""
    with export_iceberg.opened(cast("SparkSession", None), lake.where, COLUMNS, layout=layout) as target:
        last = target.recover(SOURCE)
        staging = target.staging(last)
        columns = [pa.array([key for key, _ in rows], pa.binary()), pa.array([at for _, at in rows], pa.int64())]
        table = pa.Table.from_arrays(columns, target.named(COLUMNS).names)
        found = buckets(columns[0], layout.buckets).to_pylist()
        for bucket in set(found):
            name = "__HIVE_DEFAULT_PARTITION__" if bucket is None else bucket
            folder = Path(staging.removeprefix("file:")) / f"{layout.name}={name}"
            folder.mkdir(parents=True)
            pq.write_table(table.filter(pa.array([one == bucket for one in found])), folder / "part-0.parquet")
        target.commit(last, staging, {"orders": f"{last.number + 1}:0"}, len(rows))


def upkeep(lake: Lake) -> int:
    """Do the upkeep of the table; return how many files were joined."""
    with export_iceberg.opened(cast("SparkSession", None), lake.where, COLUMNS, layout=LAYOUT) as target:
        return target.upkeep(3600.0).joined


def planned(lake: Lake, condition: BooleanExpression) -> list[int | None]:
    """Return the buckets of the files that a reader looks into for a condition."""
    with lake.table() as table:
        found = [one.file.partition[0] for one in table.scan(row_filter=condition).plan_files()]
    return sorted(found, key=str)


def rows_by_bucket(lake: Lake) -> list[tuple[int | None, list[int]]]:
    """Return the bucket of each file, and the ids of its rows as they are in the file."""
    with lake.table() as table:
        files = [(one.file.partition[0], one.file.file_path) for one in table.scan().plan_files()]
    found = [
        (bucket, pq.ParquetFile(path.removeprefix("file://").removeprefix("file:")).read(["id"])["id"].to_pylist())
        for bucket, path in files
    ]
    return sorted(found, key=str)


def expected(rounds: int = 1) -> list[tuple[int | None, list[int]]]:
    """Return what each bucket has of the keys, in one file."""
    of = buckets(pa.array(KEYS, pa.binary()), COUNT).to_pylist()
    return sorted(
        ((bucket, [at for at in range(len(KEYS)) if of[at] == bucket for _ in range(rounds)]) for bucket in set(of)),
        key=str,
    )


def test_a_key_is_looked_for_in_its_bucket_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the format's own partition, before and after small files were joined; also one with more keys than one."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 3)
    rows = [(key, at) for at, key in enumerate(KEYS)]
    write(lake, rows)
    assert rows_by_bucket(lake) == expected()
    with lake.table() as table:
        (field,) = table.spec().fields
        assert (field.name, str(field.transform)) == ("_bucket", "bucket[4]")
        assert table.schema().find_column_name(field.source_id) == "_key"
    write(lake, rows)
    write(lake, rows)
    assert upkeep(lake) == 3 * (COUNT + 1)
    assert rows_by_bucket(lake) == expected(rounds=3)
    by_key = dict(zip(KEYS, buckets(pa.array(KEYS, pa.binary()), COUNT).to_pylist(), strict=True))
    for key, bucket in [*by_key.items()][-5:]:
        condition = IsNull(term="_key") if key is None else EqualTo(term="_key", value=key)
        assert planned(lake, condition) == [bucket]
        with lake.table() as table:
            found = table.scan(row_filter=condition).to_arrow()["id"].to_pylist()
        assert found == [KEYS.index(key)] * 3
    two = [b"key-0", next(key for key in KEYS[:12] if by_key[key] != by_key[b"key-0"])]
    assert planned(lake, In(term="_key", literals=two)) == sorted(by_key[one] for one in two)
    write(lake, [])
    assert lake_number(lake) == 4


def lake_number(lake: Lake) -> int:
    """Return the number of the last commit."""
    with export_iceberg.opened(cast("SparkSession", None), lake.where, COLUMNS, layout=LAYOUT) as target:
        return target.last(SOURCE).number


def test_a_table_with_other_buckets_is_refused(lake: Lake) -> None:
    """With what it has; nothing is written."""
    write(lake, [(b"a", 1)])
    before = rows_by_bucket(lake)
    for layout, said in (
        (Layout(partition=Partition.BUCKET, buckets=8), "has the partition bucket:4, and not bucket:8"),
        (Layout(partition=Partition.NONE), "has the partition bucket:4, and not none"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            write(lake, [(b"a", 2)], layout)
    with lake.table() as table, table.update_spec() as spec:
        spec.remove_field("_bucket").add_field("_key", "bucket[8]", "other")
    with pytest.raises(InvalidConfig, match="has the partition bucket:8, and not bucket:4"):
        write(lake, [(b"a", 2)])
    assert rows_by_bucket(lake)[0][1] == before[0][1]
    write(lake, [(b"a", 2), (b"b", 3)], Layout(partition=Partition.BUCKET, buckets=8))
    with lake.table() as table:
        assert table.scan().to_arrow().num_rows == 3


def test_columns_that_do_not_fit_are_no_other_buckets(lake: Lake) -> None:
    """A table by buckets has its last commit, and goes on with columns that fit."""
    write(lake, [(b"a", 1)])
    other = StructType([StructField("_key", BinaryType()), StructField("id", StringType())])
    with export_iceberg.opened(cast("SparkSession", None), lake.where, other, layout=LAYOUT) as target:
        assert target.recover(SOURCE).number == 1
        with pytest.raises(InvalidConfig, match="the schema has id as string"):
            target.fit(other, NO_ALIASES)
        target.fit(COLUMNS, NO_ALIASES)


def test_a_table_that_its_user_changes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names of the key and the partition, and a partition of another column; buckets of that stop the table."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    write(lake, [(b"a", 1), (None, 1)])
    with lake.table() as table:
        with table.update_schema() as schema:
            schema.rename_column("_key", "user")
        with table.update_spec() as spec:
            spec.rename_field("_bucket", "user_bucket").add_identity("id")
        with table.transaction() as transaction:
            transaction.set_properties({"commit.manifest-merge.enabled": "true"})
    write(lake, [(b"a", 1), (None, 1)])
    write(lake, [(b"a", 1), (None, 1)])
    assert upkeep(lake) == 4
    bucket = buckets(pa.array([b"a"], pa.binary()), COUNT)[0].as_py()
    assert rows_by_bucket(lake) == sorted([(bucket, [1]), (bucket, [1, 1]), (None, [1]), (None, [1, 1])], key=str)
    assert planned(lake, EqualTo(term="user", value=b"a")) == [bucket, bucket]
    with lake.table() as table, table.update_spec() as spec:
        spec.remove_field("id").add_field("id", "bucket[4]", "more")
    with pytest.raises(OffloaderError, match="Cannot infer partition value"):
        write(lake, [(b"a", 2)])
