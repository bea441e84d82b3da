"""The data source beside Spark's own reading of the same payloads from Parquet, and beside a read by gRPC.

Parquet lies in a directory of this machine. The goal is for segments that lie in one as well: there both readers have
the two cores to themselves. An S3 server on the same cores takes part of them, which its figure says in CPU. All ways
take turns, over as much as makes the begin of a query small: a source in Python is planned in processes of its own.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.appending import everything_offloaded
from bench.load import DEADLINE_S, MIB, Entries, append
from bench.machine import cpu_s
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.spark_child import spark
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.protocol.v1 import common_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from bench.spark_child import Spark

ENTRY_BYTES = 10 * 1024
SEGMENTS = 4
TIMES = 4
"""How much larger the topic is than the history of a backfill."""

GOAL_PARQUET = 0.8
CACHE_BYTES = 16 * MIB
"""Of the daemon that is read from: far less than the topic, so that each read gets it all from the store."""

GIB = 1024**3
TOPIC = TopicName.parse("read-by-spark")


@dataclass
class Way:
    """One way to read, by round: seconds, and CPU seconds by process."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def note(self, seconds: float, cpu_s: dict[str, float]) -> None:
        """Add a round."""
        self.seconds.append(seconds)
        for name, used in cpu_s.items():
            self.cpu_s.setdefault(name, []).append(used)

    def over(self, other: Way) -> list[float]:
        """Return its rate over another's, by round."""
        return [theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True)]

    def told(self, payload_bytes: int) -> str:
        """Return how fast it was, and what it took of a core."""
        rates = spread([payload_bytes / MIB / one for one in self.seconds], "MiB/s")
        used = (
            f"{name} {spread([one / payload_bytes * GIB for one in all_], 's/GiB')}"
            for name, all_ in self.cpu_s.items()
        )
        return "; ".join([rates, *used])


async def data_source(site: Site, size: Scale) -> list[Figure]:
    """Measure `sum(length(payload))` over a topic in local[2], its segments in a directory and in an S3 server."""
    figures = await _measured(site.on_disk("objects-in-a-directory"), size, "a directory", server=None)
    async with site.bucket() as place:
        return figures + await _measured(place, size, "an S3 server", server=place.pids["S3 server"])


async def _measured(place: Site, size: Scale, where: str, *, server: int | None) -> list[Figure]:
    """Measure all ways in turns; those of `server`, by its process id, are noted with its CPU."""
    entries = Entries(ENTRY_BYTES, TIMES * size.backfill_bytes, segments=SEGMENTS)
    sections: Sections = {"ledgers": {"kind": "embedded"}, "memory": {"cache_bytes": CACHE_BYTES}}
    unique = CLOCK.uuid().hex[:6]
    source, parquet, grpc = Way(), Way(), Way()
    async with place.daemon(sections, name=f"source{unique}") as daemon:
        await append(daemon.client, TOPIC, entries)
        await daemon.client.enable(TOPIC, segment_bytes_max=entries.segment_bytes)
        await everything_offloaded(daemon, TOPIC)
        async with spark("local[2]", place.environment(f"source{unique}", 1, 2, sections)) as job:
            target = place.directory / f"parquet-{unique}"
            await job.ask(what="write", topic=str(TOPIC), target=str(target))
            for number in range(size.runs + 1):  # the first is not counted
                for way, read in ((source, _by_source), (parquet, _by_parquet)):
                    before = cpu_s(server) if server is not None else 0.0
                    seconds, used = await read(job, entries, target)
                    if server is not None:
                        used["S3 server"] = cpu_s(server) - before
                    if number:
                        way.note(seconds, used)
                seconds = await _by_grpc(daemon, entries)
                if number:
                    grpc.note(seconds, {})
    name, payload_bytes = f"data source, local[2], 10 KiB, segments in {where}", entries.payload_bytes
    return [
        Figure(
            benchmark=name,
            figure="rate over Spark's of the same bytes in Parquet in a directory",
            values=source.over(parquet),
            goal=GOAL_PARQUET if server is None else None,
            notes={"ours": source.told(payload_bytes), "Parquet": parquet.told(payload_bytes)},
        ),
        Figure(
            benchmark=name,
            figure="rate over the read by gRPC",
            values=source.over(grpc),
            notes={"gRPC": grpc.told(payload_bytes)},
        ),
    ]


async def _by_source(job: Spark, entries: Entries, target: Path) -> tuple[float, dict[str, float]]:
    del target
    return _took(await job.ask(what="read", topic=str(TOPIC), payload_bytes=entries.payload_bytes))


async def _by_parquet(job: Spark, entries: Entries, target: Path) -> tuple[float, dict[str, float]]:
    return _took(await job.ask(what="parquet", target=str(target), payload_bytes=entries.payload_bytes))


def _took(told: dict[str, float]) -> tuple[float, dict[str, float]]:
    return told["seconds"], {"Python": told["cpu_s"], "Java": told["java_cpu_s"]}


async def _by_grpc(daemon: Daemon, entries: Entries) -> float:
    """Read the topic from the store through the daemon; returns the seconds."""
    started, found = CLOCK.monotonic(), 0
    priority = ReadPriority.TIERED_STORAGE_FIRST
    async with aclosing(daemon.client.read(TOPIC, read_priority=priority, timeout_s=DEADLINE_S)) as responses:
        async for response in responses:
            found += sum(map(len, response.batch.payloads))
            if response.tier != common_pb2.TIER_OBJECTS:
                raise RuntimeError("read from another tier than the store")
    if found != entries.payload_bytes:
        raise RuntimeError(f"{found} bytes were read, not {entries.payload_bytes}")
    return CLOCK.monotonic() - started
