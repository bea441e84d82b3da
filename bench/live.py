"""A live topic of a real Pulsar: how long after the acknowledgement a message is durable, with segments of 5 s.

While messages keep coming, and after the last message of a burst, which an open ledger hides until the writer tells
more: by explicit LAC, and by the broker's admin API. Each way has a broker of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bench import goals
from bench.durable import position, quantile
from bench.publisher import publisher
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.core.model import TopicName
from tests.real.pulsar import PulsarOptions, pulsar_standalone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from bench.publisher import Published
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from tests.real.pulsar import PulsarServer

AGE_MAX_S = 5.0
RATE_S = 100
POLL_S = 0.02
LAST_WAIT_S = 60.0
ENTRY = bytes(1024)

EXPLICIT_LAC: Mapping[str, object] = {"bookkeeperExplicitLacIntervalInMills": 100}


async def live(site: Site, size: Scale, pulsar: PulsarServer) -> list[Figure]:
    """Measure a steady stream and bursts, by each way that closes the gap; in a quick run by one."""
    figures = await _by("explicit LAC", site, size, pulsar)
    if size.quick:
        return figures
    async with broker(site, {}) as other:
        return [*figures, *await _by("admin API", site, size, other)]


async def _by(way: str, site: Site, size: Scale, pulsar: PulsarServer) -> list[Figure]:
    async with tailing(site, pulsar, admin=way == "admin API") as daemon:
        steady = await _steady(daemon, pulsar, size.durable_s)
        bursts = [await _burst(daemon, pulsar, number, size.burst_messages) for number in range(size.runs)]
    return [
        *_quantiles("live topic, messages keep coming", steady, f"{RATE_S}/s, {way}"),
        Figure(
            benchmark="live topic, silence after a burst",
            figure=f"last of {size.burst_messages} messages durable ({way})",
            values=bursts,
            unit="s",
            goal=goals.SILENCE_S,
            little_shows=True,
            more_is_better=False,
        ),
    ]


@asynccontextmanager
async def broker(site: Site, settings: Mapping[str, object]) -> AsyncIterator[PulsarServer]:
    """Run a Pulsar standalone in the site's directory."""
    directory = site.directory / f"pulsar-{CLOCK.uuid().hex[:6]}"
    directory.mkdir()
    async with pulsar_standalone(PulsarOptions(directory=directory, settings=settings), CLOCK) as server:
        yield server


@asynccontextmanager
async def tailing(site: Site, pulsar: PulsarServer, *, admin: bool, **bookkeeper: object) -> AsyncIterator[Daemon]:
    """Run a daemon that follows a Pulsar's topics, with segments of 5 s."""
    sections: Sections = {
        "ledgers": {"kind": "bookkeeper"},
        "bookkeeper": {"servers": pulsar.zookeeper, **bookkeeper},
        "pulsar": {"admin_url": pulsar.admin_url} if admin else {},
        "offload": {"segment_age_max_s": AGE_MAX_S},
    }
    async with site.bucket() as place, place.daemon(sections, name=f"live{CLOCK.uuid().hex[:6]}") as daemon:
        yield daemon


async def _steady(daemon: Daemon, pulsar: PulsarServer, seconds: float) -> list[float]:
    """Return, ascending, how long each message of a steady stream took to be durable."""
    topic = TopicName.parse("steady")
    with publisher(pulsar.service_url, topic.local) as producer:
        producer.send(ENTRY)
        await producer.settled()
        await daemon.client.enable(topic)
        await daemon.claimed(topic)
        times: list[float] = []
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(watch(daemon, topic, producer.published, times, done), name="offloaded position")
            await producer.steadily(RATE_S, seconds, ENTRY)
            done.set()
    return sorted(times)


async def watch(
    daemon: Daemon, topic: TopicName, published: Sequence[Published], times: list[float], done: asyncio.Event
) -> None:
    """Note for every message how long after its acknowledgement it was seen to be durable."""
    until: float | None = None
    while not done.is_set() or len(times) < len(published):
        until = CLOCK.monotonic() + LAST_WAIT_S if until is None or not done.is_set() else until
        if CLOCK.monotonic() > until:
            raise RuntimeError(f"{len(published) - len(times)} messages were not durable after {LAST_WAIT_S:g} s")
        status = (await daemon.client.status(topic)).topics[0]
        now = CLOCK.monotonic()
        if status.HasField("offloaded"):
            offloaded = position(status.offloaded)
            while len(times) < len(published) and published[len(times)].position <= offloaded:
                times.append(now - published[len(times)].acknowledged_s)
        await CLOCK.sleep(POLL_S)


async def _burst(daemon: Daemon, pulsar: PulsarServer, number: int, messages: int) -> float:
    """Return how long the last message of a burst took to be durable, with nothing after it."""
    topic = TopicName.parse(f"burst-{number}")
    with publisher(pulsar.service_url, topic.local) as producer:
        producer.send(ENTRY)
        await producer.settled()
        await daemon.client.enable(topic)
        await daemon.claimed(topic)
        for _ in range(messages):
            producer.send(ENTRY)
        await producer.settled()
        times: list[float] = []
        done = asyncio.Event()
        done.set()
        await watch(daemon, topic, producer.published, times, done)
    return times[-1]


def _quantiles(name: str, times: list[float], way: str) -> list[Figure]:
    return [
        Figure(benchmark=name, figure=f"p50 ({way})", values=[quantile(times, 0.50)], unit="s"),
        Figure(
            benchmark=name,
            figure=f"p99 ({way})",
            values=[quantile(times, 0.99)],
            unit="s",
            goal=AGE_MAX_S + goals.DURABLE_OVER_AGE_S,
            little_shows=True,
            more_is_better=False,
            notes={"messages": f"{len(times)}", "max": f"{times[-1]:.2f} s"},
        ),
    ]
