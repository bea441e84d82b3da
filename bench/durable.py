"""Time to durable: from the acknowledgement of an append to the commit that covers it, at a slow, steady rate.

Segments roll by age alone (5 s), so an entry waits between nothing and the whole age, and then for the upload and the
commit. The offloaded position is asked for every 20 ms, which each time may be too long by.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench import goals
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.core.model import Position, TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from offloaderd.protocol.v1 import common_pb2, ledgers_pb2

AGE_MAX_S = 5.0
RATE_S = 100
POLL_S = 0.02
LAST_WAIT_S = 30.0
ENTRY = bytes(1024)
TOPIC = TopicName.parse("time-to-durable")


async def time_to_durable(site: Site, size: Scale) -> list[Figure]:
    """Measure every entry of a stream of 100 a second; one round, as it is long."""
    sections: Sections = {"ledgers": {"kind": "embedded"}, "offload": {"segment_age_max_s": AGE_MAX_S}}
    async with site.bucket() as place, place.daemon(sections, name="durable") as daemon:
        times = sorted(await _watch(daemon, size.durable_s))
    notes = {"entries": f"{len(times)}", "rate": f"{RATE_S}/s", "segment_age_max_s": f"{AGE_MAX_S:g}"}
    name = "time to durable"
    return [
        Figure(benchmark=name, figure="p50", values=[quantile(times, 0.50)], unit="s", notes=notes),
        Figure(
            benchmark=name,
            figure="p99",
            values=[quantile(times, 0.99)],
            unit="s",
            goal=AGE_MAX_S + goals.DURABLE_OVER_AGE_S,
            little_shows=True,
            more_is_better=False,
        ),
        Figure(benchmark=name, figure="max", values=[times[-1]], unit="s"),
    ]


def quantile(ascending: list[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


async def _watch(daemon: Daemon, seconds: float) -> list[float]:
    await daemon.client.enable(TOPIC)
    await daemon.claimed(TOPIC)
    waiting: list[tuple[Position, float]] = []
    times: list[float] = []
    started = CLOCK.monotonic()

    async def batches() -> AsyncIterator[list[bytes]]:
        for number in range(round(seconds * RATE_S)):
            await CLOCK.sleep(max(0.0, started + number / RATE_S - CLOCK.monotonic()))
            yield [ENTRY]

    def acknowledged(answer: ledgers_pb2.AppendResponse) -> None:
        waiting.append((position(answer.last), CLOCK.monotonic()))

    async def poll(done: asyncio.Event) -> None:
        until = started + seconds + LAST_WAIT_S
        while (waiting or not done.is_set()) and CLOCK.monotonic() < until:
            status = (await daemon.client.status(TOPIC)).topics[0]
            now = CLOCK.monotonic()
            offloaded = position(status.offloaded)
            while status.HasField("offloaded") and waiting and waiting[0][0] <= offloaded:
                times.append(now - waiting.pop(0)[1])
            await CLOCK.sleep(POLL_S)

    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(poll(done), name="offloaded position")
        await daemon.client.append(TOPIC, batches(), acknowledged)
        done.set()
    if waiting:
        raise RuntimeError(f"{len(waiting)} entries were not durable after {LAST_WAIT_S:g} s")
    return times


def position(message: common_pb2.Position) -> Position:
    """Return a position as a value."""
    return Position(message.ledger_id, message.entry_id)
