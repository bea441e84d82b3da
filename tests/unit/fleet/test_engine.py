"""The engine end to end on in-memory adapters: what is appended or pushed is committed once, in order, whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Closed, Conflict, NotFound
from offloaderd.core.model import EntryBatch, OfferResult, Position, RollReason, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment import writer
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import FaultyMetadata
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
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Sequence


async def appended(rig: Rig, entries: Sequence[bytes]) -> list[tuple[Position, bytes]]:
    """Append entries and return all that the source holds afterwards."""
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, entries)
    found = []
    for info in await rig.ledgers.ledgers(TOPIC):
        confirmed = await rig.ledgers.confirmed(TOPIC, info.ledger_id)
        if confirmed.last_entry_id < 0:
            continue
        async for batch in rig.ledgers.read(TOPIC, info.ledger_id, 0, confirmed.last_entry_id, batch_bytes=1 << 20):
            found += [
                (Position(batch.ledger_id, batch.first_entry_id + i), payload)
                for i, payload in enumerate(batch.payloads)
            ]
    return found


async def test_appended_entries_over_several_ledgers_and_segments_are_committed() -> None:
    """One segment spans ledgers, one ledger spans segments; a manual offload takes the rest."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=700)
    everything = await appended(rig, payloads(3000))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        assert target == everything[-1][0]
        await until_offloaded(topic, target)
        segments = topic.map.segments
        assert len(segments) == 3
        assert any(len(segment.slices) > 1 for segment in segments)
        assert [segment.payload_bytes for segment in segments] == [100_000] * 3
    assert await rig.committed() == everything
    assert await rig.leftovers() == []


async def test_the_tail_is_followed_while_the_ledger_is_open() -> None:
    """Entries appended after the topic was enabled arrive, segment after segment, without a close."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=0.05))
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        everything = []
        for seed in range(4):
            everything = await appended(rig, payloads(10, seed=seed))
            await until_offloaded(topic, everything[-1][0])
        assert len(topic.map.segments) == 4
        assert topic.map.segments[0].range.begin == everything[0][0]
    assert await rig.committed() == everything


async def test_draining_commits_the_open_segment() -> None:
    """Leaving the engine seals what was taken, so nothing that arrived waits for the next start."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    everything = await appended(rig, payloads(50))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.taken >= everything[-1][0])
        assert topic.offloaded is None
    assert await rig.committed() == everything
    assert rig.metrics.segment_rolls.labels(reason=RollReason.SHUTDOWN)._value.get() == 1


async def test_a_restart_goes_on_where_the_last_commit_ended() -> None:
    """A second engine over the same metadata appends to the map without a gap or an overlap."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = []
    for run in range(3):
        everything = await appended(rig, payloads(500, seed=run))
        async with rig.engine(f"run-{run}") as engine:
            topic = await (enabled(engine) if run == 0 else offloader_of(engine))
            target = await topic.request_roll()
            assert target is not None
            await until_offloaded(topic, target)
    assert await rig.committed() == everything


async def test_pushed_entries_are_committed_and_acknowledged_by_the_result() -> None:
    """The offload handle: last offered, offers, result (PIP-76), on a push-only topic."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=2_000, segment_age_max_s=3600))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        handle = topic.handle
        assert handle.last_offered() is None
        assert handle.can_offer(1000)
        result = asyncio.ensure_future(handle.result())  # noqa: TID251 - to wait while offering
        batch = EntryBatch(7, 100, payloads(20))
        assert topic.offer(batch) is OfferResult.ACCEPTED
        assert handle.last_offered() == (7, 119)
        assert topic.offer(EntryBatch(7, 121, payloads(1))) is OfferResult.NOT_CONSECUTIVE
        committed = await result
        assert committed.range.begin == (7, 100)
        assert committed.range.end == (7, 119)
        assert topic.offer(EntryBatch(9, 0, payloads(20, seed=9))) is OfferResult.ACCEPTED
        await until_offloaded(topic, Position(9, 19))
    assert topic.offer(EntryBatch(9, 20, payloads(1))) is OfferResult.CLOSED
    found = await rig.committed()
    assert [position for position, _ in found] == [Position(7, 100 + i) for i in range(20)] + [
        Position(9, i) for i in range(20)
    ]


async def test_declined_pushes_are_read_from_the_source() -> None:
    """A full buffer slows nobody and loses nothing: the source fills the gap, each entry is committed once."""
    rig = Rig(
        buffer_bytes=40_000, upload_bytes=16_384, policy=RollPolicy(segment_bytes_max=60_000, segment_age_max_s=9)
    )
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10_000)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        topic.pushers += 1
        answers = []
        for seed in range(40):
            batch = payloads(50, seed=seed)
            last = await rig.ledgers.append(TOPIC, batch)
            answers.append(topic.offer(EntryBatch(last.ledger_id, last.entry_id - 49, batch)))
        assert OfferResult.FULL in answers
        assert OfferResult.NOT_CONSECUTIVE not in answers
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        assert topic.buffer.used_bytes <= 40_000
    everything = await appended(rig, payloads(1, seed=99))
    assert await rig.committed() == everything[:-1]


async def test_memory_pressure_seals_the_segment_of_a_push_only_topic() -> None:
    """Without a source a full buffer can only be emptied by a commit, so the segment is rolled early."""
    rig = Rig(buffer_bytes=20_000, policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        first = 0
        for _ in range(30):
            batch = EntryBatch(1, first, payloads(10, 200, seed=first))
            while topic.offer(batch) is OfferResult.FULL:
                await topic.handle.room()
            first += 10
        assert rig.metrics.segment_rolls.labels(reason=RollReason.MEMORY)._value.get() > 0
    assert [position.entry_id for position, _ in await rig.committed()] == list(range(first))


async def test_pressure_waits_until_a_commit_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast a broker fills the buffer, a segment takes half of what is there before it is sealed early."""
    monkeypatch.setattr(writer, "TAKE_BYTES", 1000)
    rig = Rig(buffer_bytes=1_000_000, policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        for first in range(0, 600, 10):
            batch = EntryBatch(1, first, payloads(10, 7000, seed=first))
            while topic.offer(batch) is OfferResult.FULL:
                await topic.handle.room()
    sizes = [segment.payload_bytes for segment in topic.map.segments]
    assert len(sizes) > 2
    assert min(sizes[:-1]) > 400_000


async def test_draining_commits_all_that_was_pushed_without_a_source() -> None:
    """What a push-only topic accepted exists nowhere else: the drain commits it all, over several segments."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=5_000, segment_age_max_s=3600))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        assert topic.offer(EntryBatch(1, 0, payloads(333))) is OfferResult.ACCEPTED
        engine.drain()
        await turn()
        await turn()
        assert topic.offer(EntryBatch(1, 333, payloads(1))) is OfferResult.CLOSED
    assert [payload for _, payload in await rig.committed()] == payloads(333)


async def test_two_engines_share_the_topics_and_one_takes_over() -> None:
    """A topic has one owner at a time; when its daemon drains, the other goes on."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine("two") as second:
        async with rig.engine("one") as first:
            await first.select(of_topic(TOPIC), TopicPolicy(enabled=True))
            everything = await appended(rig, payloads(10))
            await until(lambda: first.find(TOPIC) is not None or second.find(TOPIC) is not None)
            owner, other = (first, second) if first.find(TOPIC) else (second, first)
            with pytest.raises(Conflict, match="owned by daemon"):
                await other.owned(TOPIC)
            record = await other.owner_of(TOPIC)
            assert record is not None
            assert record.daemon_id == ("one" if owner is first else "two")
        topic = await offloader_of(second)
        everything = await appended(rig, payloads(10, seed=1))
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
    assert await rig.committed() == everything


async def test_a_disabled_topic_is_completed_and_left_alone() -> None:
    """Disabling commits the open segment, stops the topic, and can be taken back."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    everything = await appended(rig, payloads(10))
    async with rig.engine() as engine:
        with pytest.raises(NotFound):
            await engine.deselect(of_topic(TOPIC))
        topic = await enabled(engine)
        await until(lambda: topic.taken >= everything[-1][0])
        await engine.deselect(of_topic(TOPIC))
        assert engine.find(TOPIC) is None
        assert await rig.committed() == everything
        with pytest.raises(NotFound, match="not enabled"):
            engine.offloader(TOPIC)
        again = await enabled(engine)
        assert again.offloaded == everything[-1][0]
        assert again.claim.epoch == topic.claim.epoch + 1


async def test_a_changed_policy_takes_effect_on_the_open_segment() -> None:
    """Lowering the age limit seals a segment that was opened under a higher one."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    everything = await appended(rig, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.progress is not None)
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, segment_age_max_s=0.05))
        await until_offloaded(topic, everything[-1][0])
        assert rig.metrics.segment_rolls.labels(reason=RollReason.AGE)._value.get() == 1


async def test_the_object_is_a_function_of_entries_and_settings() -> None:
    """The same entries in differently sized batches give the same bytes, index and blocks."""
    objects = []
    for step in (1, 7, 400):
        rig = Rig(layout=SegmentLayout(block_bytes=1500, part_bytes=5000, preamble=True))
        async with rig.engine(push_only=True) as engine:
            topic = await enabled(engine)
            entries = payloads(400, 90)
            for first in range(0, 400, step):
                topic.offer(EntryBatch(5, first, entries[first : first + step]))
                await turn()
        segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
        objects.append(await rig.store.get(f"seg/{segment.segment_id}"))
    assert objects[0].startswith(b"\xfe\xdc\xde\xad\x26\xa6\x6d\x32")
    assert objects[0] == objects[1] == objects[2]


async def test_an_engine_that_drains_enables_nothing() -> None:
    """A draining daemon refuses new topics with a reason."""
    rig = Rig()
    async with rig.engine() as engine:
        engine.drain()
        with pytest.raises(Closed, match="draining"):
            await engine.select(of_topic(TopicName.parse("x")), TopicPolicy(enabled=True))


async def test_the_largest_node_of_a_commit_is_measured() -> None:
    """The metric is the size of the context that was written last."""
    rig = Rig(ledgers=memory_ledgers(LoopClock()))
    assert rig.ledgers is not None
    last = await rig.ledgers.append(TOPIC, payloads(1500))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
    written = (await catalog.load(rig.tree.connect(), TOPIC)).contexts
    contexts = [len(written[ledger_id].value) for ledger_id in sorted(written)]
    assert rig.metrics.registry.get_sample_value("offloaderd_metadata_node_bytes") == contexts[-1]


async def test_a_claim_that_went_through_under_the_next_session_holds_nobody_up() -> None:
    """The session was lost while the claim was on its way: its owner's node names that session, and stays."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    everything = await appended(rig, payloads(20))
    store = rig.tree.connect()
    left = [1]

    def plan(operation: str, key: str, when: str) -> None:
        if operation == "transact" and when == "before" and "/owner" in key and left:
            left.clear()
            store.expire()

    async with rig.engine(metadata=FaultyMetadata(store, plan)) as engine:
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        await until(lambda: (found := engine.find(TOPIC)) is not None and found.claim.epoch == 2)
        topic = await offloader_of(engine)
        await until(lambda: topic.taken == everything[-1][0])  # what is not read yet is left to the next owner
    assert await rig.committed() == everything
