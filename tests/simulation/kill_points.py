"""Worlds in which daemons die at kill points: the table of `tests/real/points.py`, a history for each row.

Nothing else goes wrong. So what a daemon leaves when it dies is put away by the next one: a collection finds nothing.
By the seed the same daemon starts again, another one does, or another one runs beside it from the begin.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TierRetention
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.roll import RollPolicy
from offloaderd.upkeep.retention import Limits
from tests.real.points import TWO_PARTS_STORED, KillPoint
from tests.simulation.wire import instantly
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from offloaderd.core.metrics.metrics import Metrics
    from tests.simulation.daemon import SimDaemon
    from tests.simulation.loop import Process
    from tests.simulation.nemesis import Nemesis
    from tests.simulation.options import Options

T = TypeVar("T")

DIES_WITHIN_S = 90.0
LOOK_S = 0.05
SIZES = (20, 60, 150)
"""Of entries, in bytes."""
PARTS_OF_A_SEGMENT = 3


class Trap:
    """Ends a daemon's process at a kill point; before it, nothing differs."""

    def __init__(self, world: World, text: str) -> None:
        self.victim: SimDaemon | None = None
        """Who has died here."""
        self._world = world
        self._text = text
        self._point = KillPoint.parse(text)
        self._on_its_way = world.chance.stream(f"death at {text}").random() < 0.3
        """Whether a request that the daemon dies `midway` of is carried out after its death."""

    async def around(
        self, process: Process, label: str, act: Callable[[], T], send: Callable[[Callable[[], T]], Awaitable[T]]
    ) -> T:
        """Send a request of a process, which may die before it, midway or afterwards."""
        daemon = next((one for one in self._world.daemons if one.process is process), None)
        if daemon is None or self.victim is not None or not self._point.is_reached(label):
            return await send(act)
        if self._point.moment == "before":
            return await self._died(daemon)
        if self._point.moment == "after":
            await send(act)
            return await self._died(daemon)
        if self._on_its_way:
            self._world.loop.in_world(0.0, self._die, daemon)
            return await send(act)

        def carried_out() -> T:
            try:
                return act()
            finally:
                self._die(daemon)

        return await send(carried_out)

    def _die(self, daemon: SimDaemon) -> None:
        self._world.faults.count(f"killed at {self._text}")
        self._world.trace("fate", f"{daemon.name} has reached {self._text}")
        self.victim = daemon
        daemon.crash()

    async def _died(self, daemon: SimDaemon) -> T:
        """End a process within a request of its own: it does not hear of anything any more."""
        self._die(daemon)
        never: asyncio.Future[T] = self._world.loop.create_future()
        return await never


class KillWorld(World):
    """A world whose daemon dies at a point of a history, and whose next one goes on."""

    history = ""
    point = ""

    def __init__(self, seed: int, metrics: Metrics, *, verbose: bool = False) -> None:
        self.beside = seed % 3 == 2
        """Whether another daemon runs beside the one that dies."""
        super().__init__(seed, metrics, verbose=verbose)
        self.faults.rates = {service: [] for service in self.faults.rates}
        self.faults.events, self.faults.garbled = [], 0.0
        self.faults.rotten = self.faults.upgrade = False
        for daemon in self.daemons:
            daemon.old = False
        self.topic = self.topics[0]

    @classmethod
    def at(cls, history: str, point: str) -> type[KillWorld]:
        """Return the worlds of a point."""
        return type("KillWorldAt", (cls,), {"history": history, "point": point})

    def draw_options(self) -> Options:
        """See World: segments of three parts, and nothing that only some runs have."""
        rng, drawn = self.chance.stream("kill point"), super().draw_options()
        block = rng.choice([200, 400])
        part = block * rng.choice([2, 3])
        removes, grants = self.history == "retired", self.history in {"granted", "retired"}
        return replace(
            drawn,
            daemons=1 if self.chance.seed % 3 == 0 else 2,
            topics=1,
            layout=SegmentLayout(block_bytes=block, part_bytes=part),
            policy=RollPolicy(segment_bytes_max=PARTS_OF_A_SEGMENT * part, segment_age_max_s=20.0),
            buffer_bytes=100_000,
            upload_bytes=10_000,
            push="no",
            retention="granted" if grants else "keep",
            tier=Limits(TierRetention.LIMITED, size_bytes=1) if removes else Limits(),
            grants=grants,
            scrub=False,
            collect_s=1000.0,
            methods=(None,),
            late_s=0.0,
        )

    async def work(self, nemesis: Nemesis) -> None:
        """Live through the history, up to where the last daemon dies."""
        segment_bytes = self.options.policy.segment_bytes_max
        more = partial(self._use, segment_bytes // 6)
        all_of_it = partial(self._use, segment_bytes * 4 // 3)
        match self.history:
            case "one part":
                await self._dies(self.point, partial(self._use, 1))
            case "at the end":
                await self._dies(self.point, self._drain)
            case "while open":
                await self._dies(self.point, self._fill_two_parts)
            case "continued":
                await self._dies(TWO_PARTS_STORED, all_of_it)
                await self._dies(self.point, more)
            case "after a failure":
                await self._dies(TWO_PARTS_STORED, all_of_it)
                for upload in self.buckets.uploads():
                    instantly(self.buckets.of(upload.key).abort_upload(upload.key, upload.upload_id))
                await self._dies(self.point, more)
            case _:
                await self._dies(self.point, all_of_it)
        await asyncio.sleep(LOOK_S)  # noqa: TID251 - the loop's own time; what was on its way has arrived
        if not self.beside:
            self.options = replace(self.options, tier=Limits())  # the next one removes only what is on the trash list
        await self._append(segment_bytes // 6)

    async def _dies(self, point: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Work with a daemon until it dies at a point."""
        trap = self.trap = Trap(self, point)
        chosen = self.daemons if self.beside else [one for one in self.daemons if one.runs == 0][:1] or self.daemons[:1]
        for daemon in chosen:
            if not daemon.up:
                daemon.start()
        working = self.loop.create_task(work())
        deadline = self.loop.time() + DIES_WITHIN_S
        while trap.victim is None and self.loop.time() < deadline:
            await asyncio.sleep(LOOK_S)  # noqa: TID251 - the loop's own time
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        if trap.victim is None:
            self.oracle.fail("run", f"the kill point {point} was never reached")

    async def _claimed(self) -> None:
        """Enable the topic, and wait until it has an owner: what is written then is no history."""
        await self.enable_all()
        while not any(one.up and one.engine.find(self.topic) is not None for one in self.daemons):
            await asyncio.sleep(LOOK_S)  # noqa: TID251 - the loop's own time

    async def _append(self, size_bytes: int) -> None:
        """Write entries; a full segment has those of two ledgers, and the next one is written to a third."""
        rng, left = self._rng, size_bytes
        while left > 0:
            newest = self.ledgers.topics[self.topic][-1:]
            if newest and 2 * sum(map(len, newest[0].entries)) >= self.options.policy.segment_bytes_max:
                self.ledgers.roll(self.topic)
            size = rng.choice(SIZES)
            self.ledgers.append(self.topic, [size])
            left -= size
            await asyncio.sleep(rng.uniform(0.0, LOOK_S))  # noqa: TID251 - the loop's own time
        self.ledgers.confirm(self.topic)

    async def _use(self, size_bytes: int) -> None:
        """Append; then offload, close the ledger and read, again and again."""
        await self._claimed()
        await self._append(size_bytes)
        while True:
            for daemon in [one for one in self.daemons if one.up]:
                with suppress(OffloaderError):
                    await self.within(daemon, partial(self._offload, daemon))
            self.ledgers.roll(self.topic)
            for daemon in [one for one in self.daemons if one.up]:
                with suppress(OffloaderError):
                    await self.within(daemon, partial(self._read, daemon))
            await asyncio.sleep(LOOK_S)  # noqa: TID251 - the loop's own time

    async def _offload(self, daemon: SimDaemon) -> None:
        """Have all entries committed."""
        found = daemon.engine.find(self.topic)
        if found is not None:
            await found.request_roll()
            while not self.done(self.topic):
                await daemon.clock.sleep(LOOK_S)

    async def _read(self, daemon: SimDaemon) -> None:
        """Read all that is in the map."""
        found = self.oracle.maps.get(self.topic)
        if found is not None and found.segments:
            await self.read(daemon, self.topic, found.segments[0].begin, 10_000)

    async def _drain(self) -> None:
        """Tell the owner of an open segment to stop."""
        await self._claimed()
        await self._append(self.options.layout.part_bytes // 2)
        while True:
            for daemon in [one for one in self.daemons if one.up]:
                found = daemon.engine.find(self.topic)
                newest = self.ledgers.newest(self.topic)
                if found is not None and found.progress is not None and found.taken == newest:
                    await daemon.drain()
            await asyncio.sleep(LOOK_S)  # noqa: TID251 - the loop's own time

    async def _fill_two_parts(self) -> None:
        """Append until two parts are stored, and ask for nothing."""
        await self._claimed()
        while not any(len(self.stored_parts(upload.upload_id)) >= 2 for upload in self.buckets.uploads()):
            await self._append(1)

    def stored_parts(self, upload_id: str) -> list[int]:
        """Return the numbers of an upload's parts."""
        upload = next(one for one in self.buckets.uploads() if one.upload_id == upload_id)
        return [part.part_number for part in instantly(self.buckets.of(upload.key).list_parts(upload.key, upload_id))]

    async def collect(self) -> None:
        """See World; there is nothing to collect."""
        self.trap = None
        await super().collect()
        if finds := [find for daemon in self.daemons for find in daemon.finds]:
            self.oracle.fail("P5", f"what a dead daemon left is left to the collector: {finds}")
        found = self.oracle.maps[self.topic]
        if self.history == "retired" and found.floor is None and not self.point.startswith("remove"):
            self.oracle.fail("run", "nothing was retired")
