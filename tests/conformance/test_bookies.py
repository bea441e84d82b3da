"""Fake and simulated bookies do what the suite says that bookies do, as real ones (tests/integration/bookies)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from tests.conformance.bookie_suite import ReadSuite, TailSuite, reachable
from tests.conformance.simulated import simulated_world
from tests.simulation.bookie import SimBookie
from tests.simulation.world import ServerClock
from tests.unit.bookkeeper.entries import package
from tests.unit.bookkeeper.fake_bookie import FakeBookie, fake_bookie
from tests.unit.bookkeeper.fake_cluster import FakeCluster, FakeLedger, Shape
from tests.unit.bookkeeper.pool_world import FakeZnodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class MemoryLedger:
    """A ledger on a bookie that is a dictionary."""

    def __init__(self, ledger: FakeLedger) -> None:
        self._ledger = ledger
        self._bookies = ledger.cluster.bookies
        self.ledger_id = ledger.ledger_id

    async def add(self, payload: bytes, *, lac: int) -> None:
        """Store the next entry."""
        await self._ledger.write([payload], lac=lac)

    async def tell_lac(self, lac: int) -> None:
        """Tell of a LAC without an entry."""
        self._bookies.tell_lac("b0", self.ledger_id, lac)

    async def fence(self) -> None:
        """Keep its writer out."""
        self._bookies.fence(self.ledger_id)


class MemoryShelf:
    """A bookie that is a dictionary."""

    bookie_id = "b0"

    def __init__(self) -> None:
        self._cluster = FakeCluster()
        self.bookies = self._cluster.bookies
        self.bookies.clock = SystemClock()

    async def ledger(self) -> MemoryLedger:
        """Begin a ledger that is on this bookie alone."""
        shape = Shape(ensemble=1, write_quorum=1, ack_quorum=1, bookies=(self.bookie_id,))
        return MemoryLedger(await self._cluster.ledger(shape))

    async def restart(self) -> None:
        """Start the bookie again."""
        self.bookies.restart(self.bookie_id)


class ScriptedLedger:
    """A ledger on a bookie on loopback that answers from a dictionary."""

    def __init__(self, bookie: FakeBookie, ledger_id: int) -> None:
        self._bookie = bookie
        self._next = 0
        self.ledger_id = ledger_id

    async def add(self, payload: bytes, *, lac: int) -> None:
        """Store the next entry."""
        stored = package(DigestType.CRC32C, self.ledger_id, self._next, payload, lac=lac)
        self._bookie.stored[self.ledger_id, self._next] = stored
        self._next += 1
        await self.tell_lac(lac)

    async def tell_lac(self, lac: int) -> None:
        """Tell of a LAC without an entry."""
        self._bookie.max_lac[self.ledger_id] = max(lac, self._bookie.max_lac.get(self.ledger_id, -1))

    async def fence(self) -> None:
        """Do nothing: no test has a long poll at this bookie."""


class ScriptedShelf:
    """A bookie on loopback, which answers long polls only where a test says so."""

    def __init__(self, bookie: FakeBookie, bookies: BookiePool) -> None:
        self._bookie = bookie
        self._ledgers = 0
        self.bookie_id = bookie.bookie_id
        self.bookies = bookies

    async def ledger(self) -> ScriptedLedger:
        """Begin a ledger."""
        self._ledgers += 1
        return ScriptedLedger(self._bookie, self._ledgers)

    async def restart(self) -> None:
        """Not of this one."""
        raise AssertionError


class TestMemory(ReadSuite, TailSuite):
    """Dictionaries that stand for the pool of bookies."""

    @pytest.fixture
    def shelf(self) -> MemoryShelf:
        """A bookie."""
        return MemoryShelf()


class TestScripted(ReadSuite):
    """The pool of bookies over a scripted one."""

    @pytest.fixture
    async def shelf(self) -> AsyncIterator[ScriptedShelf]:
        """A bookie."""
        async with (
            fake_bookie() as bookie,
            BookiePool(FakeZnodes(), clock=SystemClock(), metrics=Metrics()) as bookies,
        ):
            yield ScriptedShelf(bookie, bookies)


class SimulatedLedger:
    """A ledger on a bookie of the simulation."""

    def __init__(self, bookie: SimBookie, ledger_id: int) -> None:
        self._bookie = bookie
        self._next = 0
        self.ledger_id = ledger_id

    async def add(self, payload: bytes, *, lac: int) -> None:
        """Store the next entry."""
        stored = package(DigestType.CRC32C, self.ledger_id, self._next, payload, lac=lac)
        self._bookie.store(self.ledger_id, self._next, stored)
        self._next += 1

    async def tell_lac(self, lac: int) -> None:
        """Tell of a LAC without an entry."""
        self._bookie.explicit_lac(self.ledger_id, lac)

    async def fence(self) -> None:
        """Keep its writer out."""
        self._bookie.fence(self.ledger_id)


class SimulatedShelf:
    """A bookie of the simulation."""

    def __init__(self, bookie: SimBookie, bookies: BookiePool) -> None:
        self._bookie = bookie
        self._ledgers = 0
        self.bookie_id = bookie.bookie_id
        self.bookies = bookies

    async def ledger(self) -> SimulatedLedger:
        """Begin a ledger."""
        self._ledgers += 1
        return SimulatedLedger(self._bookie, self._ledgers)

    async def restart(self) -> None:
        """Start the bookie again."""
        self._bookie.stop()
        self._bookie.start()
        await reachable(self)


@pytest.mark.asyncio(loop_factories=["virtual"])
class TestSimulated(ReadSuite, TailSuite):
    """The pool of bookies over a simulated one, on the simulation's wire."""

    @pytest.fixture
    async def shelf(self) -> AsyncIterator[SimulatedShelf]:
        """A bookie."""
        with simulated_world() as world:
            bookie = SimBookie(world, 0, batches=True)
            async with BookiePool(FakeZnodes(), clock=ServerClock(world), metrics=Metrics()) as bookies:
                yield SimulatedShelf(bookie, bookies)
