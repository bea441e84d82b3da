"""Append to S3: from the first entry to the commit of the last, beside a bare multipart upload of the same objects.

Two ways in, measured apart: pushed over gRPC to a daemon without a ledger source (whose buffer is then all there is),
and caught up from the daemon's own ledgers, which hold everything before the topic is enabled.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from bench import raw
from bench.load import DEADLINE_S, MIB, Entries, append, push
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.model import TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site, Spent

PART_BYTES = 8 * MIB
PARALLEL = 4
"""The daemon's defaults for offload.part_bytes and offload.parts_in_flight_max."""

SIZES = {"10 KiB": (10 * 1024, 0.6), "1 KiB": (1024, 0.4)}
"""Entry sizes, each with the goal of its ratio."""


class Round(NamedTuple):
    """One measurement of ours and its reference."""

    seconds: float
    spent: Spent
    reference: Took

    @property
    def ratio(self) -> float:
        """Our rate over the reference's, for the same bytes."""
        return self.reference.seconds / self.seconds


async def pushed(site: Site, size: Scale) -> list[Figure]:
    """Measure a pushing client, which sends 1 MiB a batch."""
    return await _both_sizes("append to S3, pushed", site, size, _push, {"ledgers": {"kind": "none"}})


async def caught_up(site: Site, size: Scale) -> list[Figure]:
    """Measure catching up from the ledger store."""
    return await _both_sizes("append to S3, caught up", site, size, _catch_up, {"ledgers": {"kind": "embedded"}})


async def _both_sizes(
    name: str,
    site: Site,
    size: Scale,
    measure: Callable[[Daemon, TopicName, Entries], Awaitable[tuple[float, Spent]]],
    sections: Sections,
) -> list[Figure]:
    figures = []
    for label, (entry_bytes, goal) in SIZES.items():
        rounds = []
        entries = Entries(entry_bytes, size.total_bytes, segments=size.segments)
        async with site.bucket() as place, place.daemon(sections, name=f"append{CLOCK.uuid().hex[:6]}") as daemon:
            for number in range(size.runs):
                topic = TopicName.parse(f"append-{number}")
                seconds, spent = await measure(daemon, topic, entries)
                stored = await objects_of(daemon, topic)
                copies = {f"raw-{number}-{key}": length for key, length in stored.items()}
                reference = await raw.measure("upload", place.s3, copies, request_bytes=PART_BYTES, parallel=PARALLEL)
                rounds.append(Round(seconds, spent, reference))
        figures += _figures(f"{name}, {label}", entries, rounds, goal)
    return figures


async def objects_of(daemon: Daemon, topic: TopicName) -> dict[str, int]:
    """Return key and length of the topic's data objects."""
    return {one.data_key: one.object_bytes for one in await daemon.client.segments(topic)}


async def _push(daemon: Daemon, topic: TopicName, entries: Entries) -> tuple[float, Spent]:
    await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
    await daemon.claimed(topic)
    before, started = await daemon.spent(), CLOCK.monotonic()
    await push(daemon.client, topic, entries)
    return CLOCK.monotonic() - started, (await daemon.spent()).since(before)


async def _catch_up(daemon: Daemon, topic: TopicName, entries: Entries) -> tuple[float, Spent]:
    await append(daemon.client, topic, entries)
    before, started = await daemon.spent(), CLOCK.monotonic()
    await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
    await everything_offloaded(daemon, topic)
    return CLOCK.monotonic() - started, (await daemon.spent()).since(before)


async def everything_offloaded(daemon: Daemon, topic: TopicName) -> None:
    """Wait until all that is confirmed now is committed."""
    async with aclosing(daemon.client.offload(topic, wait=True, timeout_s=DEADLINE_S)) as reports:
        async for _ in reports:
            pass


def _figures(name: str, entries: Entries, rounds: list[Round], goal: float) -> list[Figure]:
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / 1024**3
    requests = sum(one.spent.requests.total() for one in rounds) / len(rounds) / gib
    return [
        Figure(
            benchmark=name,
            figure="rate over bare multipart upload",
            values=[one.ratio for one in rounds],
            goal=goal,
            notes={
                "ours": spread([mib / one.seconds for one in rounds], "MiB/s"),
                "bare": spread([mib / one.reference.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=name,
            figure="CPU of the daemon",
            values=[one.spent.cpu_s / gib for one in rounds],
            unit="s/GiB",
            notes={
                "bare": spread([one.reference.cpu_s / gib for one in rounds], "s/GiB"),
                "requests": f"{requests:.0f}/GiB",
            },
        ),
    ]


def spread(values: list[float], unit: str) -> str:
    """Return least and greatest of some values."""
    return f"{min(values):.1f} to {max(values):.1f} {unit}"
