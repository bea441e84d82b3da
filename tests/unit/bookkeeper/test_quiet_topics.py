"""Silence: the entry after it is seen at once, it costs next to nothing, and no bookie can make it last for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.long_poll import FIRST_S, REST_MAX_S, REST_S, RETURN_S, LongPolls, Silence
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.aio import Tasks
from offloaderd.core.errors import Transient
from offloaderd.core.model import Position, TopicName
from offloaderd.ledgers.pulsar import topic as topic_module
from offloaderd.ledgers.pulsar.topic import HEARTBEAT_S
from offloaderd.testing import FakeClock, payloads
from tests.unit.bookkeeper.bench import Bench, benched
from tests.unit.bookkeeper.fake_cluster import ALL, FakeBookies, FakeCluster, FakeLedger, Shape
from tests.unit.bookkeeper.test_watch import Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

THREE = Shape(ensemble=3, write_quorum=3)
STRIPED = Shape(ensemble=3)
SPREAD = pytest.mark.parametrize("shape", [Shape(), THREE, STRIPED], ids=["2/2", "3/3", "3/2"])
POLL_S, QUIET_S = BookkeeperSettings().poll_max_s, BookkeeperSettings().long_poll_s
LONG_S = 300.0


class Stage:
    """A ledger of ten entries that is watched and has been quiet for long."""

    def __init__(self, bench: Bench, watcher: Watcher, ledger: FakeLedger) -> None:
        self.bench = bench
        self.clock = bench.clock
        self.bookies = bench.bookies
        self.watcher = watcher
        self.ledger = ledger

    def waits(self) -> dict[str, int]:
        """Return how many long polls each bookie was sent."""
        return {bookie: count for (kind, bookie), count in self.bookies.requests.items() if kind == "wait"}

    def tasks(self) -> list[str]:
        """Return the names of the source's tasks."""
        return [task.get_name() for task in self.bench.source._background._tasks]

    def waited_for(self) -> list[str]:
        """Return the bookies at which long polls wait."""
        return [
            bookie for (bookie, _), waiting in self.bookies.waiting.items() if not all(w.done() for _, w in waiting)
        ]


@asynccontextmanager
async def silence(
    shape: Shape | None = None, *, entries: int = 10, admin: bool = False, options: BookkeeperSettings | None = None
) -> AsyncIterator[Stage]:
    """Make one."""
    async with benched(options, admin=admin) as bench, asyncio.TaskGroup() as group:
        watcher = Watcher(bench)
        task = group.create_task(watcher.run())
        ledger = await bench.cluster.ledger(shape)
        await ledger.write(payloads(entries))
        await bench.clock.advance(LONG_S)
        bench.bookies.requests.clear()
        yield Stage(bench, watcher, ledger)
        task.cancel()


@SPREAD
async def test_the_entry_after_a_silence_is_seen_at_once(shape: Shape) -> None:
    """Without any time, again and again, and those that follow it soon."""
    async with silence(shape) as it:
        for last in range(9, 15):
            await it.ledger.write(payloads(1))
            await it.clock.settle()
            assert it.watcher.last == last
            await it.clock.advance(LONG_S + 7 * last)
        await it.ledger.write(payloads(1))
        await it.clock.advance(0.01)
        await it.ledger.write(payloads(10))
        await it.clock.advance(0.3)
        assert it.watcher.last == 25


@pytest.mark.parametrize(("shape", "most"), [(Shape(), 30), (THREE, 30), (STRIPED, 60)], ids=["2/2", "3/3", "3/2"])
async def test_silence_is_nearly_free(shape: Shape, most: int) -> None:
    """Less than a request a minute where entries are not spread; watchers hear that they are up to date."""
    async with silence(shape) as it:
        wakes = it.watcher.wakes
        await it.clock.advance(1800)
        assert sum(it.bookies.requests.values()) < most
        assert 150 <= it.watcher.wakes - wakes <= 1800 / HEARTBEAT_S + 2


@SPREAD
async def test_any_bookie_can_be_missing_an_entry(shape: Shape) -> None:
    """So many long polls wait that an entry on a write quorum ends one of them."""
    async with silence(shape) as it:
        hung = set(it.waited_for())
        assert len(hung) == shape.ensemble - shape.write_quorum + 1
        for entry_id in range(shape.ensemble):
            assert hung.intersection(it.ledger.metadata.replicas(entry_id))


@SPREAD
async def test_a_bookie_restarts(shape: Shape) -> None:
    """Its long poll fails; the topic is polled within a moment, and the next entry is seen at once again."""
    async with silence(shape) as it:
        for bookie_id in it.waited_for():
            it.bookies.restart(bookie_id)
        await it.ledger.write(payloads(1))
        await it.clock.advance(RETURN_S + 0.1)
        assert it.watcher.last == 9
        await it.clock.advance(LONG_S)
        await it.ledger.write(payloads(1))
        await it.clock.settle()
        assert it.watcher.last == 10


async def test_a_bookie_hangs() -> None:
    """What its connection finds out has the others asked instead."""
    async with silence() as it:
        (bookie_id,) = it.waited_for()
        it.bookies.frozen = {bookie_id}
        it.bookies.break_long_polls(bookie_id, Transient("it hangs"))
        await it.ledger.write(payloads(1))
        await it.clock.advance(RETURN_S + BookkeeperSettings().hedge_s + 0.1)
        assert it.watcher.last == 9
        await it.clock.advance(LONG_S)
        assert it.waited_for()
        assert it.waited_for() != [bookie_id]
        await it.ledger.write(payloads(1))
        await it.clock.advance(BookkeeperSettings().hedge_s)
        assert it.watcher.last == 10


async def test_a_bookie_that_forgot_the_long_poll_delays_and_no_more() -> None:
    """A cache that went cold at the wrong moment: the wait ends, and a plain read finds the entry."""
    async with silence() as it:
        for waiting in it.bookies.waiting.values():
            waiting.clear()
        await it.ledger.write(payloads(1))
        await it.clock.advance(QUIET_S)
        assert it.watcher.last == 9


async def test_a_cold_cache_is_warmed_before_a_long_poll() -> None:
    """A bookie that restarted unnoticed has forgotten its LACs: the first answer is not taken for news, nor lost."""
    async with silence() as it:
        await it.clock.advance(60)
        it.bookies.remembered.clear()
        await it.clock.advance(LONG_S)
        await it.ledger.write(payloads(1))
        await it.clock.settle()
        assert it.watcher.last == 9


async def test_bookies_without_long_polls_are_polled() -> None:
    """As they always were; so are all when it is turned off."""
    async with silence() as it:
        it.bookies.without_long_polls = {"b0", "b1"}
        await it.clock.advance(LONG_S)
        it.bookies.requests.clear()
        await it.clock.advance(100)
        assert not it.waits()
        assert 50 <= sum(it.bench.polls().values()) <= 60
    for long_poll_s in (0.0, POLL_S):
        async with silence(options=BookkeeperSettings(long_poll_s=long_poll_s)) as it:
            await it.clock.advance(100)
            assert not it.waits()
            assert 50 <= sum(it.bench.polls().values()) <= 60


async def test_an_empty_ledger_is_polled() -> None:
    """Bookies know nothing of it, so none can tell of the first entry."""
    async with silence(entries=0) as it:
        await it.clock.advance(100)
        assert not it.waits()
        assert 50 <= sum(it.bench.polls().values()) <= 60


@asynccontextmanager
async def many_quiet(count: int, options: BookkeeperSettings, *, long_polls_max: int = 0) -> AsyncIterator[Many]:
    """Watch many topics that have been quiet for long; each bookie takes a few long polls or none."""
    async with benched(options, admin=False) as bench, asyncio.TaskGroup() as group:
        it = Many(bench, [TopicName.parse(f"quiet-{number}") for number in range(count)])
        bench.bookies.long_polls_max = long_polls_max
        for number, topic in enumerate(it.topics):
            bench.cluster.ledgers.clear()
            bench.cluster.listed.clear()
            it.ledgers[topic] = await bench.cluster.ledger(ledger_id=100 + number)
            await bench.cluster.publish(topic)
            await it.ledgers[topic].write(payloads(2))
        tasks = [group.create_task(it.watch(topic)) for topic in it.topics]
        await bench.clock.advance(LONG_S)
        bench.bookies.requests.clear()
        yield it
        for task in tasks:
            task.cancel()
    assert bench.metrics.registry.get_sample_value("offloaderd_source_polled_topics") == 0


class Many:
    """Quiet topics, and the last entry that each watcher has seen."""

    def __init__(self, bench: Bench, topics: list[TopicName]) -> None:
        self.bench = bench
        self.topics = topics
        self.ledgers: dict[TopicName, FakeLedger] = {}
        self.last: dict[TopicName, int] = {}

    async def watch(self, topic: TopicName) -> None:
        """Watch one until cancelled."""
        async with aclosing(self.bench.source.watch(topic)) as changes:
            async for _ in changes:
                known = await self.bench.source.confirmed(topic, self.ledgers[topic].ledger_id)
                self.last[topic] = known.last_entry_id


async def test_of_many_that_are_polled_each_is_polled_more_rarely() -> None:
    """So many polls a second and no more; the entry after a silence is seen within the pause that this makes."""
    count, per_s = 60, 2
    async with many_quiet(count, BookkeeperSettings(idle_polls_per_s=per_s)) as it:
        assert it.bench.metrics.registry.get_sample_value("offloaderd_source_polled_topics") == count
        pause_s, seconds = count / per_s, 300
        await it.bench.clock.advance(seconds)
        polls = sum(it.bench.polls().values())
        assert seconds / pause_s * count * 0.9 <= polls <= seconds * per_s * 1.1  # now and then all bookies get one
        for topic in it.topics:
            await it.ledgers[topic].write(payloads(1))
        await it.bench.clock.advance(pause_s + 0.1)
        assert set(it.last.values()) == {1}


async def test_polls_of_many_are_spread_whatever_woke_them_together() -> None:
    """Topics that went quiet in one moment, or lost their session in one, are not polled in one each time after it."""
    count, per_s = 120, 2
    async with many_quiet(count, BookkeeperSettings(idle_polls_per_s=per_s)) as it:
        pause_s = count // per_s
        for _ in range(2):
            await it.bench.clock.advance(2 * pause_s)
            for _ in range(6):
                it.bench.bookies.requests.clear()
                await it.bench.clock.advance(pause_s / 6)
                assert count / 6 / 3 <= sum(it.bench.polls().values()) <= count / 6 * 3
            it.bench.bookies.requests.clear()
            it.bench.cluster.znodes.expire()
            await it.bench.clock.advance(0.1)
            assert sum(it.bench.polls().values()) >= 0.9 * count


async def test_a_polled_topic_has_no_task_between_two_polls() -> None:
    """Thousands of tasks would be most of what a quiet topic takes."""
    async with many_quiet(10, BookkeeperSettings()) as it:
        names = [task.get_name() for task in it.bench.source._background._tasks]
        assert not [name for name in names if name.startswith(("follow", "pause"))]


async def test_a_signal_takes_the_place_of_the_timer() -> None:
    """Each topic has one timer at most, however often it is woken, and none once nobody watches it."""
    async with many_quiet(10, BookkeeperSettings(idle_polls_per_s=1)) as it:
        assert it.bench.clock.sleep_count == 10
        for _ in range(5):
            it.bench.cluster.znodes.expire()
            await it.bench.clock.advance(0.5)
        assert it.bench.clock.sleep_count == 10
    assert not it.bench.clock.sleep_count


async def test_a_signal_during_a_poll_is_followed_by_another_poll() -> None:
    """A ledger that is opened meanwhile is polled at once, not at the next regular poll."""
    async with many_quiet(1, BookkeeperSettings(poll_max_s=60)) as it:
        bench, (topic,) = it.bench, it.topics
        follower = bench.source._followers[topic]
        bench.bookies.frozen = set(ALL)
        follower._wake()
        await bench.clock.settle()
        assert follower._task is not None
        bench.cluster.listed.clear()
        it.ledgers[topic] = await bench.cluster.ledger(ledger_id=500)
        await bench.cluster.publish(topic)
        await bench.clock.settle()
        bench.bookies.thaw()
        await bench.clock.advance(0.1)
        assert follower._open_id == 500


async def test_a_topic_that_has_just_had_entries_is_polled_often_beside_many_quiet_ones() -> None:
    """Its pause begins anew, and grows to about half of its silence."""
    async with many_quiet(60, BookkeeperSettings(idle_polls_per_s=1)) as it:
        active = it.topics[7]
        await it.ledgers[active].write(payloads(1))
        while it.last[active] == 0:
            await it.bench.clock.advance(0.1)
        for last in range(2, 7):
            await it.ledgers[active].write(payloads(1))
            await it.bench.clock.advance(0.3)
            assert it.last[active] == last
        assert it.bench.metrics.registry.get_sample_value("offloaderd_source_polled_topics") == 59
        await it.bench.clock.advance(12)
        await it.ledgers[active].write(payloads(1))
        await it.bench.clock.advance(7)
        assert it.last[active] == 7


async def test_topics_beyond_the_limit_of_long_polls_are_polled_and_try_none() -> None:
    """Each has either one, and the refusal of a bookie that has too many costs nobody a turn."""
    async with many_quiet(20, BookkeeperSettings(), long_polls_max=4) as it:
        polled = it.bench.metrics.registry.get_sample_value("offloaderd_source_polled_topics")
        assert polled == 20 - 2 * 4
        await it.bench.clock.advance(60)
        assert sum(count for (kind, _), count in it.bench.bookies.requests.items() if kind == "wait") <= 16


async def test_topics_that_are_polled_rarely_have_long_polls_again_soon_after_a_fault() -> None:
    """The rest after a failure is a time: of polls that are minutes apart, a number would be half an hour."""
    count, per_s = 60, 1
    async with many_quiet(count, BookkeeperSettings(idle_polls_per_s=per_s), long_polls_max=1000) as it:
        polled = partial(it.bench.metrics.registry.get_sample_value, "offloaderd_source_polled_topics")
        for _ in range(3):
            await it.bench.clock.advance(2 * LONG_S)
            assert polled() == 0
            for bookie_id in ALL:
                it.bench.bookies.restart(bookie_id)
            await it.bench.clock.advance(RETURN_S + 0.1)
            assert polled() == count
            await it.bench.clock.advance(REST_S + count / per_s)
            assert polled() == 0


async def test_rests_grow_while_long_polls_are_of_no_use() -> None:
    """A bookie that answers each at once has them ever more rarely, however often the topic is polled."""
    async with silence() as it:
        it.bookies.waits_for_fenced = False
        it.bookies.fence(it.ledger.ledger_id)
        await it.clock.advance(2 * REST_MAX_S)
        it.bookies.requests.clear()
        await it.clock.advance(4 * REST_MAX_S)
        assert 3 <= sum(it.waits().values()) <= 5
        await it.ledger.write(payloads(1))
        await it.clock.advance(POLL_S + 0.1)
        assert it.watcher.last == 9
        it.bookies.waits_for_fenced = True
        await it.clock.advance(FIRST_S)
        assert it.waited_for()


async def test_topics_that_are_polled_in_one_moment_take_no_more_long_polls_than_there_is_room_for() -> None:
    """Each that is being sent counts: one that were refused would rest."""
    clock, options = FakeClock(), BookkeeperSettings()
    asked: list[asyncio.Future[int]] = []

    class Limited(FakeBookies):
        async def newer(self, *_: object, **__: object) -> asyncio.Future[int]:
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        def long_polls(self, bookie_id: str) -> int:
            return 2 - len(asked)

    ledger = await FakeCluster().ledger(Shape())
    known = dict.fromkeys(ledger.metadata.ensembles[-1].bookies[:1], 9)
    async with Tasks("the ledger source") as background:
        long_polls = LongPolls(Limited(), background, clock=clock, options=options)
        silences = [Silence(long_polls) for _ in range(5)]
        begun = [one.begin(7, ledger.metadata, known, lambda: None, inf) for one in silences]
        assert begun == [True, True, False, False, False]
        await clock.settle()
        assert len(asked) == 2
        silences[0].cancel()
        asked.pop().cancel()
        assert silences[2].begin(7, ledger.metadata, known, lambda: None, inf)
        for one in silences:
            one.cancel()


async def test_heartbeats_of_thousands_are_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With long polls of very many topics out, each watcher is woken less often than every ten seconds."""
    monkeypatch.setattr(topic_module, "BEATS_PER_S", 2)
    woken: Counter[int] = Counter()
    clock = FakeClock()
    async with Tasks("the ledger source") as background:
        pulse = topic_module.Pulse(background, clock)
        for number in range(40):
            pulse.join(partial(woken.update, [number]), clock.monotonic())
        await clock.advance(400)
    assert set(woken) == set(range(40))
    assert sum(woken.values()) == pytest.approx(800, rel=0.1)


@pytest.mark.parametrize(("waits", "polls_max"), [(True, 10), (False, 250)], ids=["waiting", "at once"])
async def test_a_fenced_ledger_that_nobody_closes(waits: bool, polls_max: int) -> None:
    """A real bookie waits on; one that answers at once and has nothing is polled, and tried again now and then."""
    async with silence() as it:
        it.bookies.waits_for_fenced = waits
        it.bookies.fence(it.ledger.ledger_id)
        await it.clock.advance(LONG_S)
        it.bookies.requests.clear()
        await it.clock.advance(400)
        assert 1 <= sum(it.waits().values()) <= 10
        assert sum(it.bench.polls().values()) <= polls_max
        await it.ledger.close()
        await it.clock.settle()
        assert it.watcher.seen[-1][:2] == (9, True)


async def test_a_writer_with_another_ensemble_is_followed() -> None:
    """The ledger's node says so, whatever the old bookies do."""
    async with silence() as it:
        await it.ledger.next_ensemble(["b3", "b4"])
        await it.ledger.write(payloads(2))
        await it.clock.advance(POLL_S + 0.1)
        assert it.watcher.last == 10
        await it.clock.advance(LONG_S)
        assert set(it.waited_for()) <= {"b3", "b4"}
        await it.ledger.write(payloads(1))
        await it.clock.settle()
        assert it.watcher.last == 11


@pytest.mark.parametrize("polled", [False, True])
async def test_what_is_hidden_is_asked_of_the_broker_all_the_same(polled: bool) -> None:
    """As often as without long polls, and as without many others that are polled."""
    async with silence(admin=True, options=BookkeeperSettings(idle_polls_per_s=1)) as it:
        if polled:
            it.bookies.without_long_polls = {"b0", "b1"}
            for number in range(500):
                it.bench.source._slow_polls.note(TopicName.parse(f"other-{number}"), polled=True)
            await it.clock.advance(1000)
        before = len(it.bench.broker.asked_s)
        await it.clock.advance(300)
        assert 9 <= len(it.bench.broker.asked_s) - before <= 11
        it.bench.broker.position = Position(7, 9)
        await it.clock.advance(31)
        assert it.watcher.last == 9


async def test_a_question_meanwhile_is_answered_by_bookies() -> None:
    """A reader wants the end as it is now; if it has moved although no long poll ended, the watchers are notified."""
    async with silence() as it:
        for waiting in it.bookies.waiting.values():
            waiting.clear()
        await it.ledger.write(payloads(1))
        await it.clock.settle()
        assert it.watcher.last == 8
        assert (await it.bench.confirmed()).last_entry_id == 9
        await it.clock.settle()
        assert it.watcher.last == 9


async def test_waits_grow_and_differ() -> None:
    """From ten seconds to the longest, each a little shorter by chance: topics do not come back in one moment."""
    async with silence() as it:
        first, second, *longest = it.bookies.waits_s
        assert 8 <= first <= 9
        assert 32 <= second <= 36
        assert all(0.8 * QUIET_S <= wait_s <= 0.9 * QUIET_S for wait_s in longest)
        assert len(set(longest)) == len(longest) >= 2
        await it.ledger.write(payloads(1))
        await it.clock.advance(12)
        assert it.bookies.waits_s[-1] <= 9


@SPREAD
async def test_a_silent_topic_has_no_task(shape: Shape) -> None:
    """Neither its long polls, nor the watches of its nodes, nor what follows it; heartbeats have one for all topics."""
    async with silence(shape) as it:
        for last in range(9, 12):
            assert it.waited_for()
            assert it.tasks() == ["heartbeats"]
            await it.ledger.write(payloads(1))
            await it.clock.settle()
            assert it.watcher.last == last
            await it.clock.advance(LONG_S)
        await it.ledger.close()
        await it.clock.advance(HEARTBEAT_S)
        assert it.tasks() == []
        await it.bench.cluster.ledger()
        await it.clock.settle()
        assert it.watcher.seen[-1].closed is False


async def test_a_long_poll_that_ends_as_it_is_withdrawn_is_not_repeated() -> None:
    """Nor does it ring: whoever took it down has gone on."""
    told = [asyncio.get_running_loop().create_future() for _ in range(2)]
    clock, options, rung = FakeClock(), BookkeeperSettings(), list[str]()

    class Asked(FakeBookies):
        async def newer(self, *_: object, **__: object) -> asyncio.Future[int]:
            return told[len(rung)]

    async with Tasks("the ledger source") as background:
        for error in (None, Transient("the connection ended")):
            long_polls = LongPolls(Asked(), background, clock=clock, options=options)
            (long_poll,) = long_polls.begin(7, {"b0": 9}, options.long_poll_s, lambda: rung.append("rung"))
            await clock.advance(options.long_poll_s)
            if error is None:
                told[0].set_result(9)
            else:
                told[0].set_exception(error)
            long_poll.cancel()
            await clock.settle()
            assert not rung
            assert long_poll.last_answer is None
            assert not background._tasks
            told.pop(0)


async def test_the_end_of_a_watch_withdraws_the_long_polls() -> None:
    """Nobody waits at a bookie any more."""
    async with silence() as it:
        assert it.waited_for()
        waiting = [future for each in it.bookies.waiting.values() for _, future in each]
    await it.clock.settle()
    assert waiting
    assert all(future.cancelled() for future in waiting if future.done())
    assert all(future.done() for future in waiting)
