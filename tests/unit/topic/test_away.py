"""A topic whose session was lost: what was known of it is kept, for reads and status, until it is taken up again."""

from __future__ import annotations

import asyncio
import pickle
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import LedgerEnd, RefusalKind, TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.fleet import hot_tier as hot
from offloaderd.fleet import ownership
from offloaderd.fleet.hot_tier import ReadableMaps, ReadablePolicies
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.port import Versioned
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.records import TopicPolicy
from offloaderd.topic.idle import KeptMap
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded

if TYPE_CHECKING:
    from offloaderd.metadata.port import Session
    from offloaderd.policy.policies import Effective


async def test_what_was_committed_is_known_until_the_topic_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper is away for longer than a session: reads and status use what was known, and not for longer."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    last = await rig.ledgers.append(TOPIC, payloads(30))
    store, back = rig.tree.connect(), asyncio.Event()
    async with rig.engine(metadata=store) as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        committed, session = topic.map.segments, store.session

        async def away() -> Session:
            await back.wait()
            return await session()

        monkeypatch.setattr(store, "session", away)
        store.expire()
        await until(lambda: engine.find(TOPIC) is None)
        assert engine.find(TOPIC) is None
        known = engine.known(TOPIC)
        assert known is not None
        assert known.segments == committed
        (status,) = engine.statuses()
        assert (status.state, status.offloaded, status.segments_committed) == ("claiming", last, 1)
        assert (status.lag_entries, status.lag_seconds) == (None, None)
        back.set()
        await offloader_of(engine)
        assert engine.last_map(TOPIC) is None


class FakeEngine:
    """An engine whose metadata store does not answer."""

    last: KeptMap | None = None

    def last_map(self, topic: object) -> KeptMap | None:
        """Return what a test has set."""
        return self.last

    async def topic_map(self, topic: object) -> TopicMap:
        """Never answer for a topic whose map was known, fail for others."""
        if self.last is None:
            raise Transient("away")
        await asyncio.get_running_loop().create_future()
        return self.last.map()


async def test_reads_go_on_with_the_last_map_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a topic that this daemon had; of others nobody knows anything."""
    monkeypatch.setattr(hot, "ANSWERS_S", 0.01)
    engine = FakeEngine()
    maps = ReadableMaps(engine)  # type: ignore[arg-type]
    with pytest.raises(Transient):
        await maps.topic_map(TOPIC)
    engine.last = KeptMap(TopicMap(TOPIC))
    assert await maps.topic_map(TOPIC) == TopicMap(TOPIC)


async def test_a_suspended_topic_is_read_by_what_was_committed_when_it_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper falls silent, and then its session ends: the read that wakes the topic need not wait for it to wake."""
    monkeypatch.setattr(hot, "ANSWERS_S", 0.01)
    rig = Rig(suspend_after_s=0.1)
    rig.ledgers = memory_ledgers(rig.clock)
    last = await rig.ledgers.append(TOPIC, payloads(30))
    store, back = rig.tree.connect(), asyncio.Event()
    async with rig.engine(metadata=store) as engine:
        topic, maps = await enabled(engine), ReadableMaps(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        committed = topic.map
        await until(lambda: engine.find(TOPIC) is None)
        get, session = store.get, store.session

        async def silent(path: str) -> object:
            await back.wait()
            return await get(path)

        async def away() -> Session:
            await back.wait()
            return await session()

        monkeypatch.setattr(store, "get", silent)
        monkeypatch.setattr(store, "session", away)
        assert await maps.topic_map(TOPIC) == committed
        assert engine.known(TOPIC) == committed
        assert await maps.source_refused(TOPIC) is None
        store.expire()
        await until(lambda: [one.state for one in engine.statuses()] == ["claiming"])
        assert await maps.topic_map(TOPIC) == committed
        assert await maps.source_refused(TOPIC) is None
        back.set()
        await offloader_of(engine)
        assert engine.last_map(TOPIC) is None


async def test_what_another_daemon_has_taken_is_not_read_by_the_last_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim ended while the topic slept, and the session did not: what has changed since is the other's to say."""
    rig = Rig(suspend_after_s=0.1)
    rig.ledgers = memory_ledgers(rig.clock)
    last = await rig.ledgers.append(TOPIC, payloads(30))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        await until(lambda: engine.find(TOPIC) is None)
        assert engine.last_map(TOPIC) is not None
        claiming = asyncio.Event()

        async def claim(*_: object, **__: object) -> None:
            claiming.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(ownership, "claim", claim)
        other, path = rig.tree.connect(), paths.epoch(TOPIC)
        found = await other.get(path)
        await other.replace(path, found.value, found.version)
        await engine.topic_map(TOPIC)
        await claiming.wait()
        assert engine.last_map(TOPIC) is None


def test_what_is_kept_for_readers_is_the_whole_map_and_small() -> None:
    """A hundred and some bytes a segment, where the map takes kilobytes: ten thousand topics may sleep."""
    moments = range(1, 1001)
    segments = tuple(map(_segment, moments))
    ends = MappingProxyType({number: LedgerEnd(5000, number + 1) for number in moments})
    contexts = {7: StoredContext(b"seven", 3, MappingProxyType({1: Versioned(b"piece", 2)}))}
    whole = TopicMap(TOPIC, segments, MappingProxyType(contexts), ends, source_deleted=frozenset({3}))
    kept = KeptMap(whole)
    assert kept.map() == whole
    assert len(pickle.dumps(kept)) < 100 * len(segments)


def test_of_small_maps_what_all_have_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most idle topics have few segments, and names are most of a map with one."""
    monkeypatch.setattr(KeptMap, "_dictionary", b"")
    maps = [TopicMap(TopicName.parse(f"few-{number}"), (_segment(number),)) for number in (1, 2)]
    first, second = map(KeptMap, maps)
    assert [first.map(), second.map()] == maps
    assert len(pickle.dumps(second)) < len(pickle.dumps(maps[1])) / 3


def _segment(number: int) -> CommittedSegment:
    """Return a segment of one ledger."""
    return CommittedSegment(
        segment_id=UUID(int=number << 64 | number),
        slices=(LedgerSlice(number, 0, 4999, 5_000_000 + number, created_ms=number),),
        object_bytes=5_100_000 + number,
        assigned_ms=number,
        offloaded_ms=number + 1,
        bucket="tier",
        prefix="a/",
    )


async def test_reads_go_on_with_the_policy_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a topic that this daemon works on or waits for; of others nobody knows anything."""
    monkeypatch.setattr(hot, "ANSWERS_S", 0.01)
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        await enabled(engine, TopicPolicy(read_priority=ReadPriority.BOOKKEEPER_FIRST))
        policies = ReadablePolicies(engine)
        stored = await policies.of(TOPIC)
        assert stored.values.read_priority is ReadPriority.BOOKKEEPER_FIRST

        async def silent(topic: TopicName) -> Effective:
            await asyncio.get_running_loop().create_future()
            return stored

        monkeypatch.setattr(engine.book, "of", silent)
        assert await policies.of(TOPIC) == stored

        async def away(topic: TopicName) -> Effective:
            raise Transient("away")

        monkeypatch.setattr(engine.book, "of", away)
        assert await policies.of(TOPIC) == stored
        with pytest.raises(Transient, match="away"):
            await policies.of(TopicName.parse("public/default/other"))


async def test_who_reads_hears_of_a_source_that_is_refused() -> None:
    """By the owner from what it knows, by others from what is on record; other refusals are no reader's affair."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        topic, maps = await enabled(engine), ReadableMaps(engine)
        assert await topic.identity.refuse(RefusalKind.METADATA_WENT_BACK, "went back", "head")
        assert await maps.source_refused(TOPIC) is None
        assert await topic.identity.refuse(RefusalKind.OTHER_SOURCE, "cluster b", "source b")
        told = await maps.source_refused(TOPIC)
        assert "other-source: cluster b" in str(told)
    async with rig.engine("other") as engine:
        assert engine.find(TOPIC) is None
        assert str(await ReadableMaps(engine).source_refused(TOPIC)) == str(told)


async def test_a_source_that_was_refused_stays_so_while_nobody_can_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is lost, and the next claim does not get to read the record: what stood then is what is known."""
    monkeypatch.setattr(hot, "ANSWERS_S", 0.01)
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    store, back, claiming = rig.tree.connect(), asyncio.Event(), asyncio.Event()
    async with rig.engine(metadata=store) as engine:
        topic, maps = await enabled(engine), ReadableMaps(engine)
        await topic.identity.refuse(RefusalKind.OTHER_SOURCE, "cluster b", "source b")
        told = str(await maps.source_refused(TOPIC))
        get = store.get

        async def away(path: str) -> object:
            if path == paths.identity(TOPIC):
                claiming.set()
                await back.wait()
            return await get(path)

        monkeypatch.setattr(store, "get", away)
        store.expire()
        await claiming.wait()
        assert engine.find(TOPIC) is None
        assert engine.last_map(TOPIC) is not None
        assert str(await maps.source_refused(TOPIC)) == told
        back.set()
        await offloader_of(engine)
