"""The application over writers that only count: what is stepped when, what one failure costs, who holds what."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import pytest
from prometheus_client import CollectorRegistry

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict, Denied, InvalidInput, NotFound, OffloaderError, Transient
from offloaderd.core.metrics.tables import OUTCOMES
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.committed import LedgerSlice
from offloaderd.spark.export.commit import Commit
from offloaderd.spark.scan.snapshot import Stores
from offloaderd.spark.tables import application as tables
from offloaderd.spark.tables.application import Application, Opened
from offloaderd.spark.tables.parts import Parts
from offloaderd.spark.tables.writer import Lag, TableWriter, Written
from offloaderd.tables import store as stored
from offloaderd.tables.declaration import Declaration
from offloaderd.testing.memory.metadata import MemoryTree
from tests.unit.metadata.segments import made
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offloaderd.capture.cluster import PulsarMetadata
    from offloaderd.objects.port import SegmentStore
    from offloaderd.tables.store import TableState

P = ParamSpec("P")
T = TypeVar("T")

REAL_TIME = "steps run in threads"

ORDERS = Declaration(name="orders", topics="public/default/orders", to="/lake")
ALL = replace(ORDERS, name="all", topics="public/default/*")
OPTIONS = {"objects.bucket": "tests"}
NOTHING = Written(
    rows=0,
    apart=0,
    moved=False,
    commit=Commit(number=0, source={}, positions={}),
    more=False,
)


class NoSpark:
    """As much of a session as the application touches."""

    sparkContext = property(lambda self: self)  # noqa: N815 - Spark's name

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def setLocalProperty(self, *_: str) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        """End the steps that run."""
        self.scene.cancelled.set()


class Scene:
    """Metadata in memory, and writers that do what the test says."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.steps: list[str] = []
        self.step: Callable[[str], Written] = lambda _: NOTHING
        self.registry = CollectorRegistry()
        self.said: list[tuple[str, TableState]] = []
        self.lags: dict[str, Lag] = {}
        self.parallel = 4
        self.cancelled = threading.Event()
        self.pulsar: PulsarMetadata | None = None

    def declare(self, *declared: Declaration, topics: tuple[str, ...] = ("orders",)) -> None:
        """Declare tables; have topics."""

        async def create() -> None:
            async with self.tree.connect() as metadata:
                for one in declared:
                    await stored.create(metadata, one)
                for name in topics:
                    await metadata.create(paths.policy(TopicName("public", "default", name)), b"")

        asyncio.run(create())

    @asynccontextmanager
    async def opened(self, *_: object) -> AsyncIterator[Opened]:
        """Open the stores."""
        async with self.tree.connect() as metadata:
            yield Opened(Stores(cast("SegmentStore", None), metadata), self.pulsar)

    def application(self, *names: str) -> Application:
        """Return an application, with metrics of its own."""
        self.registry = CollectorRegistry()
        return Application(
            cast("SparkSession", NoSpark(self)),
            OPTIONS,
            clock=SystemClock(),
            registry=self.registry,
            names=frozenset(names),
            parallel=self.parallel,
            tell=lambda name, state: self.said.append((name, state)),
        )

    def states(self, name: str) -> stored.States:
        """Return what is stored of a declaration."""

        async def read() -> stored.States:
            async with self.tree.connect() as metadata:
                return await stored.states(metadata, name)

        return asyncio.run(read())


class AtOnce(ThreadPoolExecutor):
    """Runs what is submitted before it returns: no thread reads the clock meanwhile."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(1)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it."""
        ended = super().submit(fn, *args, **kwargs)
        ended.exception()
        return ended


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Nothing is declared."""
    found = Scene()

    class Writer:
        def __init__(self, _spark: object, _planner: object, _declared: object, topic: TopicName, *_: object) -> None:
            self.topic = topic

        @property
        def lag(self) -> Lag:
            return found.lags.get(self.topic.local, Lag())

        def step(self) -> Written:
            found.steps.append(self.topic.local)
            return found.step(self.topic.local)

    monkeypatch.setattr(tables, "open_all", found.opened)
    monkeypatch.setattr(tables, "TableWriter", Writer)
    return found


def metric(scene: Scene, name: str, **labels: str) -> float | None:
    """Return a sample."""
    return scene.registry.get_sample_value(f"offloaderd_{name}", labels)


def test_each_table_until_it_has_all(scene: Scene) -> None:
    """A table with more is stepped at once again; partitions are one table, Pulsar's own topics none."""
    scene.declare(
        ALL, topics=("orders", "eu-partition-0", "eu-partition-1", "__change_events", "t-__transaction_pending_ack")
    )
    left = {"orders": 2, "eu": 0}

    def step(name: str) -> Written:
        left[name] -= 1
        commit = replace(NOTHING.commit, positions={name: "1:2"}, apart=1)
        scene.lags[name] = Lag(max(left[name], 0), 1000 if left[name] > 0 else None, history=10 * max(left[name], 0))
        return replace(NOTHING, rows=3, apart=1, moved=True, more=left[name] > 0, commit=commit)

    scene.step = step
    assert scene.application().run(once=True)
    assert sorted(scene.steps) == ["eu", "orders", "orders"]
    states = {one.table: one for one in scene.states("all").tables}
    assert (states["orders"].rows, states["eu"].rows, states["eu"].lag_entries) == (6, 3, 0)
    (first,) = [one for _, one in scene.said if one.lag_entries]
    assert first.lag_s > 1_000_000
    assert first.history_entries == 10
    assert metric(scene, "table_rows_total", table="all/orders") == 6
    assert metric(scene, "table_rows_apart_total", table="all/eu") == 1
    assert metric(scene, "table_steps_total", table="all/orders", outcome="committed") == 2


def test_a_table_that_fails_holds_up_no_other(scene: Scene) -> None:
    """It is told, also in the state, a fault of ours too; the others are written, and the run says that one failed."""
    scene.declare(ALL, topics=("a", "b", "c"))

    def step(name: str) -> Written:
        if name == "a":
            raise OffloaderError("no space")
        if name == "b":
            raise KeyError("x")
        return NOTHING

    scene.step = step
    assert not scene.application().run(once=True)
    assert sorted(scene.steps) == ["a", "b", "c"]
    errors = {one.table: one.error for one in scene.states("all").tables}
    assert errors == {"a": "no space", "b": "KeyError 'x'", "c": ""}
    assert metric(scene, "table_steps_total", table="all/a", outcome="failed") == 1


def test_series_of_a_table_are_there_before_its_first_step(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the first failure is an increase."""
    passed = itertools.count()
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: 10.0 * next(passed))
    monkeypatch.setattr(tables, "POLL_S", 0.0)
    monkeypatch.setattr(tables, "ThreadPoolExecutor", AtOnce)
    scene.declare(ORDERS)

    def seen() -> list[float | None]:
        outcomes = [metric(scene, "table_steps_total", table="orders/orders", outcome=one) for one in OUTCOMES]
        return [*outcomes, metric(scene, "table_rows_apart_total", table="orders/orders")]

    def step(_: str) -> Written:
        found.append(seen())
        if len(found) == 1:
            raise OffloaderError("no space")
        application.stop()
        return NOTHING

    found: list[list[float | None]] = []
    scene.step = step
    application = scene.application()
    assert application.run()
    assert [*found, seen()] == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]]


def test_two_topics_of_one_name(scene: Scene) -> None:
    """The one whose name it is has the table, and the other is told."""
    scene.declare(ALL, topics=("my-orders", "my_orders"))
    assert not scene.application().run(once=True)
    assert scene.steps == ["my_orders"]
    assert [(one.topic, bool(one.error)) for one in scene.states("all").tables] == [
        ("persistent://public/default/my-orders", True),
        ("persistent://public/default/my_orders", False),
    ]


def test_another_application_is_left_alone(scene: Scene) -> None:
    """What it holds is not written, and a run that has to end with all tables up to date is refused, by name or not."""
    scene.declare(ORDERS, replace(ORDERS, name="other", to="/lake/other"))

    async def held() -> None:
        async with scene.tree.connect() as metadata:
            assert await stored.hold(metadata, "other", "another") is None
            for names in (("other",), ()):
                with pytest.raises(Conflict, match=r"another application writes tables other \(another\)"):
                    await asyncio.to_thread(scene.application(*names).run, once=True)
            with pytest.raises(NotFound, match="no tables missing are declared"):
                await asyncio.to_thread(scene.application("other", "missing").run)
            assert not scene.steps
            application = scene.application()

            def step(_: str) -> Written:
                application.stop()
                return NOTHING

            scene.step = step
            assert await asyncio.to_thread(application.run)

    asyncio.run(held())
    assert scene.steps == ["orders"]
    assert scene.application("other", "orders").run(once=True)
    assert scene.steps == ["orders", "orders", "orders"]


def test_it_ends_when_told(scene: Scene) -> None:
    """A stop lets the steps that run end, begins no other, and gives the declarations back."""
    scene.declare(ORDERS)
    application = scene.application()

    def step(_: str) -> Written:
        application.stop()
        return replace(NOTHING, more=True)

    scene.step = step
    assert application.run()
    assert scene.steps == ["orders"]

    async def drop() -> None:
        async with scene.tree.connect() as metadata:
            await stored.drop(metadata, "orders")

    asyncio.run(drop())


def test_many_tables_that_take_long_are_stepped_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `once` a table that has all is not stepped again, although its interval passes while others are stepped."""
    counter = itertools.count()
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: 10.0 * next(counter))
    scene.declare(replace(ALL, interval_s=1.0), topics=tuple(f"t{number}" for number in range(12)))
    assert scene.application().run(once=True)
    assert len(scene.steps) == 12


def test_the_interval_counts_from_the_beginning_of_a_step(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is committed every interval, however long its steps take."""
    passed_s, begun_s = itertools.count(step=0.1), []
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: next(passed_s))
    monkeypatch.setattr(tables, "POLL_S", 0.0)
    monkeypatch.setattr(tables, "ThreadPoolExecutor", AtOnce)
    scene.declare(replace(ORDERS, interval_s=30.0))

    def step(_: str) -> Written:
        begun_s.append(next(passed_s))
        while next(passed_s) < begun_s[-1] + 25:
            pass
        if len(begun_s) > 1:
            application.stop()
        return NOTHING

    scene.step = step
    application = scene.application()
    assert application.run()
    assert 30 <= begun_s[1] - begun_s[0] < 55


@pytest.mark.parametrize("interval_s", [60.0, 31 * 86_400.0])
def test_a_table_that_fails_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch, interval_s: float) -> None:
    """Within ten minutes, also one that is written once a month; the pauses grow up to that."""
    now_s, begun_s = itertools.count(step=1.0), []
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: next(now_s))
    monkeypatch.setattr(tables, "POLL_S", 0.0)
    monkeypatch.setattr(tables, "ThreadPoolExecutor", AtOnce)
    scene.declare(replace(ORDERS, interval_s=interval_s))

    def step(_: str) -> Written:
        begun_s.append(next(now_s))
        if len(begun_s) > 6:
            application.stop()
        raise OffloaderError("no space")

    scene.step = step
    application = scene.application()
    assert not application.run()
    pauses = [after - before for before, after in itertools.pairwise(begun_s)]
    first_s = min(interval_s, tables.PAUSE_S_MAX)
    assert pauses[0] == pytest.approx(first_s, abs=15)
    assert pauses[-1] == pytest.approx(tables.PAUSE_S_MAX, abs=15)
    assert pauses[1] == pytest.approx(min(2 * first_s, tables.PAUSE_S_MAX), abs=15)


def test_a_second_signal_ends_the_steps_that_run(scene: Scene) -> None:
    """Steps that wait for a thread are never begun; the declaration is given back."""
    scene.declare(ALL, topics=tuple(f"t{number}" for number in range(12)))

    def step(_: str) -> Written:
        application.stop()
        assert not scene.cancelled.is_set()
        application.stop()
        scene.cancelled.wait()
        raise OffloaderError("cancelled")

    scene.step = step
    scene.parallel = 1
    application = scene.application()
    assert not application.run()
    assert len(scene.steps) == 1


def test_a_topic_that_is_gone_has_no_table_any_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error goes with it, and its series."""
    monkeypatch.setattr(tables, "LOOK_S", 0.0)
    scene.declare(replace(ALL, interval_s=1.0), topics=("a", "b"))
    application = scene.application()

    def step(name: str) -> Written:
        if name == "a":
            asyncio.run(deleted())
            raise OffloaderError("it is gone")
        if scene.steps.count("b") > 1:
            application.stop()
        return NOTHING

    async def deleted() -> None:
        async with scene.tree.connect() as metadata:
            if "a" in await metadata.children("/topics/public/default/persistent"):
                await metadata.delete(paths.policy(TopicName("public", "default", "a")))
                await metadata.delete(paths.topic(TopicName("public", "default", "a")))

    scene.step = step
    assert application.run()
    assert [one.table for one in scene.states("all").tables] == ["b"]
    assert metric(scene, "table_lag_seconds", table="all/a") is None


def test_an_answer_that_is_an_error_ends_no_session(scene: Scene) -> None:
    """All declarations are held by it; a store that does not answer ends it."""
    planner = tables.SharedPlanner(OPTIONS, SystemClock())

    async def held(at: Opened) -> str | None:
        assert at.stores.metadata is not None
        return await stored.hold(at.stores.metadata, "orders", "one")

    def failing(error: OffloaderError) -> Callable[[Opened], Awaitable[None]]:
        async def work(_: Opened) -> None:
            raise error

        return work

    async def writer() -> str | None:
        async with scene.tree.connect() as metadata:
            return await stored.hold(metadata, "orders", "two")

    scene.declare(ORDERS)
    assert planner.run(held) is None
    with pytest.raises(NotFound):
        planner.run(failing(NotFound("it is gone")))
    assert asyncio.run(writer()) == "one"
    with pytest.raises(Transient):
        planner.run(failing(Transient("no answer")))
    assert asyncio.run(writer()) is None
    planner.close()


def test_tables_with_an_order_are_written_by_a_session_of_their_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for all of them, in which rows are written in their order; the others keep the first."""
    sessions: dict[str, SparkSession] = {}

    class Kept:
        def __init__(self, spark: SparkSession, _: object, declared: Declaration, *__: object) -> None:
            self.topic, self.lag = TOPIC, Lag()
            sessions[declared.name] = spark

        def step(self) -> Written:
            return NOTHING

    def ordered_session(spark: SparkSession, *, ordered: bool) -> SparkSession:
        assert ordered
        return cast("SparkSession", NoSpark(scene))

    monkeypatch.setattr(tables, "TableWriter", Kept)
    monkeypatch.setattr(tables, "own_session", ordered_session)
    in_order = replace(ORDERS, to="/2", sort=("_time",))
    scene.declare(replace(ORDERS, name="plain", to="/1"), in_order, replace(in_order, name="first", to="/3"))
    application = scene.application()
    assert application.run(once=True)
    assert sessions["first"] is sessions["orders"]
    assert sessions["plain"] is application._spark is not sessions["first"]


@pytest.mark.parametrize(
    "error", [Transient("no bookie answered"), NotFound("no bookie has it"), Denied("no right to read it")]
)
def test_a_schema_that_cannot_be_read_stops_the_table(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OffloaderError
) -> None:
    """The error names the topic, and no table is made: its one column would have the bytes of all values."""

    class Registry:
        async def schema_versions(self, _: TopicName) -> None:
            raise error

    scene.pulsar = cast("PulsarMetadata", Registry())
    monkeypatch.setattr(tables.SharedPlanner, "snapshots", lambda *_: [snapshot([made(0)])])
    planner, spark = tables.SharedPlanner(OPTIONS, SystemClock()), cast("SparkSession", NoSpark(scene))
    declared = replace(ORDERS, to=str(tmp_path / "lake"))
    with closing(planner), pytest.raises(type(error), match=f"the schema of {TOPIC} cannot be read: no "):
        TableWriter(spark, planner, declared, TOPIC, OPTIONS, SystemClock()).step()
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("at", "live", "again"),
    [("1:4", "", False), ("0:4@5", "", True), ("9:0", "", True), ("1:2", "1:8", False), ("1:2", "9:0", True)],
)
def test_a_topic_that_was_made_again_stops_its_table(at: str, live: str, again: bool) -> None:
    """Also where its ledgers have higher ids: it is another history. A position that retention has passed is none."""
    spark, planner = cast("SparkSession", NoSpark(Scene())), cast("tables.SharedPlanner", None)
    writer = TableWriter(spark, planner, ORDERS, TOPIC, OPTIONS, SystemClock())
    slices = (LedgerSlice(1, 0, 9, 100, 7),)
    found = snapshot([replace(made(0), slices=slices)])
    last = Parts({str(TOPIC): at}, {str(TOPIC): live or at}, {})
    with pytest.raises(InvalidInput, match="made again") if again else nullcontext():
        writer._check_history([found], last)
