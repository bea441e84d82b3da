"""History beside the live edge: planned once, committed in order, joined at the boundary, whatever happens between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import Denied, NotFound, Transient
from offloaderd.core.model import HistoryOrder, LedgerInfo, OffloadMethod, Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.history.plan import left_of, waits
from offloaderd.metadata import history, paths
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.history import HistoryPlan, RangeState, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.claim.topic_record import HistoryGap
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.stored import Site
from tests.unit.rigs.crashing import crash
from tests.unit.rigs.lives import life, until_recorded
from tests.unit.rigs.rig import (
    LAYOUT,
    SHORT_PARTS,
    TOPIC,
    Rig,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    turn,
    until,
)
from tests.unit.segment.test_faults import QuickClock
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.core.model import EntryBatch
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import PartInfo, Pieces
    from offloaderd.testing.memory.ledgers import MemoryLedgers
    from offloaderd.topic.offloader import TopicOffloader

GIB = 1 << 30
OTHER = TopicName.parse("public/default/other")


async def rig_with(
    entries: int,
    *,
    order: HistoryOrder = HistoryOrder.ALONGSIDE,
    daemon_bytes_max: int = GIB,
    ledger_entries: int = 30,
    segment_bytes: int = 4000,
) -> Rig:
    """A topic with so many entries of 100 bytes over ledgers of equal length, not enabled yet."""
    rig = Rig(
        policy=RollPolicy(segment_bytes_max=segment_bytes, segment_age_max_s=3600, history_order=order),
        history_bytes_max=daemon_bytes_max,
        layout=SHORT_PARTS,
    )
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=ledger_entries)
    rig.clock = QuickClock(rig)  # type: ignore[assignment]
    await rig.ledgers.append(TOPIC, payloads(entries))
    return rig


async def map_of(rig: Rig) -> TopicMap:
    """The topic as it is stored."""
    return await catalog.load(rig.tree.connect(), TOPIC)


async def plan_of(rig: Rig) -> HistoryPlan:
    """Its plan, which there has to be."""
    plan = (await map_of(rig)).history
    assert plan is not None
    return plan


async def until_done(topic: TopicOffloader) -> None:
    """Wait until history is done, and everything that was confirmed is offloaded."""
    target = await topic.request_roll()
    while topic.map.unfinished is not None or (target is not None and (topic.offloaded or Position(-1, -1)) < target):
        await topic.changed.wait()


async def checked(rig: Rig, count: int) -> TopicMap:
    """Everything is committed once, in order, and nothing is left over."""
    assert [payload for _, payload in await rig.committed()] == payloads(count)
    assert await rig.leftovers() == []
    topic_map = await map_of(rig)
    for before, after in zip(topic_map.segments, topic_map.segments[1:], strict=False):
        assert topic_map.joined(before.end, after.begin)
    assert topic_map.losses == ()
    return topic_map


async def test_live_segments_begin_at_the_boundary_and_history_follows_beside_them() -> None:
    """Order alongside: the newest ledger is live from its first entry, the closed ones are history."""
    rig = await rig_with(200)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_done(topic)
    topic_map = await checked(rig, 200)
    plan = await plan_of(rig)
    assert (plan.boundary, plan.last, plan.entries, plan.payload_bytes) == (6, Position(5, 29), 180, 18_000)
    assert (plan.order, plan.worker, plan.epoch, plan.daemon_id) == (HistoryOrder.ALONGSIDE, Worker.DAEMON, 1, "one")
    assert plan.done_ms
    ranges = await history.load(rig.tree.connect(), TOPIC, plan.ranges)
    assert [one.state for one in ranges.ranges] == [RangeState.DONE] * 5
    old = [one for one in topic_map.segments if one.begin < plan.live_begin]
    assert [(one.begin, one.end) for one in old] == [(one.begin, one.end) for one in ranges.ranges]
    assert [one.segment_id for one in old] == [one.segment_id for one in ranges.ranges]
    assert topic_map.segments[5].begin == plan.live_begin
    assert plan.probes <= 4 * 6
    assert rig.metrics.history_probes._value.get() == plan.probes
    assert rig.metrics.history_boundaries._value.get() == 4
    store = rig.tree.connect()
    assert await store.children(paths.history(TOPIC)) == ["plan", "ranges"]
    assert set((await references.read(store)).committed) == {one.segment_id for one in topic_map.segments}


async def test_history_is_not_taken_from_another_source() -> None:
    """An owner that reads another cluster commits nothing of it, and records no loss of what that does not list."""
    rig = await rig_with(200)
    rig.origin = rig.register = cast("MemoryLedgers", rig.ledgers)
    create, begun = rig.store.create_upload, list[str]()

    async def first_three(key: str, **rest: Any) -> str:  # noqa: ANN401 - of any type
        begun.append(key)
        if len(begun) > 3:
            raise Denied("no more for now")
        return await create(key, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.store, "create_upload", first_three)
        async with rig.engine() as engine:
            topic = await enabled(engine)
            await until(lambda: len(topic.map.segments) > 1)
    before = await map_of(rig)
    assert before.unfinished is not None
    other = memory_ledgers(rig.clock, ledger_entries_max=30)
    await other.append(TOPIC, payloads(400, seed=99))
    for ledger_id in range(before.unfinished.boundary):
        await other.delete(TOPIC, ledger_id)
    other.store_id = "staging"
    rig.ledgers = rig.origin = rig.register = other
    async with rig.engine("two") as engine:
        await until(lambda: [one.state for one in engine.statuses()] == ["stalled"])
        topic = await offloader_of(engine)
        await until(lambda: "staging" in str(topic.record.history_error))
    after = await map_of(rig)
    assert (after.segments, after.losses) == (before.segments, before.losses)


async def test_small_history_goes_first_without_a_plan() -> None:
    """The engine's own way: one sequence from the first entry, no boundary, no ranges."""
    rig = await rig_with(200, order=HistoryOrder.HISTORY_FIRST)
    async with rig.engine() as engine:
        await until_done(await enabled(engine))
    assert (await checked(rig, 200)).history is None


@pytest.mark.parametrize("order", HistoryOrder)
async def test_a_topic_without_closed_ledgers_has_no_history(order: HistoryOrder) -> None:
    """Whatever the order and the limit say; the same goes for one that was offloaded before."""
    rig = await rig_with(20, order=order, daemon_bytes_max=0)
    async with rig.engine() as engine:
        await until_done(await enabled(engine))
        assert rig.ledgers is not None
        await rig.ledgers.append(TOPIC, payloads(100)[20:])
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
    assert (await checked(rig, 100)).history is None


async def test_large_history_is_left_to_a_job_and_live_segments_wait() -> None:
    """Order history-first: nothing is offloaded, which is shown; alongside lets the live edge begin at once."""
    rig = await rig_with(200, order=HistoryOrder.HISTORY_FIRST, daemon_bytes_max=17_999)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.tailer is not None and topic.tailer.refreshed_s is not None)
        await asyncio.sleep(0.05)  # noqa: TID251 - nothing may happen in it
        assert waits(topic.map, topic.policy)
        assert (topic.progress, topic.offloaded, topic.buffer.used_bytes) == (None, None, 0)
        status = topic.status()
        assert (status.lag_entries, status.lag_bytes) == (200, 20_000)
        assert left_of(topic.map) == (180, 18_000)
        await engine._reporter.report()

        def shown(name: str) -> float | None:
            return rig.metrics.registry.get_sample_value(f"offloaderd_{name}", {"topic": str(TOPIC)})

        assert shown("history_remaining_entries") == 180
        assert shown("history_remaining_bytes") == 18_000
        assert shown("history_waiting") == 1
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, history_order=HistoryOrder.ALONGSIDE))
        await until(lambda: not waits(topic.map, topic.policy))
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target == Position(6, 19))
        assert [one.begin for one in topic.map.segments] == [Position(6, 0)]
        assert topic.status().lag_entries == 180
    plan = await plan_of(rig)
    assert (plan.worker, plan.done_ms, plan.ranges) == (Worker.JOB, 0, 0)
    rig.history_bytes_max = 18_000
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
    await checked(rig, 200)


async def test_a_live_segment_that_fails_begins_again_at_the_boundary() -> None:
    """The entries before it are those of a job that has not begun."""
    rig, faults = await rig_with(200, daemon_bytes_max=0), Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    faults.fail("upload_part", NotFound("no such upload"))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target == Position(6, 19))
        assert [one.begin for one in topic.map.segments] == [Position(6, 0)]
    assert faults.fired == rig.metrics.segments.labels(state="failed")._value.get() == 1


async def test_what_a_job_commits_is_taken_in() -> None:
    """The owner follows the plan: whoever else finishes history changes it, and live segments begin behind that."""
    rig = await rig_with(100, order=HistoryOrder.HISTORY_FIRST, daemon_bytes_max=0)
    store = rig.tree.connect()
    async with rig.engine() as engine:
        topic = await enabled(engine)
        assert waits(topic.map, topic.policy)
        topic_map = await map_of(rig)
        plan = await plan_of(rig)
        path = paths.history_plan(TOPIC)
        ours = history_record.encode(replace(plan, worker=Worker.DAEMON))
        await store.replace(path, ours, topic_map.history_version)
        await until_done(topic)
    await checked(rig, 100)


async def test_what_the_source_trims_of_history_is_recorded_as_lost() -> None:
    """Retention does not wait: the loss ends where what is left begins, live segments know nothing of it."""
    rig = await rig_with(200, daemon_bytes_max=0)
    ledgers = rig.ledgers
    assert ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    for ledger_id in (0, 1, 2):
        await ledgers.delete(TOPIC, ledger_id)
    rig.history_bytes_max = 4 << 30
    rig.policy = replace(rig.policy, segment_bytes_max=3000)
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
    topic_map = await map_of(rig)
    assert [(loss.after, loss.before) for loss in topic_map.losses] == [(Position(-1, -1), Position(3, 0))]
    assert [payload for _, payload in await rig.committed()] == payloads(200)[90:]
    assert await rig.leftovers() == []


async def test_history_that_is_gone_as_a_whole_ends_at_the_boundary() -> None:
    """Every closed ledger was trimmed before anything of it was offloaded: one loss, and history is over."""
    rig = await rig_with(100, daemon_bytes_max=0)
    ledgers = rig.ledgers
    assert ledgers is not None
    async with rig.engine() as engine:
        await enabled(engine)
    for ledger_id in (0, 1, 2):
        await ledgers.delete(TOPIC, ledger_id)
    rig.history_bytes_max = 4 << 30
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
    topic_map = await map_of(rig)
    assert [loss.before for loss in topic_map.losses] == [Position(3, 0)]
    assert [payload for _, payload in await rig.committed()] == payloads(100)[90:]
    await ledgers.append(TOPIC, [b"more"])
    async with rig.engine("three") as engine:
        await until_done(await offloader_of(engine))
    site = Site(cluster="test", bucket="b", prefix="seg/")
    (plan,) = rebuild.make_plan(await rebuild.read_buckets(rig.store, [site], lambda _: None)).topics
    assert plan.map.losses == (await map_of(rig)).losses


async def test_a_ledger_whose_length_was_wrong_becomes_several_segments() -> None:
    """What the list says is far too small: the writer cuts, and the range is done when its last entry is stored."""
    rig = await rig_with(200, ledger_entries=100)
    rig.layout = LAYOUT
    ledgers = rig.ledgers
    assert ledgers is not None
    listed = ledgers.ledgers

    async def too_small(topic: object) -> list[LedgerInfo]:
        return [replace(info, size_bytes=10) for info in await listed(topic)]  # type: ignore[arg-type]

    ledgers.ledgers = too_small  # type: ignore[method-assign]
    async with rig.engine() as engine:
        await until_done(await enabled(engine))
    topic_map = await checked(rig, 200)
    assert (await plan_of(rig)).ranges == 1
    assert max(one.object_bytes for one in topic_map.segments) < 6500
    assert len(topic_map.segments) > 3


async def test_a_closed_ledger_that_changes_stops_history() -> None:
    """The last ledger of history is longer than when it was planned: nothing of it is committed, loudly."""
    rig = await rig_with(100, daemon_bytes_max=0)
    ledgers = rig.ledgers
    assert ledgers is not None
    async with rig.engine() as engine:
        await enabled(engine)
    listed = ledgers.ledgers

    async def longer(topic: object) -> list[LedgerInfo]:
        found = list(await listed(topic))  # type: ignore[arg-type]
        return [replace(info, entries=31) if info.ledger_id == 2 else info for info in found]

    ledgers.ledgers = longer  # type: ignore[method-assign]
    rig.history_bytes_max = 4 << 30
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await until(lambda: isinstance(topic.record.history_error, HistoryGap))
    assert [one.begin for one in (await map_of(rig)).segments if one.begin < Position(3, 0)] == []
    ledgers.ledgers = listed  # type: ignore[method-assign]
    async with rig.engine("three") as engine:
        await until_done(await offloader_of(engine))
    await checked(rig, 100)


@pytest.mark.parametrize("away", ["list", "list while it reads", "ledger"])
async def test_history_that_waits_for_its_source_leaves_its_turn_to_other_topics(
    monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """A topic that was deleted, or whose ledger cannot be read, may wait for ever; it goes on where it was."""
    rig = await rig_with(100)
    ledgers = cast("MemoryLedgers", rig.ledgers)
    await ledgers.append(OTHER, payloads(100))
    listed, read, unlisted = ledgers.ledgers, ledgers.read, set[TopicName]()

    async def ledgers_of(topic: TopicName) -> Sequence[LedgerInfo]:
        if topic in unlisted:
            raise NotFound(f"no topic {topic}")
        return await listed(topic)

    async def entries_of(
        topic: TopicName, ledger_id: int, first: int, last: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        if topic == TOPIC and ledger_id == 0:
            if away == "ledger":
                raise Transient("its bookies are away")
            unlisted.add(topic)
            if away == "list while it reads":
                raise NotFound(f"no ledger {ledger_id}")
        async for batch in read(topic, ledger_id, first, last, batch_bytes=batch_bytes):
            yield batch

    async with rig.engine() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(ledgers, "ledgers", ledgers_of)
            patch.setattr(ledgers, "read", entries_of)
            topic = await enabled(engine)
            await until(lambda: topic.record.history_error is not None)
            other = await enabled(engine, topic=OTHER)
            await until(lambda: other.map.history is not None and other.map.unfinished is None)
        await until_done(topic)
        await until_done(other)
    for one in (TOPIC, OTHER):
        assert [payload for _, payload in await rig.committed(one)] == payloads(100)


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put", "head"])
async def test_a_store_that_fails_for_a_while_delays_history(operation: str) -> None:
    """As it does live segments; nothing is doubled."""
    rig = await rig_with(200)
    left = 5

    def plan(asked: str, key: str, when: str) -> Exception | None:
        nonlocal left
        if asked != operation or when != "before" or not left:
            return None
        left -= 1
        return Transient("away")

    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), plan)
    async with rig.engine() as engine:
        await until_done(await enabled(engine))
    assert left == 0
    await checked(rig, 200)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.integers(1, 500), max_size=4), size=st.integers(50, 300))
def test_crashes_at_any_moment_lose_and_double_nothing(crashes: list[int], size: int) -> None:
    """Cancelled after any number of store calls and started again, history and live edge are one topic in the end."""
    virtually(_crash_and_restart(crashes, size))


async def _crash_and_restart(crashes: list[int], size: int) -> None:
    rig = await rig_with(size)
    for number, calls in enumerate(crashes):
        await crash(rig, calls, partial(_run_until_done, rig, f"run-{number}"))
    await _run_until_done(rig, "last", None)
    await checked(rig, size)


async def _run_until_done(rig: Rig, name: str, metadata: FaultyMetadata | None) -> None:
    async with rig.engine(name, metadata=metadata) as engine:
        await until_done(await enabled(engine))


async def test_a_writer_that_ends_while_it_waits_for_memory_has_taken_none() -> None:
    """The budget is what it was: a release of what was never had would let others wait for ever."""
    rig = await rig_with(200)
    async with rig.engine() as engine:
        budget = engine.context.upload_context.budget
        await budget.acquire(rig.upload_bytes)
        topic = await enabled(engine)
        while "attempt" not in await rig.tree.connect().children(paths.history(TOPIC)):
            await turn()
        for _ in range(50):
            await turn()
        assert topic.map.history_end is None
        supervisor = engine._assignment.supervised[TOPIC]
        supervisor.abandon()
        await supervisor.ended.wait()
        assert budget.used == rig.upload_bytes
        budget.release(rig.upload_bytes)
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
        assert engine.context.upload_context.budget.used == 0
    await checked(rig, 200)


async def test_history_is_what_there_is_when_a_topic_begins_to_stream() -> None:
    """It was enabled with the method none: nothing is planned, or offloaded, before another method is set."""
    rig = await rig_with(100)
    assert rig.ledgers is not None
    none = TopicPolicy(enabled=True, method=OffloadMethod.NONE)
    async with rig.engine() as engine:
        topic = await enabled(engine, none)
        assert topic.map.history is None
        await rig.ledgers.append(TOPIC, payloads(200)[100:])
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        await until(lambda: (found := engine.find(TOPIC)) is not None and found.map.history is not None)
        await until_done(await offloader_of(engine))
    await checked(rig, 200)
    assert (await plan_of(rig)).boundary == 6


async def test_history_is_planned_however_late_its_duty_begins() -> None:
    """The topic streams already when that looks for the first time, and waits for it."""
    rig = await rig_with(100)
    async with rig.engine() as engine:
        begins, plan = asyncio.Event(), engine._home.duties["history"]

        async def late(topic: TopicOffloader) -> None:
            await begins.wait()
            await plan(topic)

        engine._home.duties = {**engine._home.duties, "history": late}
        await enabled(engine, TopicPolicy(enabled=True, method=OffloadMethod.NONE))
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        topic = await offloader_of(engine)
        await until(lambda: topic.policy.method is OffloadMethod.STREAMING)
        begins.set()
        await until(lambda: (found := engine.find(TOPIC)) is not None and found.map.history is not None)
        await until_done(await offloader_of(engine))
    await checked(rig, 100)


async def test_a_segment_that_was_sealed_with_all_the_ledgers_it_can_have_keeps_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next owner reads the rest of the last ledger: that it is full ends nothing that is decided already."""
    monkeypatch.setattr("offloaderd.segment.builder.LEDGERS_MAX", 3)
    rig = Rig(
        policy=RollPolicy(segment_bytes_max=1 << 20, segment_age_max_s=3600, history_order=HistoryOrder.ALONGSIDE)
    )
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    await rig.ledgers.append(TOPIC, payloads(60, 3000))
    last_part = 5

    class Stuck(MemoryStore):
        """A bucket that never takes the last part."""

        async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
            if part_number == last_part:
                await asyncio.Event().wait()
            return await super().upload_part(key, upload_id, part_number, pieces)

    rig.objects = Stuck(rig.clock, part_bytes_min=1)
    async with life(rig, "one") as first:
        await enabled(first.engine)
        left = await until_recorded(
            rig,
            lambda one: one.seal is not None and len(one.parts) == one.seal.part_count - 1 == last_part - 1,
            paths.history_attempt(TOPIC),
        )
    assert left.seal is not None
    assert left.parts[-1].end < left.seal.end == Position(2, 4)
    last_part = 0
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
    topic_map = await map_of(rig)
    assert (topic_map.segments[0].segment_id, topic_map.segments[0].end) == (left.segment_id, left.seal.end)
    assert [payload for _, payload in await rig.committed()] == payloads(60, 3000)
