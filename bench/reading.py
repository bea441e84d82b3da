"""Read back from S3, cold, beside bare ranged GETs of the same objects: over gRPC, and direct.

The daemon is started anew for every round, so its caches are cold; a topic is read by `DaemonClient.read` in this
process, and directly in a process of its own. The references get ranges as a direct read does once it is at full speed:
8 MiB, two at a time, and one by one; the daemon's are a third of its read-ahead. Beside it goes the same read, framed
as well, from a gRPC server that answers from memory.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from bench import direct, goals, raw
from bench.empty import empty_server
from bench.load import DEADLINE_S, MIB, Entries
from bench.report import Figure, spread
from bench.scale import bytes_of
from bench.stored import stored
from bench.usage import GIB, Measured, measured, process_figures, used_figures
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.protocol.v1 import common_pb2

if TYPE_CHECKING:
    from bench.child import Took
    from bench.empty import Empty
    from bench.scale import Scale
    from bench.site import Daemon, Site
    from bench.stored import Stored

REQUEST_BYTES = 8 * MIB


class Round(NamedTuple):
    """One read of ours and all references."""

    ours: Measured
    direct: Took
    planned: Measured
    one_by_one: Took
    two_at_once: Took
    fastest: Took
    empty: Took


async def read_back(site: Site, size: Scale) -> list[Figure]:
    """Measure cold reads of a whole topic."""
    topics = {
        TopicName.parse(f"read-{label.replace(' ', '-')}"): (
            label,
            Entries(entry_bytes, bytes_of(size.read_bytes, entry_bytes)),
        )
        for label, entry_bytes in size.entry_sizes.items()
    }
    rounds: dict[str, list[Round]] = {label: [] for label in size.entry_sizes}
    entries = {topic: entries for topic, (_, entries) in topics.items()}
    async with stored(site, entries) as there, empty_server() as empty:
        for _ in range(size.runs):
            async with there.daemon() as daemon:
                for topic, (label, of) in topics.items():
                    rounds[label].append(await _round(daemon, there, topic, of, empty))
    return [figure for label, of in topics.values() for figure in _figures(label, of, rounds[label])]


async def _round(daemon: Daemon, there: Stored, topic: TopicName, entries: Entries, empty: Empty) -> Round:
    async with measured(daemon) as ours:
        await read_all(daemon, topic, entries)
    objects = there.objects[topic]
    async with measured(daemon) as planned:
        read = await direct.measure(there.site, daemon, topic, entries.count)
    one, two = [
        await raw.measure("get", there.site.s3, objects, request_bytes=REQUEST_BYTES, parallel=parallel)
        for parallel in (1, 2)
    ]
    fastest = await raw.measure(
        "get", there.site.s3, objects, client="obstore", request_bytes=REQUEST_BYTES, parallel=2
    )
    return Round(ours, read, planned, one, two, fastest, await empty.read(entries.entry_bytes, entries.count))


async def read_all(daemon: Daemon, topic: TopicName, entries: Entries) -> None:
    """Read the whole topic from the store."""
    count = size_bytes = 0
    priority = ReadPriority.TIERED_STORAGE_FIRST
    async with aclosing(daemon.client.read(topic, read_priority=priority, timeout_s=DEADLINE_S)) as responses:
        async for response in responses:
            payloads = response.batch.payloads
            count += len(payloads)
            size_bytes += sum(map(len, payloads))
            if response.tier != common_pb2.TIER_OBJECTS:
                raise RuntimeError("read from another tier than the store")
    if (count, size_bytes) != (entries.count, entries.payload_bytes):
        raise RuntimeError(f"{count} entries came back, not {entries.count}")


def _figures(label: str, entries: Entries, rounds: list[Round]) -> list[Figure]:
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / GIB
    name, straight = f"read back, {label}", f"direct read, {label}"
    found = [
        Figure(
            benchmark=name,
            figure="rate over bare GETs, 8 MiB, two at a time",
            values=[one.two_at_once.seconds / one.ours.seconds for one in rounds],
            goal=goals.READ_RATE.get(label),
            notes={
                "ours": spread([mib / one.ours.seconds for one in rounds], "MiB/s"),
                "aiobotocore": spread([mib / one.two_at_once.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="rate over bare GETs, 8 MiB, one by one",
            values=[one.one_by_one.seconds / one.ours.seconds for one in rounds],
            notes={"aiobotocore": spread([mib / one.one_by_one.seconds for one in rounds], "MiB/s")},
        ),
        Figure(
            benchmark=name,
            figure="rate over the fastest client's GETs, two at a time",
            values=[one.fastest.seconds / one.ours.seconds for one in rounds],
            notes={"obstore": spread([mib / one.fastest.seconds for one in rounds], "MiB/s")},
        ),
        Figure(
            benchmark=name,
            figure="the same read from a server that has it in memory",
            values=[mib / one.empty.seconds for one in rounds],
            unit="MiB/s",
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon",
            values=[one.ours.cpu_s["daemon"] / gib for one in rounds],
            goal=goals.READ_CPU if label in goals.READ_RATE else None,
            more_is_better=False,
            unit="s/GiB",
        ),
        *_direct_figures(straight, label, entries, rounds),
        *process_figures(name, gib, [one.ours for one in rounds]),
    ]
    for benchmark, process, taken in (
        (name, "bare client (aiobotocore)", [one.two_at_once for one in rounds]),
        (name, "fastest client (obstore)", [one.fastest for one in rounds]),
        (name, "gRPC with empty work", [one.empty for one in rounds]),
        (straight, "reader", [one.direct for one in rounds]),
    ):
        cpu, peak = [one.cpu_s / gib for one in taken], [one.peak_bytes for one in taken]
        found += used_figures(benchmark, process, cpu=cpu, peak=peak)
    return found


def _direct_figures(name: str, label: str, entries: Entries, rounds: list[Round]) -> list[Figure]:
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / GIB
    return [
        Figure(
            benchmark=name,
            figure="rate over the fastest client's GETs, two at a time",
            values=[one.fastest.seconds / one.direct.seconds for one in rounds],
            goal=goals.DIRECT_FASTEST if label in goals.READ_RATE else None,
        ),
        Figure(
            benchmark=name,
            figure="rate over bare GETs, 8 MiB, two at a time",
            values=[one.two_at_once.seconds / one.direct.seconds for one in rounds],
            goal=goals.DIRECT_RATE if label in goals.READ_RATE else None,
            notes={"ours": spread([mib / one.direct.seconds for one in rounds], "MiB/s")},
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon",
            values=[one.planned.cpu_s["daemon"] / gib for one in rounds],
            goal=goals.DIRECT_CPU if label in goals.READ_RATE else None,
            more_is_better=False,
            unit="s/GiB",
        ),
    ]
