"""Ledger-based offloading (PIP-17) in the engine: what is due goes as whole ledgers, and methods follow each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.model import EntryBatch, OfferResult, OffloadMethod
from offloaderd.format import manifest_bytes, v1
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment import writer
from offloaderd.segment.roll import RollPolicy
from tests.unit.fleet.test_engine import appended
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
    import pytest

    from offloaderd.topic.offloader import TopicOffloader

LEDGER_BASED = RollPolicy(
    segment_bytes_max=1 << 30,
    segment_age_max_s=3600.0,
    method=OffloadMethod.LEDGER_BASED,
    threshold_bytes=0,
)
STREAMING = replace(LEDGER_BASED, method=OffloadMethod.STREAMING)
BY_HAND = replace(LEDGER_BASED, threshold_bytes=None)


def methods(topic: TopicOffloader) -> list[OffloadMethod]:
    """Return the methods of the committed segments."""
    return [segment.method for segment in topic.map.segments]


async def test_closed_ledgers_become_objects_as_pulsar_writes_them() -> None:
    """Each closed ledger has one object, its index is Pulsar's, the open ledger stays where it is."""
    rig = Rig(policy=LEDGER_BASED)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = await appended(rig, payloads(1000))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, everything[899][0])
        assert methods(topic) == [OffloadMethod.LEDGER_BASED] * 3
        for segment in topic.map.segments:
            keys = segment.keys
            assert keys.data == f"seg/{segment.segment_id}-ledger-{segment.begin.ledger_id}"
            index = v1.decode_index(await rig.store.get(keys.index), key="index")
            assert index.ledger().lastEntryId == 299
            assert index.ledger().length == segment.payload_bytes
            labels = (await rig.store.head(keys.data)).metadata
            assert (labels["role"], labels["managedledgername"]) == ("data", TOPIC.managed_ledger)
            assert (await rig.store.head(keys.index)).metadata["role"] == "index"
        ends = topic.map.ends
        assert all(ends[segment.begin.ledger_id].entries == 300 for segment in topic.map.segments)
    assert await rig.committed() == everything[:900]
    assert await rig.leftovers() == []
    stored = await catalog.load(rig.tree.connect(), TOPIC)
    assert methods_of(stored) == [OffloadMethod.LEDGER_BASED] * 3


def methods_of(topic_map: catalog.TopicMap) -> list[OffloadMethod]:
    """Return the methods of a map's segments."""
    return [segment.method for segment in topic_map.segments]


async def test_without_thresholds_only_what_is_asked_for_goes() -> None:
    """By hand, ledgers go up to the one that holds the position's predecessor whole."""
    rig = Rig(policy=BY_HAND)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = await appended(rig, payloads(1000))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        assert await topic.request_roll(everything[750][0]) == everything[599][0]
        await until_offloaded(topic, everything[599][0])
        await turn()
        assert topic.offloaded == everything[599][0]
        assert await topic.request_roll() == everything[899][0]
        await until_offloaded(topic, everything[899][0])
    assert await rig.committed() == everything[:900]


async def test_size_threshold_keeps_the_newest_ledgers() -> None:
    """What the closed ledgers from one on add up to has to exceed the threshold."""
    rig = Rig(policy=replace(LEDGER_BASED, threshold_bytes=60_000))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = await appended(rig, payloads(1300))  # four closed ledgers of 30,000 bytes
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, everything[599][0])
        await turn()
        assert topic.offloaded == everything[599][0]


async def test_pushes_are_left_to_the_source() -> None:
    """A broker that pushes is told so, and its entries are read when their ledger is due."""
    rig = Rig(policy=LEDGER_BASED)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    everything = await appended(rig, payloads(5))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        batch = EntryBatch(everything[0][0].ledger_id, 0, [payload for _, payload in everything])
        assert topic.offer(batch) is OfferResult.FULL
        everything = await appended(rig, payloads(6, seed=1))
        await until_offloaded(topic, everything[9][0])
    assert await rig.committed() == everything[:10]


async def test_streaming_ends_with_its_ledger_before_whole_ledgers_begin() -> None:
    """Switched in the middle of a ledger, the rest of that is streamed; switched back, streaming begins behind."""
    rig = Rig(policy=replace(STREAMING, segment_age_max_s=0.05))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = await appended(rig, payloads(400))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, everything[399][0])
        streamed = len(topic.map.segments)
        topic.follow(replace(LEDGER_BASED, segment_age_max_s=0.05))
        everything = await appended(rig, payloads(850, seed=1))
        await until_offloaded(topic, everything[1199][0])
        kinds = methods(topic)[streamed:]
        assert kinds[-2:] == [OffloadMethod.LEDGER_BASED] * 2
        assert set(kinds[:-2]) == {OffloadMethod.STREAMING}
        last = topic.map.segments[streamed + len(kinds) - 3]
        assert last.end == everything[599][0]
        topic.follow(replace(STREAMING, segment_age_max_s=0.05))
        everything = await appended(rig, payloads(20, seed=2))
        await until_offloaded(topic, everything[-1][0])
        assert methods(topic)[-1] is OffloadMethod.STREAMING
    assert await rig.committed() == everything


async def test_none_seals_and_leaves_the_rest() -> None:
    """Under `none` the open segment is completed at once and nothing is taken; a later method goes on there."""
    rig = Rig(policy=STREAMING)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = await appended(rig, payloads(100))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.taken == everything[99][0])
        topic.follow(replace(STREAMING, method=OffloadMethod.NONE))
        await until_offloaded(topic, everything[99][0])
        everything = await appended(rig, payloads(100, seed=1))
        await turn()
        assert (topic.taken, len(topic.map.segments)) == (everything[99][0], 1)
        topic.follow(STREAMING)
        await until(lambda: topic.taken == everything[199][0])
    assert await rig.committed() == everything
    assert rig.metrics.segment_rolls.labels(reason="switch")._value.get() == 1


async def test_a_ledger_whose_length_is_wrong_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source says too little, or too much: the first try is given up, the second has read all entries before."""
    for error in (-7, 7):
        rig = Rig(policy=LEDGER_BASED)
        rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
        everything = await appended(rig, payloads(310))
        right = rig.ledgers.length_at

        async def length_at(*given: object, right: object = right, error: int = error) -> int:
            return await right(*given) + error  # type: ignore[operator, no-any-return]

        monkeypatch.setattr(rig.ledgers, "length_at", length_at)
        async with rig.engine() as engine:
            topic = await enabled(engine)
            await until_offloaded(topic, everything[299][0])
        assert await rig.committed() == everything[:300]
        assert await rig.leftovers() == []


async def test_a_large_entry_has_a_block_of_its_own() -> None:
    """Pulsar's writer would report success and lose it."""
    rig = Rig(policy=LEDGER_BASED)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=4)
    everything = await appended(rig, [b"a", b"b" * 9000, b"c", b"d", b"e"])
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, everything[3][0])
        described = manifest_bytes.decode(await rig.store.get(topic.map.segments[0].keys.manifest), key="m")
        assert max(block.length for block in described.blocks) > 9000
    assert await rig.committed() == everything[:4]


async def test_a_restart_goes_on_with_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping does not wait for the ledger's end: the next owner goes on behind the parts that are stored."""
    monkeypatch.setattr(writer, "TAKE_BYTES", 2000)
    rig = Rig(policy=LEDGER_BASED, upload_bytes=700, buffer_bytes=40_000)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=3000)
    everything = await appended(rig, payloads(3010))
    async with rig.engine("one") as engine:
        topic = await enabled(engine)
        await until(lambda: topic.progress is not None and topic.progress.part_count > 5)
        topic.stop()
        assert topic.offloaded is None
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await until_offloaded(topic, everything[2999][0])
    assert rig.metrics.segments_resumed._value.get() == 1
    assert await rig.committed() == everything[:3000]
    assert await rig.leftovers() == []


async def test_an_empty_ledger_is_passed_over() -> None:
    """There is nothing to offload of it, and no object."""
    rig = Rig(policy=LEDGER_BASED)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    everything = await appended(rig, payloads(10))
    await rig.ledgers.roll(TOPIC)
    everything = await appended(rig, payloads(11, seed=1))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, everything[19][0])
        assert len(topic.map.segments) == 2
    assert await rig.committed() == everything[:20]
