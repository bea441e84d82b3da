"""The application: it holds declarations, finds their topics, and steps each table at its interval.

Tables share the executors: steps run in threads, each in a pool of its own of Spark's fair scheduler. A table that
fails is tried again after a growing pause, and holds up no other. What a table has is in the table alone, so any number
of applications may be started, and any of them may be killed at any time.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from offloaderd.capture.cluster import PulsarMetadata
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.tables import OUTCOMES, TableMetrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import system_reason
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import open_ledgers
from offloaderd.read.transactions import KnownOutcomes
from offloaderd.spark.export.export import own_session
from offloaderd.spark.scan.options import SourceOptions, parse
from offloaderd.spark.scan.query import NOTHING, parsed
from offloaderd.spark.scan.share import Share
from offloaderd.spark.scan.snapshot import Held, Snapshot, Stores, known_topics, opened
from offloaderd.spark.stream import plan_step, take_snapshots
from offloaderd.spark.tables.parts import Parts
from offloaderd.spark.tables.writer import TableWriter, Written
from offloaderd.tables import store as stored
from offloaderd.tables.declaration import Declaration, table_name, table_of
from offloaderd.tables.store import WAITS_CHARS, States, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offloaderd.ledgers.pulsar.schemas import Schema

T = TypeVar("T")
log = structlog.get_logger(__name__)

LOOK_S = 5.0
"""Pause between two looks at the declarations and their topics."""
POLL_S = 1.0
"""Longest wait, so that a signal is seen."""
ERROR_CHARS = 500
"""Of an error in a state; the log has all of it."""
PAUSE_S_MAX = 600.0
"""Longest pause of a table that fails."""
EVERYTHING = "re:.*"


@dataclass(frozen=True, slots=True)
class Opened:
    """The stores of a query, and Pulsar's metadata; None without a cluster."""

    stores: Stores
    pulsar: PulsarMetadata | None


@asynccontextmanager
async def open_all(options: SourceOptions, clock: Clock) -> AsyncIterator[Opened]:
    """Yield the stores. Raises InvalidConfig, Transient, Denied."""
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(opened(options))
        pulsar = None
        if options.settings.ledgers.kind == "bookkeeper":
            pulsar = (await open_ledgers(stack, options.settings, clock=clock, metrics=Metrics())).pulsar
        yield Opened(stores, pulsar)


class SharedPlanner:
    """Reads maps, schemas and declarations for all threads, one call at a time, over one session."""

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        """`options` name the stores, as for the data source. Raises InvalidConfig."""
        found = parse({**options, "topic": EVERYTHING, "messages": "true"})
        self.settings: Settings = found.settings
        self._held = Held(lambda: open_all(found, clock))
        self._lock = threading.Lock()

    def run(self, work: Callable[[Opened], Awaitable[T]]) -> T:
        """Return the result of work on the stores; blocks. Raises as the work and `open_all` do.

        The session ends with a store that does not answer, or a fault, and not with an answer that is an error: all
        declarations are held by it.
        """

        async def answered(at: Opened) -> T | OffloaderError:
            try:
                return await work(at)
            except Transient:
                raise
            except OffloaderError as error:
                return error

        with self._lock:
            found = self._held.run(answered)
        if isinstance(found, OffloaderError):
            raise found
        return found

    def close(self) -> None:
        """Close the stores."""
        with self._lock:
            self._held.close()

    def snapshots(self, options: SourceOptions, known: KnownOutcomes, *, beside: bool = False) -> list[Snapshot]:
        """See Planner."""
        return self.run(lambda at: take_snapshots(options, at.stores, known, beside=beside))

    def shares(self, options: SourceOptions) -> list[Share]:
        """See Planner."""
        assert options.step is not None  # noqa: S101 - they are those of a step
        start, end = options.step
        return self.run(lambda at: plan_step(options, at.stores, start, end))

    def versions(self, topic: TopicName) -> Mapping[int, Schema]:
        """See Planner."""

        async def versions(at: Opened) -> Mapping[int, Schema]:
            try:
                return await at.pulsar.schema_versions(topic) if at.pulsar is not None else {}
            except OffloaderError as error:
                error.message = f"the schema of {topic} cannot be read: {error.message}"
                raise

        return self.run(versions)


class _NotBegunError(Exception):
    """The application stops before a step was begun."""


@dataclass(slots=True)
class _Table:
    """A table with its next step: when, and what is known of it."""

    writer: TableWriter
    declared: Declaration
    due_s: float
    state: TableState
    begun_s: float = 0.0
    """When the last step has begun: the interval counts from there."""
    pause_s: float = 0.0
    running: Future[Written] | None = None


@dataclass(slots=True)
class _Group:
    """A declaration that this application holds."""

    declared: Declaration
    tables: dict[str, _Table] = field(default_factory=dict)
    problems: list[TableState] = field(default_factory=list)
    told: bool = False
    leaving: bool = False
    """It is not held any more, and steps of its tables run still."""

    @property
    def running(self) -> bool:
        """Whether a step of one of its tables runs."""
        return any(one.running is not None for one in self.tables.values())


class Application:
    """Runs the declared tables of one deployment."""

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        *,
        clock: Clock,
        registry: CollectorRegistry,
        names: frozenset[str] = frozenset(),
        parallel: int = 4,
        tell: Callable[[str, TableState], None] = lambda *_: None,
    ) -> None:
        """`names`: only these declarations. `tell` is called with a declaration and the state after each step."""
        self._spark = spark
        self._ordered: SparkSession | None = None
        self._options = dict(options)
        self._clock = clock
        self._metrics = TableMetrics(registry)
        self._names = names
        self._tell = tell
        self._planner = SharedPlanner(options, clock)
        self._writer = f"tables-{clock.uuid().hex[:12]}"
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="table")
        self._groups: dict[str, _Group] = {}
        self._others: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self._look_s = self._put_s = 0.0
        self._once = self._stopping = self._lost = False
        self._ended = threading.Event()

    def _writer_of(self, declared: Declaration, topic: TopicName) -> TableWriter:
        """Return the writer of a topic's table. Tables whose rows have an order have a session of their own."""
        spark = self._spark
        if declared.layout.sort:
            spark = self._ordered = self._ordered or own_session(spark, ordered=True)
        return TableWriter(spark, self._planner, declared, topic, self._options, self._clock)

    def stop(self) -> None:
        """Begin no further step; `run` returns when those that run have ended. Again: end these as well.

        May be called by a handler of signals: it takes no lock.
        """
        if self._stopping:
            self._spark.sparkContext.cancelAllJobs()
        self._stopping = True

    def run(self, *, once: bool = False) -> bool:
        """Run until stopped; `once`: until each table has all that is offloaded, or fails. Return whether none fails.

        Raises NotFound for a declaration by a name that is not there, Conflict, with `once`, for one that another
        application holds, and what the stores raise at the first look.
        """
        self._once = once
        try:
            self._look(first=True)
            while not self._stopping:
                self._start_due()
                if once and self._is_done():
                    break
                self._ended.wait(min(self._pause_s(), POLL_S))
                self._ended.clear()
                self._take_ended()
                self._put_states()
                self._look()
        finally:
            self._close()
        failed = any(state.error for group in self._groups.values() for state in _states(group))
        return not (failed or self._unreadable or (once and self._lost))

    def _look(self, *, first: bool = False) -> None:
        """Find declarations and topics. Raises only at the first look; later ones keep what is known."""
        now_s = self._clock.monotonic()
        if not first and now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        try:
            found = self._planner.run(self._declared)
        except OffloaderError as error:
            if first:
                raise
            log.warning("tables.look_failed", error=str(error), error_class=type(error).__name__)
            return
        for name, group in list(self._groups.items()):
            group.leaving = name not in found or found[name][0] != group.declared
            if group.leaving and not group.running:
                self._forget(name, self._groups.pop(name).tables)
                self._lost = self._lost or name not in found
        for name, (declared, topics) in found.items():
            group = self._groups.setdefault(name, _Group(declared))
            if not group.leaving:
                self._add(group, topics)
        if first:
            self._check_first(found.keys())

    def _check_first(self, found: Set[str]) -> None:
        """Tell of declarations that are not written.

        Raises NotFound for one by a name that is not there, and, if all are to be up to date in the end, Conflict for
        one that another application holds.
        """
        if missing := sorted(self._names - found - self._others.keys() - self._unreadable.keys()):
            raise NotFound(f"no tables {', '.join(missing)} are declared", hint="offloadctl tables list")
        if self._others and self._once:
            held = ", ".join(f"{name} ({writer})" for name, writer in sorted(self._others.items()))
            wait_s = self._planner.settings.metadata.session_timeout_s
            raise Conflict(
                f"another application writes tables {held}, and nothing was written",
                hint=f"leave them to it, or stop it; of one that was killed the session ends within {wait_s:g} s "
                "(metadata.session_timeout_s): run this again then",
            )
        if not found:
            log.warning("tables.none_to_write", declared=len(self._others) + len(self._unreadable))

    def _forget(self, name: str, tables: Iterable[str]) -> None:
        """Take the series of tables away that are written no more."""
        metrics = self._metrics
        for table in tables:
            label = f"{name}/{table}"
            for series in (
                metrics.table_lag_seconds,
                metrics.table_lag_entries,
                metrics.table_committed_timestamp_seconds,
            ):
                with suppress(KeyError):
                    series.remove(label)

    async def _declared(self, at: Opened) -> dict[str, tuple[Declaration, list[TopicName]]]:
        """Return the declarations that this application holds, with their topics."""
        metadata = at.stores.metadata
        assert metadata is not None  # noqa: S101 - the options ask for it
        found = {}
        loaded = await stored.load(metadata)
        for known in (self._others, self._unreadable):
            for name in known.keys() - loaded.keys():
                del known[name]
        for name, declared in loaded.items():
            if self._names and name not in self._names:
                continue
            if not isinstance(declared, Declaration):
                if self._unreadable.get(name) != str(declared):
                    log.warning("tables.declaration_unreadable", declaration=name, error=str(declared))
                self._unreadable[name] = str(declared)
                continue
            self._unreadable.pop(name, None)
            try:
                other = await stored.hold(metadata, name, self._writer)
            except NotFound:
                continue
            if other is not None:
                if self._others.get(name) != other:
                    log.info("tables.held_by_another", declaration=name, writer=other)
                self._others[name] = other
                continue
            self._others.pop(name, None)
            try:
                topics = await known_topics(metadata, declared.pattern)
            except NotFound:
                topics = []  # they may come
            named = declared.pattern.topic is not None
            found[name] = declared, sorted({table_of(one) for one in topics if named or system_reason(one) is None})
        return found

    def _add(self, group: _Group, topics: list[TopicName]) -> None:
        """Have a table for each topic, and for no other; of two whose tables have one name the first gets it."""
        there = set(topics)
        for name, table in list(group.tables.items()):
            if table.writer.topic not in there and table.running is None:
                del group.tables[name]
                group.told = False
                self._forget(group.declared.name, [name])
        before, group.problems = group.problems, []
        for topic in sorted(topics, key=lambda one: (one.local != table_name(one), one)):
            name = table_name(topic)
            known = group.tables.get(name)
            if known is None:
                group.tables[name] = _Table(
                    writer=self._writer_of(group.declared, topic),
                    declared=group.declared,
                    due_s=self._clock.monotonic(),
                    state=TableState(table=name, topic=str(topic)),
                )
                label = f"{group.declared.name}/{name}"
                self._metrics.table_rows_apart.labels(table=label)  # a counter that begins late has not increased yet
                for outcome in OUTCOMES:
                    self._metrics.table_steps.labels(table=label, outcome=outcome)
            elif known.writer.topic != topic:
                error = f"{known.writer.topic} has the table {name}: give one of them a namespace of its own"
                group.problems.append(TableState(table=name, topic=str(topic), error=error))
        for one in group.problems:
            if one not in before:
                group.told = False
                self._tell(group.declared.name, one)

    def _tables(self) -> list[tuple[str, _Table]]:
        return [(name, one) for name, group in self._groups.items() for one in group.tables.values()]

    def _startable(self) -> list[_Table]:
        groups = (one for one in self._groups.values() if not one.leaving)
        return [one for group in groups for one in group.tables.values() if one.running is None]

    def _start_due(self) -> None:
        now_s = self._clock.monotonic()
        for table in sorted(self._startable(), key=lambda one: one.due_s):
            if table.due_s <= now_s:
                table.running = self._pool.submit(self._step, table)
                table.running.add_done_callback(lambda _: self._ended.set())

    def _step(self, table: _Table) -> Written:
        if self._stopping:
            raise _NotBegunError
        table.begun_s = self._clock.monotonic()
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{table.declared.name}-{table.state.table}")
        return table.writer.step()

    def _take_ended(self) -> None:
        for name, table in self._tables():
            if table.running is None or not table.running.done():
                continue
            ended, table.running = table.running, None
            if ended.cancelled() or isinstance(ended.exception(), _NotBegunError):
                continue
            now_s, interval_s = self._clock.monotonic(), table.declared.interval_s
            table.state = self._lagging(table)
            error, more = ended.exception(), False
            if error is None:
                written = ended.result()
                more = written.more
                table.state = self._state(table.state, written)
                table.pause_s = 0.0
                table.due_s = now_s if more else table.begun_s + interval_s
                outcome = "committed" if written.moved else "idle"
            else:
                table.pause_s = min(max(interval_s, 2 * table.pause_s), PAUSE_S_MAX)
                table.due_s = now_s + table.pause_s
                table.state = replace(table.state, error=_said(error))
                log.warning(
                    "tables.step_failed",
                    declaration=name,
                    table=table.state.table,
                    error=_said(error),
                    error_class=type(error).__name__,
                    next_s=round(table.pause_s, 1),
                )
                outcome = "failed"
            if self._once and not more:
                table.due_s = inf
            self._count(f"{name}/{table.state.table}", table.state, outcome, ended.result() if error is None else None)
            self._groups[name].told = False
            self._tell(name, table.state)

    def _lagging(self, table: _Table) -> TableState:
        """Return the state of a table with what it lacks, as its last step has seen it."""
        lag = table.writer.lag
        lag_s = max(0.0, (self._clock.wall_ms() - lag.oldest_ms) / 1000) if lag.oldest_ms is not None else 0.0
        waits = lag.waits[:WAITS_CHARS]
        return replace(table.state, lag_s=lag_s, lag_entries=lag.entries, waits=waits, history_entries=lag.history)

    def _state(self, before: TableState, written: Written) -> TableState:
        return replace(
            before,
            rows=before.rows + written.rows,
            apart=written.commit.apart,
            committed_ms=self._clock.wall_ms() if written.moved else before.committed_ms,
            error="",
            positions={
                TopicName.parse(name).local: str(at)
                for name, text in Parts.of(written.commit.positions).history.items()
                if (at := parsed(text)[0]) != NOTHING
            },
        )

    def _count(self, label: str, state: TableState, outcome: str, written: Written | None) -> None:
        metrics = self._metrics
        metrics.table_steps.labels(table=label, outcome=outcome).inc()
        metrics.table_lag_seconds.labels(table=label).set(state.lag_s)
        metrics.table_lag_entries.labels(table=label).set(state.lag_entries)
        if written is not None:
            metrics.table_rows.labels(table=label).inc(written.rows)
            metrics.table_rows_apart.labels(table=label).inc(written.apart)
        if state.committed_ms:
            metrics.table_committed_timestamp_seconds.labels(table=label).set(state.committed_ms / 1000)

    def _put_states(self) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._put_s and not self._stopping:
            return
        self._put_s = now_s + LOOK_S
        for name, group in self._groups.items():
            if group.told or group.leaving:
                continue
            states = States(writer=self._writer, at_ms=self._clock.wall_ms(), tables=_states(group))
            try:
                self._planner.run(partial(self._put, name=name, states=states))
                group.told = True
            except OffloaderError as error:
                log.warning("tables.state_unwritten", declaration=name, error=str(error))

    async def _put(self, at: Opened, name: str, states: States) -> None:
        assert at.stores.metadata is not None  # noqa: S101 - as above
        await stored.put_states(at.stores.metadata, name, states)

    def _is_done(self) -> bool:
        """Return whether no table runs, and each has stepped last without anything more, or failed."""
        return all(table.running is None and table.due_s > self._clock.monotonic() for _, table in self._tables())

    def _pause_s(self) -> float:
        now_s = self._clock.monotonic()
        due = [one.due_s for one in self._startable()]
        return max(0.0, min([*due, self._look_s]) - now_s)

    def _close(self) -> None:
        """Let the steps end that run, and give the declarations back."""
        self._pool.shutdown(cancel_futures=True)  # it waits for those that run
        self._take_ended()
        self._put_s = 0.0
        self._put_states()

        async def give_back(at: Opened) -> None:
            assert at.stores.metadata is not None  # noqa: S101 - as above
            for name in self._groups:
                await stored.release(at.stores.metadata, name, self._writer)

        try:
            if self._groups:
                self._planner.run(give_back)
        except OffloaderError as error:
            log.warning("tables.not_released", error=str(error))
        finally:
            self._planner.close()


def _states(group: _Group) -> list[TableState]:
    return [*(one.state for one in group.tables.values()), *group.problems]


def _said(error: BaseException) -> str:
    text = str(error) if isinstance(error, OffloaderError) else f"{type(error).__name__} {error}".strip()
    return text[:ERROR_CHARS]
