"""What the probes tell of the dependencies: whether they answer, and whether the bucket takes what is written."""

from __future__ import annotations

import asyncio

from offloaderd.health import Dependency, Health
from offloaderd.metadata.memory import MemoryTree
from offloaderd.objects.memory import MemoryStore
from offloaderd.probes import PROBE_S, Prober
from offloaderd.sources import Ledgers
from offloaderd.testing.clock import FakeClock


async def test_a_bucket_that_takes_nothing_is_down_though_it_can_be_reached() -> None:
    """Others can do no better with it, so that topics stay; it is up once it takes something again."""
    clock, reached = FakeClock(), list[bool]()
    health, why = Health(clock.wall_ms), ""
    prober = Prober(health, clock, bucket=reached.append, refused=lambda: why)
    up, metadata = Dependency("objects", up=True), Dependency("metadata", up=True)
    async with MemoryTree().connect() as tree, asyncio.TaskGroup() as group:
        running = group.create_task(prober.run(tree, MemoryStore(clock), Ledgers()))
        await clock.advance(1)
        assert health.view.dependencies == (metadata, up)
        why, since_ms = "no space left", clock.wall_ms() + round((PROBE_S - 1) * 1000)
        await clock.advance(2 * PROBE_S)
        assert health.view.dependencies == (metadata, Dependency("objects", up=False, message=why, since_ms=since_ms))
        why = ""
        await clock.advance(PROBE_S)
        assert health.view.dependencies == (metadata, up)
        assert all(reached)
        running.cancel()
