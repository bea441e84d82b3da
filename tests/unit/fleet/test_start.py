"""What a daemon that starts with idle topics asks for each, and how many of them it loads at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.names.patterns import of_topic
from offloaderd.fleet import supervisor as module
from offloaderd.history import plan as history
from offloaderd.metadata import paths
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment import resume
from offloaderd.testing.faults import FaultyStore
from tests.unit.rigs.counted import CountedMetadata
from tests.unit.rigs.fleet import TOPICS
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import ModuleType

    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.port import Step

AFTER_S = 0.1


class Noted(CountedMetadata):
    """Notes transactions and watches as well."""

    async def transact(self, steps: Sequence[Step]) -> None:
        """Note a transaction at its first node."""
        self.reads.append(f"{steps[0].path}: transaction")
        await super().transact(steps)

    async def watch(self, path: str) -> AsyncGenerator[None, None]:
        """Note a watch."""
        self.reads.append(f"{path}: watch")
        async for _ in super().watch(path):
            yield


def asleep(engine: Engine) -> int:
    """Return how many topics are suspended."""
    return sum(one.asleep for one in engine.statuses())


async def test_what_an_idle_topic_costs_at_a_start(rig: Rig) -> None:
    """Whatever is asked more is asked of each of thousands of topics: it needs a reason, and a line here."""
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until_offloaded(topic, last)
    store, folder = Noted(rig.tree), paths.topic(TOPIC)
    async with rig.engine(metadata=store) as engine:
        await until(lambda: asleep(engine) == 1)
        asked = Counter(one.removeprefix(folder) for one in store.reads if one.startswith(f"{folder}/"))
    ledger = f"/ledgers/{last.ledger_id}"
    assert asked == {
        "/epoch": 1,
        "/owner": 1,
        "/epoch: transaction": 1,
        **dict.fromkeys(("/floor", "/history/plan", "/ledgers", ledger, "/losses"), 2),
        "/attempt": 1,
        "/identity": 1,
        "/policy": 1,
        "/trash: watch": 1,
        "/trash": 2,
        "/asked": 1,
        "/rollback/order": 1,
        "/rollback/attempt": 1,
    }


@pytest.fixture
def rig() -> Rig:
    """A rig whose topics sleep soon."""
    return Rig(suspend_after_s=AFTER_S)


async def enable_all(rig: Rig) -> None:
    """Enable many topics that nothing is pushed to."""
    async with rig.engine(push_only=True) as engine:
        for topic in TOPICS:
            await engine.select(of_topic(topic), TopicPolicy(enabled=True))
        await until(lambda: len(engine.topics()) == len(TOPICS))


async def test_few_idle_topics_are_active_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon with thousands of them needs the memory of a few: the next is loaded when one is suspended."""
    await enable_all(rig)
    monkeypatch.setattr(module, "TURN_S", 1000.0)
    async with rig.engine(push_only=True) as engine:
        engine._home.turns, most = asyncio.Semaphore(2), 0

        def few() -> bool:
            nonlocal most
            most = max(most, sum(engine.find(topic) is not None for topic in TOPICS))
            return asleep(engine) == len(TOPICS)

        await until(few)
        assert most == 2
        assert not engine._home.turns.locked()


async def test_a_topic_that_stays_active_holds_up_no_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is suspended here: each is loaded after the one before, not after its turn."""
    await enable_all(rig)
    monkeypatch.setattr(module, "TURN_S", 1000.0)
    rig.suspend_after_s = 0
    async with rig.engine(push_only=True) as engine:
        engine._home.turns, began_s = asyncio.Semaphore(1), rig.clock.monotonic()
        await until(lambda: all(engine.find(topic) is not None for topic in TOPICS))
        assert rig.clock.monotonic() - began_s < module.TURN_S


@pytest.mark.parametrize(("owner", "name"), [(resume, "take_over"), (history, "prepare")])
async def test_a_topic_that_cannot_be_loaded_gives_its_turn_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, owner: ModuleType, name: str
) -> None:
    """Once: with each failure another would be loaded at the same time, or one less."""
    await enable_all(rig)
    monkeypatch.setattr(module, "TURN_S", 1000.0)
    load, left = getattr(owner, name), list(TOPICS)

    async def fails_first(*given: object) -> object:
        if left:
            left.pop()
            raise Transient("gone")
        return await load(*given)

    monkeypatch.setattr(owner, name, fails_first)
    async with rig.engine(push_only=True) as engine:
        engine._home.turns = asyncio.Semaphore(1)
        began_s = rig.clock.monotonic()
        await until(lambda: asleep(engine) == len(TOPICS))
        assert rig.clock.monotonic() - began_s < module.TURN_S
        assert engine._home.turns._value == 1


async def test_a_topic_that_cannot_tell_whether_it_is_idle_holds_up_no_other_for_long(rig: Rig) -> None:
    """A bucket that does not answer: each is active for its turn and stays so, and the next is loaded."""
    await enable_all(rig)
    rig.objects = FaultyStore(rig.store, lambda call, key, when: Transient("away") if when == "before" else None)
    async with rig.engine(push_only=True) as engine:
        engine._home.turns = asyncio.Semaphore(1)
        began_s = rig.clock.monotonic()
        await until(lambda: all(engine.find(topic) is not None for topic in TOPICS))
        assert rig.clock.monotonic() - began_s == pytest.approx((len(TOPICS) - 1) * module.TURN_S, abs=1.0)
        assert asleep(engine) == 0
        rig.objects = None


@pytest.mark.parametrize("name", ["each_status", "each_measured"])
async def test_a_pass_over_topics_leaves_out_one_that_has_left_meanwhile(rig: Rig, name: str) -> None:
    """Its gauges are gone, and must not come back."""
    await enable_all(rig)
    async with rig.engine(push_only=True) as engine:
        await until(lambda: asleep(engine) == len(TOPICS))
        statuses = getattr(engine, name)()
        first, gone = next(statuses).topic, TOPICS[-1] if name == "each_measured" else max(TOPICS)
        await engine.deselect(of_topic(gone))
        assert {first, *(one.topic for one in statuses)} == {*TOPICS} - {gone}
