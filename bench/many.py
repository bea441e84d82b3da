"""Many topics on one daemon, on real bookies: what idle ones cost, and active ones beside them.

Idle topics have one open ledger with entries that are offloaded, as most topics of a cluster do at any time. Active
ones get an entry every tenth of a second.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from bench.machine import cpu_s
from bench.report import Figure
from bench.site import CLOCK
from bench.tailing import PLAN, bookies
from offloaderd.model import Position
from offloaderd.patterns import TopicPattern
from offloaderd.standalone.probe import http_get
from tests.real.writer import ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from tests.real.written_topic import WrittenTopic

IDLE, ACTIVE = 500, 50
RATE_S = 10
SETTLE_S = 20.0
"""The pauses between two looks at a quiet ledger have grown to their longest by then."""
IDLE_CPU_GOAL = 0.10
READY_S = 120.0
ENTRY = bytes(1024)
_REQUESTS = re.compile(r"^offloaderd_bookie_requests_total\{.*\} (\S+)$", re.MULTILINE)


class Load(NamedTuple):
    """What a daemon does in a second: shares of one core, and requests to bookies."""

    cores: float
    requests_s: float


async def many(site: Site, size: Scale) -> list[Figure]:
    """Measure the idle ones alone, then with the active ones; one round, as it is long."""
    sections: Sections = {"ledgers": {"kind": "bookkeeper"}, "offload": {"segment_age_max_s": 5.0}}
    async with bookies(site) as cluster, ledger_writer(cluster.zookeeper, CLOCK) as writer, site.bucket() as place:
        topics = [await written_topic(writer, f"many-{number}", plan=PLAN) for number in range(IDLE + ACTIVE)]
        for topic in topics:
            await topic.add([ENTRY, ENTRY], window=1)
        sections = {**sections, "bookkeeper": {"servers": cluster.zookeeper}}
        async with place.daemon(sections, name="many") as daemon:
            await daemon.client.enable(TopicPattern.parse("public/default/*"))
            await _offloaded(daemon, topics)
            await CLOCK.sleep(SETTLE_S)
            idle = await _load(daemon, size.durable_s)
            active = await _active(daemon, topics[:ACTIVE], size.durable_s)
    return [
        *_figures(f"{IDLE + ACTIVE} idle topics", idle, goal=IDLE_CPU_GOAL),
        *_figures(f"{ACTIVE} topics with {RATE_S} entries/s each, {IDLE} idle", active, goal=None),
    ]


async def _offloaded(daemon: Daemon, topics: Sequence[WrittenTopic]) -> None:
    """Wait until the first entry of every topic, which the second one has confirmed, is committed."""
    until = CLOCK.monotonic() + READY_S
    while True:
        status = await daemon.client.status()
        done = sum(1 for one in status.topics if one.HasField("offloaded"))
        if done == len(topics):
            return
        if CLOCK.monotonic() > until:
            raise RuntimeError(f"only {done} of {len(topics)} topics were offloaded after {READY_S:g} s")
        await CLOCK.sleep(0.5)


async def _load(daemon: Daemon, seconds: float) -> Load:
    requests, cpu, started = await _requests(daemon), cpu_s(daemon.pid), CLOCK.monotonic()
    await CLOCK.sleep(seconds)
    elapsed = CLOCK.monotonic() - started
    return Load((cpu_s(daemon.pid) - cpu) / elapsed, (await _requests(daemon) - requests) / elapsed)


async def _requests(daemon: Daemon) -> float:
    _, body = await http_get(daemon.http_port, "/metrics")
    return sum(map(float, _REQUESTS.findall(body.decode())))


async def _active(daemon: Daemon, topics: Sequence[WrittenTopic], seconds: float) -> Load:
    """Keep the topics busy while the load is measured; all that was written before the last entry is offloaded."""
    stop = asyncio.Event()

    async def write(topic: WrittenTopic) -> None:
        while not stop.is_set():
            await topic.add([ENTRY])
            await CLOCK.sleep(1 / RATE_S)

    async with asyncio.TaskGroup() as group:
        for topic in topics:
            group.create_task(write(topic))
        await CLOCK.sleep(5.0)
        load = await _load(daemon, seconds)
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


def _figures(name: str, load: Load, *, goal: float | None) -> list[Figure]:
    return [
        Figure(
            benchmark=name,
            figure="CPU of the daemon, share of a core",
            values=[load.cores],
            goal=goal,
            more_is_better=False,
        ),
        Figure(benchmark=name, figure="requests to bookies", values=[load.requests_s], unit="/s"),
    ]
