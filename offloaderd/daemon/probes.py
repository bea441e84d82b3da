"""Small requests, every few seconds, that check whether the dependencies of the daemon answer."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from offloaderd.core.aio.groups import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.core.health import Health
from offloaderd.daemon.stores import Ledgers
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects.port import SegmentStore

PROBE_S = 3.0
"""Pause between two probes of a dependency."""
ANSWERS_S = 5.0
"""Longest time for an answer before the dependency counts as down."""


class Prober:
    """Probes each dependency in a task of its own; reports each to `health`, and the bucket to `bucket` as well.

    A failure is reported within PROBE_S and ANSWERS_S, whatever the other dependencies do. `refused` returns why the
    bucket refuses writes although it answers; empty: no reason is known. `bucket` gets None for a bucket that answers.
    """

    def __init__(
        self,
        health: Health,
        clock: Clock,
        *,
        bucket: Callable[[OffloaderError | None], None],
        refused: Callable[[], str],
    ) -> None:
        self._health = health
        self._clock = clock
        self._bucket = bucket
        self._refused = refused

    async def run(self, metadata: MetadataStore, objects: SegmentStore, ledgers: Ledgers) -> None:
        """Probe until cancelled."""
        probes: dict[str, Callable[[], Awaitable[object]]] = {
            "metadata": lambda: metadata.children("/"),
            "objects": lambda: reach(objects),
        }
        if ledgers.probe is not None:
            probes["ledgers"] = ledgers.probe
        async with Group() as group:
            for name, probe in probes.items():
                group.create_task(self._probe(name, probe), name=f"probe of {name}")

    async def _probe(self, name: str, probe: Callable[[], Awaitable[object]]) -> None:
        while True:
            error = await self._request(name, probe())
            if name == "objects":
                self._bucket(error)
            await self._clock.sleep(PROBE_S)

    async def _request(self, name: str, request: Awaitable[object]) -> OffloaderError | None:
        """Await a request to a dependency and report the result to health; returns the error."""
        try:
            async with asyncio.timeout(ANSWERS_S):
                await request
        except TimeoutError:
            silent = Transient(f"no answer within {ANSWERS_S:g} s")
            self._health.down(name, str(silent))
            return silent
        except OffloaderError as error:
            self._health.down(name, str(error))
            return error
        if name == "objects" and (why := self._refused()):
            self._health.down(name, why)
        else:
            self._health.up(name)
        return None


async def reach(objects: SegmentStore) -> None:
    """List a prefix of the bucket that has no objects."""
    async with aclosing(objects.list("offloaderd-probe/")) as found:
        async for _ in found:
            return
