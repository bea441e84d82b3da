"""Spark's backfills beside what the daemon does with the same bytes.

A backfill is measured with Python workers that have imported all they need, as in a longer job; the first one has a
figure of its own. In turns with the job the daemon catches up with the same topic, its own way, and a bare client
uploads the same objects. Spark, the servers and the bookies share the cores of the machine.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench import raw
from bench.appending import PARALLEL, PART_BYTES, everything_offloaded, objects_of
from bench.load import DEADLINE_S, MIB, Entries, append
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.spark_child import spark
from bench.tailing import PLAN
from bench.usage import measured
from offloaderd.core.model import TopicName
from offloaderd.protocol.v1 import policy_pb2
from tests.real.writer import ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from bench.spark_child import Spark
    from tests.real.bookies import BookKeeperCluster

ENTRY_BYTES = 10 * 1024
LEDGERS = 8
SEGMENTS = 2
"""Into how many segments a topic is split: one for each of two cores. Small ones would show what each one costs."""

SCALING_SEGMENTS = 8
"""Into how many where the store discards: some for each core, as a history has more of them than a job has cores."""

GOAL_DAEMON, GOAL_SCALING = 0.7, 1.6
GOAL_GROWTH = 1.25
"""How much more memory a worker may have held for segments that are twice as large."""

GIB = 1024**3


@dataclass
class Measured:
    """The results by round: seconds and CPU seconds; and the memory of the job's Python."""

    payload_bytes: int
    job: list[float] = field(default_factory=list)
    daemon: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    job_cpu: list[float] = field(default_factory=list)
    daemon_cpu: list[float] = field(default_factory=list)
    worker_bytes: float = 0

    def rates(self, seconds: list[float]) -> str:
        """Return how fast that was."""
        return spread([self.payload_bytes / MIB / one for one in seconds], "MiB/s")

    def cpu(self, used: list[float]) -> str:
        """Return what it took of a core."""
        return spread([one / self.payload_bytes * GIB for one in used], "s/GiB")


async def planned(daemon: Daemon, topic: TopicName) -> int:
    """Enable a topic whose history is a job's; returns how many bytes of payload that has."""
    await daemon.client.enable(topic, policies=policy_pb2.OffloadPolicies(history_order="alongside"))
    until = CLOCK.monotonic() + DEADLINE_S
    while not (found := await daemon.client.history(topic)).HasField("plan"):
        if CLOCK.monotonic() > until:
            raise RuntimeError(f"nobody has planned the history of {topic}")
        await CLOCK.sleep(0.1)
    return found.plan.payload_bytes


async def _by_daemon(daemon: Daemon, topic: TopicName, segment_bytes: int) -> tuple[float, float]:
    """Have a daemon catch up with a topic; returns seconds and CPU seconds."""
    async with measured(daemon) as took:
        await daemon.client.enable(topic, segment_bytes_max=segment_bytes)
        await everything_offloaded(daemon, topic)
    return took.seconds, took.cpu_s["daemon"]


async def _round(
    found: Measured, place: Site, job: Spark, daemon: Daemon, topic: TopicName, segment_bytes: int
) -> None:
    """Measure job and daemon with a topic, and the bare client with the same objects."""
    told = await job.backfill(topic, segment_bytes)
    found.job.append(told["seconds"])
    found.job_cpu.append(told["cpu_s"])
    seconds, cpu = await _by_daemon(daemon, topic, segment_bytes)
    found.daemon.append(seconds)
    found.daemon_cpu.append(cpu)
    stored = await objects_of(daemon, topic)
    took = await raw.measure("upload", place.s3, stored, request_bytes=PART_BYTES, parallel=PARALLEL)
    found.bare.append(took.seconds)
    found.worker_bytes = told["worker_bytes"]


def _beside(name: str, found: Measured) -> list[Figure]:
    return [
        Figure(
            benchmark=name,
            figure="rate of one core over the daemon's own upload",
            values=[daemon / job for job, daemon in zip(found.job, found.daemon, strict=True)],
            goal=GOAL_DAEMON,
            notes={"ours": found.rates(found.job), "daemon": found.rates(found.daemon)},
        ),
        Figure(
            benchmark=name,
            figure="rate of one core over bare multipart upload",
            values=[bare / job for job, bare in zip(found.job, found.bare, strict=True)],
            notes={"bare": found.rates(found.bare)},
        ),
        Figure(
            benchmark=name,
            figure="CPU of the Python worker",
            values=[one / found.payload_bytes * GIB for one in found.job_cpu],
            unit="s/GiB",
            notes={"daemon": found.cpu(found.daemon_cpu)},
        ),
    ]


@dataclass
class Embedded:
    """The results of backfills from the embedded store."""

    one: Measured
    segment_bytes: int
    two: list[float] = field(default_factory=list)
    """Seconds of two cores."""
    cold_s: float = 0
    started_s: float = 0
    large: dict[str, float] = field(default_factory=dict)
    """The usage of the job with segments twice as large."""
    boundaries: int = 0
    probes: int = 0
    entries: int = 0


async def backfill_embedded(site: Site, size: Scale) -> list[Figure]:
    """Measure backfills from the embedded store: one core, two cores, and segments twice as large."""
    entries = Entries(ENTRY_BYTES, size.backfill_bytes + ENTRY_BYTES)
    theirs: Sections = {
        "ledgers": {"kind": "embedded", "ledger_entries_max": (entries.count - 1) // LEDGERS},
        "history": {"daemon_bytes_max": 0},
    }
    name = f"job{CLOCK.uuid().hex[:6]}"
    one = [TopicName.parse(f"one-{number}") for number in range(size.runs)]
    two = [TopicName.parse(f"two-{number}") for number in range(size.runs)]
    cold, large = TopicName.parse("cold"), TopicName.parse("large")
    found = Embedded(Measured(0), size.backfill_bytes // SEGMENTS)
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(site.bucket())
        daemon = await stack.enter_async_context(place.daemon(theirs, name=name))
        own: Sections = {"ledgers": {"kind": "embedded"}}
        beside = await stack.enter_async_context(place.daemon(own, name=f"own{name}"))
        for topic in (*one, *two, cold, large):
            await append(daemon.client, topic, entries)
            found.one.payload_bytes = await planned(daemon, topic)
        for topic in one:
            await append(beside.client, topic, entries)
        environment = place.environment(name, 1, 2, theirs)
        async with spark("local[1]", environment) as single:
            first = await single.backfill(cold, found.segment_bytes, warm=False)
            found.cold_s, found.started_s = first["seconds"], single.started_s
            async with spark("local[2]", environment) as double:
                for single_topic, double_topic in zip(one, two, strict=True):
                    await _round(found.one, place, single, beside, single_topic, found.segment_bytes)
                    told = await double.backfill(double_topic, found.segment_bytes, slots=2)
                    found.two.append(told["seconds"])
        async with spark("local[1]", environment) as third:
            found.large = await third.backfill(large, SEGMENTS * found.segment_bytes)
        plan = (await daemon.client.history(one[0])).plan
        found.boundaries, found.probes, found.entries = plan.ranges - 1, plan.probes, plan.entries
    return [*_beside("backfill from the embedded store", found.one), *_embedded_figures(found)]


def _embedded_figures(found: Embedded) -> list[Figure]:
    name, segment_mib, large = "backfill from the embedded store", found.segment_bytes / MIB, found.large
    return [
        Figure(
            benchmark=name,
            figure="rate of local[2] over local[1], which share two cores with the S3 server",
            values=[one / two for one, two in zip(found.one.job, found.two, strict=True)],
            notes={"local[2]": found.one.rates(found.two)},
        ),
        Figure(
            benchmark=name,
            figure="the first topic of a session",
            values=[found.cold_s],
            unit="s",
            notes={"later ones": spread(found.one.job, "s"), "Spark itself": f"{found.started_s:.1f} s before"},
        ),
        Figure(
            benchmark=name,
            figure="probes for a boundary",
            values=[found.probes / max(1, found.boundaries)],
            goal=math.ceil(math.log2(found.entries)),
            more_is_better=False,
            notes={"boundaries": str(found.boundaries), "entries": str(found.entries)},
        ),
        Figure(
            benchmark=name,
            figure="peak memory of a Python worker, segments twice as large over small ones",
            values=[large["worker_bytes"] / found.one.worker_bytes],
            goal=GOAL_GROWTH,
            more_is_better=False,
            notes={
                f"{segment_mib:.0f} MiB": f"{found.one.worker_bytes / MIB:.0f} MiB",
                f"{SEGMENTS * segment_mib:.0f} MiB": f"{large['worker_bytes'] / MIB:.0f} MiB",
                "Java": f"{large['java_bytes'] / MIB:.0f} MiB",
            },
        ),
    ]


async def backfill_bookies(site: Site, size: Scale, cluster: BookKeeperCluster) -> list[Figure]:
    """Measure backfills from real bookies, one core."""
    segment_bytes = size.backfill_bytes // SEGMENTS
    name, other = f"job{CLOCK.uuid().hex[:6]}", f"own{CLOCK.uuid().hex[:6]}"
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(site.bucket())
        writer = await stack.enter_async_context(ledger_writer(cluster.zookeeper, CLOCK))
        theirs: Sections = {
            "ledgers": {"kind": "bookkeeper"},
            "bookkeeper": {"servers": cluster.zookeeper},
            "history": {"daemon_bytes_max": 0},
        }
        own = {section: values for section, values in theirs.items() if section != "history"}
        daemon = await stack.enter_async_context(place.daemon(theirs, name=name))
        beside = await stack.enter_async_context(place.daemon(own, name=other))
        found, topics = Measured(0), []
        for number in range(size.runs):
            topic = await written_topic(writer, f"spark-{number}", plan=PLAN)
            count = size.backfill_bytes // ENTRY_BYTES // LEDGERS
            for _ in range(LEDGERS):
                await topic.add(
                    (entry_id.to_bytes(8, "big") * (ENTRY_BYTES // 8) for entry_id in range(count)), window=256
                )
                await topic.roll()
            found.payload_bytes = await planned(daemon, topic.name)
            topics.append(topic.name)
        async with spark("local[1]", place.environment(name, 1, 2, theirs)) as job:
            for topic_name in topics:
                await _round(found, place, job, beside, topic_name, segment_bytes)
    return _beside("backfill from bookies", found)


async def backfill_scaling(site: Site, size: Scale) -> list[Figure]:
    """Measure two cores over one from the embedded store into a store that discards, which takes no core from them."""
    entries = Entries(ENTRY_BYTES, size.backfill_bytes + ENTRY_BYTES)
    theirs: Sections = {
        "ledgers": {"kind": "embedded", "ledger_entries_max": (entries.count - 1) // LEDGERS},
        "history": {"daemon_bytes_max": 0},
    }
    name, segment_bytes = f"job{CLOCK.uuid().hex[:6]}", size.backfill_bytes // SCALING_SEGMENTS
    place = site.on_disk("objects-discarded")
    topics = {slots: [TopicName.parse(f"by-{slots}-{number}") for number in range(size.runs + 1)] for slots in (1, 2)}
    found, payload_bytes = dict[int, Measured](), 0
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(place.daemon(theirs, name=name))
        for topic in (*topics[1], *topics[2]):
            await append(daemon.client, topic, entries)
            payload_bytes = await planned(daemon, topic)
        environment = place.environment(name, 1, 2, theirs)
        jobs = {
            slots: await stack.enter_async_context(spark(f"local[{slots}]", environment, discarding=True))
            for slots in topics
        }
        for number in range(size.runs + 1):  # the first is not counted: both sessions begin with it
            for slots, job in jobs.items():
                told = await job.backfill(topics[slots][number], segment_bytes, slots=slots)
                if number:
                    took = found.setdefault(slots, Measured(payload_bytes))
                    took.job.append(told["seconds"])
                    took.job_cpu.append(told["cpu_s"] + told["java_cpu_s"])
    one, two = found[1], found[2]
    name = "backfill from the embedded store into a store that discards"
    return [
        Figure(
            benchmark=name,
            figure="rate of local[2] over local[1]",
            values=[single / double for single, double in zip(one.job, two.job, strict=True)],
            goal=GOAL_SCALING,
            notes={"local[1]": one.rates(one.job), "local[2]": two.rates(two.job)},
        ),
        Figure(
            benchmark=name,
            figure="the same by the CPU of Python workers and Java, if two cores are busy throughout",
            values=[2 * single / double for single, double in zip(one.job_cpu, two.job_cpu, strict=True)],
            notes={"local[1]": one.cpu(one.job_cpu), "local[2]": two.cpu(two.job_cpu)},
        ),
    ]
