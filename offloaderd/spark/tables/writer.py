"""One table: each step takes what is new of its topic, and commits the rows with the positions that they reach.

Dead letters are a table of their own. A step that has some commits them first; after a crash between the two commits
they reach further than the table, and the next step ends where they end, and writes its rows alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog
from pyspark.sql import Observation, functions

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, InvalidConfig, InvalidInput, OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.read.transactions import KnownOutcomes
from offloaderd.spark.errors import from_spark
from offloaderd.spark.export.commit import NO_ALIASES, Commit, KeptTable
from offloaderd.spark.export.delta import DeltaTarget
from offloaderd.spark.export.export import options_of, read_of, write
from offloaderd.spark.export.iceberg import IcebergTable, opened
from offloaderd.spark.files import local_folder
from offloaderd.spark.scan.options import SourceOptions, parse
from offloaderd.spark.scan.query import NOTHING, Offset, position
from offloaderd.spark.scan.share import Share
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.stream import Step, in_history, is_another
from offloaderd.spark.tables.appending import Wrote, append
from offloaderd.spark.tables.parts import Part, Parts, Turns, names_of
from offloaderd.spark.tables.rows import ORDER, TableRows, dead_columns, key_of
from offloaderd.spark.tables.versions import NO_VERSION, Choice, choices
from offloaderd.tables.declaration import DEAD_LETTERS, Declaration, History, OnError, TableFormat, table_name
from offloaderd.tables.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from offloaderd.ledgers.pulsar.schemas import Schema
    from offloaderd.spark.scan.query import EntryQuery

log = structlog.get_logger(__name__)

DEAD_LAYOUT = Layout()
CODEC = "spark.sql.parquet.compression.codec"
SKIPPED = "losses,retention,malformed"
"""Entries that are gone for good, and values that do not fit: a table goes on behind them."""


class Planner(Protocol):
    """Reads the maps and schemas of topics."""

    def snapshots(self, options: SourceOptions, known: KnownOutcomes, *, beside: bool = False) -> list[Snapshot]:
        """Return what is offloaded of a topic; `beside`: see Snapshot. Raises NotFound, and as the stores do."""
        ...

    def shares(self, options: SourceOptions) -> list[Share]:
        """Return the shares of the step of options. Raises as `plan_step`."""
        ...

    def versions(self, topic: TopicName) -> Mapping[int, Schema]:
        """Return the versions of a topic's schema in the cluster; none without a schema. Raises as the stores do."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One step: rows, messages left out, whether anything was committed, the last commit, and what the table lacks."""

    rows: int
    apart: int
    moved: bool
    commit: Commit
    more: bool


class Lag(NamedTuple):
    """What a table lacks: entries, and when the oldest segment with one of them was offloaded; None for none.

    `waits`: why it cannot have all of them yet; empty if it can. `history`: entries that it lacks besides, of a part of
    its own.
    """

    entries: int = 0
    oldest_ms: int | None = None
    waits: str = ""
    history: int = 0


@dataclass(frozen=True, slots=True)
class _Made:
    """What a step is made of: options and columns of the data source, rows, the table's source, topics, version."""

    options: Mapping[str, str]
    read: StructType
    rows: TableRows
    source: dict[str, str]
    topics: Sequence[str]
    version: int


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
        self._known, self._known_beside = KnownOutcomes(), KnownOutcomes()
        self._turns = Turns(declared.interval_s)
        self._served = dict.fromkeys(Part, "")  # of each part the topic that was served last
        self._settled = False  # whether it is known that no dead letters are ahead of the table
        self._has_dead_letters = False
        self.lag = Lag()
        self._fallback: int | None = None  # the version that was told to be used instead of a later one
        self._options = {
            **options,
            "topic": of_topic(topic).text,
            "messages": "true",
            **({"skip": SKIPPED} if declared.on_error is not OnError.FAIL else {}),
        }

    @property
    def _key(self) -> Sequence[str]:
        return key_of(self._declared)

    def source(self, cluster: str) -> dict[str, str]:
        """Return what the table is made of; a table of something else is refused."""
        key = {"key": ",".join(self._key)} if self._key else {}
        history = {"history": self._declared.history.value} if self._declared.history is not History.FIRST else {}
        return {"cluster": cluster, "topic": str(self.topic), "mode": self._declared.mode.value, **key, **history}

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
        beside = found  # of which what is new does not wait for the history
        if self._declared.history is History.BESIDE and any(one.unfinished for one in found):
            beside = self._planner.snapshots(plain, self._known_beside, beside=True)
        source, topics = self.source(plain.settings.daemon.cluster), [str(one.topic) for one in found]
        dead = None if self._settled else self._last_dead_letters(source, topics)
        # Read behind the snapshot: the schema of a message was registered before the message was sent.
        versions = {} if self._declared.schema else self._planner.versions(self.topic)
        made = self._made(source, topics, versions)
        layout = self._declared.layout
        columns, aliases = made.rows.columns, made.rows.aliases
        with self._opened(self.table, columns, topics, layout, key=self._key, aliases=aliases) as target:
            last = before = target.recover(source)
            parts, apart = Parts.of(last.positions), Parts.of(dead.positions if dead is not None else {})
            ahead, upto = (dead, apart) if parts.is_behind(apart) else (None, None)
            self._settled = ahead is None
            if self._declared.history is History.BESIDE:
                parts = parts.begun(found, plain.query, upto, first=not last.number)
            self.lag = _lag(found, beside, parts)
            for one in (parts, apart):
                self._check_history(found, one)
            steps = self._steps(found, beside, parts, plain.query, upto)
            if steps:
                part = self._turns.begin(steps, self._clock.monotonic())
                made = self._made(source, topics, versions, target, by=ahead.apart - 1 if ahead is not None else None)
                reached = parts.after(part, steps[part].offset).positions
                last = self._written(made, target, last, steps[part], reached, repeated=ahead is not None)
                self._served[part] = steps[part].turn
                parts = Parts.of(last.positions)
            left = self._steps(found, beside, parts, plain.query)
            self._turns.end(more=Part.LIVE in left)
            self.lag = _lag(found, beside, parts)
            if last is not before:
                self._keep(target, made)
            return Written(
                rows=last.rows if last is not before else 0,
                apart=last.apart - before.apart,
                moved=last is not before,
                commit=last,
                more=bool(left),
            )

    def _steps(
        self,
        found: Sequence[Snapshot],
        beside: Sequence[Snapshot],
        parts: Parts,
        query: EntryQuery,
        upto: Parts | None = None,
    ) -> dict[Part, Step]:
        """Return the next step of each part that has something new."""
        room, made = self._declared.step_bytes, dict[Part, Step]()
        for part in Part:
            of = parts.seen(found, beside) if part is Part.LIVE else found
            step = parts.step(part, of, query, upto=upto, room=room, turn=self._served[part])
            if step is not None:
                made[part] = step
        return made

    def _check_history(self, found: Sequence[Snapshot], parts: Parts) -> None:
        """Raise InvalidInput if a topic was deleted and made again since a commit."""
        for snapshot, positions in product(found, (parts.history, parts.live)):
            text = positions.get(str(snapshot.topic))
            if text is None:
                continue
            at, segments = in_history(snapshot, text), snapshot.map.segments
            if at != NOTHING and segments and is_another(snapshot.map, at, segments[0].begin):
                raise InvalidInput(
                    f"{snapshot.topic}: it was read up to {at}, and ledger {at.ledger_id} is not known any more: the "
                    "topic was deleted and made again",
                    hint=f"name another place for its table, or drop {self.table} and {self.table}{DEAD_LETTERS}",
                )

    def _made(
        self,
        source: dict[str, str],
        topics: Sequence[str],
        versions: Mapping[int, Schema],
        target: KeptTable | None = None,
        by: int | None = None,
    ) -> _Made:
        """Return what a step is made of: by the newest version of the schema that its table, and `target`, can have.

        Messages of later versions are no rows. `by` is the version of a step that is repeated. Raises InvalidInput for
        a version that no table of the declaration can have, InvalidConfig for the newest one if none fits, or the table
        is to stop before what is no row.
        """
        found = choices({number: one for number, one in versions.items() if by is None or number <= by})
        if self._declared.schema:
            found = iter([Choice(NO_VERSION, self._declared.schema)])
        elif by is not None or self._declared.on_error is OnError.FAIL:
            found = islice(found, 1)
        problem: OffloaderError | None = None
        for version, schema in found:
            options = self._options | ({"schema": schema} if schema else {})
            known = parse(options)
            rows = TableRows(known.values, self._key, self._declared.layout)
            columns = rows.columns
            try:
                if target is not None:
                    target.fit(columns, rows.aliases)
            except InvalidConfig as error:
                problem = problem or error
                continue
            if problem is not None and version != self._fallback:
                log.warning("tables.schema_does_not_fit", table=self.table, error=str(problem), written_by=version)
                self._fallback = version
            return _Made(options, rows.read(known.columns), rows, source, topics, version)
        raise problem or AssertionError(f"{self.topic} has no schema to choose")

    def _keep(self, target: KeptTable, made: _Made) -> None:
        """Do the upkeep of the table if it is due; one that fails is due again after its time."""
        now_s, every_s = self._clock.monotonic(), self._declared.upkeep_s
        if not every_s or (self._kept_s is not None and now_s < self._kept_s + every_s):
            return
        self._kept_s = now_s
        try:
            done = target.upkeep(self._declared.keep_s)
            if self._has_dead_letters:
                with self._dead_letters(made.topics) as dead:
                    dead.upkeep(self._declared.keep_s)
        except OffloaderError as error:
            log.warning("tables.upkeep_failed", table=self.table, error=str(error))
            return
        log.info("tables.upkeep_done", table=self.table, joined=done.joined, deleted=done.deleted)

    def _written(
        self, made: _Made, target: KeptTable, last: Commit, step: Step, reached: Offset, *, repeated: bool
    ) -> Commit:
        """Write and commit a step with the positions reached. `repeated`: its dead letters are committed already."""
        staging = target.staging(last)
        with _discarded(target, staging):
            with from_spark(f"step {last.number + 1} failed, and nothing of it was added: "):
                folder = local_folder(staging) if made.rows.is_appended else None
                if folder is not None:
                    wrote = self._by_tasks(made, target, folder, step)
                else:
                    wrote = self._by_spark(made, target, staging, step)
            apart = wrote.apart
            if apart and self._declared.on_error is OnError.FAIL:
                raise OffloaderError(self._first_apart(made, step))
            if apart and self._declared.on_error is OnError.DEAD_LETTER and not repeated:
                self._write_dead_letters(made, last, step, reached, apart)
        return target.commit(last, staging, reached, wrote.rows, last.apart + apart, wrote.files)

    def _by_tasks(self, made: _Made, target: KeptTable, folder: Path, step: Step) -> Wrote:
        """Have tasks make the rows of a step, and write them into a folder."""
        options = parse(options_of(self._spark, made.options, step))
        named, codec = target.named(made.rows.columns), str(self._spark.conf.get(CODEC))
        return append(self._spark, made.rows.appending(options, named, folder, codec), self._planner.shares(options))

    def _by_spark(self, made: _Made, target: KeptTable, staging: str, step: Step) -> Wrote:
        """Have Spark SQL make the rows of a step, and Java write them."""
        left_out, added = Observation(), Observation()
        read = self._read(made, step)
        read = read.observe(left_out, functions.count_if(made.rows.apart()).alias("count"))
        rows = made.rows.of(read).observe(added, functions.count(functions.lit(1)).alias("count"))
        write(rows, target, staging, made.rows.layout)
        return Wrote(added.get["count"], left_out.get["count"], None)

    def _read(self, made: _Made, step: Step) -> DataFrame:
        return read_of(self._spark, made.options, step).schema(made.read).load()

    def _first_apart(self, made: _Made, step: Step) -> str:
        with from_spark():
            (first,) = made.rows.dead_letters(self._read(made, step)).orderBy(*ORDER).limit(1).collect()
        at = Position(first["_ledger_id"], first["_entry_id"])
        return f"message {at} of {first['_topic']} is no row of the table: {first['reason']}"

    def _last_dead_letters(self, source: dict[str, str], topics: Sequence[str]) -> Commit | None:
        """Return the last commit of dead letters; None if the table has none."""
        if self._declared.on_error is not OnError.DEAD_LETTER:
            return None
        with self._dead_letters(topics) as target:
            last = target.last(_dead(source))
        self._has_dead_letters = last.number > 0
        return last

    def _write_dead_letters(self, made: _Made, last: Commit, step: Step, reached: Offset, apart: int) -> None:
        """Commit the dead letters of a step, with the newest version of the schema by which they are none.

        Raises Conflict if another application has done so meanwhile, OffloaderError if they are not as many as were
        left `apart`: entries that were lost may have been found since, and others may have been deleted.
        """
        with self._dead_letters(made.topics) as target:
            before = target.recover(_dead(made.source))
            if Parts.of(last.positions).is_behind(Parts.of(before.positions)):
                raise Conflict(
                    f"another application has written dead letters of {self.table} meanwhile",
                    hint="the next step writes the rest of that one",
                )
            staging, counted = target.staging(before), Observation()
            with (
                _discarded(target, staging),
                from_spark("the dead letters failed, and nothing of the step was added: "),
            ):
                rows = made.rows.dead_letters(self._read(made, step))
                rows = rows.observe(counted, functions.count(functions.lit(1)).alias("count"))
                write(rows, target, staging, DEAD_LAYOUT)
                count = counted.get["count"]
                if count != apart:
                    raise OffloaderError(
                        f"step {last.number + 1} left {apart} rows apart, and {count} when read for dead letters",
                        hint="nothing of the step was added; the next one begins there again",
                    )
            target.commit(before, staging, reached, count, made.version + 1)
            self._has_dead_letters = True

    def _dead_letters(self, topics: Sequence[str]) -> AbstractContextManager[KeptTable]:
        return self._opened(self.table + DEAD_LETTERS, dead_columns(), topics, DEAD_LAYOUT)

    @contextmanager
    def _opened(
        self,
        name: str,
        columns: StructType,
        topics: Sequence[str],
        layout: Layout,
        *,
        key: Sequence[str] = (),
        aliases: Mapping[str, Sequence[str]] = NO_ALIASES,
    ) -> Iterator[KeptTable]:
        to = self._declared.to
        if self._declared.format is TableFormat.DELTA:
            folder = f"{to.rstrip('/')}/{name}"
            names = names_of(topics) if self._declared.history is History.BESIDE else topics
            yield DeltaTarget(self._spark, folder, columns, names, layout=layout, order=ORDER, key=key)
            return
        if self._declared.in_folder:
            place = IcebergTable(folder=to, name=f"{self.topic.tenant}_{self.topic.namespace}.{name}")
        else:
            catalog, _, namespace = to.partition(".")
            place = IcebergTable(catalog=catalog, name=f"{namespace}.{name}")
        with opened(self._spark, place, columns, layout=layout, key=key, order=ORDER, aliases=aliases) as table:
            yield table


@contextmanager
def _discarded(target: KeptTable, staging: str) -> Iterator[None]:
    """Delete the files of a round that fails before its commit is begun."""
    try:
        yield
    except BaseException:
        target.discard(staging)
        raise


def _dead(source: dict[str, str]) -> dict[str, str]:
    """Return the source of the dead letters of a table."""
    return {**source, "rows": "dead letters"}


def _lag(found: Sequence[Snapshot], beside: Sequence[Snapshot], parts: Parts) -> Lag:
    history = lag_of(found, parts.history, parts.boundaries)
    return lag_of(parts.seen(found, beside), parts.live)._replace(history=history.entries)


def lag_of(found: Sequence[Snapshot], positions: Mapping[str, str], ends: Mapping[str, str] | None = None) -> Lag:
    """Return what a table lacks of what is offloaded; with `ends`: of what is up to these positions of its topics."""
    entries, oldest = 0, None
    for snapshot in found:
        name, newest = str(snapshot.topic), snapshot.newest
        at, end = position(positions, name), position(ends, name) if ends is not None else newest
        segments = snapshot.map.segments
        for segment in islice(segments, bisect_right(segments, at, key=lambda one: one.end), None):
            if end is None or segment.begin > end:
                break
            entries += sum(_behind(one.range.begin, one.range.end, at, end) for one in segment.slices)
            oldest = min(oldest or segment.offloaded_ms, segment.offloaded_ms)
    if not entries:
        return Lag()
    return Lag(entries, oldest, "; ".join(filter(None, (_awaited(one) for one in found))))


def _awaited(snapshot: Snapshot) -> str:
    """Return why the end of a topic cannot be had yet; empty if it can."""
    if snapshot.end == snapshot.newest:
        return ""
    nothing = f"{snapshot.topic}: nothing" + (f" behind {snapshot.end}" if snapshot.end is not None else "")
    if (plan := snapshot.unfinished) is not None:
        return f"{nothing} until history before {plan.live_begin} is offloaded"
    return f"{nothing} until the transaction that began at {snapshot.held} ends"


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
