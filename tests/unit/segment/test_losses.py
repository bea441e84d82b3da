"""What the source deletes before it was offloaded: told, recorded and left behind; and what is no loss."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from offloaderd.core.errors import Transient
from offloaderd.core.model import START, EntryBatch, LedgerEnd, LedgerInfo, Loss, OfferResult, Position
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.memory.ledgers import MemoryLedgers
from tests.unit.rigs.lives import life, until_recorded
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from offloaderd.core.model import Confirmed, TopicName


async def lost_ranges(rig: Rig) -> list[tuple[str, int]]:
    """What is recorded as lost, and how many entries are known to be."""
    return [(str(loss), loss.entries) for loss in (await catalog.load(rig.tree.connect(), TOPIC)).losses]


async def test_what_retention_deleted_is_reported_and_the_stream_goes_on() -> None:
    """Ledgers that vanish before they were offloaded are recorded, counted and logged, once; the rest is committed."""
    rig = Rig(ledgers=memory_ledgers(LoopClock(), ledger_entries_max=10))
    assert rig.ledgers is not None
    last = await rig.ledgers.append(TOPIC, payloads(15))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
    assert await lost_ranges(rig) == []
    last = await rig.ledgers.append(TOPIC, payloads(40, seed=1))
    for ledger_id in (0, 1, 2, 3):
        await rig.ledgers.delete(TOPIC, ledger_id)
    with capture_logs() as logs:
        async with rig.engine() as engine:
            topic = await offloader_of(engine)
            await topic.request_roll()
            await until_offloaded(topic, last)
            assert topic.status().state == "offloading"
        async with rig.engine() as engine:
            await offloader_of(engine)
    assert await lost_ranges(rig) == [("after 1:4 and before 4:0", 0)]
    assert [line["range"] for line in logs if line["event"] == "topic.entries_possibly_lost"] == [
        "after 1:4 and before 4:0"
    ]
    kept = [position for position, _ in await rig.committed()]
    assert (Position(1, 4), Position(4, 0)) in pairwise(kept)
    value = rig.metrics.registry.get_sample_value
    assert value("offloaderd_source_losses_total", {"kind": "possible"}) == 1
    assert value("offloaderd_source_lost_entries_total") == 0


async def test_a_ledger_that_was_seen_and_vanished_is_a_certain_loss() -> None:
    """The tailer is held up by a full buffer while retention deletes what it has not read yet."""
    rig = Rig(ledgers=memory_ledgers(LoopClock(), ledger_entries_max=10), buffer_bytes=1500)
    source = rig.ledgers
    assert source is not None
    await source.append(TOPIC, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.taken == Position(0, 8) or topic.buffer.used_bytes > 0)
        await source.append(TOPIC, payloads(25, seed=1))
        assert topic.tailer is not None
        await topic.tailer.refresh()
        for ledger_id in (0, 1, 2):
            await source.delete(TOPIC, ledger_id)
        await topic.request_roll()
        await until_offloaded(topic, Position(3, 4))
    losses = (await catalog.load(rig.tree.connect(), TOPIC)).losses
    assert losses
    committed = {position for position, _ in await rig.committed()}
    written = {Position(ledger, entry) for ledger in (0, 1, 2) for entry in range(10)}
    missed = written - committed
    assert missed
    assert sum(loss.entries for loss in losses) == len(missed)
    assert rig.metrics.registry.get_sample_value("offloaderd_source_lost_entries_total") == len(missed)
    assert all(abs(loss.noticed_ms - rig.clock.wall_ms()) < 60_000 for loss in losses)
    for position in missed:
        assert any(loss.after < position < loss.before for loss in losses)


async def test_a_segment_that_was_begun_behind_which_all_is_lost_is_no_alarm() -> None:
    """The next owner finds its record and none of its entries: the loss is told, and nothing fails or stalls."""
    policy = RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600)
    rig = Rig(policy=policy, ledgers=memory_ledgers(LoopClock(), ledger_entries_max=10))
    assert rig.ledgers is not None
    async with rig.engine("setup") as engine:
        await enabled(engine)
    await rig.ledgers.append(TOPIC, payloads(5))
    async with life(rig, "one"):
        left = await until_recorded(rig, lambda attempt: not attempt.parts)
    last = await rig.ledgers.append(TOPIC, payloads(40, seed=1))
    for ledger_id in (0, 1, 2):
        await rig.ledgers.delete(TOPIC, ledger_id)
    owner = await Owned.claim(rig)
    await owner.offloader.record.lost(Loss(START, Position(3, 0), 0, 1))
    with capture_logs() as logs:
        async with rig.engine("two") as engine:
            topic = await offloader_of(engine)
            await topic.request_roll()
            await until_offloaded(topic, last)
    assert len(await lost_ranges(rig)) == 1
    told = [line["event"] for line in logs]
    assert (told.count("attempt.abandoned"), told.count("segment.failed"), told.count("topic.stalled")) == (1, 0, 0)
    assert str(left.segment_id) in {line.get("segment_id") for line in logs if line["event"] == "attempt.abandoned"}


async def test_a_ledger_that_was_offloaded_whole_may_vanish() -> None:
    """Its end is recorded even if nothing is committed after it, so a restart raises no alarm."""
    rig = Rig(ledgers=memory_ledgers(LoopClock(), ledger_entries_max=1000))
    source = rig.ledgers
    assert source is not None
    last = await source.append(TOPIC, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        await source.roll(TOPIC)
        await until(lambda: topic.map.ends.get(0) == LedgerEnd(10, None))
        await source.append(TOPIC, payloads(1))
        await until(lambda: topic.map.ends.get(0) == LedgerEnd(10, 1))
    await source.delete(TOPIC, 0)
    last = await source.append(TOPIC, payloads(5))
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
    assert await lost_ranges(rig) == []


async def test_what_a_broker_pushes_behind_a_loss_is_kept() -> None:
    """The ledgers before it are gone from the source, and so is the pushed one: its entries are in memory.

    Whether it had more of them than were pushed, nobody can say.
    """
    rig = Rig(ledgers=memory_ledgers(LoopClock(), ledger_entries_max=10))
    source = rig.ledgers
    assert source is not None
    await source.append(TOPIC, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, Position(0, 9))
    await source.append(TOPIC, payloads(31, seed=1))
    pushed = payloads(10, seed=2)
    for ledger_id in (0, 1, 2):
        await source.delete(TOPIC, ledger_id)
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        topic.pushers += 1
        assert topic.offer(EntryBatch(2, 0, pushed)) is OfferResult.ACCEPTED
        await topic.request_roll()
        await until_offloaded(topic, Position(4, 0))
    losses = (await catalog.load(rig.tree.connect(), TOPIC)).losses
    assert [(loss.after, loss.before) for loss in losses] == [
        (Position(0, 9), Position(2, 0)),
        (Position(2, 9), Position(3, 0)),
    ]
    assert [entry for position, entry in await rig.committed() if position.ledger_id == 2] == pushed


async def test_a_broker_that_leaves_ledgers_out_is_not_believed() -> None:
    """The source has what lies between the offloaded position and the first pushed entry: it is read from there."""
    rig = Rig(ledgers=memory_ledgers(LoopClock(), ledger_entries_max=10))
    source = rig.ledgers
    assert source is not None
    await source.append(TOPIC, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, Position(0, 9))
    written = payloads(25, seed=1)
    await source.append(TOPIC, written)
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        topic.pushers += 1
        topic.offer(EntryBatch(2, 0, written[10:20]))
        await topic.request_roll()
        await until_offloaded(topic, Position(3, 4))
    assert [entry for _, entry in await rig.committed()][10:] == written
    assert await lost_ranges(rig) == []


class DeafEdge(MemoryLedgers):
    """Knows its ledgers, but not how far the open one is confirmed."""

    deaf = True

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Fail for the open ledger."""
        found = await super().confirmed(topic, ledger_id)
        if self.deaf and not found.closed:
            raise Transient("no bookie answers")
        return found


async def test_closed_ledgers_are_offloaded_while_the_edge_is_not_known() -> None:
    """The trouble is told, and what lies before the open ledger does not wait for its end."""
    source = DeafEdge(clock=LoopClock(), ledger_entries_max=10)
    rig = Rig(ledgers=source)
    last = await source.append(TOPIC, payloads(25))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.taken >= Position(1, 9))
        await until(lambda: topic.failure_tracker.count > 0)
        assert "no bookie answers" in str(topic.failure_tracker.error)
        source.deaf = False
        await until(lambda: topic.taken == last)
        await topic.request_roll()
        await until_offloaded(topic, last)


async def test_ends_that_a_broker_reports_are_recorded() -> None:
    """Without a source, the pusher's word is what there is."""
    rig = Rig()
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        assert topic.offer(EntryBatch(7, 0, payloads(10))) is OfferResult.ACCEPTED
        topic.closed_ledgers[7] = LedgerInfo(ledger_id=7, closed=True, entries=10, size_bytes=1000, closed_at_ms=5)
        await topic.request_roll()
        await until_offloaded(topic, Position(7, 9))
    assert (await catalog.load(rig.tree.connect(), TOPIC)).ends == {7: LedgerEnd(10, None)}


async def test_ledgers_that_are_done_with_are_forgotten() -> None:
    """What is remembered of ledgers does not grow with a topic's age."""
    rig = Rig(ledgers=memory_ledgers(LoopClock(), ledger_entries_max=10))
    source = rig.ledgers
    assert source is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        for number in range(8):
            last = await source.append(TOPIC, payloads(10, seed=number))
            await topic.request_roll()
            await until_offloaded(topic, last)
            if number:
                await source.delete(TOPIC, number - 1)
        assert topic.tailer is not None
        await topic.tailer.refresh()
        chain = topic.tailer.chain
        assert [chain.end_of(ledger_id) is not None for ledger_id in range(8)] == [False] * 7 + [True]
    assert await lost_ranges(rig) == []
