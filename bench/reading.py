"""Read back from S3 over gRPC, cold, beside bare ranged GETs of the same objects.

The daemon is started anew for every round, so its buffer is empty and its caches are cold; the topic is read by
`DaemonClient.read` in this process, with the store asked first. The references get the same ranges as the reader does
once it is at full speed: 8 MiB, one by one and (as it fetches one ahead) two at a time.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from bench import raw
from bench.appending import SIZES, everything_offloaded, objects_of, spread
from bench.load import DEADLINE_S, MIB, Entries, append
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.model import ReadPriority, TopicName
from offloaderd.rpc.v1 import common_pb2

if TYPE_CHECKING:
    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Daemon, Site, Spent

REQUEST_BYTES = 8 * MIB
GOALS = {"10 KiB": 0.5, "1 KiB": 0.3}
TOPIC = TopicName.parse("read-back")


class Round(NamedTuple):
    """One read of ours and both references."""

    seconds: float
    spent: Spent
    one_by_one: Took
    two_at_once: Took


async def read_back(site: Site, size: Scale) -> list[Figure]:
    """Measure cold reads of a whole topic."""
    figures = []
    sections = {"ledgers": {"kind": "embedded"}}
    for label, (entry_bytes, _) in SIZES.items():
        entries = Entries(entry_bytes, size.total_bytes, segments=size.segments)
        rounds: list[Round] = []
        name = f"read{CLOCK.uuid().hex[:6]}"
        async with site.bucket() as place:
            async with place.daemon(sections, name=name) as daemon:
                await append(daemon.client, TOPIC, entries)
                await daemon.client.enable(TOPIC, segment_bytes_max=entries.segment_bytes)
                await everything_offloaded(daemon, TOPIC)
                stored = await objects_of(daemon, TOPIC)
                await daemon.client.disable(TOPIC)
            for _ in range(size.runs):
                async with place.daemon(sections, name=name) as daemon:
                    seconds, spent = await _read(daemon, entries)
                references = [
                    await raw.measure("get", place.s3, stored, request_bytes=REQUEST_BYTES, parallel=parallel)
                    for parallel in (1, 2)
                ]
                rounds.append(Round(seconds, spent, *references))
        figures += _figures(label, entries, rounds)
    return figures


async def _read(daemon: Daemon, entries: Entries) -> tuple[float, Spent]:
    before, started = await daemon.spent(), CLOCK.monotonic()
    count = size_bytes = 0
    priority = ReadPriority.TIERED_STORAGE_FIRST
    async with aclosing(daemon.client.read(TOPIC, read_priority=priority, timeout_s=DEADLINE_S)) as responses:
        async for response in responses:
            payloads = response.batch.payloads
            count += len(payloads)
            size_bytes += sum(map(len, payloads))
            if response.tier != common_pb2.TIER_OBJECTS:
                raise RuntimeError("read from another tier than the store")
    seconds = CLOCK.monotonic() - started
    if (count, size_bytes) != (entries.count, entries.payload_bytes):
        raise RuntimeError(f"{count} entries came back, not {entries.count}")
    return seconds, (await daemon.spent()).since(before)


def _figures(label: str, entries: Entries, rounds: list[Round]) -> list[Figure]:
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / 1024**3
    name = f"read back, {label}"
    requests = sum(one.spent.requests.total() for one in rounds) / len(rounds) / gib
    return [
        Figure(
            benchmark=name,
            figure="rate over bare GETs, 8 MiB, two at a time",
            values=[one.two_at_once.seconds / one.seconds for one in rounds],
            goal=GOALS[label],
            notes={
                "ours": spread([mib / one.seconds for one in rounds], "MiB/s"),
                "bare": spread([mib / one.two_at_once.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="rate over bare GETs, 8 MiB, one by one",
            values=[one.one_by_one.seconds / one.seconds for one in rounds],
            notes={"bare": spread([mib / one.one_by_one.seconds for one in rounds], "MiB/s")},
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon",
            values=[one.spent.cpu_s / gib for one in rounds],
            unit="s/GiB",
            notes={
                "bare": spread([one.two_at_once.cpu_s / gib for one in rounds], "s/GiB"),
                "requests": f"{requests:.0f}/GiB",
            },
        ),
    ]
