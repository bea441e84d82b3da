"""One table: each step takes what is new of its topic, and commits the rows with the positions that they reach.

Dead letters are a table of their own. A step that has some commits them first; after a crash between the two commits
they reach further than the table, and the next step ends where they end, and writes its rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
from pyspark.sql import Observation, functions

from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.read.transactions import KnownOutcomes
from offloaderd.spark.errors import from_spark
from offloaderd.spark.export.commit import Commit, ExportTarget, KeptTable, Upkeep
from offloaderd.spark.export.delta import DeltaTarget
from offloaderd.spark.export.export import offsets_of, write
from offloaderd.spark.export.iceberg import IcebergTable, opened
from offloaderd.spark.scan.options import SourceOptions, parse
from offloaderd.spark.scan.query import position
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.source import FORMAT
from offloaderd.spark.stream import Step, advance, furthest
from offloaderd.spark.tables.rows import DEAD_LETTERS, KEY, ORDER, TIME, TableRows, dead_columns
from offloaderd.tables.declaration import Declaration, OnError, TableFormat, TableMode, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


log = structlog.get_logger(__name__)

SKIPPED = "losses,retention"
"""Entries that are gone for good; they never come, so a table goes on behind them."""


class Planner(Protocol):
    """Reads the maps and schemas of topics."""

    def snapshots(self, options: SourceOptions, known: KnownOutcomes) -> list[Snapshot]:
        """Return what is offloaded of a topic. Raises NotFound, and as the stores do."""
        ...

    def schema(self, topic: TopicName) -> str:
        """Return what the cluster says of a topic's schema, for the option `schema`; empty for none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One step: rows, messages left out, whether anything was committed, the last commit, and what the table lacks."""

    rows: int
    apart: int
    moved: bool
    commit: Commit
    upkeep: Upkeep | None
    lag_entries: int
    oldest_ms: int | None
    """When the oldest segment that the table lacks was offloaded; None if it lacks none."""
    more: bool


@dataclass(frozen=True, slots=True)
class _Made:
    """What a step is made of: options of the data source, rows, the table's source, names of topics."""

    options: Mapping[str, str]
    rows: TableRows
    source: dict[str, str]
    topics: Sequence[str]

    @property
    def dead_source(self) -> dict[str, str]:
        """The source of the dead letters."""
        return {**self.source, "rows": "dead letters"}


class TableWriter:
    """Writes the table of one topic."""

    def __init__(
        self,
        spark: SparkSession,
        planner: Planner,
        declared: Declaration,
        topic: TopicName,
        options: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """`options` name the stores, as for the data source."""
        self._spark = spark
        self._planner = planner
        self._declared = declared
        self.topic = topic
        self.table = table_name(topic)
        self._clock = clock
        self._kept_s: float | None = None
        self._known = KnownOutcomes()
        self._step = Step({})
        self._settled = False  # whether dead letters may be ahead of the table
        self._options = {
            **options,
            "topic": of_topic(topic).text,
            "messages": "true",
            "skip": SKIPPED + ("" if declared.on_error is OnError.FAIL else ",malformed"),
        }
        if declared.on_error is OnError.FAIL:
            del self._options["skip"]

    @property
    def _key(self) -> Sequence[str]:
        return (self._declared.key or (KEY,)) if self._declared.mode is TableMode.UPSERT else ()

    def source(self, cluster: str) -> dict[str, str]:
        """Return what the table is made of; a table of something else is refused."""
        key = {"key": ",".join(self._key)} if self._key else {}
        return {"cluster": cluster, "topic": str(self.topic), "mode": self._declared.mode.value, **key}

    def step(self) -> Written:
        """Take the next step. Raises OffloaderError with what stops the table, and as the stores do."""
        try:
            return self._next()
        except BaseException:
            self._settled = False
            raise

    def _next(self) -> Written:
        plain = parse(self._options)
        found = self._planner.snapshots(plain, self._known)
        # Read behind the snapshot: the schema of a message was registered before the message was sent.
        schema = self._declared.schema or self._planner.schema(self.topic)
        options = self._options | ({"schema": schema} if schema else {})
        rows = TableRows(parse(options).values, self._key)
        made = _Made(options, rows, self.source(plain.settings.daemon.cluster), [str(one.topic) for one in found])
        with self._opened(self.table, rows.columns, made.topics, self._key) as target:
            last = before = target.recover(made.source)
            ahead = None if self._settled else self._dead_letters_ahead(made, last)
            self._settled = True
            room = self._declared.step_bytes if ahead is None else None
            self._step = advance(found, last.positions, plain.query, target=ahead, room=room, turn=self._step.turn)
            if self._step.object_bytes or ahead is not None:
                last = self._written(made, target, last, self._step, repeated=ahead is not None)
            upkeep = self._kept(target) if last is not before else None
            return self._told(found, before, last, upkeep)

    def _kept(self, target: KeptTable) -> Upkeep | None:
        """Do the upkeep of the table if it is due; None if not, or if it failed, which the next step does again."""
        now_s, every_s = self._clock.monotonic(), self._declared.upkeep_s
        if not every_s or (self._kept_s is not None and now_s < self._kept_s + every_s):
            return None
        self._kept_s = now_s
        try:
            done = target.upkeep(self._declared.keep_s)
        except OffloaderError as error:
            log.warning("tables.upkeep_failed", table=self.table, error=str(error))
            return None
        log.info("tables.upkeep_done", table=self.table, joined=done.joined, deleted=done.deleted)
        return done

    def _written(self, made: _Made, target: ExportTarget, last: Commit, step: Step, *, repeated: bool) -> Commit:
        """Write and commit a step. `repeated`: its dead letters are committed already."""
        staging = target.staging(last)
        with from_spark(f"step {last.number + 1} failed, and nothing of it was added: "):
            left_out, added = Observation(), Observation()
            read = self._read(made, step)
            read = read.observe(left_out, functions.count_if(made.rows.apart(read)).alias("count"))
            rows = made.rows.of(read).observe(added, functions.count(functions.lit(1)).alias("count"))
            write(rows, target, staging, time=TIME)
            apart, count = left_out.get["count"], added.get["count"]
        if apart and self._declared.on_error is OnError.FAIL:
            raise OffloaderError(self._first_apart(made, step))
        if apart and self._declared.on_error is OnError.DEAD_LETTER and not repeated:
            self._write_dead_letters(made, step)
        return target.commit(last, staging, step.offset, count, last.apart + apart)

    def _read(self, made: _Made, step: Step) -> DataFrame:
        given = {**made.options, "offsets": offsets_of(step)}
        reader = self._spark.read.format(FORMAT).options(**given)
        return reader.schema(made.rows.read(parse(given).columns)).load()

    def _first_apart(self, made: _Made, step: Step) -> str:
        with from_spark():
            (first,) = made.rows.dead_letters(self._read(made, step)).orderBy(*ORDER).limit(1).collect()
        at = Position(first["_ledger_id"], first["_entry_id"])
        return f"message {at} of {first['_topic']} is no row of the table: {first['reason']}"

    def _dead_letters_ahead(self, made: _Made, last: Commit) -> dict[str, str] | None:
        """Return up to where there are dead letters, if that is further than the table has its rows; else None."""
        if self._declared.on_error is not OnError.DEAD_LETTER:
            return None
        with self._dead_letters(made) as target:
            before = target.last(made.dead_source)
        reached = {name: position(before.positions, name) for name in before.positions}
        return before.positions if any(at > position(last.positions, name) for name, at in reached.items()) else None

    def _write_dead_letters(self, made: _Made, step: Step) -> None:
        """Commit the dead letters of a step."""
        with self._dead_letters(made) as target:
            before = target.recover(made.dead_source)
            staging, counted = target.staging(before), Observation()
            with from_spark("the dead letters of a step failed, and nothing of it was added: "):
                rows = made.rows.dead_letters(self._read(made, step))
                rows = rows.observe(counted, functions.count(functions.lit(1)).alias("count"))
                write(rows, target, staging, time=TIME)
            target.commit(before, staging, step.offset, counted.get["count"])

    def _dead_letters(self, made: _Made) -> AbstractContextManager[KeptTable]:
        return self._opened(self.table + DEAD_LETTERS, dead_columns(), made.topics, ())

    @contextmanager
    def _opened(self, name: str, columns: StructType, topics: Sequence[str], key: Sequence[str]) -> Iterator[KeptTable]:
        to = self._declared.to
        if self._declared.format is TableFormat.DELTA:
            yield DeltaTarget(self._spark, f"{to.rstrip('/')}/{name}", columns, topics, order=ORDER, key=key)
            return
        if self._declared.in_folder:
            place = IcebergTable(folder=to, name=f"{self.topic.tenant}_{self.topic.namespace}.{name}")
        else:
            catalog, _, namespace = to.partition(".")
            place = IcebergTable(catalog=catalog, name=f"{namespace}.{name}")
        with opened(self._spark, place, columns, day_of=TIME, key=key) as table:
            yield table

    def _told(self, found: Sequence[Snapshot], before: Commit, last: Commit, upkeep: Upkeep | None) -> Written:
        ends = furthest(found, parse(self._options).query)
        lag, oldest = 0, None
        for snapshot in found:
            name = str(snapshot.topic)
            at, end = position(last.positions, name), position(ends, name)
            for segment in snapshot.map.segments:
                if segment.end <= at or segment.begin > end:
                    continue
                lag += sum(_behind(one.range.begin, one.range.end, at, end) for one in segment.slices)
                oldest = min(oldest or segment.offloaded_ms, segment.offloaded_ms)
        return Written(
            rows=last.rows if last is not before else 0,
            apart=last.apart - before.apart,
            moved=last is not before,
            commit=last,
            upkeep=upkeep,
            lag_entries=lag,
            oldest_ms=oldest if lag else None,
            more=bool(lag),
        )


def _behind(begin: Position, end: Position, at: Position, upto: Position) -> int:
    """Return how many entries of a range of one ledger are behind a position, and not behind another."""
    first, last = begin.entry_id, end.entry_id
    if begin.ledger_id < at.ledger_id or begin.ledger_id > upto.ledger_id:
        return 0
    if begin.ledger_id == at.ledger_id:
        first = max(first, at.entry_id + 1)
    if begin.ledger_id == upto.ledger_id:
        last = min(last, upto.entry_id)
    return max(0, last - first + 1)
