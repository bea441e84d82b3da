"""Declared tables that take their history beside what is new, by a real Spark from real servers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position
from offloaderd.metadata import paths
from offloaderd.metadata.records.history import encode
from offloaderd.spark.export.delta import DeltaTarget
from offloaderd.spark.export.iceberg import ExportTable
from offloaderd.tables.declaration import History, TableFormat
from tests.integration.spark.tables import ORDER, TOPIC, declare, order, run
from tests.real.table_rows import rows_of
from tests.unit.format.test_pulsar_message import entry
from tests.unit.read.build import Piece
from tests.unit.spark.test_source_messages import cut
from tests.unit.spark.test_source_offsets import HISTORY
from tests.unit.spark.test_value_schema import written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offloaderd.core.model import TopicName
    from offloaderd.spark.export.commit import Commit
    from offloaderd.tables.store import TableState
    from tests.integration.spark.site import Site

pytestmark = pytest.mark.usefixtures("pools")

BAD = entry(b"\x80")
TARGETS: dict[TableFormat, Any] = {TableFormat.DELTA: DeltaTarget, TableFormat.ICEBERG: ExportTable}


class Scene:
    """A topic whose ledgers have two rows and a dead letter each, and its table."""

    def __init__(self, spark: SparkSession, site: Site, folder: Path, form: TableFormat) -> None:
        self.spark, self.site, self.folder, self.form = spark, site, folder, form

    def grow(self, *ledgers: int, topic: TopicName = TOPIC) -> None:
        """Offload segments, each of a ledger."""
        for one in ledgers:
            held = [order(ORDER, {"id": one, "item": "x"}), BAD, order(ORDER, {"id": one, "item": "y"})]
            asyncio.run(self.site.commit(topic, [Piece(one, 0, held, 3)]))

    def plan(self, *, done: bool = False) -> None:
        """Plan that all before ledger 4 is history, or say that it is offloaded."""

        async def write() -> None:
            content = encode(replace(HISTORY, boundary=4, last=Position(3, 2), done_ms=int(done)))
            async with self.site.stores() as (metadata, _):
                if done:
                    await metadata.replace(paths.history_plan(TOPIC), content, 0)
                    return
                await metadata.create(paths.history(TOPIC), b"")
                await metadata.create(paths.history_plan(TOPIC), content)

        asyncio.run(write())

    def declare(self, **given: Any) -> None:  # noqa: ANN401 - fields of a declaration
        """Declare the table, whose interval is longer than a test."""
        known = {"to": str(self.folder), "format": self.form, "schema": json.dumps(ORDER), "interval_s": 3600.0}
        declare(self.site, **known, history=History.BESIDE, **given)

    def run(self) -> tuple[TableState, list[tuple[list[int], TableState]]]:
        """Run to the end; return the last state, and the ledgers with rows in the table after each step."""
        seen: list[tuple[list[int], TableState]] = []
        _, (state,) = run(self.spark, self.site, lambda one: seen.append((sorted(self.rows()), one)))
        return state, seen

    def rows(self, name: str = "orders") -> Counter[int]:
        """Return how many rows the table has of each ledger."""
        return Counter(row["_ledger_id"] for row in rows_of(self.form, self.folder, name))

    def check(self, *ledgers: int) -> None:
        """Check that each message of these ledgers is in one of the tables once."""
        assert self.rows() == dict.fromkeys(ledgers, 2)
        assert self.rows("orders_dead_letters") == dict.fromkeys(ledgers, 1)


@pytest.fixture(params=list(TableFormat))
def scene(request: pytest.FixtureRequest, spark: SparkSession, site: Site, tmp_path: Path) -> Scene:
    """Nothing is declared."""
    return Scene(spark, site, tmp_path, request.param)


@pytest.mark.witness("spark")
def test_what_is_new_is_there_before_the_history(scene: Scene) -> None:
    """The newest segment is first, then the others, and partitions that come later; each message is there once."""
    parts = [replace(TOPIC, local=f"orders-partition-{number}") for number in range(3)]
    scene.grow(1, 2, 3, topic=parts[0])
    scene.grow(4, 5, topic=parts[1])
    scene.declare()
    state, seen = scene.run()
    assert [ledgers for ledgers, _ in seen] == [[3, 5], [1, 2, 3, 4, 5]]
    assert [(one.lag_entries, one.lag_s, one.history_entries) for _, one in seen] == [(0, 0, 9), (0, 0, 0)]
    assert (state.error, state.rows, state.apart) == ("", 10, 5)
    scene.check(1, 2, 3, 4, 5)
    assert state.positions == {"orders-partition-0": "3:2", "orders-partition-1": "5:2"}
    scene.grow(6, topic=parts[0])
    scene.grow(7, 8, topic=parts[2])
    assert scene.run()[0].error == ""
    scene.check(*range(1, 9))


def test_an_entry_at_a_time(scene: Scene) -> None:
    """Both parts of a topic grow in turn, and end as one."""
    scene.grow(1, 2)
    scene.declare(step_bytes=1)
    state, seen = scene.run()
    assert (state.error, state.apart, state.history_entries) == ("", 2, 0)
    scene.check(1, 2)
    left = [(one.lag_entries, one.history_entries) for _, one in seen]
    assert left == [(2, 3), (2, 2), (1, 2), (1, 1), (0, 1), (0, 0)]


@pytest.mark.parametrize(
    ("form", "number", "table", "done"),
    [
        (TableFormat.DELTA, 0, "orders", False),
        (TableFormat.DELTA, 1, "orders", False),
        (TableFormat.DELTA, 1, "orders", True),
        (TableFormat.ICEBERG, 0, "orders_dead_letters", True),
        (TableFormat.ICEBERG, 1, "orders", False),
    ],
)
def test_a_crash_at_a_commit_of_either_part(
    spark: SparkSession,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: TableFormat,
    number: int,
    table: str,
    done: bool,
) -> None:
    """Before or after a commit of the live part, or of the history: each message is once in one of the tables."""
    scene = Scene(spark, site, tmp_path, form)
    scene.grow(1, 2, 3)
    scene.declare()
    kind = TARGETS[form]
    commit = kind.commit

    def killed(self: Any, last: Commit, *given: Any) -> Commit:  # noqa: ANN401 - as it takes
        is_dead = "dead_letters" in self.target
        at = last.number == number and is_dead == table.endswith("dead_letters")
        made = commit(self, last, *given) if done or not at else last
        if at:
            raise OffloaderError("killed")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(kind, "commit", killed)
        assert scene.run()[0].error == "killed"
    scene.grow(4)
    state, _ = scene.run()
    assert (state.error, state.apart, state.lag_entries, state.history_entries) == ("", 4, 0, 0)
    scene.check(1, 2, 3, 4)


def test_a_table_that_is_rolled_back_to_when_it_had_two_parts(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """It has its history once more, and nothing twice."""
    scene = Scene(spark, site, tmp_path, TableFormat.ICEBERG)
    scene.grow(1, 2, 3)
    scene.declare()
    scene.run()
    scene.grow(4)
    scene.run()
    scene.check(1, 2, 3, 4)
    catalog = SqlCatalog("offloaderd", uri=f"sqlite:///{tmp_path}/catalog.db")
    try:
        table = catalog.load_table("public_default.orders")
        assert "live:" not in table.properties["offloaderd.commit"]
        first = table.snapshots()[0]
        table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    finally:
        catalog.close()
    assert sorted(scene.rows()) == [3]
    scene.grow(5)
    state, _ = scene.run()
    assert (state.error, state.history_entries) == ("", 0)
    scene.check(1, 2, 3, 4, 5)


def test_history_that_is_deleted_before_it_was_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it, and all that was left up to the boundary: it is told once, and the table goes on."""
    scene.grow(1, 2, 3, 4)
    scene.declare()
    kind = TARGETS[scene.form]
    commit = kind.commit

    def stopped(self: Any, last: Commit, *given: Any) -> Commit:  # noqa: ANN401 - as it takes
        if last.number:
            raise OffloaderError("stopped")
        made: Commit = commit(self, last, *given)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(kind, "commit", stopped)
        assert scene.run()[0].history_entries == 9
    for _ in range(3):
        asyncio.run(scene.site.retire(TOPIC))
    scene.grow(5)
    state, _ = scene.run()
    assert (state.error, state.lag_entries, state.history_entries) == ("", 0, 0)
    assert scene.rows() == {4: 2, 5: 2}
    dead = Counter(row["state"] for row in rows_of(scene.form, scene.folder, "orders_dead_letters"))
    assert (dead["lost"], dead["malformed"] >= 2) == (1, True)
    assert state.positions == {"orders": "5:2"}


def test_an_open_transaction_holds_up_both_parts(scene: Scene) -> None:
    """Nothing behind its first message is there, whatever part it is in, until it ends."""
    transaction = {"txnid_most_bits": 1, "txnid_least_bits": 7}
    scene.grow(1)
    held = [order(ORDER, {"id": 2, "item": "x"}), order(ORDER, {"id": 2, "item": "y"}, **transaction)]
    asyncio.run(scene.site.commit(TOPIC, [Piece(2, 0, held, 2)]))
    scene.grow(3)
    scene.declare()
    state, _ = scene.run()
    assert (state.error, state.lag_entries, state.history_entries) == ("", 3, 1)
    assert state.waits == f"{TOPIC}: nothing behind 2:0 until the transaction that began at 2:1 ends"
    assert scene.rows() == {1: 2, 2: 1}


def test_history_that_is_offloaded_meanwhile(scene: Scene) -> None:
    """What is behind it is in the table before, up to a transaction; the history follows, each message once."""
    scene.grow(1)
    scene.plan()
    scene.grow(4)
    scene.declare()
    state, _ = scene.run()
    assert (scene.rows(), state.lag_entries, state.history_entries) == ({1: 2}, 3, 0)
    assert state.waits == f"{TOPIC}: nothing behind 1:2 until history before 4:0 is offloaded"
    scene.grow(5)
    state, _ = scene.run()
    assert (scene.rows(), state.lag_entries, state.history_entries) == ({1: 2, 5: 2}, 0, 3)
    transaction = {"txnid_most_bits": 1, "txnid_least_bits": 7}
    held = [order(ORDER, {"id": 6, "item": one}, **more) for one, more in (("x", {}), ("y", transaction))]
    asyncio.run(scene.site.commit(TOPIC, [Piece(6, 0, held, 2)]))
    state, _ = scene.run()
    assert (scene.rows(), state.lag_entries, state.history_entries) == ({1: 2, 5: 2, 6: 1}, 1, 3)
    assert state.waits == f"{TOPIC}: nothing behind 6:0 until the transaction that began at 6:1 ends"
    scene.grow(2, 3)
    scene.plan(done=True)
    state, _ = scene.run()
    assert (state.error, state.lag_entries, state.history_entries, state.apart) == ("", 1, 0, 5)
    assert scene.rows() == {**dict.fromkeys(range(1, 6), 2), 6: 1}
    assert scene.rows("orders_dead_letters") == dict.fromkeys(range(1, 6), 1)


def test_messages_in_chunks_on_both_sides(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """What is new begins behind one that began in history to come; one whose begin is nowhere is a dead letter."""
    scene = Scene(spark, site, tmp_path, TableFormat.ICEBERG)
    value = written(ORDER, {"id": 5, "item": "whole"})
    far, lost = cut("far", value, 2), cut("lost", value, 2)
    scene.grow(1)
    scene.plan()
    scene.grow(4)
    asyncio.run(site.commit(TOPIC, [Piece(5, 0, [far[1], lost[1]], 2)]))
    scene.declare()
    state, _ = scene.run()
    assert "that ends at 5:0 may have begun in history before 4:0, which is not offloaded yet" in state.error
    scene.grow(6)
    state, _ = scene.run()
    assert (state.error, scene.rows(), state.history_entries) == ("", {1: 2, 6: 2}, 5)
    scene.grow(2)
    asyncio.run(site.commit(TOPIC, [Piece(3, 0, [entry(b"\x80"), far[0], entry(b"\x80")], 3)]))
    scene.plan(done=True)
    state, _ = scene.run()
    assert (state.error, state.lag_entries, state.history_entries) == ("", 0, 0)
    assert scene.rows() == {1: 2, 2: 2, 4: 2, 5: 1, 6: 2}
    dead = [row for row in rows_of(scene.form, scene.folder, "orders_dead_letters") if row["_ledger_id"] == 5]
    assert [(row["state"], row["reason"]) for row in dead] == [
        ("incomplete", "chunk 2 of 2: those before it are missing")
    ]
