"""Many topics on one daemon, on real bookies: what idle ones cost, and active ones beside them.

Idle topics have one open ledger with entries that are offloaded, as most topics of a cluster do at any time. Active
ones, a tenth of them and 50 at most, get an entry every tenth of a second. What idle ones take of the process is told
twice: of the daemon that has just offloaded all of them at once, and of one that was started when there was nothing to
do. The start of this one is measured as well: until all topics are claimed, loaded and suspended.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bench import goals
from bench.machine import cpu_s, memory_bytes
from bench.report import Figure
from bench.site import CLOCK
from bench.tailing import PLAN
from bench.usage import BOOKIES, measured
from offloaderd.core.errors import Transient
from offloaderd.core.model import Position
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.standalone.ports import ask
from tests.real.writer import ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from bench.usage import Measured
    from offloaderd.protocol.v1 import admin_pb2
    from tests.real.bookies import BookKeeperCluster
    from tests.real.written_topic import WrittenTopic

ACTIVE_MAX = 50
RATE_S = 10
SETTLE_S, QUICK_SETTLE_S = 20.0, 3.0
"""This long after topics are suspended bookies are waited for as long as they ever are; a quick run sees topics that
are still polled."""
ALONE_S = 20.0
"""How long the daemon is watched without a topic, for what ZooKeeper hears from everybody all the time."""
IDLE_S = 120.0
"""An idle topic does something about once in that time. All became idle together: in a part of it most do, or none."""
READY_S, READY_TOPIC_S = 120.0, 0.2
"""How long all topics may take together, and each of them: more topics take longer."""
TOGETHER = 16
ENTRY = bytes(1024)


class _Start(NamedTuple):
    """A daemon's start with topics: seconds, seconds of its CPU, and packets that the ZooKeepers received meanwhile."""

    seconds: float
    cpu_s: float
    packets: int


async def many(site: Site, size: Scale, cluster: BookKeeperCluster) -> list[Figure]:
    """Measure the idle ones alone, then with the active ones; one round, as it is long."""
    sections: Sections = {
        "ledgers": {"kind": "bookkeeper"},
        "offload": {"segment_age_max_s": 2.0 if size.quick else 5.0, "suspend_after_s": 2.0 if size.quick else 60.0},
        "bookkeeper": {"servers": cluster.zookeeper},
    }
    count, busy = size.idle_topics, _active_of(size.idle_topics)
    async with ledger_writer(cluster.zookeeper, CLOCK) as writer, site.bucket() as place:
        slots, topics, members = asyncio.Semaphore(TOGETHER), list["WrittenTopic"](), await writer.bookies()

        async def write(number: int) -> None:
            chosen = [
                members[(number + one) % len(members)] for one in range(PLAN.ensemble)
            ]  # all have as many ledgers
            async with slots:
                topics.append(await written_topic(writer, f"many-{number}", plan=replace(PLAN, bookies=chosen)))
                await topics[-1].add([ENTRY, ENTRY], window=1)

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(write(number))
        async with place.daemon(sections, name="many") as daemon:
            base, _ = memory_bytes(daemon.pid)
            alone_s = size.durable_s if size.quick else ALONE_S
            alone = await _packets(site, cluster, alone_s) / alone_s
            await daemon.client.enable(TopicPattern.parse("re:public/default/many-.*"), timeout_s=_ready_s(count))
            await _all(daemon, count, lambda one: one.HasField("offloaded"), "offloaded")
            await _all(daemon, count, lambda one: one.asleep, "suspended")
            await CLOCK.sleep(QUICK_SETTLE_S if size.quick else SETTLE_S)
            async with measured(daemon) as idle:
                packets = await _packets(site, cluster, size.durable_s if size.quick else IDLE_S)
            packets -= round(alone * idle.seconds)
            resident, _ = memory_bytes(daemon.pid)
            active = await _active(daemon, topics[:busy], size.durable_s)
        received, begun_s = await _received(site, cluster), CLOCK.monotonic()
        async with place.daemon(sections, name="many") as daemon:
            await _all(daemon, count, lambda one: one.asleep, "suspended")
            again, _ = memory_bytes(daemon.pid)
            seconds, used_s = CLOCK.monotonic() - begun_s, cpu_s(daemon.pid)
            start = _Start(seconds, used_s, await _received(site, cluster) - received)
    return [
        *_idle_figures(count, idle, packets),
        *_memory_figures(count, resident - base, again - base),
        *_start_figures(count, start),
        *_load_figures(f"{busy} topics with {RATE_S} entries/s each, {count - busy} idle", active, goal=None),
    ]


def _active_of(count: int) -> int:
    return min(ACTIVE_MAX, count // 10)


def _ready_s(count: int) -> float:
    """Return how long so many topics may take."""
    return READY_S + READY_TOPIC_S * count


async def _all(daemon: Daemon, count: int, done: Callable[[admin_pb2.TopicStatus], bool], what: str) -> None:
    """Wait until something is done of all topics."""
    until, found = CLOCK.monotonic() + _ready_s(count), 0
    while found < count:
        if CLOCK.monotonic() > until:
            raise RuntimeError(f"only {found} of {count} topics were {what} in time")
        await CLOCK.sleep(0.5 + count / 1000)  # the status of all topics is work for the daemon
        with suppress(Transient):
            found = sum(map(done, (await daemon.client.status()).topics))


async def _packets(site: Site, cluster: BookKeeperCluster, seconds: float) -> int:
    """Return how many packets the ZooKeepers receive in a time, from all their clients."""
    before = await _received(site, cluster)
    await CLOCK.sleep(seconds)
    return await _received(site, cluster) - before


async def _received(site: Site, cluster: BookKeeperCluster) -> int:
    answers = [await ask(int(server.rpartition(":")[2]), b"srvr") for server in (site.zookeeper, cluster.zookeeper)]
    return sum(int(count) for answer in answers for count in re.findall(rb"^Received: (\d+)$", answer, re.MULTILINE))


async def _active(daemon: Daemon, topics: Sequence[WrittenTopic], seconds: float) -> Measured:
    """Keep the topics busy while the load is measured; all that was written before the last entry is offloaded."""
    stop = asyncio.Event()

    async def write(topic: WrittenTopic) -> None:
        while not stop.is_set():
            await topic.add([ENTRY])
            await CLOCK.sleep(1 / RATE_S)

    async with asyncio.TaskGroup() as group:
        for topic in topics:
            group.create_task(write(topic))
        await CLOCK.sleep(min(5.0, seconds))
        async with measured(daemon) as load:
            await CLOCK.sleep(seconds)
        stop.set()
    last = {str(topic.name): Position(topic.ledger.ledger_id, topic.ledger.next_entry_id - 2) for topic in topics}
    until = CLOCK.monotonic() + READY_S
    while last:
        for one in (await daemon.client.status()).topics:
            if one.topic in last and (one.offloaded.ledger_id, one.offloaded.entry_id) >= last[one.topic]:
                del last[one.topic]
        if CLOCK.monotonic() > until:
            raise RuntimeError(f"{len(last)} active topics were not offloaded after {READY_S:g} s")
        await CLOCK.sleep(0.2)
    return load


def _idle_figures(count: int, idle: Measured, packets: int) -> list[Figure]:
    name = f"{count} idle topics"
    return [
        *_load_figures(name, idle, goal=goals.IDLE_CORES),
        Figure(
            benchmark=name,
            figure="requests of one topic, to bookies, ZooKeeper and S3",
            values=[60 * (idle.requests.total() + max(0, packets)) / idle.seconds / count],
            unit="/min",
            goal=goals.IDLE_REQUESTS_MIN,
            more_is_better=False,
            notes={
                "to bookies": f"{idle.requests[BOOKIES]}",
                "to ZooKeeper": f"{packets} beyond those of a daemon without topics",
                "to S3": f"{idle.s3_requests}",
                "in": f"{idle.seconds:.0f} s",
            },
        ),
    ]


def _memory_figures(count: int, grown_bytes: int, again_bytes: int) -> list[Figure]:
    name, goal = f"{count} idle topics", goals.IDLE_KIB
    return [
        Figure(
            benchmark=name,
            figure="memory of one topic",
            values=[grown_bytes / 1024 / count],
            unit="KiB",
            goal=goal,
            more_is_better=False,
            notes={"includes": "memory that the process took for the first uploads and did not return"},
        ),
        Figure(
            benchmark=name,
            figure="memory of one topic of a daemon that was started again",
            values=[again_bytes / 1024 / count],
            unit="KiB",
            goal=goal,
            more_is_better=False,
            notes={"includes": f"the last entries of {_active_of(count)} topics, which the daemon offloads first"},
        ),
    ]


def _start_figures(count: int, start: _Start) -> list[Figure]:
    name = f"start with {count} idle topics"
    figures = (
        ("until all are claimed, loaded and suspended", start.seconds, "s"),
        ("CPU of the daemon for one topic, with its own start", 1000 * start.cpu_s / count, "ms"),
        ("requests to ZooKeeper for one topic", start.packets / count, ""),
    )
    return [
        Figure(benchmark=name, figure=figure, values=[value], unit=unit, more_is_better=False)
        for figure, value, unit in figures
    ]


def _load_figures(name: str, load: Measured, *, goal: float | None) -> list[Figure]:
    return [
        Figure(
            benchmark=name,
            figure="CPU of the daemon, share of a core",
            values=[load.cpu_s["daemon"] / load.seconds],
            goal=goal,
            more_is_better=False,
        ),
        Figure(benchmark=name, figure="requests to bookies", values=[load.requests[BOOKIES] / load.seconds], unit="/s"),
    ]
