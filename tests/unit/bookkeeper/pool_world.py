"""A pool of bookies and a scripted bookie with ten entries, for tests of the pool."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata.port import Versioned
from offloaderd.testing.clock import FakeClock
from tests.patience import PATIENCE_S
from tests.unit.bookkeeper.entries import package_all
from tests.unit.bookkeeper.fake_bookie import fake_bookie

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from typing import Literal

    from offloaderd.bookkeeper.settings import BookkeeperSettings
    from tests.unit.bookkeeper.fake_bookie import FakeBookie

T = TypeVar("T")

LEDGER = 7
ENTRIES = package_all(DigestType.CRC32C, LEDGER, 0, [bytes([number]) * 50 for number in range(10)])
ROOM_S = 0.02
"""Enough for what has been sent on loopback to arrive, and to be acted on."""


class FakeZnodes:
    """Nodes to read, in a dictionary; in trouble it raises Transient, or does not answer at all."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.failure: Literal["", "error", "silence"] = ""

    async def get(self, path: str) -> Versioned:
        """Return a node. Raises NotFound, and Transient in trouble."""
        if self.failure == "silence":
            await asyncio.get_running_loop().create_future()
        if self.failure:
            raise Transient("no ZooKeeper")
        if path not in self.nodes:
            raise NotFound(path)
        return Versioned(self.nodes[path], 0)

    async def children(self, path: str) -> Sequence[str]:
        """The pool lists nothing."""
        raise AssertionError(path)

    async def arm(self, path: str, fired: Callable[[], None]) -> None:
        """The pool watches nothing."""
        raise AssertionError(path, fired)

    def disarm(self, path: str, fired: Callable[[], None]) -> None:
        """The pool watches nothing."""
        raise AssertionError(path, fired)

    async def sync(self, path: str) -> None:
        """The pool concludes nothing from an absence."""
        raise AssertionError(path)


class World:
    """A bookie with ten entries of ledger 7, and a pool with its nodes, clock and metrics."""

    def __init__(self, bookie: FakeBookie, options: BookkeeperSettings | None) -> None:
        self.bookie = bookie
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.znodes = FakeZnodes()
        self.pool = BookiePool(self.znodes, clock=self.clock, metrics=self.metrics, options=options)

    @property
    def id(self) -> str:
        """The bookie's."""
        return self.bookie.bookie_id

    @property
    def in_flight(self) -> int:
        """How many requests wait for an answer, whether anybody waits for it or not."""
        return int(self.value("offloaderd_bookie_requests_in_flight"))

    def value(self, name: str, **labels: str) -> float:
        """Return a metric, 0 if there is none."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def hold(self) -> None:
        """Have the bookie answer nothing until it is told."""
        self.bookie.on_request = lambda _: None

    def release(self) -> None:
        """Have it answer again what comes from now on."""
        self.bookie.on_request = self.bookie.answer

    async def batch(self, first: int, count: int) -> list[bytes]:
        """Read a batch of the bookie."""
        return await self.pool.read_batch(self.id, LEDGER, first, count_max=count, bytes_max=10_000)

    async def settle(self) -> None:
        """Give what has been sent the time to arrive."""
        await asyncio.sleep(ROOM_S)  # noqa: TID251 - virtual time

    async def ended(self) -> None:
        """Wait until the bookie has seen all connections end."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(session.ended for session in self.bookie.sessions):
                await self.settle()

    async def outcomes(self, requests: Iterable[Awaitable[T]]) -> list[T | type[OffloaderError]]:
        """Run requests side by side and return results or classes of errors, in their order."""

        async def one(request: Awaitable[T]) -> T | type[OffloaderError]:
            try:
                return await request
            except OffloaderError as error:
                return type(error)

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(request)) for request in requests]
        return [task.result() for task in tasks]


@asynccontextmanager
async def world(options: BookkeeperSettings | None = None) -> AsyncIterator[World]:
    """Make one."""
    async with fake_bookie() as bookie:
        bookie.stored.update(((LEDGER, number), entry) for number, entry in enumerate(ENTRIES))
        made = World(bookie, options)
        async with made.pool:
            yield made
