"""The servers of the simulation for conformance suites: a world in which nothing goes wrong by itself."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from tests.simulation.bucket import Buckets
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.world import World
from tests.simulation.zookeeper import Tree, ZooKeeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from offloaderd.metadata.port import MetadataStore, SessionObserver

SIMULATED = "simulated"
"""The name of these adapters among all."""


@contextmanager
def simulated_world() -> Iterator[World]:
    """A world on the running loop, without the model's view of what is stored; all that goes wrong is the test's."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world = World(1, Metrics(), loop=loop)
    world.faults.on = False
    world.tree = Tree(world, watched=False)
    world.buckets = Buckets(SystemClock())
    yield world
    assert world.oracle.broken is None
    assert loop.fault is None


class SimulatedTree:
    """The tree of a simulated ZooKeeper."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def connect(self) -> ZooKeeper:
        """Open a store, as a process of its own."""
        store = ZooKeeper(self._world, Process(self._world.loop, f"P{len(self._world.tree.clients)}"))
        await store.session()
        return store

    async def disconnect(self, store: MetadataStore) -> None:
        """Close a store."""
        assert isinstance(store, ZooKeeper)
        store.close()

    async def expire(self, store: MetadataStore) -> None:
        """End its session."""
        assert isinstance(store, ZooKeeper)
        store.expire()


class SimulatedServer:
    """The servers of a simulated ZooKeeper, which go and come all at once."""

    address = ""

    def __init__(self, world: World) -> None:
        self._world = world

    @asynccontextmanager
    async def store(
        self, *, session_s: float = 30, call_s: float = 10, observer: SessionObserver = lambda _: None
    ) -> AsyncIterator[ZooKeeper]:
        """Open a store, as a process of its own."""
        store = ZooKeeper(self._world, Process(self._world.loop, f"P{len(self._world.tree.clients)}"))
        store.session_timeout_s, store.call_timeout_s, store.observer = session_s, call_s, observer
        await store.session()
        try:
            yield store
        finally:
            store.close()

    async def start(self) -> None:
        """Have them there again."""
        self._world.conditions.clear()

    async def kill(self) -> None:
        """Break all connections and take no more."""
        self._world.conditions["zk"] = "out"
        for client in self._world.tree.clients:
            client.disconnect()

    def pause(self) -> None:
        """Have them silent; connections stay open."""
        for client in self._world.tree.clients:
            client.cut()
