"""Memory under sustained load: as many entries as the daemon takes, while a reader follows, under small budgets.

The budget is what the memory settings add up to, and a base: what the daemon takes when it has nothing to do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench import goals
from bench.load import MIB, Entries, append, push
from bench.machine import memory_bytes
from bench.report import Figure
from bench.site import CLOCK
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site

BUDGETS_MIB = {"buffer_bytes": 32, "upload_bytes": 32, "cache_bytes": 32}
SETTLE_S = 2.0
TOPIC = TopicName.parse("sustained")
"""Entries of 1 KiB cost the most memory for their bytes of the sizes that are measured."""


async def peak(site: Site, size: Scale) -> list[Figure]:
    """Measure the peak of a daemon that is appended to, and of one that is pushed to."""
    return [
        await _peak("appended", "embedded", _append, site, size),
        await _peak("pushed", "none", _push, site, size),
    ]


async def _peak(
    how: str, kind: str, load: Callable[[Daemon, float], Awaitable[int]], site: Site, size: Scale
) -> Figure:
    budgets: dict[str, object] = {name: f"{mib}MiB" for name, mib in BUDGETS_MIB.items()}
    sections: Sections = {
        "ledgers": {"kind": kind},
        "memory": budgets,
        "offload": {"segment_bytes_max": "64MiB"},
    }
    async with site.bucket() as place, place.daemon(sections, name=f"memory-{how}") as daemon:
        await CLOCK.sleep(SETTLE_S)
        base, _ = memory_bytes(daemon.pid)
        await daemon.client.enable(TOPIC)
        await daemon.claimed(TOPIC)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(_follow(daemon), name="reader")
            payload_bytes = await load(daemon, size.sustained_s)
            reader.cancel()
        read_bytes = reader.result() if not reader.cancelled() else 0
        _, most = memory_bytes(daemon.pid)
    budget = sum(BUDGETS_MIB.values()) * MIB + base
    return Figure(
        benchmark=f"peak memory, {how}",
        figure="peak over budget and base",
        values=[most / budget],
        goal=goals.PEAK_OVER_BUDGET,
        more_is_better=False,
        notes={
            "base": f"{base / MIB:.0f} MiB",
            "budget": f"{sum(BUDGETS_MIB.values())} MiB",
            "peak": f"{most / MIB:.0f} MiB",
            "full load for": f"{size.sustained_s:g} s",
            "written": f"{payload_bytes / MIB:.0f} MiB",
            "read": f"{read_bytes / MIB:.0f} MiB",
        },
    )


async def _append(daemon: Daemon, seconds: float) -> int:
    return await append(daemon.client, TOPIC, Entries(1024, 1 << 40), seconds=seconds) * 1024


async def _push(daemon: Daemon, seconds: float) -> int:
    return await push(daemon.client, TOPIC, Entries(1024, 1 << 40), seconds=seconds) * 1024


async def _follow(daemon: Daemon) -> int:
    """Read the topic from its first entry on until cancelled; returns the bytes."""
    read_bytes = 0
    try:
        while True:
            try:
                async for response in daemon.client.read(TOPIC, follow=True):
                    read_bytes += sum(map(len, response.batch.payloads))
            except OffloaderError:
                await CLOCK.sleep(0.1)
    except asyncio.CancelledError:
        return read_bytes
