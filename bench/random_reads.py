"""Reads of single entries here and there, over gRPC: cold (index and manifest cached, no block is) and warm.

The references are GETs of 64 KiB elsewhere in the same object by the adapter alone, in turns with the cold reads.
Every cold read hits a block that nobody has read before.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from bench.appending import everything_offloaded, objects_of
from bench.durable import quantile
from bench.load import MIB, Entries, append
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.model import Position, ReadPriority, TopicName
from offloaderd.objects.s3 import S3Store

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.site import Daemon, Site

ENTRY_BYTES = 1024
GET_BYTES = 64 * 1024
TOTAL_BYTES = 32 * MIB
"""Fewer entries than make the daemon's own store begin another ledger."""
TOPIC = TopicName.parse("random-reads")
COLD_GOAL, WARM_GOAL_MS = 2.0, 2.0


async def random_reads(site: Site, size: Scale) -> list[Figure]:
    """Measure latencies, and the requests and bytes of a cold read."""
    del size
    entries = Entries(ENTRY_BYTES, TOTAL_BYTES)
    sections = {"ledgers": {"kind": "embedded"}}
    count = TOTAL_BYTES // MIB - 1
    places = [(number * 13 % count) * MIB // ENTRY_BYTES + number * 131 % 900 for number in range(count)]
    async with site.bucket() as place:
        async with place.daemon(sections, name="random") as daemon:
            await append(daemon.client, TOPIC, entries)
            await daemon.client.enable(TOPIC, segment_bytes_max=entries.segment_bytes)
            await everything_offloaded(daemon, TOPIC)
            (key,) = await objects_of(daemon, TOPIC)
            (ledger_id,) = {one.begin.ledger_id for one in await daemon.client.segments(TOPIC) if one.object_bytes}
            await daemon.client.disable(TOPIC)
        async with place.daemon(sections, name="random") as daemon, S3Store(place.s3) as store:
            wanted = [Position(ledger_id, place) for place in places]
            await _read(daemon, Position(ledger_id, entries.count - 1))  # index and manifest come with the first one
            before = await daemon.spent()
            cold, bare = [], []
            for position in wanted:
                cold.append(await _read(daemon, position))
                started = CLOCK.monotonic()
                await store.get(key, position.entry_id * ENTRY_BYTES // 2, GET_BYTES)
                bare.append(CLOCK.monotonic() - started)
            spent = (await daemon.spent()).since(before)
            warm = [await _read(daemon, position) for position in wanted]
    return _figures(sorted(cold), sorted(bare), sorted(warm), spent.requests["GetObject"] / len(wanted))


async def _read(daemon: Daemon, position: Position) -> float:
    """Return the seconds that one entry takes."""
    started = CLOCK.monotonic()
    priority = ReadPriority.TIERED_STORAGE_FIRST
    one = daemon.client.read(TOPIC, first=position, last=position, read_priority=priority)
    async with aclosing(one) as responses:
        count = sum([len(response.batch.payloads) async for response in responses])
    if count != 1:
        raise RuntimeError(f"{count} entries came for one")
    return CLOCK.monotonic() - started


def _figures(cold: list[float], bare: list[float], warm: list[float], gets: float) -> list[Figure]:
    name = "random reads of one entry, 1 KiB"
    low, high = 1000 * quantile(bare, 0.5), 1000 * quantile(bare, 0.99)
    return [
        Figure(
            benchmark=name,
            figure="cold p50 over a bare GET of 64 KiB",
            values=[quantile(cold, 0.5) / quantile(bare, 0.5)],
            goal=COLD_GOAL,
            more_is_better=False,
            notes={
                "ours": f"p50 {1000 * quantile(cold, 0.5):.1f} ms, p99 {1000 * quantile(cold, 0.99):.1f} ms",
                "bare": f"p50 {low:.1f} ms, p99 {high:.1f} ms",
            },
        ),
        Figure(benchmark=name, figure="GETs of a cold read", values=[gets], goal=1.0, more_is_better=False),
        Figure(
            benchmark=name,
            figure="warm p99",
            values=[1000 * quantile(warm, 0.99)],
            unit="ms",
            goal=WARM_GOAL_MS,
            more_is_better=False,
            notes={"p50": f"{1000 * quantile(warm, 0.5):.1f} ms"},
        ),
    ]
