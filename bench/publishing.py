"""What producers notice of us: publish latency at a steady rate, alone and while the daemon reads from their bookie.

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
from bench.live import broker, tailing
from bench.load import MIB
from bench.publisher import publisher
from bench.report import Figure
from offloaderd.model import TopicName

if TYPE_CHECKING:
    from bench.publisher import Publisher
    from bench.scale import Scale
    from bench.site import Site
    from tests.real.pulsar import PulsarServer

RATE_S = 300
ENTRY = bytes(1024)
HISTORY_ENTRY = bytes(64 * 1024)
LIMIT_BYTES_S = 10 * MIB
WARM_S = 3.0
TOPIC = TopicName.parse("published")

WAYS = {
    "nobody reads": None,
    "tailed": 0,
    f"tailed, history at {LIMIT_BYTES_S // MIB} MiB/s": LIMIT_BYTES_S,
    "tailed, history without a limit": 0,
}


async def publishing(site: Site, size: Scale) -> list[Figure]:
    """Measure all ways in turns, `size.runs` times."""
    seconds = size.durable_s / 2
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    async with broker(site, {}) as pulsar:
        with publisher(pulsar.service_url, TOPIC.local) as producer:
            await producer.steadily(RATE_S, WARM_S, ENTRY)
            for number in range(size.runs):
                for way, limit in WAYS.items():
                    history = f"history-{number}-{len(found[way])}-{limit}" if "history" in way else None
                    found[way].append(await _round(site, pulsar, producer, limit, history, seconds, size))
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


async def _round(
    site: Site,
    pulsar: PulsarServer,
    producer: Publisher,
    limit: int | None,
    history: str | None,
    seconds: float,
    size: Scale,
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
                with publisher(pulsar.service_url, history) as writer:
                    for _ in range(size.segment_bytes * 2 // len(HISTORY_ENTRY)):
                        writer.send(HISTORY_ENTRY)
                    await writer.settled()
                await daemon.client.enable(TopicName.parse(history), segment_bytes_max=size.segment_bytes)
        before = len(producer.published)
        await producer.steadily(RATE_S, seconds, ENTRY)
        return sorted(one.latency_s for one in producer.published[before:])
