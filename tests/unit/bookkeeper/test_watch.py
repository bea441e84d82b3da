"""Watches of topics: what they tell and how soon, what an idle topic costs, and what they leave behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import Closed, NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, Edge, Position, TopicName
from offloaderd.ledgers.pulsar import source as source_module
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.ledgers.pulsar.topic import TICK_S
from offloaderd.testing import FakeClock, payloads
from tests.unit.bookkeeper.bench import Bench, benched
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A source on an empty cluster, with a broker to ask."""
    async with benched() as bench:
        yield bench


async def wakes_of(watch: AsyncGenerator[None, None]) -> int:
    """Return how often a watch wakes until it ends."""
    wakes = 0
    async for _ in watch:
        wakes += 1
    return wakes


class Watcher:
    """Counts how often a watch wakes, and looks at the topic as a tailer does."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.wakes = 0
        self.seen: list[Confirmed] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        source = self._bench.source
        async with aclosing(source.watch(TOPIC)) as changes:
            async for _ in changes:
                self.wakes += 1
                try:
                    infos = await source.ledgers(TOPIC)
                    if infos:
                        self.seen.append(await source.confirmed(TOPIC, infos[-1].ledger_id))
                except (NotFound, Transient):
                    continue

    @property
    def last(self) -> int:
        """The last entry seen."""
        return self.seen[-1].last_entry_id


@pytest.fixture
async def watcher(bench: Bench) -> AsyncIterator[Watcher]:
    """One who watches the topic from the beginning."""
    watcher = Watcher(bench)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        await bench.clock.settle()
        yield watcher
        task.cancel()


async def test_a_watch_reports_an_unknown_topic_when_it_appears(bench: Bench, watcher: Watcher) -> None:
    """Without asking bookies for anything before."""
    await bench.clock.advance(100)
    assert watcher.wakes <= 3
    await bench.cluster.ledger()
    await bench.clock.settle()
    assert watcher.seen == [Confirmed(-1, closed=False, edge=Edge.NEXT_WRITE)] * len(watcher.seen)
    assert watcher.seen


async def test_entries_are_noticed_soon_while_they_come(bench: Bench, watcher: Watcher) -> None:
    """Within about the shortest pause, once one was noticed at the pace that the topic had before."""
    ledger = await bench.cluster.ledger()
    await bench.clock.advance(60)
    longest = BookkeeperSettings().poll_max_s + TICK_S
    for count in range(1, 30):
        await ledger.write(payloads(1))
        await bench.clock.advance(0.21)
        assert watcher.last >= count - 3 or 0.21 * (count - 1) < longest


async def test_an_idle_topic_is_nearly_free(bench: Bench, watcher: Watcher) -> None:
    """One request every two seconds, a few of them to all bookies, no node read, and the watcher sleeps."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    await bench.clock.advance(100)
    bench.broker.position = Position(7, 9)
    await bench.clock.advance(100)
    bench.bookies.requests.clear()
    wakes = watcher.wakes
    await bench.clock.advance(600)
    assert sum(bench.polls().values()) <= 300 * 1.15
    assert watcher.wakes - wakes <= 61


async def test_an_idle_watcher_is_told_now_and_then_that_its_view_is_fresh(bench: Bench, watcher: Watcher) -> None:
    """Without news, and without asking bookies once more."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    await bench.clock.advance(100)
    wakes = watcher.wakes
    bench.bookies.requests.clear()
    await bench.clock.advance(100)
    assert 8 <= watcher.wakes - wakes <= 11
    assert sum(bench.polls().values()) <= 56


async def test_a_closed_topic_costs_nothing(bench: Bench, watcher: Watcher) -> None:
    """With no ledger open nothing is asked until the list changes."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    await bench.clock.advance(5)
    await ledger.close()
    await bench.clock.advance(5)
    assert watcher.last == 9
    bench.bookies.requests.clear()
    await bench.clock.advance(600)
    assert not bench.bookies.requests
    second = await bench.cluster.ledger()
    await second.write(payloads(3))
    await bench.clock.advance(2.3)
    assert watcher.last == 1


async def test_changes_of_nodes_are_noticed_at_once(bench: Bench, watcher: Watcher) -> None:
    """A close, a roll-over, a new ensemble: no poll has to come round."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10), lac=-1)
    await bench.clock.advance(60)
    await ledger.close()
    await bench.clock.settle()
    assert watcher.last == 9
    await bench.cluster.ledger()
    await bench.clock.settle()
    assert watcher.seen[-1].closed is False
    assert bench.clock.monotonic() == 60


async def test_a_lost_session_is_survived(bench: Bench, watcher: Watcher) -> None:
    """What changed meanwhile is seen with the new session."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    await bench.clock.advance(1)
    bench.cluster.znodes.expire()
    await ledger.close()
    await bench.clock.advance(1)
    assert watcher.seen[-1] == Confirmed(9, closed=True)


async def test_bookies_that_go_away_and_come_back_are_noticed(bench: Bench, watcher: Watcher) -> None:
    """The watcher is woken when the end cannot be asked for, so that it can say so, and when it can again."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    await bench.clock.advance(5)
    wakes = watcher.wakes
    bench.bookies.down = {"b0", "b1"}
    await bench.clock.advance(2.3)
    assert watcher.wakes > wakes
    await ledger.write(payloads(10))
    bench.bookies.down = set()
    await bench.clock.advance(2.3)
    assert watcher.last == 18


async def test_watchers_of_one_topic_share_what_is_asked(bench: Bench, watcher: Watcher) -> None:
    """Ten more watchers ask for no more; when the last one goes, nothing is asked any more."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    watchers = [Watcher(bench) for _ in range(10)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in watchers]
        await bench.clock.advance(30)
        bench.bookies.requests.clear()
        await bench.clock.advance(60)
        assert sum(bench.polls().values()) <= 36
        assert {each.last for each in watchers} == {8}
        for task in tasks:
            task.cancel()
    assert watcher.last == 8


async def test_a_watch_that_ends_leaves_nothing_behind(bench: Bench) -> None:
    """Neither a poll nor a watch of a node."""
    await bench.cluster.ledger()
    watch = bench.source.watch(TOPIC)
    await anext(watch)
    await bench.clock.advance(5)
    assert bench.cluster.tree.watcher_count == 2
    await watch.aclose()
    await bench.clock.advance(5)
    assert bench.cluster.tree.watcher_count == 0
    bench.bookies.requests.clear()
    await bench.clock.advance(60)
    assert not bench.bookies.requests


async def test_closing_the_source_ends_watches() -> None:
    """Who watches gets Closed."""
    cluster, clock = FakeCluster(), FakeClock()
    source = BookKeeperLedgers(cluster.znodes, cluster.bookies, clock=clock, metrics=Metrics())
    async with source:
        watch = source.watch(TOPIC)
        await anext(watch)
        await clock.settle()
    with pytest.raises(Closed):
        await wakes_of(watch)


async def test_a_watched_topic_keeps_its_state_whatever_else_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory of other topics is bounded; it becomes one of them when nobody watches it any more."""
    monkeypatch.setattr(source_module, "TOPICS_MAX", 2)
    async with benched() as bench:
        source = bench.source
        async with aclosing(source.watch(TOPIC)) as changes:
            await anext(changes)
            known = source._topic(TOPIC)
            for number in range(5):
                source._topic(TopicName.parse(f"other-{number}"))
            assert source._topic(TOPIC) is known
            assert len(source._topics) == 2
        assert source._topic(TOPIC) is known
        assert len(source._topics) == 2
