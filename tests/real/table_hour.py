"""An hour of a topic that becomes a table: `make table-hour`, MINUTES=60 for the hour.

A real Pulsar takes 1,000 messages a second with a schema, a daemon offloads them to a real S3 server, one Spark writes
them into a table of Apache Iceberg every 30 seconds, and a reader follows the topic by the daemon. Meanwhile it is
sampled how far the table is behind, by the table's own rows, and what each process uses. In the end every message has
to be in the table exactly once, and the table has to have been at most two intervals behind in 99 of 100 seconds.
Each program has a session of its own, as services have: Linux shares a busy machine among sessions.
What was seen becomes the pictures, figures and pages of the documents (tests/real/table_hour_pictures.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
from pulsar.schema import AvroSchema, Double, Long, Record, String
from pyarrow import compute
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import OperationalError

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.standalone.ports import LOOPBACK, free_ports, http_get
from tests.integration.command_line import ran, started
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.pulsar import PulsarOptions, pulsar_standalone
from tests.real.stores import seaweedfs
from tests.real.table_hour_pictures import DOCS, Hour, Sample, published
from tests.servers import S3Server, bucket_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offloaderd.client import DaemonClient
    from tests.real.pulsar import PulsarServer

TOPIC = TopicName("public", "default", "orders")
TABLE = "public_default.orders"
MESSAGES_PER_S, PER_ENTRY = 1000, 100
INTERVAL_S = 30
GOAL_INTERVALS = 2
SEGMENT_AGE_S = 10
WARM_S = 120
"""From the first commit to the first look: Spark has just started its processes, and works off what has gathered."""
HOUR_MINUTES = 60
TRIED = DOCS.parent / "build/table-hour"
"""Where a shorter run writes to."""
SAMPLE_S = 10
FOLLOWED_S = 600
"""After so long the reader begins again with the oldest entry."""
STAY: Mapping[str, object] = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}
SETTINGS: dict[str, dict[str, object]] = {
    "ledgers": {"kind": "bookkeeper"},
    "metadata": {"session_timeout_s": 30, "connect_timeout_s": 10},
    "objects": {"connect_timeout_s": 10, "read_timeout_s": 30},
    "offload": {"segment_age_max_s": SEGMENT_AGE_S},
}


class Order(Record):  # type: ignore[misc]
    """What is sent; `id` counts from 0."""

    id = Long(required=True)
    item = String()
    price = Double()


class Producer:
    """Sends messages at their rate in a thread, each entry when its last message is due."""

    def __init__(self, server: PulsarServer) -> None:
        self.moments: list[float] = []
        """When each entry was sent."""
        self._server = server
        self._begin, self._stop = threading.Event(), threading.Event()
        self._failed: list[object] = []

    @property
    def sent(self) -> int:
        """Number of messages."""
        return PER_ENTRY * len(self.moments)

    def begin(self) -> None:
        """Send from now on."""
        self._begin.set()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._begin.set()

    def run(self) -> None:
        """Make the topic, with its schema; send from `begin` to `stop`. Raises what the client raises."""
        with closing(
            pulsar.Client(self._server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        ) as client:
            producer = client.create_producer(
                f"persistent://{TOPIC.tenant}/{TOPIC.namespace}/{TOPIC.local}",
                schema=AvroSchema(Order),
                batching_enabled=True,
                batching_max_messages=PER_ENTRY,
                batching_max_publish_delay_ms=1000,
                block_if_queue_full=True,
            )
            self._begin.wait()
            begun = CLOCK.monotonic()
            while not self._stop.wait(max(0.0, begun + self.sent / MESSAGES_PER_S - CLOCK.monotonic())):
                first = self.sent
                self.moments.append(CLOCK.monotonic())
                for number in range(first, first + PER_ENTRY):
                    order = Order(id=number, item=f"item {number % 977:05}", price=number / 7)
                    producer.send_async(order, self._confirmed)
            producer.flush()
        assert not self._failed, self._failed[0]

    def _confirmed(self, result: pulsar.Result, _message: object) -> None:
        if result != pulsar.Result.Ok:
            self._failed.append(result)

    def lag_s(self, rows: int) -> float:
        """Return the age of the oldest message that a table with so many rows lacks, in seconds."""
        entry = rows // PER_ENTRY
        return CLOCK.monotonic() - self.moments[entry] if entry < len(self.moments) else 0.0


class Lake:
    """The table, as a reader of Iceberg has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = self.files = self.table_bytes = 0
        self._changed_ns = 0

    def look(self) -> None:
        """Take the numbers of the newest snapshot, if the catalogue has changed."""
        with suppress(FileNotFoundError, NoSuchTableError, OperationalError):  # the first commit makes all of it
            changed_ns = (self.folder / "catalog.db").stat().st_mtime_ns
            if changed_ns == self._changed_ns:
                return
            with closing(self._catalog()) as catalog:
                snapshot = catalog.load_table(TABLE).current_snapshot()
            if snapshot is not None and snapshot.summary is not None:
                found = snapshot.summary
                self.rows, self.files = int(found["total-records"] or 0), int(found["total-data-files"] or 0)
                self.table_bytes = int(found["total-files-size"] or 0)
            self._changed_ns = changed_ns

    def check(self, sent: int) -> None:
        """Raise AssertionError unless each message is in the table exactly once."""
        with closing(self._catalog()) as catalog:
            ids = catalog.load_table(TABLE).scan(selected_fields=("id",)).to_arrow()["id"]
        count, total, distinct = len(ids), compute.sum(ids).as_py(), compute.count_distinct(ids).as_py()
        assert (count, total, distinct) == (sent, sent * (sent - 1) // 2, sent), (count, total, distinct, sent)

    def _catalog(self) -> SqlCatalog:
        return SqlCatalog("offloaderd", uri=f"sqlite:///{self.folder}/catalog.db")


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds and resident bytes by the name of a part, and the CPU seconds of the whole machine."""

    cpu_s: dict[str, float]
    resident_bytes: dict[str, int]
    machine_cpu_s: float


def used(parts: Mapping[str, int]) -> Used:
    """Return what processes have used with all their descendants; only this one is counted alone."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    known: dict[int, tuple[float, int]] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            known[int(path.parent.name)] = sum(map(int, fields[11:15])) / tick, int(fields[21]) * page
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))

    def tree(pid: int) -> list[int]:
        below = () if pid == os.getpid() else children.get(pid, ())
        return [pid, *(one for child in below for one in tree(child))]

    trees = {name: [known[one] for one in tree(pid) if one in known] for name, pid in parts.items()}
    busy = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    return Used(
        cpu_s={name: sum(cpu_s for cpu_s, _ in found) for name, found in trees.items()},
        resident_bytes={name: sum(resident for _, resident in found) for name, found in trees.items()},
        machine_cpu_s=sum(int(busy[at]) for at in (0, 1, 2, 5, 6)) / tick,
    )


@dataclass
class Watch:
    """Looks at table and daemon every second, and at the processes every ten."""

    producer: Producer
    lake: Lake
    client: DaemonClient
    parts: Mapping[str, int]
    samples: list[Sample] = field(default_factory=list)
    lags: list[tuple[float, int, float, int]] = field(default_factory=list)
    """Of each second: seconds and messages that the table is behind the topic, seconds and entries of the daemon."""

    async def run(self, seconds: float, say: Callable[[str], object]) -> Hour:
        """Return what was seen in so many seconds."""
        begun, first, before = CLOCK.monotonic(), used(self.parts), 0
        while (passed := CLOCK.monotonic() - begun) < seconds:
            await asyncio.to_thread(self.lake.look)
            (topic,) = (await self.client.status(TOPIC)).topics
            rows = self.lake.rows
            behind = self.producer.sent - rows
            self.lags.append((self.producer.lag_s(rows), behind, topic.lag_seconds, topic.lag_entries))
            if passed >= SAMPLE_S * (len(self.samples) + 1):
                self.samples.append(self._sample(passed, before))
                before = len(self.lags)
                if len(self.samples) % 6 == 0:
                    say(f"{passed / 60:.0f} min: {rows} rows, {self.samples[-1].lag_s:.0f} s behind\n")
            await CLOCK.sleep(1.0)
        last, passed = used(self.parts), CLOCK.monotonic() - begun
        cores = {name: (last.cpu_s[name] - first.cpu_s[name]) / passed for name in self.parts}
        all_cores = (last.machine_cpu_s - first.machine_cpu_s) / passed
        return Hour.of(
            minutes=seconds / 60,
            interval_s=INTERVAL_S,
            segment_age_s=SEGMENT_AGE_S,
            messages_per_s=self.producer.sent / (CLOCK.monotonic() - self.producer.moments[0]),
            lags=self.lags,
            cores={**cores, "other programs": max(0.0, all_cores - sum(cores.values()))},
            samples=self.samples,
        )

    def _sample(self, passed_s: float, before: int) -> Sample:
        seen, now = self.lags[before:], used(self.parts)
        return Sample(
            at_s=round(passed_s),
            lag_s=round(max(one[0] for one in seen), 1),
            daemon_lag_s=round(max(one[2] for one in seen), 1),
            rows=self.lake.rows,
            files=self.lake.files,
            table_bytes=self.lake.table_bytes,
            daemon_mib=now.resident_bytes["daemon"] >> 20,
            spark_mib=now.resident_bytes["Spark"] >> 20,
        )


async def read(client: DaemonClient) -> None:
    """Follow the topic from its oldest entry on, again and again."""
    while True:
        with suppress(TimeoutError, OffloaderError):
            async with asyncio.timeout(FOLLOWED_S):
                async for _ in client.read(TOPIC, follow=True):
                    pass


async def caught_up(client: DaemonClient, producer: Producer, lake: Lake) -> None:
    """Wait until the table has all that was sent. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S + INTERVAL_S):
        while lake.rows < producer.sent:
            async for _ in client.offload(TOPIC, wait=True):
                pass
            await CLOCK.sleep(1.0)
            await asyncio.to_thread(lake.look)


async def hour(minutes: float, directory: Path, docs: Path, say: Callable[[str], object]) -> Hour:
    """Run everything in a directory; returns what was seen, which is written to `docs` before the last check.

    Raises FetchFailed (no jars), InvalidConfig (no Java), ServerDied, AssertionError.
    """
    async with AsyncExitStack() as stack:
        for name in ("pulsar", "s3", "lake"):
            (directory / name).mkdir()
        options = PulsarOptions(directory=directory / "pulsar", settings=STAY)
        server = await stack.enter_async_context(pulsar_standalone(options, CLOCK))
        store = await stack.enter_async_context(seaweedfs(directory / "s3", CLOCK))
        s3 = S3Server(store.endpoint, store.access_key, store.secret_key)
        site = Site.at(directory, server.zookeeper, s3, stack.enter_context(bucket_at(s3, "offloaded")))
        site.settings = {
            **SETTINGS,
            "bookkeeper": {"servers": server.zookeeper},
            "pulsar": {"admin_url": server.admin_url},
        }
        program = ("setsid", str(Path(sys.executable).with_name("offloaderd")))
        daemon = await stack.enter_async_context(DaemonProcess(site, program=program))
        client = await stack.enter_async_context(daemon.client())
        lake, producer = Lake(directory / "lake"), Producer(server)
        await client.enable(TOPIC)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        sending = group.create_task(asyncio.to_thread(producer.run), name="producer")
        stack.callback(producer.stop)
        reading = group.create_task(read(client), name="reader")
        stack.callback(reading.cancel)
        declared = ("tables", "create", TOPIC.local, "--to", str(lake.folder), "--interval", f"{INTERVAL_S}s")
        code, _, told = await ran(site, "offloadctl", *declared)
        assert code == 0, told
        (port,) = free_ports(1, CLOCK)
        run = ("spark", "tables", "run", "--metrics", f"{LOOPBACK}:{port}", "--spark-conf", "spark.ui.enabled=false")
        spark = await stack.enter_async_context(started(site, "offloaderd", *run, own_session=True))
        say("waiting for Spark, and for the first commit of the table\n")
        async with asyncio.timeout(2 * PATIENCE_S):
            while not lake.rows:
                assert spark.process.returncode is None, "Spark has ended"
                if (await http_get(port, "/metrics"))[0] == 200:
                    producer.begin()
                await CLOCK.sleep(1.0)
                await asyncio.to_thread(lake.look)
        await CLOCK.sleep(WARM_S)
        parts = {
            "daemon": daemon.process.pid,
            "Spark": spark.process.pid,
            "Pulsar": server.child.pid or 0,
            "S3 server": store.child.pid or 0,
            "producer and reader": os.getpid(),
        }
        seen = await Watch(producer, lake, client, parts).run(60 * minutes, say)
        pages = {}
        for name, query in (("status", ""), ("topic", f"?topic={TOPIC}")):
            code, pages[name] = await daemon.http(f"/status{query}")
            assert code == 200, pages[name]
        await asyncio.to_thread(published, docs, seen, pages)
        producer.stop()
        await sending
        await caught_up(client, producer, lake)
        spark.process.send_signal(signal.SIGTERM)
        code, said = await spark.ended()
        assert code == 0, said
        lake.check(producer.sent)
    say(f"each of {producer.sent} messages is in the table exactly once\n")
    return seen


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=HOUR_MINUTES, help="how long (default 60)")
    parser.add_argument(
        "docs", type=Path, nargs="?", help="directory to write to (default docs, of a shorter run build)"
    )
    given = parser.parse_args()
    docs = given.docs or (DOCS if given.minutes >= HOUR_MINUTES else TRIED)
    say = partial(print, end="", flush=True)
    with tempfile.TemporaryDirectory(prefix="offloaderd-hour-") as directory:
        seen = asyncio.run(hour(given.minutes, Path(directory), docs, say))
    behind, goal_s = seen.figures["table_lag_s"].p99, GOAL_INTERVALS * INTERVAL_S
    say(f"written to {docs}\n")
    say(f"{seen.summary()}, goal {goal_s} s\n")
    sys.exit(behind > goal_s)


if __name__ == "__main__":
    main()
