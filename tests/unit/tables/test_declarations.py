"""Declarations of tables and their states, in a metadata store in memory."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NewerRecord, NotFound
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.tables import declaration, store
from offloaderd.tables.declaration import Declaration, History, TableFormat, TableMode, table_name, table_of
from offloaderd.tables.layout import Layout, Partition
from offloaderd.tables.store import States, TableState
from offloaderd.testing.memory.metadata import MemoryTree

ORDERS = Declaration(name="orders", topics="public/default/orders", to="lake.shop")
KEYED = replace(
    ORDERS, name="customers", to="/lake", format=TableFormat.DELTA, mode=TableMode.UPSERT, key=("id", "region")
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "a/b"}, "name 'a/b'"),
        ({"topics": "public/*"}, "write TENANT/NAMESPACE/TOPIC"),
        ({"topics": "re:.*"}, "write TENANT/NAMESPACE/TOPIC"),
        ({"topics": "a b/c"}, "topics: "),
        ({"to": "lake"}, "write CATALOGUE.NAMESPACE"),
        ({"format": TableFormat.DELTA}, "tables of Delta Lake are in a folder"),
        ({"key": ("id",)}, "key: only with mode upsert"),
        ({"interval_s": 0.5}, "interval 0.5 s"),
        ({"interval_s": 31 * 86_400.0 + 1}, "interval 2678401 s: 1 s to 31 d"),
        ({"interval_s": float("nan")}, "interval nan s"),
        ({"step_bytes": 0}, "step of 0 bytes"),
        ({"upkeep_s": -1.0}, "upkeep every -1 s"),
        ({"keep_s": 60.0}, "keep 60 s"),
        ({"schema": '"' + "x" * 300_000 + '"'}, "is the most"),
        ({"schema": "hello"}, "schema: not JSON"),
        ({"sort": ("id", "id")}, "sort 'id,id': names of columns with commas between, each once"),
        ({"sort": ("a b",)}, "sort 'a b'"),
        ({"mode": TableMode.UPSERT, "history": History.BESIDE}, "could bring back a key that was deleted since"),
        ({"mode": TableMode.UPSERT, "partition": Partition.HOUR}, "partition hour: with upsert only in Delta Lake"),
        ({"partition": Partition.BUCKET, "buckets": 1}, "partition bucket:1: 2 to 1024 buckets"),
        ({"partition": Partition.BUCKET, "buckets": 1025}, "partition bucket:1025: 2 to 1024 buckets"),
        ({"partition": Partition.BUCKET}, "partition bucket:0: 2 to 1024 buckets"),
        ({"partition": Partition.DAY, "buckets": 4}, "buckets 4: only with the partition bucket"),
        (
            {"to": "/lake", "format": TableFormat.DELTA, "partition": Partition.BUCKET, "buckets": 4},
            "partition bucket:4: only in Iceberg",
        ),
        (
            {"mode": TableMode.UPSERT, "partition": Partition.BUCKET, "buckets": 4},
            "partition bucket:4: only with append",
        ),
        (
            {"to": "/lake", "format": TableFormat.DELTA, "mode": TableMode.UPSERT, "sort": ("id",)},
            "sort: not with upsert in Delta Lake",
        ),
    ],
)
def test_mistakes_are_told(given: dict[str, object], said: str) -> None:
    """Each by its field; all of them at once."""
    with pytest.raises(InvalidInput, match=said):
        replace(ORDERS, **given).checked()  # type: ignore[arg-type]
    both = replace(ORDERS, name="", to="")
    assert len(both.flaws()) == 2


LAID_OUT = replace(ORDERS, partition=Partition.HOUR, sort=("region", "id"))
IN_BUCKETS = replace(ORDERS, partition=Partition.BUCKET, buckets=1024)
BESIDE = replace(ORDERS, history=History.BESIDE)


@pytest.mark.parametrize(
    "declared", [ORDERS, KEYED, LAID_OUT, IN_BUCKETS, BESIDE, replace(KEYED, partition=Partition.MONTH)]
)
def test_a_declaration_is_read_as_it_was_written(declared: Declaration) -> None:
    """All fields, with their types."""
    assert declaration.decode(declaration.encode(declared.checked()), path="/x") == declared


def test_a_layout_that_is_not_given() -> None:
    """By day, and none for a table with a key, also in a record of an earlier release."""
    earlier = (
        b'{"created_by": "root", "created_ms": 7, "format": "iceberg", "interval_s": 60.0, "keep_s": 604800.0, "key": '
        b'[], "mode": "append", "name": "orders", "on_error": "dead-letter", "schema": "", "step_bytes": 1073741824, '
        b'"to": "lake.shop", "topics": "public/default/orders", "upkeep_s": 3600.0, "version": 1}'
    )
    found = declaration.decode(earlier, path="/x")
    assert found == replace(ORDERS, created_by="root", created_ms=7)
    assert found.layout == Layout(partition=Partition.DAY)
    keyed = declaration.decode(earlier.replace(b"append", b"upsert"), path="/x")
    assert keyed.layout == Layout(partition=Partition.NONE)
    assert replace(keyed, sort=("id",), partition=Partition.NONE).checked().layout.sort == ("id",)
    with pytest.raises(CorruptData, match="week"):
        declaration.decode(declaration.encode(LAID_OUT).replace(b'"hour"', b'"week"'), path="/x")


@pytest.mark.parametrize("created_ms", [b'"7"', b"7.5", b"-7", b"9223372036854775808"])
def test_a_time_that_is_none_is_damage(created_ms: bytes) -> None:
    """Else the status of a daemon, which shows it, would be an error as a whole."""
    content = declaration.encode(ORDERS).replace(b'"created_ms": 0', b'"created_ms": ' + created_ms)
    with pytest.raises(CorruptData, match="no whole number"):
        declaration.decode(content, path="/x")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"version": 0}', b'{"version": 1}', b'{"version": "1"}', b"\xff", b"[" * 100_000]
)
def test_damage_is_told(content: bytes) -> None:
    """By the node's path."""
    with pytest.raises(CorruptData, match="/tables/x"):
        declaration.decode(content, path="/tables/x")
    with pytest.raises(CorruptData, match="/tables/x"):
        store.decode_states(content, path="/tables/x")


def test_a_later_release_is_told() -> None:
    """Its record is not read by half."""
    content = declaration.encode(ORDERS).replace(b'"version": 1', b'"version": 3')
    with pytest.raises(NewerRecord):
        declaration.decode(content, path="/x")


def test_an_earlier_release_writes_no_table_in_its_own_way() -> None:
    """What it reads means the same to it: a history beside what is new is of a version that it refuses."""
    assert b'"version": 1' in declaration.encode(ORDERS)
    assert b"history" not in declaration.encode(ORDERS)
    content = declaration.encode(BESIDE)
    assert b'"version": 2' in content
    with pytest.raises(CorruptData, match="aside"):
        declaration.decode(content.replace(b"beside", b"aside"), path="/x")


def test_names_of_tables() -> None:
    """Partitions share the table of their topic; a name that a table cannot have gets a part of its hash."""
    one = TopicName("public", "default", "orders-eu-partition-3")
    assert table_of(one) == TopicName("public", "default", "orders-eu")
    assert table_name(table_of(one)) == "orders_eu"
    names = [table_name(TopicName("t", "n", local)) for local in ("Orders", "orders.eu", "x_dead_letters", "中", "文")]
    assert [name.rpartition("_")[0] for name in names] == ["orders", "orders_eu", "x_dead_letters", "_", "_"]
    assert len(set(names)) == 5


async def test_a_declaration_from_its_creation_to_its_end() -> None:
    """A name is taken once; the same again is no mistake; who writes its tables keeps it."""
    tree = MemoryTree()
    async with tree.connect() as metadata:
        with pytest.raises(NotFound, match="no tables orders"):
            await store.named(metadata, "orders")
        await store.create(metadata, ORDERS)
        await store.create(metadata, ORDERS)
        with pytest.raises(Conflict, match="declared already"):
            await store.create(metadata, replace(ORDERS, to="lake.other"))
        await store.create(metadata, KEYED)
        assert await store.load(metadata) == {"customers": KEYED, "orders": ORDERS}
        async with tree.connect() as other:
            assert await store.hold(other, "orders", "one") is None
            assert await store.hold(other, "orders", "one") is None
            assert await store.hold(metadata, "orders", "two") == "one"
            with pytest.raises(Conflict, match="one writes the tables"):
                await store.drop(metadata, "orders")
        assert await store.hold(metadata, "orders", "two") is None, "the session of the first has ended"
        await store.put_states(metadata, "orders", States(writer="two", at_ms=1))
        await store.release(metadata, "orders", "one")
        assert await store.hold(metadata, "orders", "three") == "two"
        await store.release(metadata, "orders", "two")
        await store.release(metadata, "orders", "two")
        await store.drop(metadata, "orders")
        with pytest.raises(NotFound):
            await store.drop(metadata, "orders")
        with pytest.raises(NotFound):
            await store.hold(metadata, "orders", "two")
        assert list(await store.load(metadata)) == ["customers"]


@pytest.mark.parametrize(
    ("topics", "to", "refused"),
    [
        ("t/n/orders", "lake.shop", True),
        ("t/n/*", "lake.shop", True),
        ("t/n/others", "lake.shop", False),
        ("t/m/*", "lake.shop", False),
        ("t/n/*", "lake.other", False),
    ],
)
async def test_a_table_has_one_declaration(topics: str, to: str, refused: bool) -> None:
    """A second one for the same topic and place is refused, whichever was first."""
    one, two = (
        Declaration(name="one", topics="t/n/orders", to="lake.shop"),
        Declaration(name="two", topics=topics, to=to),
    )
    for first, second in ((one, two), (two, one)):
        async with MemoryTree().connect() as metadata:
            await store.create(metadata, first)
            if refused:
                with pytest.raises(Conflict, match=rf"tables {first.name} write {re.escape(first.topics)} to {to}"):
                    await store.create(metadata, second)
            else:
                await store.create(metadata, second)
            assert len(await store.load(metadata)) == (1 if refused else 2)


def test_a_folder_is_one_however_it_is_written() -> None:
    """With a scheme and a slash at its end, or without."""
    one = Declaration(name="one", topics="t/n/*", to="/lake/shop", format=TableFormat.DELTA)
    assert one.shares_tables(replace(one, name="two", to="file:///lake/shop/"))
    assert not one.shares_tables(replace(one, name="two", to="/lake/shops"))


async def test_a_damaged_declaration_hides_no_other() -> None:
    """It is told in its place."""
    async with MemoryTree().connect() as metadata:
        await store.create(metadata, ORDERS)
        await metadata.create(paths.table("broken"), b"{}")
        found = await store.load(metadata)
    assert found["orders"] == ORDERS
    assert isinstance(found["broken"], CorruptData)


async def test_states_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many tables those that fail, and those that lag most, are kept."""
    monkeypatch.setattr(store, "TABLES_MAX", 2)
    tables = [
        TableState(table="a", topic="a", lag_s=1.0),
        TableState(table="b", topic="b", error="no space"),
        TableState(table="c", topic="c", lag_s=3.0),
    ]
    async with MemoryTree().connect() as metadata:
        await store.create(metadata, ORDERS)
        assert await store.states(metadata, "orders") == States()
        for at_ms in (1, 2):
            await store.put_states(metadata, "orders", States(writer="w", at_ms=at_ms, tables=tables))
        found = await store.states(metadata, "orders")
    assert (found.writer, found.at_ms) == ("w", 2)
    assert found.tables == [tables[1], tables[2]]


def test_states_of_an_earlier_release() -> None:
    """They lack what came later; a number that is none is damage."""
    one = {
        "table": "a",
        "topic": "a",
        "rows": 1,
        "apart": 0,
        "lag_s": 1,
        "lag_entries": 2,
        "committed_ms": 3,
        "error": "",
    }
    said = {"version": 1, "writer": "w", "at_ms": 2}
    (found,) = store.decode_states(json.dumps({**said, "tables": [one]}).encode(), path="/x").tables
    assert found == TableState(table="a", topic="a", rows=1, lag_s=1, lag_entries=2, committed_ms=3)
    with pytest.raises(CorruptData, match="no whole number"):
        store.decode_states(json.dumps({**said, "tables": [{**one, "history_entries": "x"}]}).encode(), path="/x")


async def test_positions_that_a_node_has_no_room_for_are_not_kept() -> None:
    """The states come without them then: names of topics may be long, and a node holds a megabyte."""
    positions = {f"{'o' * 490}-partition-{number}": f"{number}:1" for number in range(1000)}
    tables = [TableState(table=name, topic=name, lag_s=1.0, positions=positions) for name in ("a", "b")]
    async with MemoryTree().connect() as metadata:
        await store.create(metadata, ORDERS)
        for kept in (tables[:1], tables):
            await store.put_states(metadata, "orders", States(writer="w", tables=kept))
            found = (await store.states(metadata, "orders")).tables
            assert [one.positions for one in found] == ([positions] if kept is not tables else [{}, {}])
