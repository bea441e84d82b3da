"""Real bookies do what the suite says that bookies do; the fakes and the simulation's are held to the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from tests.conformance.bookie_suite import ReadSuite, TailSuite, reachable
from tests.real.writer import Plan, ledger_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.bookies import BookKeeperCluster
    from tests.real.writer import LedgerWriter
    from tests.real.written_ledger import WrittenLedger

CLOCK = SystemClock()


class RealLedger:
    """One ledger in the hands of our writer."""

    def __init__(self, written: WrittenLedger) -> None:
        self._written = written
        self.ledger_id = written.ledger_id

    async def add(self, payload: bytes, *, lac: int) -> None:
        """Store the next entry."""
        await self._written.put(payload, lac=lac)

    async def tell_lac(self, lac: int) -> None:
        """Tell of a LAC without an entry."""
        await self._written.tell_lac(lac)

    async def fence(self) -> None:
        """Keep its writer out."""
        await self._written.fence()


class RealShelf:
    """The first bookie of the cluster."""

    def __init__(self, cluster: BookKeeperCluster, bookies: BookiePool, writer: LedgerWriter) -> None:
        self._bookie = cluster.bookies[0]
        self._writer = writer
        self.bookie_id = self._bookie.bookie_id
        self.bookies = bookies

    async def ledger(self) -> RealLedger:
        """Begin a ledger that is on this bookie alone."""
        plan = Plan(ensemble=1, write_quorum=1, ack_quorum=1, bookies=(self.bookie_id,))
        return RealLedger(await self._writer.create(plan))

    async def restart(self) -> None:
        """Start the bookie again."""
        await self._bookie.restart()
        await reachable(self)


@pytest.fixture
async def shelf(bookkeeper: BookKeeperCluster) -> AsyncIterator[RealShelf]:
    """A bookie."""
    async with (
        ZooKeeperStore(bookkeeper.zookeeper, "/", MetadataSettings(session_timeout_s=5)) as znodes,
        BookiePool(znodes, clock=CLOCK, metrics=Metrics(), options=BookkeeperSettings()) as bookies,
        ledger_writer(bookkeeper.zookeeper, CLOCK) as writer,
    ):
        yield RealShelf(bookkeeper, bookies, writer)


class TestReads(ReadSuite):
    """On a real bookie."""


class TestTails(TailSuite):
    """On a real bookie."""
