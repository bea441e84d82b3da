"""What happens at the edges: parts that never start, ledgers by the thousand, stores that are away when it matters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import EntryBatch, Loss, Position, TopicName
from offloaderd.fleet import ownership
from offloaderd.metadata import paths
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.builder import LEDGERS_MAX
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.feed import End, Entries
from offloaderd.segment.resume import reason_to_give_up
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.faults import Faults, FaultyMetadata
from tests.patience import PATIENCE_S
from tests.unit.rigs.lives import recorded
from tests.unit.rigs.owned import Owned, offloaded_topic
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
from tests.unit.segment.test_continue import made_rig, rewritten, sealed
from tests.unit.segment.test_writer import Desk, ScriptedFeed

if TYPE_CHECKING:
    from offloaderd.objects.port import PartInfo
    from offloaderd.segment.claim.fence import Claim


async def test_a_part_that_is_cancelled_before_it_starts_gives_its_room_back() -> None:
    """Its neighbour fails in the same turn: none of its code runs, and the budget of all topics is whole again."""
    desk = await Desk.made()
    budget, limits = desk.owned.context.upload_context.budget, desk.owned.context.upload_context.limits

    class Failing(ScriptedFeed):
        """Fails as soon as the first part is cut."""

        def sent(self, through: Position) -> None:
            assert budget.used
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it is the test's own
        await desk.write(Failing([Entries((EntryBatch(5, 0, payloads(50, 1000)),))]))
    assert budget.used == 0
    assert desk.writer.progress is not None
    assert desk.writer.progress._upload._slots._value == limits.parts_in_flight_max


async def test_no_more_parts_are_sent_at_a_time_than_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment with many parts would take the connections and the memory of all topics."""
    desk = await Desk.made()
    store, sent, most = desk.rig.store, 0, 0
    send = store.upload_part

    async def slowly(*given: Any) -> PartInfo:  # noqa: ANN401 - as it is asked
        nonlocal sent, most
        sent += 1
        most = max(most, sent)
        for _ in range(5):
            await turn()
        sent -= 1
        return await send(*given)

    monkeypatch.setattr(store, "upload_part", slowly)
    assert await desk.write(ScriptedFeed([Entries((EntryBatch(5, 0, payloads(300, 1000)),)), End()])) is not None
    assert most == desk.owned.context.upload_context.limits.parts_in_flight_max


@pytest.mark.parametrize(
    ("begin", "kept"),
    [
        (Position(0, 10), True),
        (Position(1, 0), True),
        (Position(7, 0), True),  # ids of a topic's ledgers have gaps
        (Position(0, 9), False),
        (Position(0, 11), False),
        (Position(7, 1), False),
    ],
)
async def test_an_attempt_is_resumed_only_where_the_topic_continues(begin: Position, kept: bool) -> None:
    """Also in the middle of a ledger: given up, its parts would be sent again; elsewhere it would leave a gap."""
    desk = await Desk.made()
    why = reason_to_give_up(replace(desk.attempt(), begin=begin), Position(0, 9), desk.owned.context)
    assert (why == "") is kept


async def test_a_segment_takes_no_more_ledgers_than_one_commit_can_write() -> None:
    """Thousands of ledgers with an entry each: they go by the hundred, however small the segments are."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600.0))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=1)
    last = await rig.ledgers.append(TOPIC, payloads(2 * LEDGERS_MAX + 50, 10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        assert [len(one.slices) for one in topic.map.segments] == [LEDGERS_MAX, LEDGERS_MAX, 50]


async def test_marks_are_written_as_many_at_a_time_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with very many ledgers is deleted at its source: no transaction becomes too large for it."""
    rig = await offloaded_topic(50)
    owned = await Owned.claim(rig)
    contexts = owned.offloader.map.contexts
    one = len(contexts[0].value) + removal.MARK_BYTES
    monkeypatch.setattr(removal, "BATCH_BYTES", 2 * one + 10)
    assert list(removal.batches(owned.offloader.map, [4, 0, 3, 1, 2, 99])) == [[0, 1], [2, 3], [4]]
    await owned.offloader.record.mark_deleted(contexts)
    assert owned.offloader.map.deleted.keys() == contexts.keys()


async def _claimed(rig: Rig, plan: Faults) -> tuple[FaultyMetadata, TopicName, Claim]:
    store, topic = rig.tree.connect(), TopicName.parse("public/default/x")
    for folder in paths.folders(topic):
        await store.create(folder, b"")
    node = DaemonNode(daemon_id="a", address="a:1", version="0", started_ms=1)
    claim = await ownership.claim(store, topic, node, await store.session(), rig.clock)
    assert claim is not None
    return FaultyMetadata(store, plan), topic, claim


async def test_a_loss_whose_recording_was_not_answered_is_recorded_once() -> None:
    """The store has it: it is neither counted again nor taken for the write of another owner."""
    rig, faults = Rig(), Faults()
    store, topic, claim = await _claimed(rig, faults)
    attempts = AttemptLog(store, claim, clock=rig.clock, metrics=rig.metrics)
    faults.lose_answer("transact")
    loss = Loss(Position(0, 4), Position(2, 0), 7, 1)
    assert (await attempts.note_loss(TopicMap(topic), loss)).losses == (loss,)
    assert (await catalog.load(rig.tree.connect(), topic)).losses == (loss,)


async def test_a_cancelled_claim_is_let_go_though_the_store_is_away_for_a_moment() -> None:
    """The session lives on, so nothing else would ever free the topic."""
    rig, faults = Rig(), Faults()
    store, topic, _ = await _claimed(rig, faults)
    faults.fail("get", Transient("away"), times=2)
    await ownership.release_unclaimed(store, topic, await store.session(), rig.clock)
    assert faults.fired == 2
    assert await ownership.owner_of(store, topic) is None


async def test_a_topic_is_released_however_long_the_store_is_away() -> None:
    """As long as the session outlasts it: else a daemon that lives would hold what it does not work on."""
    clock, faults = FakeClock(), Faults()
    rig = Rig()
    store, topic, claim = await _claimed(rig, faults)
    faults.fail("transact", Transient("away"), times=-1)
    session = await store.session()
    async with asyncio.TaskGroup() as group:
        releasing = group.create_task(ownership.release(store, claim, session, clock))
        for _ in range(20):
            await turn()
            await clock.advance(1.0)
        assert not releasing.done()
        faults.heal()
        while not releasing.done():
            await turn()
            await clock.advance(1.0)
    assert await ownership.owner_of(store, topic) is None


async def test_a_release_ends_with_the_session() -> None:
    """Which frees the topic by itself."""
    rig, faults = Rig(), Faults()
    store, _, claim = await _claimed(rig, faults)
    faults.fail("transact", Transient("away"), times=-1)
    session = await store.session()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(ownership.release(store, claim, session, rig.clock))
        await turn()
        session.lost.set()


async def test_a_trash_record_that_cannot_be_read_leaves_the_others_going() -> None:
    """It stays, and is told; what lies behind it on the list is deleted."""
    rig = await offloaded_topic(10)
    owned = await Owned.claim(rig)
    store = rig.tree.connect()
    first, second = sorted((rig.clock.uuid(), rig.clock.uuid()), key=str)
    trash = deletion.Trash(segment_id=second, upload_id="", reason="r", decided_ms=1, bucket="b", prefix="seg/")
    await store.create(paths.trash_record(TOPIC, first), b"\xff\xff\xff")
    await store.create(paths.trash_record(TOPIC, second), deletion.encode_trash(trash))
    assert await owned.empty_trash() == 1
    assert await store.children(paths.trash(TOPIC)) == [str(first)]


async def test_a_sealed_segment_whose_entries_are_still_to_be_pushed_does_not_hold_up_a_stop() -> None:
    """They may never come: the daemon leaves it to the next owner, to whom they are pushed again."""
    rig, store = await made_rig(push_only=True)
    left = await sealed(rig, on="complete_upload", push_only=True)
    await rewritten(rig, left, parts=left.parts[:1])
    async with rig.engine("two", push_only=True) as engine:
        topic = await offloader_of(engine)
        topic.offer(EntryBatch(7, 0, payloads(100)))
        await until(lambda: topic.progress is not None and topic.progress.entries == 100)
    assert recorded(rig) is not None
    async with rig.engine("three", push_only=True) as engine:
        topic = await offloader_of(engine)
        topic.offer(EntryBatch(7, 0, payloads(300)))
        await until(lambda: topic.offloaded == Position(7, 299))
    assert [payload for _, payload in await rig.committed()] == payloads(300)
    assert store.sent_again == 0
