"""The pool of bookies against scripted ones: what is answered, what goes wrong, and what is left behind."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.ledgers.bookkeeper.bookie_options import BookieOptions
from offloaderd.ledgers.bookkeeper.bookies import BookiePool
from offloaderd.ledgers.bookkeeper.entry import DigestType
from offloaderd.metadata.memory import MemoryTree
from offloaderd.metrics import Metrics
from offloaderd.testing.clock import FakeClock
from tests.unit.ledgers.bookkeeper.entries import package_all
from tests.unit.ledgers.bookkeeper.fake_bookie import FakeBookie, fake_bookie

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LEDGER = 7
PAYLOADS = [bytes([number]) * 50 for number in range(10)]
ENTRIES = package_all(DigestType.CRC32C, LEDGER, 0, PAYLOADS)


class World:
    """A bookie with ten entries of ledger 7, and a pool with its clock and metrics."""

    def __init__(self, bookie: FakeBookie, clock: FakeClock, metrics: Metrics) -> None:
        self.bookie = bookie
        self.clock = clock
        self.metrics = metrics
        self.pool: BookiePool

    @property
    def id(self) -> str:
        """The bookie's."""
        return self.bookie.bookie_id

    def value(self, name: str, **labels: str) -> float:
        """Return a metric."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def world(options: BookieOptions | None = None) -> AsyncIterator[World]:
    """Make one."""
    async with fake_bookie() as bookie:
        bookie.stored.update(((LEDGER, number), entry) for number, entry in enumerate(ENTRIES))
        made = World(bookie, FakeClock(), Metrics())
        znodes = MemoryTree().connect()
        async with BookiePool(znodes, clock=made.clock, metrics=made.metrics, options=options) as made.pool:
            yield made


async def test_what_is_stored_is_read() -> None:
    """An entry, a batch within both limits, and the end of a ledger with what is known to be confirmed."""
    async with world() as it:
        it.bookie.max_lac[LEDGER] = 8
        assert await it.pool.read(it.id, LEDGER, 3) == ENTRIES[3]
        assert await it.pool.read_batch(it.id, LEDGER, 4, count_max=3, bytes_max=10_000) == ENTRIES[4:7]
        assert await it.pool.read_batch(it.id, LEDGER, 9, count_max=1, bytes_max=0) == ENTRIES[9:]
        assert await it.pool.last_known(it.id, LEDGER) == (ENTRIES[9], 8)
        assert [session.transport.is_closing() for session in it.bookie.sessions] == [False, False]
        assert it.value("offloaderd_bookie_connections") == 2
        assert it.value("offloaderd_bookie_requests_total", operation="batch", outcome="ok") == 2
        assert it.value("offloaderd_bookie_bytes_total") > sum(map(len, [ENTRIES[3], *ENTRIES[4:7], *ENTRIES[9:]]))
    assert it.value("offloaderd_bookie_connections") == 0
