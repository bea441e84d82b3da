"""A source over simulated bookies and a broker to ask, in a time that tests move."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.testing import FakeClock
from tests.unit.bookkeeper.clockwork import in_time
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.bookkeeper.settings import BookkeeperSettings
    from offloaderd.core.model import Confirmed, Position, TopicName


class FakeBroker:
    """A broker that knows one position, or fails."""

    def __init__(self) -> None:
        self.position: Position | None = None
        self.error: Exception | None = None
        self.asked_s: list[float] = []
        self.clock: FakeClock | None = None

    async def last_confirmed(self, _topic: TopicName) -> Position | None:
        """Return what it knows."""
        assert self.clock is not None
        self.asked_s.append(self.clock.monotonic())
        if self.error is not None:
            raise self.error
        return self.position


class Bench:
    """A source, the cluster it reads, its broker and the time it does so in."""

    def __init__(
        self, source: BookKeeperLedgers, cluster: FakeCluster, broker: FakeBroker, clock: FakeClock, metrics: Metrics
    ) -> None:
        self.source = source
        self.cluster = cluster
        self.bookies = cluster.bookies
        self.broker = broker
        self.clock = clock
        self.metrics = metrics

    async def confirmed(self, ledger_id: int = 7) -> Confirmed:
        """Ask for the end of a ledger, as a new question."""
        await self.clock.advance(0.1)
        return await in_time(self.clock, self.source.confirmed(TOPIC, ledger_id))

    def polls(self) -> Counter[str]:
        """Return how often each bookie was asked for an end."""
        found: Counter[str] = Counter()
        for (operation, bookie_id), count in self.bookies.requests.items():
            if operation == "last":
                found[bookie_id] += count
        return found


@asynccontextmanager
async def benched(options: BookkeeperSettings | None = None, *, admin: bool = True) -> AsyncIterator[Bench]:
    """Give a source on an empty cluster, with a broker to ask."""
    cluster, clock, metrics, broker = FakeCluster(), FakeClock(), Metrics(), FakeBroker()
    broker.clock = cluster.bookies.clock = clock
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=clock, metrics=metrics, options=options, admin=broker if admin else None
    ) as source:
        yield Bench(source, cluster, broker, clock, metrics)
