"""offloadctl tables: declarations, and what the application says of them."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.cli import show
from offloaderd.cli.offloadctl import tables as command
from offloaderd.cli.offloadctl.__main__ import cli
from offloaderd.metadata import paths
from offloaderd.tables import store
from offloaderd.tables.store import States, TableState
from offloaderd.testing.memory.metadata import MemoryTree
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


LONG_AGO_MS, AHEAD_MS = 1_000_000, 2**42
"""1970, and the year 2109: the command goes by the machine's clock."""


class Scene:
    """Metadata in memory, and the command over it."""

    def __init__(self, config: Path) -> None:
        self.tree = MemoryTree()
        self.config = config
        config.write_text('[daemon]\ncluster = "test"\n[objects]\nbucket = "tests"\n')

    def run(self, *words: str) -> Result:
        """Run the command."""
        arguments = ["tables", *words, "--config", str(self.config)]
        result = CliRunner().invoke(cli, arguments, prog_name="offloadctl")
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        return result

    def say(self, name: str, states: States) -> None:
        """Write what an application says."""

        async def put() -> None:
            async with self.tree.connect() as metadata:
                await store.put_states(metadata, name, states)

        virtually(put())

    @contextmanager
    def written(self, name: str, by: str) -> Iterator[None]:
        """Have an application write the tables meanwhile."""
        metadata = self.tree.connect()

        async def begin() -> None:
            await metadata.__aenter__()
            assert await store.hold(metadata, name, by) is None

        virtually(begin())
        yield
        virtually(metadata.__aexit__(None, None, None))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """No table is declared yet."""
    found = Scene(tmp_path / "offloaderd.toml")
    monkeypatch.setattr(command, "metadata_store", lambda _: found.tree.connect())
    return found


def test_tables_from_the_first_to_the_last(scene: Scene) -> None:
    """Declared, listed, shown with their lag and why one fails, dropped; a dry run changes nothing."""
    assert scene.run("create", "orders", "--to", "lake.shop", "--dry-run").stdout.startswith("would declare orders")
    assert scene.run("list", "-o", "json").stdout.strip() in {'{"declarations": []}', '{\n  "declarations": []\n}'}
    made = scene.run("create", "acme/eu/*", "--to", "/lake", "--format", "delta", "--interval", "5min")
    assert (made.exit_code, "offloaderd spark tables run" in made.stdout) == (0, True)
    listed = json.loads(scene.run("list", "-o", "json").stdout)["declarations"]
    assert [(one["name"], one["interval_s"], one["to"], one["tables"]) for one in listed] == [
        ("acme.eu", 300.0, "/lake", 0)
    ]
    states = [
        TableState(table="a", topic="a", rows=5, lag_s=3.0, lag_entries=7, committed_ms=1000, history_entries=40),
        TableState(table="b", topic="b", error="no space"),
        TableState(table="c", topic="c", lag_entries=1, waits="nothing until history is offloaded"),
    ]
    scene.say("acme.eu", States(writer="tables-1", at_ms=AHEAD_MS, tables=states))
    with scene.written("acme.eu", "tables-1"):
        listed_again = scene.run("list")
    assert listed_again.exit_code == 1
    assert listed_again.stdout.splitlines()[1].split() == [
        *("acme.eu", "acme/eu/*", "/lake", "delta", "append", "day", "-", "3", "1", "3", "s", "40", "tables-1")
    ]
    shown = scene.run("show", "acme.eu")
    assert shown.exit_code == 1
    assert "no space" in shown.stdout
    assert ["s", "7", "40"] in [line.split()[4:7] for line in shown.stdout.splitlines()]
    assert "waits: nothing until history is offloaded" in shown.stdout
    assert json.loads(scene.run("show", "acme.eu", "-o", "json").stdout)["tables"][1]["lag_entries"] == 7
    assert "nothing was done" in scene.run("drop", "acme.eu").stdout
    assert scene.run("drop", "acme.eu", "--yes").exit_code == 0
    assert scene.run("show", "acme.eu").exit_code == 4


def test_tables_of_a_dead_application(scene: Scene) -> None:
    """Nobody writes them, since when is told; what a table lacked gets older, one that lacked nothing has no lag."""
    assert scene.run("create", "orders", "--to", "/lake").exit_code == 0
    assert "nobody yet" in scene.run("list").stdout
    assert "nobody yet: offloaderd spark tables run" in scene.run("show", "orders").stdout
    behind = TableState(table="orders", topic="orders", lag_s=3.0, lag_entries=7)
    upto_date = TableState(table="returns", topic="returns")
    scene.say("orders", States(writer="tables-1", at_ms=LONG_AGO_MS, tables=[behind, upto_date]))
    since = show.moment(LONG_AGO_MS)
    with scene.written("orders", "tables-2"):
        assert f"tables-2, states of {since}, when tables-1 was heard of last" in scene.run("show", "orders").stdout
        assert json.loads(scene.run("show", "orders", "-o", "json").stdout)["writer"] == "tables-2"
    assert f"nobody since {since}, when tables-1 was heard of last" in scene.run("show", "orders").stdout
    assert f" nobody since {since}\n" in scene.run("list").stdout
    document = json.loads(scene.run("show", "orders", "-o", "json").stdout)
    assert (document["writer"], document["last_writer"], document["at_ms"]) == ("", "tables-1", LONG_AGO_MS)
    grown, none = (one["lag_s"] for one in document["tables"])
    assert (grown > 1_000_000_000, none) == (True, 0)
    (listed,) = json.loads(scene.run("list", "-o", "json").stdout)["declarations"]
    assert (listed["writer"], listed["last_writer"], listed["lag_s"] >= grown) == ("", "tables-1", True)


def test_the_layout_of_tables(scene: Scene) -> None:
    """It is kept, and told by each command; without options it follows from the mode."""
    for name, words in (
        ("plain", ()),
        ("keyed", ("--mode", "upsert", "--sort", "_key")),
        ("hourly", ("--partition", "hour", "--sort", "region, id")),
        ("buckets", ("--partition", "bucket:16")),
        ("beside", ("--history", "beside")),
    ):
        assert scene.run("create", name, "--to", "/lake", *words).exit_code == 0
    listed = json.loads(scene.run("list", "-o", "json").stdout)["declarations"]
    assert {one["name"]: (one["partition"], one["sort"]) for one in listed} == {
        "plain": ("day", []),
        "keyed": ("none", ["_key"]),
        "hourly": ("hour", ["region", "id"]),
        "buckets": ("bucket:16", []),
        "beside": ("day", []),
    }
    assert [one["name"] for one in listed if one["history"] == "beside"] == ["beside"]
    assert ["history", "beside"] in [line.split() for line in scene.run("show", "beside").stdout.splitlines()]
    assert ["hour", "region,id"] in [line.split()[5:7] for line in scene.run("list").stdout.splitlines()]
    shown = [line.split() for line in scene.run("show", "hourly").stdout.splitlines()]
    assert ["partition", "hour"] in shown
    assert ["sorted", "by", "region,", "id"] in shown
    assert ["partition", "bucket:16"] in [line.split() for line in scene.run("show", "buckets").stdout.splitlines()]
    document = json.loads(scene.run("show", "keyed", "-o", "json").stdout)["declaration"]
    assert (document["partition"], document["sort"]) == ("none", ["_key"])


def test_columns_are_looked_up_in_a_schema_that_is_given(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Spark is installed; elsewhere the state of the table tells."""
    file = scene.config.with_name("orders.avsc")
    lines = {"type": "array", "items": "int"}
    fields = [{"name": "id", "type": "int"}, {"name": "lines", "type": lines}, {"name": "_hour", "type": "int"}]
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))

    def said(*words: str) -> str:
        result = scene.run("create", "orders", "--to", "/lake", "--schema", str(file), "--dry-run", *words)
        assert bool(result.stderr) == bool(result.exit_code)
        return result.stderr

    assert said("--sort", "id,_time") == ""
    assert "sort amount: no such column" in said("--sort", "id,amount")
    assert "there are id, lines, _hour, _topic" in said("--sort", "id,amount")
    assert "sort lines, _properties: not by a record, array or map" in said("--sort", "lines,_properties")
    assert "sort _deleted: no such column" in said("--mode", "upsert", "--sort", "_deleted")
    assert "key amount: no such column" in said("--mode", "upsert", "--key", "amount")
    assert "fields '_hour' of the schema" in said("--partition", "hour")
    monkeypatch.setitem(sys.modules, "offloaderd.spark.tables.rows", None)
    assert said("--sort", "amount") == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "orders", "--to", "lake"), "write CATALOGUE.NAMESPACE"),
        (("create", "public/*", "--to", "/lake"), "write TENANT/NAMESPACE/TOPIC"),
        (("create", "orders", "--to", "/lake", "--key", "id"), "only with mode upsert"),
        (("create", "orders", "--to", "/lake", "--interval", "1ms"), "interval 0.001 s"),
        (("create", "orders", "--to", "s3://lake/x"), "tables in a bucket need a catalogue"),
        (("create", "orders", "--to", "/my lake"), "tables in a bucket need a catalogue"),
        (("create", "orders-partition-0", "--to", "/lake"), "all partitions are in one table"),
        (("create", "orders", "--to", "/lake", "--mode", "upsert", "--key", "id,,id"), "each once"),
        (("create", "orders", "--to", "/lake", "--partition", "week"), "write hour, day, month, none or bucket:N"),
        (("create", "orders", "--to", "/lake", "--partition", "bucket:2048"), "bucket:2048: 2 to 1024 buckets"),
        (
            ("create", "orders", "--to", "/lake", "--format", "delta", "--partition", "bucket:4"),
            "partition bucket:4: only in Iceberg",
        ),
        (("create", "orders", "--to", "/lake", "--mode", "upsert", "--partition", "day"), "with upsert only in Delta"),
        (("show", "orders"), "no tables orders are declared"),
        (("drop", "orders", "--yes"), "no tables orders are declared"),
    ],
)
def test_mistakes_are_told(scene: Scene, words: tuple[str, ...], said: str) -> None:
    """In one message, without a trace."""
    result = scene.run(*words)
    assert result.exit_code != 0
    assert said in result.stderr


def test_a_damaged_declaration_is_listed(scene: Scene) -> None:
    """With what is wrong, and the exit code says so."""

    async def spoil() -> None:
        async with scene.tree.connect() as metadata:
            await metadata.create(paths.table("broken"), b"{}")

    virtually(spoil())
    listed = scene.run("list")
    assert listed.exit_code == 1
    assert "corrupt data in /tables/broken" in listed.stdout
    assert "corrupt data in /tables/broken" in scene.run("drop", "broken").stdout
    assert scene.run("drop", "broken", "--yes").exit_code == 0
    assert scene.run("list").exit_code == 0


def test_a_damaged_state_hides_no_declaration(scene: Scene) -> None:
    """It is listed with what is wrong."""
    assert scene.run("create", "orders", "--to", "/lake").exit_code == 0

    async def spoil() -> None:
        async with scene.tree.connect() as metadata:
            await metadata.create(paths.table_state("orders"), b"{}")

    virtually(spoil())
    listed = scene.run("list")
    assert (listed.exit_code, "corrupt data" in listed.stdout, "/lake" in listed.stdout) == (1, True, True)


def test_a_user_without_a_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", unknown)
    made = scene.run("create", "orders", "--to", "/lake", "-o", "json")
    assert json.loads(made.stdout)["declaration"]["created_by"].isdecimal()
