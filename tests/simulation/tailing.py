"""The daemon's real ledger source in one simulated process: `ledgers.pulsar` over a real pool of bookies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.core.model import Position
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.port import Versioned
from offloaderd.testing.memory import metadata as memory
from tests.simulation.network import Line
from tests.simulation.wire import LATENCY_S, Wire
from tests.simulation.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.clock import Clock
    from offloaderd.core.model import Confirmed, LedgerInfo, TopicName
    from tests.simulation.loop import Process
    from tests.simulation.pulsar import Cluster
    from tests.simulation.world import World
    from tests.simulation.zookeeper import Nodes


class Znodes(ZooKeeper):
    """One process's access to the nodes of the cluster."""

    def __init__(self, world: World, process: Process, cluster: Cluster) -> None:
        super().__init__(world, process, cluster.tree)
        self._rng = world.chance.stream(f"nodes of {process.name}")

    async def get(self, path: str) -> Versioned:
        """See Znodes."""

        def look(nodes: Nodes) -> Versioned:
            node = memory._found(nodes, path)
            return Versioned(node.value, node.version, getattr(node, "created_ms", 0))

        return await self._read(f"get {path}", look)


class Admin:
    """A broker's admin API, as one process reaches it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._wire = Wire(world, process, "bk", lambda _: "")

    async def last_confirmed(self, topic: TopicName) -> Position | None:
        """See Broker."""

        def act() -> Position | None:
            ledgers = self._world.ledgers
            newest = ledgers.topics[topic][-1:] if topic not in ledgers.gone else []
            cluster = self._world.cluster
            assert cluster is not None
            return Position(newest[0].ledger_id, cluster.last_confirmed(newest[0])) if newest else None

        return await self._wire.call(f"last confirmed {topic.local}", act, write=False)


class BusyLine(Line):
    """The lines between processes and bookies, as the seed has them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = rng = world.chance.stream("lines")
        self._breaks = rng.choice([0.0, 0.0, 0.002, 0.01])

    def delay(self, process: Process | None) -> float:
        """Return the seconds that a packet takes."""
        return LATENCY_S * (0.1 + self._rng.random() ** 3) / 2

    def is_cut(self, process: Process | None) -> bool:
        """Say whether nothing passes at present."""
        return process is not None and (process.name[0], "bk") in self._world.cuts

    def breaks(self, process: Process | None) -> bool:
        """Say whether the connection is reset in place of the packet."""
        broken = self._world.faults.on and self._breaks > 0 and self._rng.random() < self._breaks
        if broken:
            self._world.faults.count("bookie line broken")
        return broken


class BookKeeper(BookKeeperLedgers):
    """One process's ledger source, with its own connections."""

    def __init__(self, world: World, process: Process, cluster: Cluster, clock: Clock) -> None:
        self.znodes = Znodes(world, process, cluster)
        self._ledgers_known = world.ledgers
        self._pool = BookiePool(self.znodes, clock=clock, metrics=world.metrics, options=cluster.options)
        super().__init__(
            self.znodes,
            self._pool,
            clock=clock,
            metrics=world.metrics,
            options=cluster.options,
            admin=None if cluster.explicit else Admin(world, process),
        )

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        await self._pool.__aexit__(*error)

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """See LedgerSource; the model learns what it told."""
        infos = await super().ledgers(topic)
        listed = {info.ledger_id: info for info in infos}
        for ledger in self._ledgers_known.topics.get(topic, ()):
            if ledger.ledger_id in listed:
                ledger.show(listed[ledger.ledger_id])
        return infos

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """See LedgerSource; the model learns what it told."""
        found = await super().confirmed(topic, ledger_id)
        self._told(topic, ledger_id, found.last_entry_id + 1 + found.hidden)
        return found

    def _told(self, topic: TopicName, ledger_id: int, entries: int) -> None:
        for ledger in self._ledgers_known.topics.get(topic, ()):
            if ledger.ledger_id == ledger_id:
                ledger.told = max(ledger.told, entries)

    def gone(self) -> None:
        """The process died."""
        self.znodes.gone()


class OldBookKeeper(BookKeeper):
    """Ledgers of which nobody says when they were made."""

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """See LedgerSource."""
        return [replace(info, created_ms=None) for info in await super().ledgers(topic)]
