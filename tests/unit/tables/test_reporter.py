"""How far declared tables are behind, as one daemon exports it, also when their application is dead."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from prometheus_client import CollectorRegistry

from offloaderd.core.errors import Denied
from offloaderd.metadata import paths
from offloaderd.tables import reporter as module
from offloaderd.tables import store
from offloaderd.tables.declaration import Declaration
from offloaderd.tables.reporter import LOOK_S, Summary, TablesReporter
from offloaderd.tables.store import States, TableState
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.virtual import LoopClock

ORDERS = Declaration(name="orders", topics="public/default/orders", to="/lake", interval_s=30.0)
BEHIND = TableState(table="orders", topic="orders", rows=9, apart=3, lag_s=10.0, lag_entries=7, error="no space")
UP_TO_DATE = TableState(table="returns", topic="returns")


@dataclass
class Scene:
    """A declaration, the application that writes it, and a daemon's reporter."""

    clock: LoopClock = field(default_factory=LoopClock)
    tree: MemoryTree = field(default_factory=MemoryTree)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.metadata = self.tree.connect()
        self.application: MemoryMetadata = self.tree.connect()
        self.reporter = TablesReporter(self.metadata, clock=self.clock, registry=self.registry)

    async def say(self, *tables: TableState) -> None:
        """Hold the declaration, and say something of its tables."""
        await store.hold(self.application, "orders", "tables-1")
        said = States(writer="tables-1", at_ms=self.clock.wall_ms(), tables=tables)
        await store.put_states(self.application, "orders", said)

    def series(self) -> dict[str, float]:
        """Return all values, without the common parts of their names."""
        return {
            ":".join((one.name.removeprefix("offloaderd_declar"), *one.labels.values())): one.value
            for family in self.registry.collect()
            for one in family.samples
        }


@pytest.fixture
async def scene() -> Scene:
    """Tables are declared, and not written yet."""
    found = Scene()
    await store.create(found.metadata, replace(ORDERS, created_ms=found.clock.wall_ms()))
    return found


async def test_a_dead_application_is_seen(scene: Scene) -> None:
    """What a table lacked gets older, and nobody writes it, also before an application's first word."""
    await scene.clock.sleep(100)
    await scene.reporter.look()
    unwritten, interval = "ation_unwritten_seconds:orders", "ation_interval_seconds:orders"
    assert scene.series() == {unwritten: pytest.approx(100, abs=0.01), interval: 30}
    await scene.say(BEHIND, UP_TO_DATE)
    await scene.clock.sleep(50)
    await scene.reporter.look()
    lag, entries = "ed_table_lag_seconds:orders:orders/", "ed_table_lag_entries:orders:orders/"
    failing, apart = "ed_table_failing:orders:orders/", "ed_table_rows_apart:orders:orders/"
    expected = {f"{lag}orders": pytest.approx(60, abs=0.01), f"{entries}orders": 7, f"{apart}orders": 3}
    expected |= {f"{lag}returns": 0, f"{entries}returns": 0, f"{apart}returns": 0}
    expected |= {f"{failing}orders": 1, f"{failing}returns": 0}
    expected |= {unwritten: pytest.approx(50, abs=0.01), interval: 30}
    assert scene.series() == expected
    scene.application.close()
    await scene.clock.sleep(5000)
    await scene.reporter.look()
    grown = {f"{lag}orders": pytest.approx(5060, abs=0.01), unwritten: pytest.approx(5050, abs=0.01)}
    assert scene.series() == expected | grown


async def test_a_topic_without_a_table_of_its_own_hides_no_lag(scene: Scene) -> None:
    """Another topic has the table by that name: it fails, and lacks what the other one lacks."""
    other = TableState(table="orders", topic="other", error="another topic has the table orders")
    await scene.say(other, replace(BEHIND, error=""), other)
    await scene.reporter.look()
    series = scene.series()
    assert series["ed_table_lag_entries:orders:orders/orders"] == 7
    assert series["ed_table_failing:orders:orders/orders"] == 1


async def test_an_application_that_has_begun_nothing_holds_its_declaration(scene: Scene) -> None:
    """Its topics may come later; one that hangs in a step is as if nobody wrote."""
    await scene.clock.sleep(100)
    await scene.say()
    await scene.clock.sleep(100)
    await scene.reporter.look()
    assert scene.series()["ation_unwritten_seconds:orders"] == 0
    await scene.say(UP_TO_DATE)
    await scene.clock.sleep(100)
    await scene.reporter.look()
    assert scene.series()["ation_unwritten_seconds:orders"] == pytest.approx(100, abs=0.01)


async def test_one_daemon_shows_them(scene: Scene) -> None:
    """The others have no series, nor has one that leads no more, which would show for ever what it has seen last."""
    leads = False
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.reporter.keep(lambda: leads))
        await scene.clock.sleep(2 * LOOK_S)
        assert not scene.series()
        leads = True
        await scene.clock.sleep(2 * LOOK_S)
        assert len(scene.series()) == 2
        await store.drop(scene.metadata, "orders")
        await scene.clock.sleep(2 * LOOK_S)
        assert not scene.series(), "of what is not declared any more"
        await store.create(scene.metadata, ORDERS)
        await scene.clock.sleep(2 * LOOK_S)
        assert scene.series()
        leads = False
        await scene.clock.sleep(2 * LOOK_S)
        assert not scene.series()
        running.cancel()


@pytest.mark.parametrize(
    "damage",
    [
        b"{}",
        *(
            b'{"version": 1, "writer": "x", "at_ms": %s, "tables": []}' % one
            for one in (b"null", b"1.5", b"-1", b"9223372036854775808")
        ),
        b'{"version": 1, "writer": "x", "at_ms": 1, "tables": [{"table": "a", "topic": "a", "rows": 1, "apart": 0, '
        b'"lag_s": NaN, "lag_entries": 1, "committed_ms": 3, "error": ""}]}',
    ],
)
async def test_what_cannot_be_read_hides_nothing(scene: Scene, damage: bytes) -> None:
    """A damaged declaration is left to `tables list`; with a damaged state nobody has said anything."""
    await scene.metadata.create(paths.table("broken"), b"{}")
    await scene.metadata.create(paths.table_state("orders"), damage)
    await scene.reporter.look()
    assert set(scene.series()) == {"ation_unwritten_seconds:orders", "ation_interval_seconds:orders"}
    (broken, orders), _ = await scene.reporter.summaries()
    assert broken.failure
    assert orders.failure


async def test_what_a_status_says(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest lags by now, who writes, and since when nobody does; what cannot be read says why."""
    clock = scene.clock
    declared_ms = (await store.named(scene.metadata, "orders")).created_ms
    assert await scene.reporter.summaries() == ([Summary(name="orders", topics=ORDERS.topics, said_ms=declared_ms)], 0)
    await clock.sleep(100)
    await scene.say(BEHIND, UP_TO_DATE, replace(UP_TO_DATE, lag_s=5.0, lag_entries=8))
    said_ms = (await store.states(scene.metadata, "orders")).at_ms
    await clock.sleep(50)
    ([found], _) = await scene.reporter.summaries()
    assert (found.tables, found.failing, found.lag_entries, found.writer) == (3, 1, 8, "tables-1")
    assert found.lag_seconds == pytest.approx(60, abs=0.01)
    assert found.said_ms == said_ms
    scene.application.close()
    await scene.metadata.create(paths.table("broken"), b"{}")
    (broken, found), _ = await scene.reporter.summaries()
    assert (found.writer, found.said_ms) == ("", said_ms)
    assert "broken" in broken.failure
    damaged = await scene.metadata.get(paths.table_state("orders"))
    await scene.metadata.replace(paths.table_state("orders"), b"{}", damaged.version)
    _, found = (await scene.reporter.summaries())[0]
    assert (found.topics, found.tables) == (ORDERS.topics, 0)
    assert found.failure
    monkeypatch.setattr(module, "ASKED_MAX", 1)
    shown, more = await scene.reporter.summaries()
    assert ([one.name for one in shown], more) == (["broken"], 1)


async def test_series_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that lag most are shown."""
    monkeypatch.setattr(module, "SHOWN_MAX", 1)
    await store.create(scene.metadata, replace(ORDERS, name="returns", to="/other"))
    await scene.say(UP_TO_DATE, BEHIND)
    await scene.reporter.look()
    shown = {one.rpartition("seconds:")[2] for one in scene.series() if "seconds" in one}
    assert shown == {"orders:orders/orders", "orders"}


async def test_a_look_that_is_refused_shows_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen before the right was taken away would stand for ever."""

    async def refused(_: object) -> None:
        raise Denied("no right to read /tables")

    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.reporter.keep(lambda: True))
        await scene.clock.sleep(2 * LOOK_S)
        assert scene.series()
        monkeypatch.setattr(store, "load", refused)
        await scene.clock.sleep(2 * LOOK_S)
        assert not scene.series()
        running.cancel()


async def test_metadata_that_does_not_answer_ends_nothing(scene: Scene) -> None:
    """It is told, and looked at again."""
    async with asyncio.TaskGroup() as group:
        scene.metadata.close()
        running = group.create_task(scene.reporter.keep(lambda: True))
        await scene.clock.sleep(3 * LOOK_S)
        assert not running.done()
        running.cancel()
