"""Declared tables, written by a real Spark from a real S3 server and ZooKeeper, and read back by other engines."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType

from offloaderd.core.errors import OffloaderError
from offloaderd.format.pulsar import broker_entry
from offloaderd.spark.export import commit as export_commit
from offloaderd.spark.export.delta import DeltaTarget
from offloaderd.tables.declaration import OnError, TableFormat, TableMode
from offloaderd.tables.layout import Partition
from tests.integration.spark.tables import ORDER, TOPIC, declare, drop, order, run
from tests.real.iceberg_catalogue import in_settings
from tests.real.table_rows import delta, rows_of
from tests.unit.format.test_pulsar_message import batch, entry
from tests.unit.read.build import Piece
from tests.unit.spark.test_value_protobuf import NESTED, definition
from tests.unit.spark.test_value_protobuf import written as protobuf
from tests.unit.spark.test_value_schema import inline, pair, record, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offloaderd.spark.export.commit import Commit
    from tests.integration.spark.site import Site

pytestmark = pytest.mark.usefixtures("pools")


def files_of(form: TableFormat, folder: Path, name: str) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the partition of each file of a table, and item and id of its rows as they are in the file."""
    if form is TableFormat.DELTA:
        table = DeltaTable(str(folder / name))
        (column,) = table.metadata().partition_columns
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        found = [(str(one[f"partition.{column}"]), folder / name / one["path"]) for one in actions]
    else:
        catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{folder}/catalog.db")
        try:
            iceberg_table = catalog.load_table(f"public_default.{name}")
            spec, schema = iceberg_table.spec(), iceberg_table.schema()
            found = [
                (spec.partition_to_path(one.file.partition, schema).rpartition("=")[2], one.file.file_path)
                for one in iceberg_table.scan().plan_files()
            ]
        finally:
            catalog.close()
    read = [(value, pq.ParquetFile(str(path).removeprefix("file:")).read(["item", "id"])) for value, path in found]
    return sorted(
        (value, list(zip(one["item"].to_pylist(), one["id"].to_pylist(), strict=True))) for value, one in read
    )


@pytest.mark.parametrize(
    ("site", "form"),
    [
        ("s3", TableFormat.ICEBERG),
        pytest.param("s3", TableFormat.DELTA, marks=pytest.mark.witness("spark")),
        ("azure", TableFormat.DELTA),
        ("gcs", TableFormat.ICEBERG),
    ],
    indirect=["site"],
)
def test_a_table_follows_its_topic(spark: SparkSession, site: Site, tmp_path: Path, form: TableFormat) -> None:
    """Rows and dead letters, each message once, over several runs; nothing new is no commit."""
    bad = entry(batch((written(ORDER, {"id": 7, "item": "b"}), {}), (b"\x80", {})), num_messages_in_batch=2)
    held = [order(ORDER, {"id": number, "item": "x"}) for number in range(5)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [*held, bad], 6)]))
    declare(site, to=str(tmp_path), format=form, schema=json.dumps(ORDER), interval_s=3600.0)
    sound, (state,) = run(spark, site)
    assert (sound, state.error) == (True, "")
    assert (state.rows, state.apart, state.lag_entries) == (6, 1, 0)
    rows = rows_of(form, tmp_path, "orders")
    assert [(row["id"], row["item"], row["_deleted"]) for row in rows] == [
        *((number, "x", False) for number in range(5)),
        (7, "b", False),
    ]
    (dead,) = rows_of(form, tmp_path, "orders_dead_letters")
    assert (dead["_entry_id"], dead["_batch_index"], dead["state"], dead["message"]) == (5, 1, "malformed", b"\x80")
    sound, (state,) = run(spark, site)
    assert (sound, state.rows, state.apart) == (True, 0, 1)
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, [order(ORDER, {"id": 9, "item": "y"}), entry(b"")], 2)]))
    sound, (state,) = run(spark, site)
    assert (state.rows, state.apart) == (1, 2)
    assert len(rows_of(form, tmp_path, "orders")) == 7
    assert [row["_ledger_id"] for row in rows_of(form, tmp_path, "orders_dead_letters")] == [1, 2]


def test_an_open_transaction_is_lag(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """What is offloaded behind it is behind the table, which says why it waits; a run that is to end ends."""
    transaction = {"txnid_most_bits": 1, "txnid_least_bits": 7}
    held = [order(ORDER, {"id": 0, "item": "x"}), order(ORDER, {"id": 1, "item": "x"}, **transaction)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held, 2)]))
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, [order(ORDER, {"id": 2, "item": "x"})] * 3, 3)]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA, schema=json.dumps(ORDER))
    sound, (state,) = run(spark, site)
    assert (sound, state.error, state.rows, state.lag_entries, state.lag_s > 0) == (True, "", 1, 4, True)
    assert state.waits == f"{TOPIC}: nothing behind 1:0 until the transaction that began at 1:1 ends"


def test_a_table_of_a_rest_catalogue(spark: SparkSession, site: Site, rest_catalogue: str) -> None:
    """It is made, written over several runs, and read back by the catalogue's name for it."""
    declare(site, to="rest.shop", format=TableFormat.ICEBERG, schema=json.dumps(ORDER))
    with in_settings("rest", rest_catalogue):
        for number in range(2):
            held = [order(ORDER, {"id": number, "item": "x"}), entry(b"\x80")]
            asyncio.run(site.commit(TOPIC, [Piece(number + 1, 0, held, 2)]))
            sound, (state,) = run(spark, site)
            assert (sound, state.error, state.apart) == (True, "", number + 1)
        catalog = load_catalog("rest")
        rows, dead = (
            catalog.load_table(f"shop.{name}").scan().to_arrow() for name in ("orders", "orders_dead_letters")
        )
        catalog.close()
    assert sorted(rows["id"].to_pylist()) == [0, 1]
    assert dead["message"].to_pylist() == [b"\x80"] * 2


@pytest.mark.parametrize("form", list(TableFormat))
def test_the_current_state_of_each_key(spark: SparkSession, site: Site, tmp_path: Path, form: TableFormat) -> None:
    """The last message of a key is its row, also within a step; one without a value, or an empty one, deletes it."""

    def keyed(key: str, number: int | None) -> bytes:
        if number is None:
            return entry(b"", partition_key=key, null_value=True)
        return order(ORDER, {"id": number, "item": key}, partition_key=key)

    def current() -> dict[bytes, int]:
        return {row["_key"]: row["id"] for row in rows_of(form, tmp_path, "orders")}

    first = [
        keyed("a", 1),
        keyed("b", 2),
        keyed("a", 3),
        keyed("c", 4),
        keyed("c", None),
        order(ORDER, {"id": 5, "item": ""}),
    ]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, first, 6)]))
    declare(site, to=str(tmp_path), format=form, mode=TableMode.UPSERT, schema=json.dumps(ORDER))
    sound, (state,) = run(spark, site)
    assert (sound, state.error, state.apart) == (True, "", 1)
    assert current() == {b"a": 3, b"b": 2}
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, [keyed("b", None), keyed("d", 6), keyed("d", 7)], 3)]))
    assert run(spark, site)[0]
    assert current() == {b"a": 3, b"d": 7}
    asyncio.run(site.commit(TOPIC, [Piece(3, 0, [entry(b"", partition_key="a"), entry(b"", partition_key="x")], 2)]))
    assert run(spark, site)[0]
    assert current() == {b"d": 7}
    asyncio.run(site.commit(TOPIC, [Piece(4, 0, [entry(b"\x80", partition_key="d")], 1)]))
    sound, (state,) = run(spark, site)
    assert (sound, state.apart, current()) == (True, 2, {b"d": 7}), "a step without a row"
    dead, _ = rows_of(form, tmp_path, "orders_dead_letters")
    assert (dead["_entry_id"], dead["reason"]) == (5, "no _key")


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_the_current_state_of_pairs(spark: SparkSession, site: Site, tmp_path: Path, encoding: str) -> None:
    """Fields of key and value are columns, the key's stay when a message has no value, which deletes the row."""
    key_schema, batched = record(("id", "int")), encoding == "SEPARATED"

    def sent(number: int, item: str | None, **fields: Any) -> tuple[bytes, dict[str, Any]]:  # noqa: ANN401
        key = written(key_schema, {"id": number})
        value = None if item is None else written(ORDER, {"id": number, "item": item})
        if encoding == "INLINE":
            return inline(key, value), fields
        key_text = {"partition_key": b64encode(key).decode(), "partition_key_b64_encoded": True}
        return value or b"", {**key_text, **({"null_value": True} if value is None else {}), **fields}

    def piece(ledger_id: int, *messages: tuple[bytes, dict[str, Any]]) -> Piece:
        if batched:  # which are decoded by columns
            return Piece(ledger_id, 0, [entry(batch(*messages), num_messages_in_batch=len(messages))], 1)
        return Piece(ledger_id, 0, [entry(content, **fields) for content, fields in messages], len(messages))

    def current() -> dict[int, str]:
        return {row["id"]: row["item"] for row in delta(tmp_path / "orders")}

    schema = json.dumps(pair(encoding, ("AVRO", key_schema), ("AVRO", ORDER)))
    asyncio.run(site.commit(TOPIC, [piece(1, sent(1, "a"), sent(2, "b"), sent(1, "c"), sent(3, "d"), sent(3, None))]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA, mode=TableMode.UPSERT, key=("id",), schema=schema)
    sound, (state,) = run(spark, site)
    assert (sound, state.error, state.apart) == (True, "", 0)
    assert current() == {1: "c", 2: "b"}
    asyncio.run(site.commit(TOPIC, [piece(2, sent(2, None), (b"\x80", {}), sent(4, "e"))]))
    sound, (state,) = run(spark, site)
    assert (sound, state.apart, current()) == (True, 1, {1: "c", 4: "e"})
    (dead,) = delta(tmp_path / "orders_dead_letters")
    assert (dead["state"], dead["message"]) == ("malformed", b"\x80")


@pytest.mark.parametrize("form", TableFormat)
def test_messages_of_protobuf(spark: SparkSession, site: Site, tmp_path: Path, form: TableFormat) -> None:
    """Moments, lists, maps and enumerations are columns; what is no such message is a dead letter."""
    schema = json.dumps({"version": 0, "type": "PROTOBUF_NATIVE", "data": json.dumps(definition(NESTED))})
    at = datetime(2026, 1, 1, 12, 0, 0, 5, UTC)
    full = protobuf(NESTED, at=at, lines=[{"article": "a"}], counts={"x": {"article": "c"}}, state=1, note="n")
    entries = [entry(full), entry(b"\xff"), entry(protobuf(NESTED))]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, entries, len(entries))]))
    declare(site, to=str(tmp_path), format=form, schema=schema)
    sound, (state,) = run(spark, site)
    assert (sound, state.error, state.apart) == (True, "", 1)
    found, empty = rows_of(form, tmp_path, "orders")
    kept = ("at", "lines", "counts", "state", "note")
    values = [at, [{"article": "a"}], [("x", {"article": "c"})], "SENT", "n"]
    assert {name: found[name] for name in kept} == dict(zip(kept, values, strict=True))
    assert [empty[name] for name in kept] == [None, [], [], "NEW", None]


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("table", ["orders", "orders_dead_letters"])
def test_a_crash_at_a_commit(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, done: bool
) -> None:
    """Before or after the commit of the table or of its dead letters: afterwards each message is once in one of them.

    Meanwhile more was offloaded, which is in neither step twice.
    """
    held = [order(ORDER, {"id": 1, "item": "x"}), entry(b"\x80"), order(ORDER, {"id": 2, "item": "x"})]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held, 3)]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA, schema=json.dumps(ORDER))
    commit = DeltaTarget.commit

    def killed(self: DeltaTarget, *given: Any) -> Commit:  # noqa: ANN401 - as it takes
        made = commit(self, *given) if done or not self.target.endswith(f"/{table}") else None
        if self.target.endswith(f"/{table}") or made is None:
            raise OffloaderError("killed")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTarget, "commit", killed)
        sound, (state,) = run(spark, site)
    assert (sound, state.error) == (False, "killed")
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, [entry(b"\x81"), order(ORDER, {"id": 3, "item": "x"})], 2)]))
    sound, (state,) = run(spark, site)
    assert (sound, state.apart) == (True, 2)
    assert [row["id"] for row in delta(tmp_path / "orders")] == [1, 2, 3]
    assert [row["message"] for row in delta(tmp_path / "orders_dead_letters")] == [b"\x80", b"\x81"]


def test_all_that_a_message_has(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """Partitions are one table, in steps smaller than what there is; times, properties; what is lost, or encrypted."""
    parts = [replace(TOPIC, local=f"orders-partition-{number}") for number in range(2)]
    whole = order(
        ORDER, {"id": 1, "item": "x"}, event_time=2000, partition_key="k", properties=[{"key": "a", "value": "b"}]
    )
    for part in parts:
        asyncio.run(site.commit(part, [Piece(1, 0, [whole, entry(b"secret", encryption_keys=[{"key": "k"}])])]))
        asyncio.run(site.commit(part, [Piece(1, 2, [order(ORDER, {"id": 2, "item": "y"})] * 3, 5)]))
    asyncio.run(site.commit(parts[0], [Piece(2, 0, [order(ORDER, {"id": 3, "item": "z"})], 1)]))
    asyncio.run(site.retire(parts[1]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA, schema=json.dumps(ORDER), step_bytes=1)
    seen: list[int] = []
    sound, (state,) = run(spark, site, lambda one: seen.append(one.lag_entries))
    assert (sound, state.rows, state.apart, state.lag_entries) == (True, 8, 1, 0)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) > 2
    first, *rows = delta(tmp_path / "orders")
    assert (first["_topic"], first["_partition"], first["_key"], first["_properties"], first["_sequence_id"]) == (
        *(str(parts[0]), 0, b"k", [("a", "b")], 5),
    )
    assert (first["_event_time"].timestamp(), first["_publish_time"].timestamp()) == (2, 1)
    found = sorted((row["_partition"], row["id"]) for row in rows if row["_ledger_id"] == 1)
    assert found == [(0, 2)] * 3 + [(1, 2)] * 3
    (dead,) = delta(tmp_path / "orders_dead_letters")
    assert (dead["state"], dead["message"], dead["_partition"]) == ("encrypted", b"secret", 0)


def test_entries_that_are_lost_are_told(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """Retention was faster than the table: their number is in the dead letters, or the table stops."""
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [order(ORDER, {"id": 1, "item": "x"})])]))
    for name, on_error in (("orders", OnError.DEAD_LETTER), ("strict", OnError.FAIL)):
        declare(
            site,
            name=name,
            to=str(tmp_path / name),
            format=TableFormat.DELTA,
            schema=json.dumps(ORDER),
            on_error=on_error,
        )
    assert run(spark, site)[0]
    for first in (1, 4):
        asyncio.run(site.commit(TOPIC, [Piece(1, first, [order(ORDER, {"id": first, "item": "x"})] * 3)]))
    for _ in range(2):
        asyncio.run(site.retire(TOPIC))
    errors: list[str] = []
    sound, _ = run(spark, site, lambda one: errors.append(one.error))
    assert not sound
    assert sorted(bool(one) for one in errors) == [False, True]
    assert "deleted by retention before" in "".join(errors)
    assert [row["id"] for row in delta(tmp_path / "orders" / "orders")] == [1, 4, 4, 4]
    (dead,) = delta(tmp_path / "orders" / "orders_dead_letters")
    assert (dead["state"], dead["entries"], dead["_entry_id"]) == ("lost", 3, 1)
    assert len(delta(tmp_path / "strict" / "orders")) == 1


@pytest.mark.parametrize("form", list(TableFormat))
def test_a_table_in_sorted_partitions(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: TableFormat
) -> None:
    """Each file has rows of one hour, in their order, also after upkeep; another partition is refused."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    begin_ms = int(datetime(2026, 3, 29, 0, 30, tzinfo=UTC).timestamp() * 1000)  # local times jump in Europe

    def sent(number: int, item: str) -> bytes:
        head = broker_entry.encode_head(broker_timestamp=begin_ms + number * 1_200_000)
        return order(ORDER, {"id": number, "item": item}, head=head)

    given = {"to": str(tmp_path), "format": form, "schema": json.dumps(ORDER), "sort": ("item", "id")}
    declare(site, **given, partition=Partition.HOUR)
    for ledger_id in range(1, 4):
        held = [sent(number, item) for number in (3, 2, 1, 0) for item in ("b", "a")]
        asyncio.run(site.commit(TOPIC, [Piece(ledger_id, 0, held, 8)]))
        sound, (state,) = run(spark, site)
        assert (sound, state.error, state.rows) == (True, "", 8)
    files = files_of(form, tmp_path, "orders")
    assert {hour for hour, _ in files} == {"2026-03-29-00", "2026-03-29-01"}
    assert sum(len(rows) for _, rows in files) == 24
    assert len(files) == 2, "the last step was joined to the others"
    for hour, rows in files:
        assert rows == sorted(rows)
        assert {number for _, number in rows} == ({0, 1} if hour.endswith("00") else {2, 3})
    assert [row["id"] for row in rows_of(form, tmp_path, "orders")] == [3, 3, 2, 2, 1, 1, 0, 0] * 3
    drop(site)
    declare(site, **given, partition=Partition.DAY)
    asyncio.run(site.commit(TOPIC, [Piece(4, 0, [sent(0, "c")], 1)]))
    sound, (state,) = run(spark, site)
    assert not sound
    assert "has the partition hour, and not day" in state.error
    assert files_of(form, tmp_path, "orders") == files
    drop(site)
    declare(site, **given | {"sort": ("price",)}, partition=Partition.HOUR)
    sound, (state,) = run(spark, site)
    assert (sound, state.error.partition(" (")[0]) == (False, "sort price: no such column")


def test_a_table_in_buckets_of_a_key(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket has one sorted file of a step, also after upkeep; a reader looks for a key in its bucket alone."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 3)
    keys = ["iceberg", "a", "b", None, "c", "iceberg", "a", None]
    held = [order(ORDER, {"id": 9 - at, "item": str(one)}, partition_key=one) for at, one in enumerate(keys)]
    given = {"to": str(tmp_path), "schema": json.dumps(ORDER), "sort": ("item", "id"), "partition": Partition.BUCKET}
    declare(site, **given, buckets=8)
    for ledger_id in range(1, 3):
        asyncio.run(site.commit(TOPIC, [Piece(ledger_id, 0, held, 8)]))
        sound, (state,) = run(spark, site)
        assert (sound, state.error, state.rows) == (True, "", 8)
    of = BucketTransform(num_buckets=8).transform(BinaryType())
    places = {str(one): str(of(one.encode())) if one is not None else "null" for one in keys}
    assert places["iceberg"] == str(1210000089 % 8)
    sent = {
        place: sorted((str(one), 9 - at) for at, one in enumerate(keys) if places[str(one)] == place)
        for place in places.values()
    }
    assert files_of(TableFormat.ICEBERG, tmp_path, "orders") == sorted((*sent.items(), *sent.items()))
    asyncio.run(site.commit(TOPIC, [Piece(3, 0, held, 8)]))
    assert run(spark, site)[0]
    joined = [(place, sorted(rows * 3)) for place, rows in sent.items()]
    assert files_of(TableFormat.ICEBERG, tmp_path, "orders") == sorted(joined)
    catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{tmp_path}/catalog.db")
    try:
        table = catalog.load_table("public_default.orders")
        scan = table.scan(row_filter=EqualTo(term="_key", value=b"iceberg"))
        (task,) = scan.plan_files()
        assert task.file.partition[0] == 1210000089 % 8
        assert sorted(scan.to_arrow()["id"].to_pylist()) == [4, 4, 4, 9, 9, 9]
        assert sorted(table.scan(row_filter=IsNull(term="_key")).to_arrow()["id"].to_pylist()) == [2, 2, 2, 6, 6, 6]
    finally:
        catalog.close()
    drop(site)
    declare(site, **given, buckets=16)
    asyncio.run(site.commit(TOPIC, [Piece(4, 0, held, 8)]))
    sound, (state,) = run(spark, site)
    assert not sound
    assert "has the partition bucket:8, and not bucket:16" in state.error
    assert files_of(TableFormat.ICEBERG, tmp_path, "orders") == sorted(joined)


def test_keys_in_partitions(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """With Delta Lake a row is in the partition of its key's last message; of Iceberg each file is sorted."""

    def sent(key: str, number: int | None, day: int) -> bytes:
        head = broker_entry.encode_head(broker_timestamp=int(datetime(2026, 1, day, tzinfo=UTC).timestamp() * 1000))
        if number is None:
            return entry(b"", partition_key=key, null_value=True, head=head)
        return order(ORDER, {"id": number, "item": key}, partition_key=key, head=head)

    given = {"mode": TableMode.UPSERT, "schema": json.dumps(ORDER)}
    declare(site, name="delta", to=str(tmp_path / "delta"), format=TableFormat.DELTA, partition=Partition.DAY, **given)
    declare(site, name="iceberg", to=str(tmp_path / "iceberg"), sort=("id",), **given)
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [sent("a", 9, 1), sent("b", 2, 1), sent("c", 5, 2)], 3)]))
    assert run(spark, site)[0]
    assert sorted((day, sorted(rows)) for day, rows in files_of(TableFormat.DELTA, tmp_path / "delta", "orders")) == [
        ("2026-01-01", [("a", 9), ("b", 2)]),
        ("2026-01-02", [("c", 5)]),
    ]
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, [sent("a", 4, 3), sent("d", 3, 3), sent("c", None, 3)], 3)]))
    assert run(spark, site)[0]
    assert sorted((day, sorted(rows)) for day, rows in files_of(TableFormat.DELTA, tmp_path / "delta", "orders")) == [
        ("2026-01-01", [("b", 2)]),
        ("2026-01-03", [("a", 4), ("d", 3)]),
    ]
    found = [rows for _, rows in files_of(TableFormat.ICEBERG, tmp_path / "iceberg", "orders")]
    assert sorted(found) == [[("b", 2)], [("d", 3), ("a", 4)]]
