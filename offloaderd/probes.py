"""Small requests, every few seconds, that show whether what the daemon depends on answers."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.errors import OffloaderError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.clock import Clock
    from offloaderd.health import Health
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.port import SegmentStore
    from offloaderd.sources import Ledgers

PROBE_S = 5.0
"""Pause between two looks at whether the bucket and ZooKeeper answer."""


class Prober:
    """Asks the dependencies, and tells health of each and `bucket` of the bucket."""

    def __init__(self, health: Health, clock: Clock, *, bucket: Callable[[bool], None]) -> None:
        self._health = health
        self._clock = clock
        self._bucket = bucket

    async def run(self, metadata: MetadataStore, objects: SegmentStore, ledgers: Ledgers) -> None:
        """Probe until cancelled."""
        while True:
            await self._look("metadata", metadata.children("/"))
            self._bucket(await self._look("objects", reach(objects)))
            if ledgers.probe is not None:
                await self._look("ledgers", ledgers.probe())
            await self._clock.sleep(PROBE_S)

    async def _look(self, name: str, request: Awaitable[object]) -> bool:
        """Send a small request to a dependency and note for health whether it answered."""
        try:
            await request
        except OffloaderError as error:
            self._health.down(name, str(error))
            return False
        self._health.up(name)
        return True


async def reach(objects: SegmentStore) -> None:
    """Ask the bucket for something small."""
    async with aclosing(objects.list("offloaderd-probe/")) as found:
        async for _ in found:
            return
