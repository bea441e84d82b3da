"""Export of committed segments to Parquet or an Iceberg table, by day, each entry once; a later run continues.

    with spark_session("export") as spark:
        export(spark, {"topic": "orders", "config": "offloaderd.toml"}, "/archive/orders")
        export(spark, {"topic": "orders", ...}, IcebergTable(folder="/archive/tables", name="shop.orders"))

Rows are those of `format("offload")`, in a folder or partition for each day (UTC) of their time; those without a time
are in `day=__HIVE_DEFAULT_PARTITION__`, in a table in the partition without a day. A round has up to `round_bytes` of
segments, and is committed with the positions that it reaches.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession, functions

from offloaderd.core.errors import InvalidConfig
from offloaderd.core.read_options import Transactions
from offloaderd.daemon.log import quieted
from offloaderd.read.transactions import KnownOutcomes
from offloaderd.spark.errors import from_spark
from offloaderd.spark.export.buckets import bucket_of
from offloaderd.spark.export.commit import VALUE, Commit, ExportTarget
from offloaderd.spark.export.folder import ExportFolder
from offloaderd.spark.export.iceberg import IcebergTable
from offloaderd.spark.export.iceberg import opened as open_table
from offloaderd.spark.files import check_scheme
from offloaderd.spark.scan.options import SourceOptions, Start, parse
from offloaderd.spark.scan.query import position
from offloaderd.spark.scan.snapshot import HeldStores, check_topics
from offloaderd.spark.session import check_libraries
from offloaderd.spark.source import FORMAT, register
from offloaderd.spark.stream import Step, advance, furthest, take_snapshots
from offloaderd.tables.layout import Layout, Partition

GIB = 1024**3
ROUND_BYTES = 4 * GIB
"""Bytes of segments that are written, or repeated after a crash, at a time."""

TIMES = "spark.sql.parquet.outputTimestampType"
WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
OPEN_FILES = 2
"""Partitions of a table that a task writes side by side, such as two days. Of more it sorts the rows first."""
TASK_BYTES_MIN = 4 * 1024**2
"""Bytes of objects below which a step is not cut into more tasks, each of which has a file of its own."""
BY_DAY = Layout(time="time")
"""The layout of every export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A committed round: rows, bytes of segments, and the positions up to which all is exported now."""

    number: int
    rows: int
    segment_bytes: int
    positions: Mapping[str, str]
    undated: int = 0
    """Rows without a time, and so without a day."""


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    target: str | IcebergTable,
    *,
    round_bytes: int = ROUND_BYTES,
    progress: Callable[[Round], None] = lambda _: None,
) -> list[Round]:
    """Export all committed entries that are not exported yet; return the rounds, none without new entries.

    `options` are those of the data source, `target` a folder for Parquet files or a table of Iceberg. Raises
    InvalidConfig, Conflict when another export of the target runs, every error of the data source, and OffloaderError
    with Spark's message for a failed round, which adds nothing.
    """
    parsed = _parsed(options)
    own = own_session(spark)
    with _opened(spark, target, parsed) as opened, HeldStores(parsed) as held:
        last = opened.recover(_source(parsed))
        known = KnownOutcomes()
        found = held.run(lambda stores: take_snapshots(parsed, stores, known))
        goal = furthest(found, parsed.query)
        rounds: list[Round] = []
        step = Step({})
        while True:
            step = advance(found, last.positions, parsed.query, target=goal, room=round_bytes, turn=step.turn)
            if not step.object_bytes:
                return rounds
            last, undated = _one_round(own, options, opened, last, step)
            rounds.append(
                Round(
                    number=last.number,
                    rows=last.rows,
                    segment_bytes=step.object_bytes,
                    positions={name: str(position(last.positions, name)) for name in last.positions},
                    undated=undated,
                )
            )
            progress(rounds[-1])
            found = held.run(lambda stores: take_snapshots(parsed, stores, known))


def check(options: Mapping[str, str], target: str | IcebergTable) -> None:
    """Check an export without Spark, which is slow to start.

    Raises InvalidConfig, NotFound when there is no such topic, and as the metadata store does.
    """
    parsed = _parsed(options)
    if not isinstance(target, str):
        check_libraries("iceberg")
    elif "://" in target:
        check_scheme(target.partition("://")[0], target)
    asyncio.run(check_topics(parsed))


def pending(spark: SparkSession, options: Mapping[str, str], target: str | IcebergTable) -> int:
    """Return the bytes of segments that an export would read now; change nothing. Raises as `export`."""
    parsed = _parsed(options)
    with _opened(spark, target, parsed) as opened:
        last = opened.last(_source(parsed))
    with HeldStores(parsed) as held:
        found = held.run(lambda stores: take_snapshots(parsed, stores))
    return advance(found, last.positions, parsed.query).object_bytes


def _parsed(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of an export. Raises InvalidConfig."""
    quieted()
    parsed = parse(options)
    for given, name, hint in (
        (parsed.step is not None, "offsets", "an export knows itself where it ended; start and end bound it"),
        (parsed.start is Start.LATEST, "start=latest", "write start=LEDGER:ENTRY"),
        (parsed.trigger_bytes is not None, "max_bytes_per_trigger", "round_bytes limits what an export takes"),
        (parsed.live is not None, "live", "an export takes what is committed, each entry once"),
    ):
        if given:
            raise InvalidConfig(f"{name}: not for an export", hint=hint)
    return parsed


@contextmanager
def _opened(spark: SparkSession, target: str | IcebergTable, options: SourceOptions) -> Iterator[ExportTarget]:
    if isinstance(target, str):
        yield ExportFolder(spark, target)
        return
    with open_table(spark, target, options.columns, layout=BY_DAY) as table:
        yield table


def own_session(spark: SparkSession, *, ordered: bool = False) -> SparkSession:
    """Return a session with the settings of another and some of its own, which the other does not get.

    `ordered`: rows are written in their order, however many partitions there are.
    """
    java: Any = spark._jsparkSession  # noqa: SLF001 - of the public ways none copies the settings
    own = type(spark)(spark.sparkContext, java.cloneSession())
    own.conf.set(TIMES, "TIMESTAMP_MICROS")  # Spark's default is an old type that has no bounds in a file
    if ordered:
        own.conf.set(WRITERS, "0")
    elif own.conf.get(WRITERS) == "0" and not spark.sparkContext.getConf().contains(WRITERS):  # nobody has set it
        own.conf.set(WRITERS, f"{OPEN_FILES}")
    register(own)
    return own


def _source(options: SourceOptions) -> dict[str, str]:
    """Return the identity of an export's source; a target accepts no other.

    It includes the bounds that a later export could not extend, so not the end.
    """
    query = options.query
    bounds = {"start": query.first, "start_time": query.since_ms, "end_time": query.until_ms}
    return {
        "cluster": options.settings.daemon.cluster,
        "topic": options.topic.text,
        "rows": "messages" if options.messages else "entries",
        **({"transactions": "all"} if options.transactions is Transactions.ALL else {}),
        **{name: str(value) for name, value in bounds.items() if value is not None},
        **({VALUE: options.columns["value"].dataType.simpleString()} if options.values else {}),
    }


def _one_round(
    spark: SparkSession, options: Mapping[str, str], target: ExportTarget, last: Commit, made: Step
) -> tuple[Commit, int]:
    """Write and commit a step; return the commit, and the number of rows without a time."""
    staging = target.staging(last)
    with from_spark(f"round {last.number + 1} failed, and nothing of it was added: "):
        found = read_of(spark, options, made).load()
        counted = Observation()
        undated = functions.count_if(functions.isnull("time")).alias("undated")
        found = found.observe(counted, functions.count(functions.lit(1)).alias("rows"), undated)
        write(found, target, staging, BY_DAY)
        counts = counted.get
    return target.commit(last, staging, made.offset, counts["rows"]), counts["undated"]


def read_of(spark: SparkSession, options: Mapping[str, str], step: Step) -> DataFrameReader:
    """Return the reader of a step."""
    return spark.read.format(FORMAT).options(**options_of(spark, options, step))


def options_of(spark: SparkSession, options: Mapping[str, str], step: Step) -> dict[str, str]:
    """Return the options of a step: of the topics that it moves, by a task for each core if there is enough for all."""
    moved = [name for name, at in step.offset.items() if step.start.get(name) != at]
    start = {name: step.start[name] for name in moved if name in step.start}
    offsets = json.dumps({"start": start, "end": {name: step.offset[name] for name in moved}})
    even_bytes = -(-step.object_bytes // spark.sparkContext.defaultParallelism)
    size_bytes = min(parse(options).partition_bytes, max(TASK_BYTES_MIN, even_bytes))
    return {**options, "offsets": offsets, "partition_bytes": str(size_bytes)}


def write(found: DataFrame, target: ExportTarget, staging: str, layout: Layout) -> None:
    """Write the files of a round by a layout, under the names and types that its columns have in the target."""
    columns = target.named(found.schema)
    named = [
        functions.col(f"`{old}`").cast(new.dataType).alias(new.name)
        for old, new in zip(found.columns, columns, strict=True)
    ]
    now = dict(zip(found.columns, columns.names, strict=True))
    rows, order = found.select(*named), [functions.asc_nulls_last(now[name]) for name in layout.sort]
    if not layout.name:
        (rows.sortWithinPartitions(*order) if order else rows).write.parquet(staging)
        return
    rows = rows.withColumn(layout.name, _partition(layout, now[layout.column]))
    if layout.partition is Partition.BUCKET:  # each task has rows of all buckets, and would write a file for each
        rows = rows.repartition(layout.name)
    if order:  # by the partition first, as Spark writes one after the other
        rows = rows.sortWithinPartitions(layout.name, *order)
    rows.write.partitionBy(layout.name).parquet(staging)


def _partition(layout: Layout, column: str) -> Column:
    """Return a row's partition by a column: in UTC, independent of the session's time zone, or by its hash."""
    if layout.partition is Partition.BUCKET:
        return bucket_of(f"`{column}`", layout.buckets)
    day = f"date_from_unix_date(int(unix_millis(`{column}`) div 86400000))"
    hour = f"lpad(string(unix_millis(`{column}`) div 3600000 % 24), 2, '0')"
    return functions.expr(
        {
            Partition.HOUR: f"concat(string({day}), '-', {hour})",
            Partition.DAY: day,
            Partition.MONTH: f"substr(string({day}), 1, 7)",
        }[layout.partition]
    )
