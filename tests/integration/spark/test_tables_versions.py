"""Tables whose topics get further versions of their schema, written by a real Spark."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import OffloaderError
from offloaderd.ledgers.pulsar.schemas import Schema
from offloaderd.spark.export.delta import DeltaTarget
from offloaderd.spark.export.iceberg import ExportTable
from offloaderd.spark.tables.application import SharedPlanner
from offloaderd.tables import store as stored
from offloaderd.tables.declaration import OnError, TableFormat, TableMode
from tests.integration.spark.tables import ORDER, TOPIC, declare, order, run
from tests.real.table_rows import delta, iceberg, rows_of
from tests.unit.format.test_pulsar_message import entry
from tests.unit.read.build import Piece
from tests.unit.spark.test_value_schema import record

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offloaderd.spark.export.commit import Commit
    from tests.integration.spark.site import Site

pytestmark = pytest.mark.usefixtures("pools")


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[int, Schema]:
    """The versions of the topic's schema in the cluster, of which a test may add more."""
    versions = {0: Schema(type="AVRO", content=json.dumps(ORDER).encode(), deleted=False, created_ms=0)}

    monkeypatch.setattr(SharedPlanner, "versions", lambda *_: versions)
    return versions


@pytest.mark.parametrize("mode", TableMode)
def test_a_field_that_is_renamed(
    spark: SparkSession, site: Site, tmp_path: Path, versions: dict[int, Schema], mode: TableMode
) -> None:
    """Its column has the new name in all rows, also in those that were written by the old one and come later."""
    new = json.loads(json.dumps(ORDER))
    (field,) = (one for one in new["fields"] if one["name"] == "item")
    field |= {"name": "article", "aliases": ["item"]}
    older, newer = ({"schema_version": number.to_bytes(8, "big")} for number in (0, 1))
    held = [order(ORDER, {"id": number, "item": f"old {number}"}, **older) for number in range(2)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held, 2)]))
    key = ("id",) if mode is TableMode.UPSERT else ()
    declare(site, to=str(tmp_path), format=TableFormat.ICEBERG, mode=mode, key=key)
    assert run(spark, site)[0]
    versions[1] = Schema(type="AVRO", content=json.dumps(new).encode(), deleted=False, created_ms=0)
    late = [order(new, {"id": 2, "article": "new"}, **newer), order(ORDER, {"id": 3, "item": "late"}, **older)]
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, late, 2)]))
    assert run(spark, site)[0]
    rows = iceberg(tmp_path, "public_default.orders")
    assert [(row["id"], row["article"]) for row in rows] == [(0, "old 0"), (1, "old 1"), (2, "new"), (3, "late")]
    assert "item" not in rows[0]


def test_a_schema_that_changes_under_a_repeated_step(
    spark: SparkSession,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[int, Schema],
) -> None:
    """The step is repeated by the versions that its dead letters were found with: no message falls between the two."""
    version: dict[str, Any] = {"schema_version": (0).to_bytes(8, "big")}
    held = [order(ORDER, {"id": 1, "item": "x"}, **version), entry(b"\x80", **version)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held, 2)]))
    declare(site, to=str(tmp_path), format=TableFormat.DELTA)
    commit = DeltaTarget.commit

    def killed(self: DeltaTarget, *given: Any) -> Commit:  # noqa: ANN401 - as it takes
        if self.target.endswith("/orders"):
            raise OffloaderError("killed")
        return commit(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTarget, "commit", killed)
        assert not run(spark, site)[0]
    versions[1] = Schema(type="STRING", content=b"", deleted=False, created_ms=0)
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, [entry("å".encode(), schema_version=(1).to_bytes(8, "big"))], 1)]))
    sound, (state,) = run(spark, site)
    assert (sound, state.apart) == (True, 1)
    assert [(row["id"], row["value"]) for row in delta(tmp_path / "orders")] == [(1, None), (None, "å")]
    assert [row["message"] for row in delta(tmp_path / "orders_dead_letters")] == [b"\x80"]


OTHER = record(("id", "int"), ("item", "int"))
LATER = record(("id", "int"), ("item", "string"), ("price", "int"))


def sent(version: int, schema: Any, **value: Any) -> bytes:  # noqa: ANN401 - as `order` has it
    """Return an entry with a value of a version of the schema."""
    return order(schema, value, schema_version=version.to_bytes(8, "big"))


def known(schema: Any) -> Schema:  # noqa: ANN401 - as above
    """Return a version of the topic's schema."""
    return Schema(type="AVRO", content=json.dumps(schema).encode(), deleted=False, created_ms=0)


@pytest.mark.parametrize("on_error", OnError)
@pytest.mark.parametrize("form", TableFormat)
def test_a_type_that_a_table_cannot_have(
    spark: SparkSession, site: Site, tmp_path: Path, versions: dict[int, Schema], form: TableFormat, on_error: OnError
) -> None:
    """Messages of such a version are no rows, and those of others are; a table that is to fail stops before them."""

    def add(ledger_id: int, schema: Any, *held: bytes) -> tuple[bool, stored.TableState]:  # noqa: ANN401 - as above
        versions[ledger_id - 1] = known(schema)
        asyncio.run(site.commit(TOPIC, [Piece(ledger_id, 0, [*held], len(held))]))
        told, (state,) = run(spark, site)
        return told, state

    fails = on_error is OnError.FAIL
    declare(site, to=str(tmp_path), format=form, on_error=on_error)
    assert add(1, ORDER, sent(0, ORDER, id=1, item="x"))[0]
    sound, state = add(2, OTHER, sent(1, OTHER, id=2, item=5), sent(0, ORDER, id=3, item="y"))
    assert sound is not fails
    if fails:
        assert "the schema has item as int, and the table has it as string" in state.error
    assert [row["id"] for row in rows_of(form, tmp_path, "orders")] == ([1] if fails else [1, 3])
    sound, state = add(3, LATER, sent(2, LATER, id=4, item="z", price=7), sent(1, OTHER, id=5, item=5))
    assert sound is not fails
    if fails:
        assert "message 2:0" in state.error
        return
    rows = rows_of(form, tmp_path, "orders")
    assert [(row["id"], row["item"], row["price"]) for row in rows] == [(1, "x", None), (3, "y", None), (4, "z", 7)]
    assert state.apart == 2
    if on_error is OnError.DEAD_LETTER:
        dead = rows_of(form, tmp_path, "orders_dead_letters")
        assert [(row["_ledger_id"], row["_entry_id"]) for row in dead] == [(2, 0), (3, 1)]
        assert "version 1 of the schema" in dead[0]["reason"]


@pytest.mark.parametrize("form", TableFormat)
def test_a_step_that_is_repeated_when_another_version_fits(
    spark: SparkSession,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[int, Schema],
    form: TableFormat,
) -> None:
    """It is written by the version of its dead letters: each message is a row or a dead letter, in its columns."""
    declare(site, to=str(tmp_path), format=form)
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, [sent(0, ORDER, id=1, item="x")], 1)]))
    assert run(spark, site)[0]
    versions[1] = known(OTHER)
    held = [sent(1, OTHER, id=2, item=5), sent(0, ORDER, id=3, item="y")]
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, held, len(held))]))
    target = DeltaTarget if form is TableFormat.DELTA else ExportTable
    commit = target.commit

    def killed(self: Any, *given: Any) -> Commit:  # noqa: ANN401 - as it takes
        if "dead_letters" not in self.target:
            raise OffloaderError("killed")
        return commit(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(target, "commit", killed)
        assert not run(spark, site)[0]
    versions[2] = known(record(("item", "string"), ("id", "string"), ("price", "int")))  # does not fit
    versions[3] = known(newest := record(("price", "int"), ("item", "string"), ("id", "int")))
    asyncio.run(site.commit(TOPIC, [Piece(3, 0, [sent(3, newest, price=7, item="z", id=4)], 1)]))
    sound, (state,) = run(spark, site)
    assert (sound, state.apart) == (True, 1)
    rows = rows_of(form, tmp_path, "orders")
    assert [(row["id"], row["item"], row["price"]) for row in rows] == [(1, "x", None), (3, "y", None), (4, "z", 7)]
    assert [row["_ledger_id"] for row in rows_of(form, tmp_path, "orders_dead_letters")] == [2]
