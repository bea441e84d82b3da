"""Silence on real bookies: the entry after it is seen at once, whatever becomes of the bookie that was to tell."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper import long_poll as long_polls
from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.testing import payloads
from tests.patience import PATIENCE_S
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.bookies import BookKeeperCluster
    from tests.real.writer import LedgerWriter
    from tests.real.written_topic import WrittenTopic

CLOCK = SystemClock()
SPREAD = pytest.mark.parametrize("ensemble", [2, 3], ids=["2/2", "3/2"])
SOON_S = 2.5
"""At once, on a busy machine; polls, and long polls that return, are made to take far longer here."""
FAILED_S = 2.0
OPTIONS = BookkeeperSettings(poll_min_s=3, poll_max_s=3, long_poll_s=60, hedge_s=0.5)
PATIENT = BookkeeperSettings(request_timeout_s=FAILED_S)


@dataclass(slots=True)
class Watched:
    """A topic that somebody watches, the way a tailer does."""

    topic: WrittenTopic
    writer: LedgerWriter
    source: BookKeeperLedgers
    metrics: Metrics
    last: int = -1
    closed: bool = False
    seen: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self) -> None:
        """Look at the end whenever there is news."""
        name = self.topic.name
        async with aclosing(self.source.watch(name)) as changes:
            async for _ in changes:
                try:
                    infos = await self.source.ledgers(name)
                    known = await self.source.confirmed(name, infos[-1].ledger_id)
                except Transient:
                    continue
                self.last, self.closed = known.last_entry_id, known.closed
                self.seen.set()

    async def until(self, last: int, within_s: float) -> None:
        """Return once an entry is seen, or the time is over."""
        async with asyncio.timeout(within_s):
            while self.last < last:
                self.seen.clear()
                await self.seen.wait()

    async def quiet(self) -> None:
        """Return once long polls wait that did not before."""
        before = self.sent
        async with asyncio.timeout(PATIENCE_S):
            while self.sent == before:
                await CLOCK.sleep(0.05)
        await CLOCK.sleep(0.2)

    @property
    def sent(self) -> float:
        """How many long polls have been sent."""
        return self.requests("wait") + self.value("offloaderd_bookie_long_polls")

    def value(self, name: str, **labels: str) -> float:
        """Return a metric."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def requests(self, operation: str) -> float:
        """Return how many requests of one kind bookies have answered, or not."""
        outcomes = ("ok", "missing", "busy", "timeout", "failed")
        name = "offloaderd_bookie_requests_total"
        return sum(self.value(name, operation=operation, outcome=outcome) for outcome in outcomes)


@asynccontextmanager
async def connected(
    cluster: BookKeeperCluster, metrics: Metrics
) -> AsyncIterator[tuple[BookKeeperLedgers, LedgerWriter, asyncio.TaskGroup]]:
    """Return a source that counts in these metrics, a writer of ledgers, and a group for tasks beside them."""
    async with (
        ZooKeeperStore(cluster.zookeeper, "/", MetadataSettings(session_timeout_s=5)) as znodes,
        BookiePool(znodes, clock=CLOCK, metrics=metrics, options=PATIENT) as pool,
        BookKeeperLedgers(znodes, pool, clock=CLOCK, metrics=metrics, options=OPTIONS) as source,
        ledger_writer(cluster.zookeeper, CLOCK) as writer,
        asyncio.TaskGroup() as group,
    ):
        yield source, writer, group


@asynccontextmanager
async def watched(cluster: BookKeeperCluster, ensemble: int = 2, *, entries: int = 10) -> AsyncIterator[Watched]:
    """Watch a new topic with an open ledger of some entries, the last of which is hidden."""
    metrics = Metrics()
    ids = [bookie.bookie_id for bookie in cluster.bookies][:ensemble]
    async with connected(cluster, metrics) as (source, writer, group):
        plan = Plan(ensemble=ensemble, bookies=ids)
        topic = await written_topic(writer, f"public/default/t-{CLOCK.uuid()}", plan=plan)
        await topic.add(payloads(entries), window=1)
        it = Watched(topic, writer, source, metrics)
        task = group.create_task(it.watch())
        await it.until(entries - 2, PATIENCE_S)
        yield it
        task.cancel()


async def asked(it: Watched, cluster: BookKeeperCluster) -> int:
    """Return which bookie of a ledger without spread entries was asked to tell: the one that a poll asks first."""
    bookies = it.topic.ledger.metadata.ensembles[0].bookies
    wanted = bookies[it.topic.ledger.ledger_id % len(bookies)]
    return next(number for number, bookie in enumerate(cluster.bookies) if bookie.bookie_id == wanted)


@SPREAD
async def test_the_entry_after_a_silence(bookkeeper: BookKeeperCluster, ensemble: int) -> None:
    """It ends a long poll, and so do those after the silences that follow."""
    async with watched(bookkeeper, ensemble) as it:
        for last in (9, 10, 11):
            await it.quiet()
            polls = it.requests("last")
            await it.topic.add(payloads(1), window=1)
            await it.until(last, SOON_S)
            assert it.requests("last") - polls <= 2 * ensemble


async def test_the_longest_wait_and_the_requests_of_a_silence(
    bookkeeper: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long polls that return are sent again: over the longest waits a bookie gets the calculated number of requests."""
    monkeypatch.setattr(long_polls, "FIRST_S", 60.0)
    async with watched(bookkeeper) as it:
        await it.quiet()
        before = sum(map(it.requests, ("last", "wait", "read", "batch")))
        await CLOCK.sleep(60)
        assert sum(map(it.requests, ("last", "wait", "read", "batch"))) - before <= 2
        assert 5 <= it.requests("probe") <= 31
        await it.topic.add(payloads(1), window=1)
        await it.until(9, SOON_S)


@SPREAD
async def test_a_bookie_restarts(bookkeeper: BookKeeperCluster, ensemble: int) -> None:
    """The silence ends when its connection does; its cache is cold then, and the next long poll has an answer again."""
    async with watched(bookkeeper, ensemble) as it:
        await it.quiet()
        for bookie in bookkeeper.bookies[:ensemble]:
            await bookie.restart()
        await it.topic.add(payloads(1), window=1)
        await it.until(9, PATIENCE_S)
        await it.quiet()
        await it.topic.add(payloads(1), window=1)
        await it.until(10, SOON_S)


async def test_all_long_polls_on_bookies_with_cold_caches(bookkeeper: BookKeeperCluster) -> None:
    """They had no request since they came up: a plain read warms the cache before each long poll."""
    async with watched(bookkeeper) as it:
        pass
    for bookie in bookkeeper.bookies[:2]:
        await bookie.restart()
    metrics = Metrics()
    async with connected(bookkeeper, metrics) as (source, writer, group):
        ledger = await writer.open(it.topic.ledger.ledger_id)
        ledger.next_entry_id, ledger.lac, ledger.length = 10, 9, it.topic.ledger.length
        again = Watched(it.topic, writer, source, metrics)
        task = group.create_task(again.watch())
        await again.quiet()
        await ledger.add(payloads(1), window=1)
        await again.until(9, SOON_S)
        task.cancel()


async def test_a_bookie_is_frozen(bookkeeper: BookKeeperCluster) -> None:
    """Twice the time of a request, and the others are asked instead; then the long poll waits at one of those."""
    async with watched(bookkeeper) as it:
        await it.quiet()
        bookkeeper.bookies[await asked(it, bookkeeper)].freeze()
        others = [each for number, each in enumerate(bookkeeper.bookies[:2]) if number != await asked(it, bookkeeper)]
        ledger = it.topic.ledger
        begun = CLOCK.monotonic()
        await ledger.put(b"seen late", lac=9, to=[bookie.bookie_id for bookie in others])
        await it.until(9, 2 * FAILED_S + long_polls.RETURN_S + OPTIONS.hedge_s + SOON_S)
        assert CLOCK.monotonic() - begun > 1
        await it.quiet()
        await ledger.put(b"seen at once", lac=10, to=[bookie.bookie_id for bookie in others])
        await it.until(10, OPTIONS.hedge_s + SOON_S)


async def test_another_client_closes_the_ledger_meanwhile(bookkeeper: BookKeeperCluster) -> None:
    """Fenced first, which bookies answer with nothing new, and closed some time later: nothing hangs."""
    async with watched(bookkeeper) as it:
        await it.quiet()
        await it.topic.ledger.fence()
        await CLOCK.sleep(2)
        assert it.last == 8
        other = await it.writer.open(it.topic.ledger.ledger_id)
        await other.recover()
        await it.until(9, SOON_S)
        assert it.closed


async def test_the_first_entries_of_an_empty_ledger(bookkeeper: BookKeeperCluster) -> None:
    """Bookies know nothing of it and cannot tell: it is polled, and seen as soon as that."""
    async with watched(bookkeeper) as it:
        await it.quiet()
        await it.topic.roll()
        sent = it.sent
        await CLOCK.sleep(2 * OPTIONS.poll_max_s)
        assert it.sent == sent
        await it.topic.add(payloads(2), window=1)
        it.last = -1
        await it.until(0, OPTIONS.poll_max_s + SOON_S)


async def test_an_explicit_lac_answers_a_long_poll(bookkeeper: BookKeeperCluster) -> None:
    """What a quiet writer tells of its own is heard at once."""
    async with watched(bookkeeper) as it:
        await it.quiet()
        await it.topic.ledger.tell_lac()
        await it.until(9, SOON_S)
