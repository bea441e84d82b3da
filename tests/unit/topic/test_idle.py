"""Topics that nothing happens to sleep, and whatever happens to them finds them awake."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.metrics.service import WAKE_CAUSES
from offloaderd.core.model import EntryBatch, OfferResult, OffloadMethod, Position, RefusalKind
from offloaderd.core.names.patterns import of_topic
from offloaderd.fleet import ownership
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.metadata import paths
from offloaderd.metadata.records import ownership as records
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment import resume
from offloaderd.testing.faults import FaultyStore
from offloaderd.topic import idle as sleep
from offloaderd.topic.idle import IdleOptions
from offloaderd.topic.status import Reporter
from tests.unit.rigs.fleet import TOPICS, epochs, fellow, settled
from tests.unit.rigs.rig import (
    TOPIC,
    Rig,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    turn,
    until,
    until_offloaded,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.core.model import TopicName
    from offloaderd.fleet.engine import Engine
    from offloaderd.topic.idle import IdleTopic
    from offloaderd.topic.offloader import TopicOffloader

AFTER_S = 0.1
ACTIVE_S = 0.5
"""So long a topic is watched that should not sleep."""


@pytest.fixture
def rig() -> Rig:
    """A rig whose topics sleep soon."""
    rig = Rig(suspend_after_s=AFTER_S)
    rig.ledgers = memory_ledgers(rig.clock)
    return rig


async def append(rig: Rig, count: int, seed: int = 0) -> Position:
    """Append entries to the topic's source."""
    assert rig.ledgers is not None
    return await rig.ledgers.append(TOPIC, payloads(count, seed=seed))


async def offloaded(rig: Rig, engine: Engine, count: int = 10, seed: int = 0) -> Position:
    """Append entries and have them committed."""
    last = await append(rig, count, seed)
    topic = await offloader_of(engine) if engine.enabled() else await enabled(engine)
    await topic.request_roll()
    await until_offloaded(topic, last)
    return last


def idle_topic_of(engine: Engine) -> IdleTopic | None:
    """Return what is kept of the topic if it sleeps."""
    supervisor = engine._assignment.supervised.get(TOPIC)
    return supervisor.idle_topic if supervisor is not None and supervisor.offloader is None else None


async def suspended(engine: Engine) -> IdleTopic:
    """Wait until the topic sleeps."""
    await until(lambda: idle_topic_of(engine) is not None)
    found = idle_topic_of(engine)
    assert found is not None
    return found


async def stays_active(engine: Engine) -> None:
    """Make sure that the topic does not sleep."""
    for _ in range(50):
        await asyncio.sleep(ACTIVE_S / 50)  # noqa: TID251 - virtual time
        assert idle_topic_of(engine) is None


async def epoch_of(rig: Rig) -> int:
    """Return how often the topic was claimed."""
    path = paths.epoch(TOPIC)
    return records.decode_epoch((await rig.tree.connect().get(path)).value, path=path).epoch


def woken(rig: Rig) -> dict[str, int]:
    """Return by what topics were woken."""
    counts = {cause: int(rig.metrics.topic_wakes.labels(cause=cause)._value.get()) for cause in WAKE_CAUSES}
    return {cause: count for cause, count in counts.items() if count}


async def test_an_idle_topic_is_suspended_with_its_claim_and_its_status(rig: Rig) -> None:
    """It keeps node and epoch, and shows what it showed; its tasks are gone, what still holds its offloader is told."""
    async with rig.engine() as engine:
        last = await offloaded(rig, engine)
        topic, before, tasks = engine.find(TOPIC), engine.statuses()[0], len(asyncio.all_tasks())
        assert topic is not None
        idle_topic = await suspended(engine)
        await until(lambda: len(asyncio.all_tasks()) <= tasks - 8 and topic.buffer.closed)
        assert engine.find(TOPIC) is None
        assert list(engine.topics()) == [TOPIC]
        assert ((await engine.present_map(TOPIC)).offloaded, idle_topic.cause) == (last, None)
        owner = await ownership.owner_of(rig.tree.connect(), TOPIC)
        assert owner is not None
        assert owner.epoch == await epoch_of(rig) == 1
        now = engine.statuses()[0]
        assert now == replace(before, asleep=True, segments=(), looked_age_s=now.looked_age_s)
        assert (now.offloaded, now.confirmed, now.lag_entries, now.segments_committed) == (last, last, 0, 1)
        assert (await engine.topic_map(TOPIC)).offloaded == last


async def test_gauges_of_a_suspended_topic_stay(rig: Rig) -> None:
    """What is committed shows as before, and how many topics sleep; a pass writes nothing of them anew."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        reporter, name = Reporter(engine.context, engine.statuses), str(TOPIC)
        gauges = rig.metrics.remote_segments, rig.metrics.remote_bytes, rig.metrics.lag_entries

        async def shown() -> list[float | None]:
            await reporter.report()
            return [rig.metrics.registry.get_sample_value(one._name, {"topic": name}) for one in gauges]

        before = await shown()
        assert before[0] == 1
        assert rig.metrics.topics_suspended._value.get() == 0
        await suspended(engine)
        assert await shown() == before
        assert rig.metrics.topics_suspended._value.get() == 1
        assert rig.metrics.ownership_topics._value.get() == 1
        assert not reporter._summed
        rig.metrics.lag_entries.labels(topic=name).set(7)
        assert (await shown())[-1] == 7


async def test_gauges_are_those_of_the_moment_at_which_a_topic_is_suspended(rig: Rig) -> None:
    """Not those of the last pass before it, which may have come earlier."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        rig.metrics.lag_entries.labels(topic=str(TOPIC)).set(7)
        await suspended(engine)
        assert rig.metrics.registry.get_sample_value("offloaderd_lag_entries", {"topic": str(TOPIC)}) == 0


async def test_an_entry_wakes_a_topic_and_is_offloaded_under_the_same_claim(rig: Rig) -> None:
    """Time and again; what went into segments since the claim is counted on."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        for number in range(1, 4):
            idle_topic = await suspended(engine)
            last = await append(rig, 5, seed=number)
            topic = await offloader_of(engine)
            assert idle_topic.cause is sleep.Cause.SOURCE
            await topic.request_roll()
            await until_offloaded(topic, last)
            assert topic.status().taken_entries == 10 + 5 * number
        assert await epoch_of(rig) == 1
    assert len(await rig.committed()) == 25
    assert not await rig.leftovers()
    assert woken(rig) == {"source": 3}


async def test_what_comes_between_the_decision_and_the_end_of_the_tasks_is_offloaded(rig: Rig) -> None:
    """An entry of that moment is no reason to sleep through it."""
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await offloaded(rig, engine)
        await until(lambda: topic.rest.due_s is not None and sleep.is_quiet(topic))
        supervisor = engine._assignment.supervised[TOPIC]
        engine.idle_topics._suspend(supervisor, topic, rig.clock.monotonic())
        last = await append(rig, 3, seed=9)
        again = await offloader_of(engine)
        await again.request_roll()
        await until_offloaded(again, last)
    assert len(await rig.committed()) == 13


async def test_the_source_is_watched_through_sleep_and_waking(rig: Rig) -> None:
    """It is never without a watcher, so whoever follows bookies does not begin anew."""
    assert rig.ledgers is not None
    watchers, seen, watch = 0, set[int](), rig.ledgers.watch

    async def counted(*arguments: object) -> object:
        nonlocal watchers
        watchers += 1
        seen.add(watchers)
        try:
            async for one in watch(*arguments):  # type: ignore[arg-type]
                yield one
        finally:
            watchers -= 1
            seen.add(watchers)

    rig.ledgers.watch = counted  # type: ignore[assignment, method-assign]
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        await until(lambda: watchers == 1)
        seen.clear()
        await append(rig, 1)
        await offloader_of(engine)
        await until(lambda: watchers == 1 and bool(seen))
        assert 0 not in seen


async def test_a_source_that_is_not_watched_any_more_wakes_a_topic(rig: Rig) -> None:
    """What comes meanwhile would be seen an hour later."""
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        cut = asyncio.Event()

        async def watched(_: TopicName) -> AsyncGenerator[None, None]:
            await cut.wait()
            raise Transient("the connection is cut")
            yield

        rig.ledgers.watch = watched  # type: ignore[assignment, method-assign]
        idle_topic = await suspended(engine)
        cut.set()
        await until(lambda: idle_topic.cause is sleep.Cause.SOURCE)


async def test_a_ledger_that_is_closed_wakes_a_topic(rig: Rig) -> None:
    """Its end is recorded, as it would have been."""
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        last = await offloaded(rig, engine)
        await suspended(engine)
        await rig.ledgers.roll(TOPIC)
        topic = await offloader_of(engine)
        await until(lambda: last.ledger_id in topic.map.ends)


async def test_a_topic_without_entries_is_suspended_as_well(rig: Rig) -> None:
    """The first entry wakes it."""
    async with rig.engine() as engine:
        await enabled(engine)
        await suspended(engine)
        last = await append(rig, 1)
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)


async def test_an_open_segment_keeps_a_topic_active(rig: Rig) -> None:
    """Until it is committed."""
    async with rig.engine() as engine:
        topic = await enabled(engine)
        last = await append(rig, 3)
        await until(lambda: topic.taken == last)
        await stays_active(engine)


async def test_what_its_owner_put_on_the_trash_list_keeps_a_topic_active(rig: Rig) -> None:
    """Until the list was emptied: the notice that something lies there may come after the topic became quiet."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        topic = await offloader_of(engine)
        topic.record.trash_due = True
        await stays_active(engine)
        topic.record.trash_due = False
        await suspended(engine)


async def test_what_stays_for_readers_keeps_no_topic_active(rig: Rig) -> None:
    """It is deleted when the topic wakes next."""
    rig.reader_grace_s = 3600.0
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        last = await offloaded(rig, engine)
        topic = await offloader_of(engine)
        await until(lambda: topic.offloaded == last)
        assert await topic.record.remove_oldest(topic.map.segments[0], reason="test")
        await suspended(engine)
    assert await rig.tree.connect().children(paths.trash(TOPIC))


async def test_a_push_keeps_a_topic_active(rig: Rig) -> None:
    """For as long as the stream is open; so does a call at work, whose writes a suspended topic would not know."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        (await offloader_of(engine)).pushers += 1
        await stays_active(engine)
        (await offloader_of(engine)).pushers -= 1
        await suspended(engine)
        with (await engine.owned(TOPIC)).in_use():
            await stays_active(engine)


async def test_an_offloader_that_was_handed_out_stays_for_a_while(rig: Rig) -> None:
    """Whoever asks for it gets it awake, and has it from then on as long as any other topic."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        started = rig.clock.monotonic()
        assert await engine.owned(TOPIC) is engine.find(TOPIC)
        assert woken(rig) == {"used": 1}
        await suspended(engine)
        assert rig.clock.monotonic() - started >= AFTER_S
        assert not (await engine.topic_map(TOPIC)).unfinished
        await offloader_of(engine)


async def test_a_push_wakes_a_push_only_topic(rig: Rig) -> None:
    """All that is accepted is committed, whatever comes first."""
    async with rig.engine(push_only=True) as engine:
        await enabled(engine)
        for number in range(3):
            await suspended(engine)
            topic = await engine.owned(TOPIC)
            topic.pushers += 1
            batch = EntryBatch(1, number, (b"x" * 10,))
            assert topic.offer(batch) is OfferResult.ACCEPTED
            await topic.request_roll()
            await until_offloaded(topic, batch.last)
            topic.pushers -= 1
    assert len(await rig.committed()) == 3


async def test_the_end_of_a_pushed_ledger_that_is_not_recorded_keeps_a_topic_active(rig: Rig) -> None:
    """Nobody else could tell it."""
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        topic.handle.ledger_closed(1, 5, 1)
        await stays_active(engine)


async def test_another_policy_wakes_a_topic_and_holds(rig: Rig) -> None:
    """One of its own, and one of the daemon; what changes nothing for it lets it sleep."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        await engine.select(of_topic(TOPIC), TopicPolicy(segment_age_max_s=7.0))
        assert (await offloader_of(engine)).policy.segment_age_max_s == 7.0
        await suspended(engine)
        engine.policies_changed()
        await turn()
        assert idle_topic_of(engine) is not None
        await engine.select(of_topic(TOPIC), TopicPolicy(method=OffloadMethod.NONE))
        assert (await offloader_of(engine)).policy.method is OffloadMethod.NONE
        await stays_active(engine)
    assert woken(rig) == {"policy": 2}


async def test_a_policy_that_comes_while_a_topic_wakes_holds(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again once there is somebody to tell it."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        supervisor = engine._assignment.supervised[TOPIC]
        take = supervisor._take

        def taken(*arguments: object) -> object:
            roll = take(*arguments)  # type: ignore[arg-type]
            monkeypatch.undo()
            supervisor.change(TopicPolicy(segment_age_max_s=7.0))
            return roll

        monkeypatch.setattr(type(supervisor), "_take", lambda _, effective: taken(effective))
        assert (await engine.owned(TOPIC)).policy.segment_age_max_s == 7.0


async def test_a_duty_that_is_due_wakes_a_topic(rig: Rig) -> None:
    """At its time; before, the duty has been at rest until then."""
    rounds: list[float] = []

    async def duty(topic: TopicOffloader) -> None:
        while True:
            rounds.append(rig.clock.monotonic())
            with topic.rest.until(rounds[0] + 2.0 if len(rounds) == 1 else inf):
                await rig.clock.sleep(1000.0)

    rig.duties = {"cleaning": duty}
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        await until(lambda: len(rounds) == 2)
        assert 2.0 <= rounds[1] - rounds[0] < 4.0
        assert woken(rig) == {"due": 1}


@pytest.mark.parametrize("soon_s", [None, 0.0, AFTER_S / 2])
async def test_a_duty_that_does_not_rest_keeps_a_topic_active(rig: Rig, soon_s: float | None) -> None:
    """Nor does one sleep for a moment."""

    async def duty(topic: TopicOffloader) -> None:
        while soon_s is not None:
            with topic.rest.until(rig.clock.monotonic() + soon_s):
                await rig.clock.sleep(AFTER_S / 10)
        await rig.clock.sleep(1000.0)

    rig.duties = {"cleaning": duty}
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await stays_active(engine)


async def test_a_duty_that_has_ended_is_at_rest(rig: Rig) -> None:
    """It has nothing to do any more."""

    async def duty(_: TopicOffloader) -> None:
        await turn()

    rig.duties = {"cleaning": duty}
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)


async def test_a_topic_is_looked_at_again_after_some_time(rig: Rig) -> None:
    """Whatever nobody tells of is seen then."""
    async with rig.engine() as engine:
        engine.idle_topics.options = IdleOptions(after_s=AFTER_S, again_s=0.3)
        await offloaded(rig, engine)
        await until(lambda: woken(rig).get("due", 0) >= 2)


async def test_a_wake_under_the_same_claim_reads_no_head(rig: Rig) -> None:
    """It was compared when the topic was claimed; whoever else commits has to claim the topic first."""
    asked: list[str] = []
    rig.objects = FaultyStore(rig.store, lambda *what: asked.append(what[1]))
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        idle_topic, before = await suspended(engine), len(asked)
        idle_topic.wake(sleep.Cause.DUE)
        await until(lambda: idle_topic_of(engine) not in {idle_topic, None})
    assert asked[before:] == []


async def test_a_map_that_went_back_in_its_sleep_is_compared_with_the_head(rig: Rig) -> None:
    """The claim may be in what was restored as well; nothing is offloaded twice or deleted by such a map."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        backup = rig.tree.backup()
        await offloaded(rig, engine, seed=1)
        idle_topic = await suspended(engine)
        rig.tree._nodes[paths.ledger(TOPIC, 0)] = backup._nodes[paths.ledger(TOPIC, 0)]
        idle_topic.wake(sleep.Cause.DUE)
        await until(lambda: [one.kind for one in engine.statuses()[0].refusals] == [RefusalKind.METADATA_WENT_BACK])
    assert len(await rig.committed()) == 10


async def test_a_topic_that_is_only_inspected_is_suspended_at_once(rig: Rig) -> None:
    """When a daemon takes it over, and when it is due; not when somebody uses it, or when there is something to do."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
    rig.suspend_after_s = 4.0
    async with rig.engine() as engine:
        started = rig.clock.monotonic()
        for _ in range(2):
            idle_topic = await suspended(engine)
            idle_topic.wake(sleep.Cause.DUE)
            await offloader_of(engine)
        await suspended(engine)
        assert rig.clock.monotonic() - started < 4.0
        await engine.owned(TOPIC)
        await stays_active(engine)


async def test_no_topic_is_suspended_where_none_is_to(rig: Rig) -> None:
    """Those that sleep are woken when that is said of a running daemon."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        engine.idle_topics.options = IdleOptions(after_s=0.0)
        await engine.idle_topics.check()
        await offloader_of(engine)
        await stays_active(engine)


async def test_a_session_that_ends_ends_the_sleep(rig: Rig) -> None:
    """The topic is claimed anew, by whoever is first."""
    metadata = rig.tree.connect()
    async with rig.engine(metadata=metadata) as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        metadata.expire()
        topic = await offloader_of(engine)
        assert topic.claim.epoch == 2
        last = await offloaded(rig, engine, seed=1)
        await suspended(engine)
        assert engine.statuses()[0].offloaded == last
        assert len(engine.idle_topics._sessions) == 1, "of the session that ended nothing is kept"
    assert not woken(rig)


async def test_a_claim_that_ended_unheard_changes_nothing(rig: Rig) -> None:
    """Who was deposed in its sleep finds that out before it reads what is stored."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        store = rig.tree.connect()
        await store.delete(paths.owner(TOPIC))
        node = await store.get(paths.epoch(TOPIC))
        await store.replace(paths.epoch(TOPIC), node.value, node.version)
        await append(rig, 5, seed=1)
        topic = await offloader_of(engine)
        assert topic.claim.epoch == 2
        assert not woken(rig)


async def test_a_daemon_that_stops_lets_topics_go_that_sleep(rig: Rig) -> None:
    """At once, without taking them up."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
    assert await ownership.owner_of(rig.tree.connect(), TOPIC) is None
    assert not woken(rig)


async def test_a_topic_that_is_disabled_in_its_sleep_is_released(rig: Rig) -> None:
    """And can be enabled again."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)
        await engine.deselect(of_topic(TOPIC))
        assert not engine.topics()
        assert await ownership.owner_of(rig.tree.connect(), TOPIC) is None
        await enabled(engine)


async def test_suspended_topics_are_handed_over(rig: Rig) -> None:
    """Whoever joins gets its share of them, and those that stay sleep on."""
    assert rig.ledgers is not None
    async with fellow(rig, "a") as a:
        for topic in TOPICS:
            await rig.ledgers.append(topic, payloads(3))
            await a.engine.select(of_topic(topic), TopicPolicy(enabled=True))
        for topic in TOPICS:
            await (await offloader_of(a.engine, topic)).request_roll()
        await until(lambda: all(one.asleep for one in a.engine.statuses()))
        before = await epochs(rig)
        async with fellow(rig, "b") as b:
            await settled(a, b)
            after = await epochs(rig)
            assert {topic for topic in TOPICS if after[topic] != before[topic]} == b.topics()
            assert all(one.asleep for one in a.engine.statuses())


async def test_who_follows_a_topic_hears_of_the_first_entry_after_its_sleep(rig: Rig) -> None:
    """A reader that waits for more is woken once the topic is."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        hot = HotBuffers(engine)
        waiting = hot.changed(TOPIC)
        await suspended(engine)
        await waiting
        waiting = hot.changed(TOPIC)
        assert hot.range(TOPIC) is None
        last = await append(rig, 1, seed=1)
        await waiting
        await until(lambda: hot.read(TOPIC, last, last, 1000) is not None)


async def test_a_topic_that_cannot_be_taken_up_is_stalled_loudly_and_comes_back(rig: Rig) -> None:
    """As one that has just been claimed."""
    async with rig.engine() as engine:
        await offloaded(rig, engine)
        await suspended(engine)

        async def refuse(*_: object) -> None:
            raise Transient("gone")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(resume, "take_over", refuse)
            with pytest.raises(Transient):
                await engine.owned(TOPIC)
            await until(lambda: engine.statuses()[0].state == "stalled")
        assert (await offloader_of(engine)).claim.epoch > 1
