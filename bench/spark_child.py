"""Spark in a process of its own: `python -m bench.spark_child` reads a line of JSON for each thing to do, and answers.

The first line names Spark's master and the daemon's settings, as an environment; the answer is how long Spark took to
start. What Python workers have used and held is read from /proc: they live as long as the session.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.discarding import discard
from bench.machine import memory_bytes
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.daemon import log
from offloaderd.daemon.settings import load
from offloaderd.spark.backfill import backfill
from offloaderd.spark.jobs.executors import Options, Share, on_executor
from offloaderd.spark.session import WORKERS, spark_session
from offloaderd.spark.source import register

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from offloaderd.daemon.settings import Settings

CLOCK = SystemClock()


@dataclass(slots=True)
class Spark:
    """A child and the lines to and from it."""

    process: asyncio.subprocess.Process
    started_s: float = 0.0

    async def ask(self, **wish: object) -> dict[str, Any]:
        """Have something done; returns the answer. Raises RuntimeError when the child has failed."""
        assert self.process.stdin is not None  # noqa: S101 - it has pipes
        assert self.process.stdout is not None  # noqa: S101 - as above
        self.process.stdin.write(json.dumps(wish).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark's process ended at {wish.get('what', 'its start')}; see what it said above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def backfill(
        self, topic: TopicName, segment_bytes: int, *, slots: int = 1, warm: bool = True
    ) -> dict[str, Any]:
        """Have a topic's history offloaded, by Python workers that have imported what they need unless not `warm`."""
        if warm:
            await self.ask(what="warm", slots=slots)
        return await self.ask(what="backfill", topic=str(topic), slots=slots, segment_bytes=segment_bytes)


@asynccontextmanager
async def spark(master: str, environment: Mapping[str, str], *, discarding: bool = False) -> AsyncIterator[Spark]:
    """Run Spark with the settings of a daemon until the context ends; `discarding`: data objects are dropped."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.spark_child", stdin=pipe, stdout=pipe)
    child = Spark(process)
    try:
        wish = {"master": master, "environment": environment, "discarding": discarding}
        child.started_s = (await child.ask(**wish))["seconds"]
        yield child
        assert process.stdin is not None  # noqa: S101 - it has pipes
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def main() -> None:
    """Start Spark and carry out requests until there are no more."""
    first = json.loads(sys.stdin.readline())
    settings, started = load(None, first["environment"]), CLOCK.monotonic()
    os.environ.update(first["environment"])
    options = {}
    if first["discarding"]:
        discard()
        options[WORKERS] = "bench.discarding"
    with spark_session("bench", master=first["master"], options=options) as session:
        register(session)
        _say(seconds=CLOCK.monotonic() - started)
        for line in sys.stdin:
            wish = json.loads(line)
            before, started = _used(), CLOCK.monotonic()
            DO[wish.pop("what")](session, settings, **wish)
            seconds, after = CLOCK.monotonic() - started, _used()
            used = {"cpu_s": after[0] - before[0], "java_cpu_s": after[3] - before[3]}
            _say(seconds=seconds, worker_bytes=after[1], java_bytes=after[2], **used)


def _say(**answer: float) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _warm(session: SparkSession, settings: Settings, *, slots: int) -> None:
    """Have so many Python workers import what a backfill needs: Spark ends those that were idle for a minute."""
    del settings
    session.sparkContext.parallelize(range(slots), slots).barrier().mapPartitions(_together).collect()


def _together(numbers: Iterable[int]) -> Iterable[object]:
    """Wait for the other tasks, so that each has a worker of its own, and write nothing."""
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - of the worker

    del numbers
    BarrierTaskContext.get().barrier()
    return on_executor([])


def _backfill(session: SparkSession, settings: Settings, *, topic: str, slots: int, segment_bytes: int) -> None:
    """Offload a topic's history."""
    options = Options(segment_bytes=segment_bytes, share=Share(slots=slots))
    (ended,) = asyncio.run(backfill.run(settings, session, [TopicName.parse(topic)], options))
    if ended.error is not None:
        raise ended.error


def _read(session: SparkSession, settings: Settings, *, topic: str, payload_bytes: int) -> None:
    """Sum up the lengths of all payloads by the data source."""
    del settings
    _summed(_payloads(session, topic), payload_bytes)


def _write(session: SparkSession, settings: Settings, *, topic: str, target: str) -> None:
    """Write the same payloads to Parquet, as they are."""
    del settings
    _payloads(session, topic).write.option("compression", "none").parquet(target)


def _payloads(session: SparkSession, topic: str) -> DataFrame:
    return session.read.format("offload").schema("payload BINARY").option("topic", topic).load()


def _parquet(session: SparkSession, settings: Settings, *, target: str, payload_bytes: int) -> None:
    """Sum up the lengths of all payloads in Parquet, read as they are."""
    del settings
    _summed(session.read.parquet(target), payload_bytes)


def _rows(session: SparkSession, settings: Settings, *, topic: str, schema: str, target: str) -> None:
    """Write the messages of a topic to Parquet, with the columns of a table."""
    del settings
    messages = session.read.format("offload").option("topic", topic).option("messages", "true").option("schema", schema)
    columns = ("topic", "ledger_id", "entry_id", "batch_index", "time", "publish_time", "event_time", "producer")
    found = messages.load().selectExpr("value.*", *columns, "sequence_id", "key", "properties")
    found.write.parquet(target)


def _table(session: SparkSession, settings: Settings, *, name: str, folder: str, rows: int) -> None:
    """Write the declared tables of that name from their begin to their end."""
    del settings
    from deltalake import DeltaTable  # noqa: PLC0415 - of one benchmark
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    from offloaderd.spark.export.export import own_session  # noqa: PLC0415
    from offloaderd.spark.tables.application import Application  # noqa: PLC0415

    spark = own_session(session)  # as the command does it
    application = Application(spark, {}, clock=CLOCK, registry=CollectorRegistry(), names=frozenset({name}))
    if not application.run(once=True):
        raise RuntimeError(f"table {name} failed; see what it said above")
    if (found := sum(DeltaTable(str(one.parent)).count() for one in Path(folder).glob("*/_delta_log"))) != rows:
        raise RuntimeError(f"{found} rows were written, not {rows}")


def _copy(session: SparkSession, settings: Settings, *, source: str, target: str, rows: int) -> None:
    """Copy rows from Parquet to Parquet."""
    del settings
    session.read.parquet(source).write.parquet(target)
    if (found := session.read.parquet(target).count()) != rows:
        raise RuntimeError(f"{found} rows were copied, not {rows}")


def _summed(rows: DataFrame, expected: int) -> None:
    (found,) = rows.selectExpr("sum(length(payload))").collect()
    if found[0] != expected:
        raise RuntimeError(f"{found[0]} bytes were read, not {expected}")


DO: dict[str, Callable[..., None]] = {
    "warm": _warm,
    "backfill": _backfill,
    "read": _read,
    "write": _write,
    "parquet": _parquet,
    "rows": _rows,
    "table": _table,
    "copy": _copy,
}


def _used() -> tuple[float, int, int, float]:
    """Return the CPU of all Python workers, the peak memory of the largest, Java's, and its CPU; seconds and bytes."""
    cpu, worker, java, java_cpu = 0.0, 0, 0, 0.0
    for pid, name in _descendants():
        try:
            if name.startswith("python"):
                cpu, worker = cpu + _cpu_s(pid), max(worker, memory_bytes(pid)[1])
            elif name == "java":
                java, java_cpu = max(java, memory_bytes(pid)[1]), java_cpu + _cpu_s(pid)
        except (OSError, KeyError):  # it has just ended
            continue
    return cpu, worker, java, java_cpu


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _descendants() -> list[tuple[int, str]]:
    """Return the processes that come from this one, with what they run."""
    parents: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        pid, _, name = head.partition(" (")
        parents[int(pid)] = (int(rest.split()[1]), name)
    known, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in parents.items() if parent in known} - known
        known |= more
        grown = bool(more)
    return [(pid, parents[pid][1]) for pid in known - {os.getpid()} if pid in parents]


if __name__ == "__main__":
    log.configure("error", "json")
    main()
