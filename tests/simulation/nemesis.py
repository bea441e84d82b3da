"""What goes wrong with processes, services and topics while a run is busy, and how it all heals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.errors import OffloaderError
from offloaderd.metadata.records.policy import TopicPolicy

if TYPE_CHECKING:
    from tests.simulation.daemon import SimDaemon
    from tests.simulation.world import World

CONDITIONS = ("s3 outage", "s3 full", "s3 denied", "s3 expired", "s3 slow", "s3 throttling", "bucket missing")
DAY_MS = 86_400_000


class Nemesis:
    """Draws one event after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.chance.stream("nemesis")
        self._condition = 0

    async def run(self) -> None:
        """Let things go wrong until cancelled."""
        world = self._world
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / world.faults.every_s))  # noqa: TID251 - the loop's own time
            event = self._rng.choice(world.faults.events)
            daemon = self._rng.choice(world.daemons)
            self._happen(event, daemon)

    async def heal(self) -> None:
        """Let everything work again: services answer, processes run."""
        world = self._world
        world.faults.on = False
        world.condition = ""
        world.cuts.clear()
        for daemon in world.daemons:
            daemon.go_on()
            if daemon.process is None:
                daemon.start()
        for topic in world.topics:
            while True:
                daemon = self._rng.choice(world.daemons)
                try:
                    await world.within(daemon, daemon.engine.enable(topic, TopicPolicy(enabled=True)))
                    break
                except OffloaderError as error:
                    world.trace("user", f"not enabled: {error}")
                    await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
        for _ in range(40):
            for daemon in world.daemons:
                daemon.go_on()
                if daemon.process is None:
                    daemon.start()
            await asyncio.sleep(1.0)  # noqa: TID251 - the loop's own time

    def _happen(self, event: str, daemon: SimDaemon) -> None:
        world, rng = self._world, self._rng
        world.faults.count(event)
        world.trace("fate", f"{event} ({daemon.name})")
        if event == "crash":
            daemon.crash()
            world.loop.in_world(rng.choice([0.1, 1.0, 6.0]), self._start, daemon)
        elif event in {"pause", "long pause"}:
            daemon.pause()
            world.loop.in_world(rng.uniform(0.1, 3.0) if event == "pause" else rng.uniform(4.0, 12.0), daemon.go_on)
        elif event == "drain":
            self._world.loop.create_task(self._drain(daemon))
        elif event.endswith(" cut"):
            self._cut(daemon, event.split()[0])
        elif event == "expire session":
            if daemon.process is not None:
                daemon.zookeeper.expire()
        elif event == "clock jump":
            daemon.offset_ms = rng.choice([0, -DAY_MS, DAY_MS, -3000, 60_000])
            if daemon.process is not None:
                daemon.clock.offset_ms = daemon.offset_ms
        elif event in CONDITIONS:
            self._condition += 1
            world.condition = event
            world.loop.in_world(rng.uniform(0.5, 8.0), self._over, self._condition)
        else:
            self._world.loop.create_task(self._ask(event, daemon))

    def _start(self, daemon: SimDaemon) -> None:
        if daemon.process is None:
            daemon.start()

    def _over(self, number: int) -> None:
        if number == self._condition:
            self._world.condition = ""
            self._world.trace("fate", "condition over")

    def _cut(self, daemon: SimDaemon, service: str) -> None:
        world = self._world
        world.cuts.add((daemon.name, service))
        if service == "zk" and daemon.process is not None:
            daemon.zookeeper.disconnect()
        world.loop.in_world(self._rng.uniform(0.5, 10.0), world.cuts.discard, (daemon.name, service))

    async def _drain(self, daemon: SimDaemon) -> None:
        await daemon.drain()
        await asyncio.sleep(self._rng.choice([0.1, 2.0, 6.0]))  # noqa: TID251 - the loop's own time
        self._start(daemon)

    async def _ask(self, event: str, daemon: SimDaemon) -> None:
        """Have a user ask a daemon for something."""
        world = self._world
        if not daemon.up:
            return
        topic = self._rng.choice(world.topics)
        try:
            if event == "disable topic":
                await world.within(daemon, daemon.engine.disable(topic))
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))  # noqa: TID251 - the loop's own time
                if daemon.up:
                    await world.within(daemon, daemon.engine.enable(topic, TopicPolicy(enabled=True)))
            elif event == "roll":
                found = daemon.engine.find(topic)
                if found is not None:
                    await world.within(daemon, found.request_roll())
            elif event == "change policy":
                policy = TopicPolicy(enabled=True, segment_bytes_max=self._rng.choice([1000, 4000]))
                await world.within(daemon, daemon.engine.enable(topic, policy))
        except OffloaderError as error:
            world.trace("user", f"{event}: {type(error).__name__}")
