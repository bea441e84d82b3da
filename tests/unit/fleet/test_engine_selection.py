"""The engine and patterns: what is selected is offloaded, what is deselected is completed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Closed, NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern, of_topic
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy import discovery
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.selection import Outcome
from tests.unit.rigs.rig import Rig, memory_ledgers, offloader_of, payloads, until, until_offloaded

if TYPE_CHECKING:
    from offloaderd.core.model import Position
    from offloaderd.topic.offloader import TopicOffloader

DEFAULT = TopicPattern.parse("public/default/*")
PARTS = [TopicName.parse(f"orders-partition-{number}") for number in (0, 1)]
ORDERS = TopicName.parse("orders")


async def taken(offloader: TopicOffloader, position: Position) -> bool:
    """Wait until the open segment has taken a position; whether nothing is committed yet."""
    await until(lambda: offloader.taken >= position)
    return offloader.offloaded is None


async def test_what_a_pattern_selects_is_offloaded_until_it_is_deselected() -> None:
    """Each topic is claimed; deselecting returns when their open segments are committed and they are released."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    lasts = [await rig.ledgers.append(topic, payloads(10, seed=seed)) for seed, topic in enumerate(PARTS)]
    async with rig.engine() as engine:
        await engine.select(DEFAULT, TopicPolicy())
        for topic, last in zip(PARTS, lasts, strict=True):
            assert await taken(await offloader_of(engine, topic), last)
        assert [one.outcome for one in await engine.deselect(DEFAULT, dry_run=True)] == [Outcome.DISABLED] * 2
        assert sorted(engine.topics()) == PARTS
        await engine.deselect(DEFAULT)
        assert engine.topics() == []
        for topic in PARTS:
            assert (await catalog.load(rig.tree.connect(), topic)).offloaded is not None
        with pytest.raises(NotFound):
            await engine.deselect(DEFAULT)


async def test_a_new_topic_is_offloaded_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine runs discovery: what appears is claimed and committed."""
    monkeypatch.setattr(discovery, "DISCOVERY_S", 0.02)
    monkeypatch.setattr(discovery, "JITTER_S", 0.001)
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        assert await engine.select(DEFAULT, TopicPolicy(segment_age_max_s=0.01)) == []
        last = await rig.ledgers.append(ORDERS, payloads(10))
        await until_offloaded(await offloader_of(engine, ORDERS), last)
    assert [payload for _, payload in await rig.committed(ORDERS)] == payloads(10)


async def test_a_partitioned_topic_has_no_offloader_of_its_own() -> None:
    """Its partitions are offloaded under its policy, and nothing under its name."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    for topic in PARTS:
        await rig.ledgers.create(topic)
    async with rig.engine() as engine:
        await engine.select(of_topic(ORDERS), TopicPolicy())
        for topic in PARTS:
            await offloader_of(engine, topic)
        assert engine.find(ORDERS) is None
        assert [status.topic for status in engine.statuses()] == PARTS
        await engine.deselect(of_topic(ORDERS))
        assert engine.topics() == []


async def test_an_engine_that_drains_selects_nothing() -> None:
    """A pattern that is enabled while draining would wait for the restart, so it is refused with a reason."""
    rig = Rig()
    async with rig.engine() as engine:
        engine.drain()
        for pattern in (DEFAULT, of_topic(ORDERS)):
            with pytest.raises(Closed, match="draining"):
                await engine.select(pattern, TopicPolicy())
