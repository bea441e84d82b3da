"""Many topics at once: fifty, pushed as fast as the daemon takes them; a thousand with an entry a second each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from bench import goals
from bench.appending import PUSHED, objects_of, uploads, warm_up
from bench.durable import quantile
from bench.load import PUSH_LEDGER, Entries, message, push
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.usage import GIB, MIB, measured, process_figures
from offloaderd.client import EntryBatch
from offloaderd.core.aio import each
from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from bench.child import Took
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from bench.usage import Measured
    from offloaderd.client import Pushed
    from offloaderd.core.model import Position

FIFTY = 50
ENTRY_BYTES = 1024
TOGETHER = 4
ENABLED_S = 120.0


async def fifty(site: Site, size: Scale) -> list[Figure]:
    """Measure fifty topics that share the bytes of one benchmark, beside bare uploads of as many objects."""
    entries = Entries(ENTRY_BYTES, size.segment_bytes // FIFTY)
    gib = FIFTY * entries.payload_bytes / GIB
    rounds: list[tuple[Measured, list[Took]]] = []
    async with site.bucket() as place, place.daemon(PUSHED, name="fifty") as daemon:
        await warm_up(daemon)
        for number in range(size.runs):
            topics = [TopicName.parse(f"fifty-{number}-{one}") for one in range(FIFTY)]
            await _enable(daemon, topics, entries.segment_bytes)
            async with measured(daemon) as took, asyncio.TaskGroup() as group:
                for topic in topics:
                    group.create_task(push(daemon.client, topic, entries), name=f"push {topic}")
            stored = {key: length for topic in topics for key, length in (await objects_of(daemon, topic)).items()}
            rounds.append((took, await uploads(place, stored, together=TOGETHER)))
    name = f"{FIFTY} topics pushed at once, 1 KiB"
    return [
        Figure(
            benchmark=name,
            figure=f"rate over bare uploads, {TOGETHER} objects at a time",
            values=[bare.seconds / ours.seconds for ours, (bare, _) in rounds],
            notes={
                "ours": spread([gib * 1024 / ours.seconds for ours, _ in rounds], "MiB/s"),
                "aiobotocore": spread([gib * 1024 / bare.seconds for _, (bare, _) in rounds], "MiB/s"),
                "obstore": spread([gib * 1024 / fastest.seconds for _, (_, fastest) in rounds], "MiB/s"),
                "each": f"{entries.payload_bytes / MIB:.1f} MiB",
            },
        ),
        *process_figures(name, gib, [ours for ours, _ in rounds]),
    ]


async def slow(site: Site, size: Scale) -> list[Figure]:
    """Measure the time to durable of slow topics: from an entry's push to the answer that it is committed.

    Topics begin one after the other over the largest age of a segment, so that their segments do not end together, and
    are then watched for as long. One round, as it is long.
    """
    sections: Sections = {
        **PUSHED,
        "grpc": {"streams_max": 2 * size.slow_topics},
        "offload": {"segment_age_max_s": size.slow_age_s},
    }
    times: list[float] = []
    async with site.bucket() as place, place.daemon(sections, name="slow") as daemon:
        topics = [_Slow(TopicName.parse(f"slow-{number}"), times) for number in range(size.slow_topics)]
        await _enable(daemon, [one.topic for one in topics], MIB)
        begun = CLOCK.monotonic()
        async with measured(daemon) as took, asyncio.TaskGroup() as group:
            for number, one in enumerate(topics):
                starts = begun + number / len(topics) * size.slow_age_s
                group.create_task(one.run(daemon, starts, begun + 2 * size.slow_age_s), name=f"push {one.topic}")
    times.sort()
    name = f"{size.slow_topics} topics of 1 entry/s, segments of {size.slow_age_s:g} s"
    return [
        Figure(
            benchmark=name,
            figure="p99 of the time to durable",
            values=[quantile(times, 0.99)],
            unit="s",
            goal=size.slow_age_s + goals.DURABLE_OVER_AGE_S,
            little_shows=True,
            more_is_better=False,
            notes={
                "p50": f"{quantile(times, 0.5):.1f} s",
                "max": f"{times[-1]:.1f} s",
                "entries": f"{len(times)}",
                "daemon": f"{took.cpu_s['daemon'] / took.seconds:.2f} of a core",
                "requests to S3": f"{took.s3_requests / took.seconds:.0f}/s",
            },
        ),
        Figure(
            benchmark=name,
            figure="memory of a topic, with what it buffers",
            values=[(took.peak_bytes["daemon"] / 1024) / size.slow_topics],
            unit="KiB",
            notes={"peak": f"{took.peak_bytes['daemon'] / MIB:.0f} MiB, which includes the idle process"},
        ),
    ]


async def _enable(daemon: Daemon, topics: Sequence[TopicName], segment_bytes: int) -> None:
    """Enable topics; returns once the daemon offloads all of them."""
    await each(topics, lambda topic: daemon.client.enable(topic, segment_bytes_max=segment_bytes))
    waiting = set(map(str, topics))
    until = CLOCK.monotonic() + ENABLED_S
    while waiting:
        found = (await daemon.client.status()).topics
        waiting -= {one.topic for one in found if one.state == "offloading"}
        if CLOCK.monotonic() > until:
            raise Transient(f"{len(waiting)} topics were not claimed within {ENABLED_S:g} s")
        await CLOCK.sleep(0.2)


class _Slow:
    """One topic with an entry a second."""

    def __init__(self, topic: TopicName, times: list[float]) -> None:
        self.topic = topic
        self._times = times
        self._waiting: deque[tuple[int, float]] = deque()

    async def run(self, daemon: Daemon, starts: float, ends: float) -> None:
        """Push from one moment to the other, and return once all of it is committed."""

        async def entries(after: Position | None) -> AsyncGenerator[EntryBatch, None]:
            if after is not None:
                raise RuntimeError(f"the stream of {self.topic} broke")
            due, number = starts, 0
            while due < ends:
                await CLOCK.sleep(max(0.0, due - CLOCK.monotonic()))
                self._waiting.append((number, CLOCK.monotonic()))
                yield EntryBatch(PUSH_LEDGER, number, [message(ENTRY_BYTES, number)])
                due, number = due + 1.0, number + 1

        await daemon.client.push(self.topic, entries, self._told)

    def _told(self, pushed: Pushed) -> None:
        """Note how long those entries took that are durable now."""
        now = CLOCK.monotonic()
        while pushed.offloaded is not None and self._waiting and self._waiting[0][0] <= pushed.offloaded.entry_id:
            self._times.append(now - self._waiting.popleft()[1])
