"""Effect on producers: publish latency at a steady rate, alone and while the daemon reads from their bookie.

Rounds alternate between nobody reading, the topic being tailed, and the topic being tailed while another topic's
history is caught up with, under a limit and without one. Producer, broker, bookie, daemon and S3 server share the
machine, so a part of what is seen is the processor and not the bookie: the worst case, in which all are one machine.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import chain
from typing import TYPE_CHECKING

from bench.appending import everything_offloaded
from bench.durable import quantile
from bench.live import tailing
from bench.load import MIB
from bench.publisher import publisher
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from bench.publisher import Publisher
    from bench.scale import Scale
    from bench.site import Site
    from tests.real.pulsar import PulsarServer

RATE_S = 300
ENTRY = bytes(1024)
HISTORY_ENTRY = bytes(64 * 1024)
LIMIT_BYTES_S = 10 * MIB
WARM_S, SETTLE_S = 3.0, 10.0
TOPIC = TopicName.parse("published")

WAYS = {
    "nobody reads": None,
    "tailed": 0,
    f"tailed, history at {LIMIT_BYTES_S // MIB} MiB/s": LIMIT_BYTES_S,
    "tailed, history without a limit": 0,
}


async def publishing(site: Site, size: Scale, pulsar: PulsarServer) -> list[Figure]:
    """Measure all ways in turns, `size.runs` times; in a quick run those without a history."""
    seconds = size.durable_s * 0.4
    ways = {way: limit for way, limit in WAYS.items() if "history" not in way or not size.quick}
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    histories = {
        (way, number): TopicName.parse(f"history-{CLOCK.uuid().hex}")
        for way in ways
        if "history" in way
        for number in range(size.runs)
    }
    for history in histories.values():
        await _write(pulsar, history, size.segment_bytes // 2)
    if histories:
        await CLOCK.sleep(SETTLE_S)  # what the bookie still has to flush of them is nobody's
    with publisher(pulsar.service_url, TOPIC.local) as producer:
        await producer.steadily(RATE_S, WARM_S, ENTRY)
        for number in range(size.runs):
            for way, limit in ways.items():
                found[way].append(await _round(site, pulsar, producer, limit, histories.get((way, number)), seconds))
    return [
        Figure(
            benchmark=f"publish latency, {RATE_S} messages/s of 1 KiB",
            figure=f"p99, {way}",
            values=[1000 * quantile(times, 0.99) for times in rounds],
            unit="ms",
            notes={"p50": f"{1000 * quantile(sorted(chain.from_iterable(rounds)), 0.5):.1f} ms"},
        )
        for way, rounds in found.items()
    ]


async def _write(pulsar: PulsarServer, history: TopicName, total_bytes: int) -> None:
    """Write a topic that has no reader yet."""
    with publisher(pulsar.service_url, history.local) as writer:
        for _ in range(total_bytes // len(HISTORY_ENTRY)):
            writer.send(HISTORY_ENTRY)
        await writer.settled()


async def _round(
    site: Site,
    pulsar: PulsarServer,
    producer: Publisher,
    limit: int | None,
    history: TopicName | None,
    seconds: float,
) -> list[float]:
    """Return, ascending, the latencies of one round."""
    async with AsyncExitStack() as stack:
        if limit is not None:
            settings = {"bytes_per_s": limit} if limit else {}
            daemon = await stack.enter_async_context(tailing(site, pulsar, admin=False, **settings))
            await daemon.client.enable(TOPIC)
            await daemon.claimed(TOPIC)
            await everything_offloaded(daemon, TOPIC)
            if history is not None:
                await daemon.client.enable(history)
        before = len(producer.published)
        await producer.steadily(RATE_S, seconds, ENTRY)
        return sorted(one.latency_s for one in producer.published[before:])
