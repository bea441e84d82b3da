"""Reading while writing: a topic is pushed as fast as the daemon takes it, alone and with a reader that follows it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from bench.appending import PUSHED, warm_up
from bench.load import DEADLINE_S, MIB, Entries, push
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.usage import GIB, Measured, measured, process_figures
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.site import Daemon, Site

ENTRY_BYTES = 10 * 1024
NAME = "read while writing, 10 KiB"


class Round(NamedTuple):
    """The push alone, the push with a reader, and how long after it the reader had everything."""

    alone: Measured
    followed: Measured
    behind_s: float


async def following(site: Site, size: Scale) -> list[Figure]:
    """Measure both in turns."""
    entries = Entries(ENTRY_BYTES, size.segment_bytes // 2)
    rounds = []
    async with site.bucket() as place, place.daemon(PUSHED, name="following") as daemon:
        await warm_up(daemon)
        for _ in range(size.runs):
            alone, _ = await _round(daemon, entries, followed=False)
            rounds.append(Round(alone, *await _round(daemon, entries, followed=True)))
    mib = entries.payload_bytes / MIB
    return [
        Figure(
            benchmark=NAME,
            figure="rate of the push over the push alone",
            values=[one.alone.seconds / one.followed.seconds for one in rounds],
            notes={
                "with a reader": spread([mib / one.followed.seconds for one in rounds], "MiB/s"),
                "alone": spread([mib / one.alone.seconds for one in rounds], "MiB/s"),
            },
        ),
        Figure(
            benchmark=NAME,
            figure="reader done after the last commit",
            values=[one.behind_s for one in rounds],
            unit="s",
        ),
        *process_figures(NAME, entries.payload_bytes / GIB, [one.followed for one in rounds]),
    ]


async def _round(daemon: Daemon, entries: Entries, *, followed: bool) -> tuple[Measured, float]:
    """Push a topic; returns what it took, and how long after it the reader was done."""
    topic = TopicName.parse(f"follow-{CLOCK.uuid().hex[:8]}")
    await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
    await daemon.claimed(topic)
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(_follow(daemon, topic, entries.count), name=f"follow {topic}") if followed else None
        async with measured(daemon) as took:
            await push(daemon.client, topic, entries)
        done = CLOCK.monotonic()
    return took, max(0.0, reader.result() - done) if reader else 0.0


async def _follow(daemon: Daemon, topic: TopicName, count: int) -> float:
    """Read from the first entry on until all have come; returns when that was."""
    found = 0
    async with aclosing(daemon.client.read(topic, follow=True, timeout_s=DEADLINE_S)) as responses:
        async for response in responses:
            found += len(response.batch.payloads)
            if found >= count:
                break
    return CLOCK.monotonic()
