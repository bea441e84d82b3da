"""The disk cache: a topic of four times the memory for blocks, read again, and single entries here and there.

In one round, on the same objects: a daemon without a disk cache reads the topic twice (the memory has no room for it);
a daemon with an empty one reads it twice; a restarted one reads it, and single entries, from the disk alone. Entries
are read singly by a daemon without the disk as well, each in a block that it does not have.
"""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from bench import goals
from bench.appending import PUSHED
from bench.durable import quantile
from bench.load import MIB, Entries
from bench.random_reads import one_entry
from bench.reading import read_all
from bench.report import Figure, spread
from bench.stored import stored
from bench.usage import GIB, measured
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bench.scale import Scale
    from bench.site import Daemon, Site
    from bench.stored import Stored
    from bench.usage import Measured

ENTRY_BYTES = 10 * 1024
TIMES_MEMORY = 4
TABLES = 8 / 7
"""An eighth of memory.cache_bytes is for tables of segments."""
TOPIC = TopicName.parse("disk-cache")


class Round(NamedTuple):
    """Reads of the whole topic, and seconds of reads of single entries, ascending."""

    bare: Measured
    bare_again: Measured
    first: Measured
    second: Measured
    restarted: Measured
    from_store: list[float]
    from_disk: list[float]
    disk_bytes: int


async def disk_cache(site: Site, size: Scale) -> list[Figure]:
    """Measure second reads over first ones, GETs, latencies of single reads, and memory."""
    cache_bytes = max(4 * MIB, size.read_bytes // TIMES_MEMORY)
    entries = Entries(ENTRY_BYTES, TIMES_MEMORY * cache_bytes, distinct=7)
    async with stored(site, {TOPIC: entries}) as there:
        rounds = [
            await _round(there, entries, round(cache_bytes * TABLES), size.random_reads) for _ in range(size.runs)
        ]
    return _figures(rounds, entries)


async def _round(there: Stored, entries: Entries, cache_bytes: int, count: int) -> Round:
    directory = there.site.directory / "disk-cache"
    stride = entries.count // count
    places = [number * 13 % count * stride + stride // 2 for number in range(count)]

    @asynccontextmanager
    async def daemon(disk: Path | None) -> AsyncIterator[Daemon]:
        memory = {"cache_bytes": cache_bytes}
        sections = {**PUSHED, "memory": memory, "read": {"read_ahead_bytes": min(16 * MIB, cache_bytes // 2)}}
        if disk is not None:
            sections |= {"cache": {"directory": str(disk), "disk_bytes": 2 * entries.payload_bytes + 64 * MIB}}
        async with there.daemon(sections) as made:
            yield made

    async with daemon(None) as one:
        bare, bare_again = await _read(one, entries), await _read(one, entries)
    async with daemon(None) as one:
        from_store = await _singly(one, places)
    async with daemon(directory) as one:
        first, second = await _read(one, entries), await _read(one, entries)
    disk_bytes = sum(path.stat().st_size for path in directory.iterdir())
    async with daemon(directory) as one:
        from_disk = await _singly(one, places)
    async with daemon(directory) as one:
        restarted = await _read(one, entries)
    shutil.rmtree(directory)
    return Round(bare, bare_again, first, second, restarted, from_store, from_disk, disk_bytes)


async def _read(daemon: Daemon, entries: Entries) -> Measured:
    async with measured(daemon) as took:
        await read_all(daemon, TOPIC, entries)
    return took


async def _singly(daemon: Daemon, places: list[int]) -> list[float]:
    await one_entry(daemon, TOPIC, 0)  # index and manifest come with the first one
    return sorted([await one_entry(daemon, TOPIC, place) for place in places])


NAME = "disk cache, four times the memory"


def _gets(one: Measured) -> int:
    return one.requests["GetObject"]


def _peak(one: Measured) -> float:
    return one.peak_bytes["daemon"] / MIB


def _figures(rounds: list[Round], entries: Entries) -> list[Figure]:
    return [*_rates(rounds, entries.payload_bytes / MIB), *_latencies(rounds), *_costs(rounds, entries.payload_bytes)]


def _rates(rounds: list[Round], mib: float) -> list[Figure]:
    return [
        Figure(
            benchmark=NAME,
            figure="second read, from the disk, over the first",
            values=[one.first.seconds / one.second.seconds for one in rounds],
            notes={
                "first": spread([mib / one.first.seconds for one in rounds], "MiB/s"),
                "second": spread([mib / one.second.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=NAME,
            figure="second read, from the disk, over a second one from the store",
            values=[one.bare_again.seconds / one.second.seconds for one in rounds],
            notes={"store": spread([mib / one.bare_again.seconds for one in rounds], "MiB/s")},
        ),
        Figure(
            benchmark=NAME,
            figure="read after a restart over the first",
            values=[one.first.seconds / one.restarted.seconds for one in rounds],
        ),
        Figure(
            benchmark=NAME,
            figure="first read, which writes to the disk, over one without a disk",
            values=[one.bare.seconds / one.first.seconds for one in rounds],
        ),
    ]


def _latencies(rounds: list[Round]) -> list[Figure]:
    def said(which: str) -> str:
        each = [getattr(one, which) for one in rounds]
        low, high = [sorted(1000 * quantile(one, at) for one in each)[len(each) // 2] for at in (0.5, 0.99)]
        return f"p50 {low:.1f} ms, p99 {high:.1f} ms"

    return [
        Figure(
            benchmark=NAME,
            figure=f"{label} of one entry from the disk over one from the store",
            values=[quantile(one.from_disk, at) / quantile(one.from_store, at) for one in rounds],
            more_is_better=False,
            notes={"disk": said("from_disk"), "store": said("from_store")},
        )
        for label, at in (("p50", 0.5), ("p99", 0.99))
    ]


def _costs(rounds: list[Round], payload_bytes: int) -> list[Figure]:
    def cpu(one: Measured) -> float:
        return one.cpu_s["daemon"] * GIB / payload_bytes

    return [
        Figure(
            benchmark=NAME,
            figure="GETs that the disk saves a second read, and one after a restart",
            values=[1 - (_gets(one.second) + _gets(one.restarted)) / (2 * _gets(one.bare_again)) for one in rounds],
            goal=goals.DISK_GETS_SAVED,
            little_shows=True,
            notes={
                "second": spread([_gets(one.second) for one in rounds], "GETs"),
                "after a restart": spread([_gets(one.restarted) for one in rounds], "GETs"),
                "without a disk, again": spread([_gets(one.bare_again) for one in rounds], "GETs"),
            },
        ),
        Figure(
            benchmark=NAME,
            figure="most memory of the daemon, over one without a disk",
            values=[
                max(map(_peak, (one.first, one.second, one.restarted))) / max(_peak(one.bare), _peak(one.bare_again))
                for one in rounds
            ],
            goal=goals.DISK_MEMORY,
            more_is_better=False,
            notes={
                "with": spread([_peak(one.second) for one in rounds], "MiB"),
                "without": spread([_peak(one.bare_again) for one in rounds], "MiB"),
            },
        ),
        Figure(
            benchmark=NAME,
            figure="CPU of the daemon for the second read, over one without a disk",
            values=[cpu(one.second) / cpu(one.bare_again) for one in rounds],
            more_is_better=False,
            notes={
                "disk": spread([cpu(one.second) for one in rounds], "s/GiB"),
                "store": spread([cpu(one.bare_again) for one in rounds], "s/GiB"),
            },
        ),
        Figure(
            benchmark=NAME,
            figure="bytes on the disk over the payload",
            values=[one.disk_bytes / payload_bytes for one in rounds],
            more_is_better=False,
        ),
    ]
