"""Committed segments as Parquet or an Iceberg table, by day, each entry once: run again, it goes on where it ended.

    with spark_session("export") as spark:
        export(spark, {"topic": "orders", "config": "offloaderd.toml"}, "/archive/orders")
        export(spark, {"topic": "orders", ...}, IcebergTable(folder="/archive/tables", name="shop.orders"))

Rows are those of `format("offload")`, in a folder or partition for each day (UTC) in which they were written; those
without a time are in `day=__HIVE_DEFAULT_PARTITION__`, of a table in the partition without a day. A round is what fits
into `round_bytes` of segments, and is committed with the positions up to which it goes.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Observation, functions
from pyspark.sql.pandas.types import to_arrow_schema

from offloaderd.errors import OffloaderError
from offloaderd.format.transactions import Transactions
from offloaderd.read.outcomes import KnownOutcomes
from offloaderd.spark.export_folder import ExportFolder
from offloaderd.spark.export_iceberg import opened as open_table
from offloaderd.spark.source import FORMAT, register
from offloaderd.spark.source_offsets import advance, furthest, look
from offloaderd.spark.source_options import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from offloaderd.spark.export_commit import Commit, ExportTarget
    from offloaderd.spark.export_iceberg import IcebergTable
    from offloaderd.spark.source_options import SourceOptions

GIB = 1024**3
ROUND_BYTES = 4 * GIB
"""What is written, or to be repeated after a crash, at a time."""

DAY = "date_from_unix_date(int(unix_millis(time) div 86400000))"
"""The day in UTC, whatever the session's time zone is."""

TIMES = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round that was committed: rows, bytes of segments, and up to which positions all is exported now."""

    number: int
    rows: int
    segment_bytes: int
    positions: Mapping[str, str]


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    target: str | IcebergTable,
    *,
    round_bytes: int = ROUND_BYTES,
    told: Callable[[Round], None] = lambda _: None,
) -> list[Round]:
    """Export what is committed now and not exported yet; returns the rounds, none when there is nothing new.

    `options` are those of the data source, `target` a folder for Parquet files or a table of Iceberg. Raises
    InvalidConfig, Conflict when another export of the target runs, what the data source raises, and OffloaderError with
    what Spark says of a failed round, of which nothing is left.
    """
    parsed = parse(options)
    register(spark)
    with _opened(spark, target, parsed) as opened:
        last = opened.recover(_source(parsed))
        known = KnownOutcomes()
        goal = furthest(asyncio.run(look(parsed, known)))
        rounds: list[Round] = []
        while True:
            reached, taken = advance(asyncio.run(look(parsed, known)), last.positions, goal, round_bytes)
            if reached == last.positions:
                return rounds
            last = _one_round(spark, options, opened, last, reached)
            rounds.append(Round(number=last.number, rows=last.rows, segment_bytes=taken, positions=reached))
            told(rounds[-1])


def pending(spark: SparkSession, options: Mapping[str, str], target: str | IcebergTable) -> int:
    """Return how many bytes of segments an export would read now; nothing is changed. Raises as `export`."""
    parsed = parse(options)
    with _opened(spark, target, parsed) as opened:
        last = opened.last(_source(parsed))
    return advance(asyncio.run(look(parsed)), last.positions, None, None)[1]


@contextmanager
def _opened(spark: SparkSession, target: str | IcebergTable, options: SourceOptions) -> Iterator[ExportTarget]:
    if isinstance(target, str):
        yield ExportFolder(spark, target)
        return
    with open_table(spark, target, to_arrow_schema(options.columns, timezone="UTC")) as table:
        yield table


def _source(options: SourceOptions) -> dict[str, str]:
    """Return what a target is an export of: it takes nothing else."""
    return {
        "cluster": options.settings.daemon.cluster,
        "topic": options.topic.text,
        "rows": "messages" if options.messages else "entries",
        **({"transactions": "all"} if options.transactions is Transactions.ALL else {}),
        **({"value": options.columns["value"].dataType.simpleString()} if options.values else {}),
    }


def _one_round(
    spark: SparkSession, options: Mapping[str, str], target: ExportTarget, last: Commit, reached: dict[str, str]
) -> Commit:
    """Write and commit what lies behind the last commit, up to `reached`."""
    step = json.dumps({"start": last.positions, "end": reached})
    staging = target.staging(last)
    before = spark.conf.get(TIMES)
    spark.conf.set(TIMES, "TIMESTAMP_MICROS")  # Spark's default is an old type that has no bounds in a file
    try:
        found = spark.read.format(FORMAT).options(**{**options, "offsets": step}).load()
        counted = Observation()
        found = found.observe(counted, functions.count(functions.lit(1)).alias("rows"))
        found = found.withColumn("day", functions.expr(DAY))
        found.write.partitionBy("day").parquet(staging)
    except PySparkException as error:
        raise OffloaderError(f"the round up to {reached} failed: {error}") from error
    finally:
        spark.conf.set(TIMES, str(before))
    return target.commit(last, staging, reached, counted.get["rows"])
