"""The driver of a backfill over its executors: order, crashes, two drivers, losses; on in-memory twins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.core.errors import Denied, Fenced, OffloaderError, Transient
from offloaderd.core.limits import ByteBudget
from offloaderd.core.model import HistoryOrder, Position
from offloaderd.core.retry import Backoff
from offloaderd.format import manifest_bytes
from offloaderd.metadata import history as stored_history
from offloaderd.metadata import paths
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.history import Worker
from offloaderd.spark.backfill.backfill import Progress
from offloaderd.spark.backfill.plan import AlreadyDone, BackfillFailed, plan_for_job
from offloaderd.spark.jobs import driver
from offloaderd.spark.jobs import lease as backfill_lease
from offloaderd.spark.jobs.lease import Driven
from offloaderd.spark.jobs.task import SegmentTask
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.upkeep.gc import references
from tests.patience import PATIENCE_S
from tests.unit.history.test_history import rig_with
from tests.unit.rigs.rig import LAYOUT, TOPIC, enabled, offloader_of, payloads, until
from tests.unit.spark.backfill_rig import Died, LocalRunner, backfill, map_of, planned, whole

if TYPE_CHECKING:
    from offloaderd.ledgers.port import LedgerStore
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.topic.outage import TopicContext
    from tests.unit.rigs.rig import Rig


async def test_history_is_written_side_by_side_and_committed_in_order() -> None:
    """Two at a time and no more; the daemon's live segment is joined; a manifest knows what lay before it."""
    rig = await planned()
    live = (await map_of(rig)).segments
    seen: list[Progress] = []
    runner = LocalRunner(rig)
    async with asyncio.timeout(PATIENCE_S):
        ended = await backfill(rig, runner, progress=seen.append).run()
    found = await whole(rig)
    assert found.segments[-len(live) :] == live
    assert runner.at_once_most == 2
    assert (ended.entries_left, ended.committed, ended.ranges_done) == (0, 5, 5)
    assert [one.entries_left for one in seen] == sorted((one.entries_left for one in seen), reverse=True)
    assert found.history is not None
    assert found.history.probes <= 4 * 6
    before = 0
    for segment in found.segments[:-1]:
        described = manifest_bytes.decode(await rig.store.get(segment.keys.manifest), key="manifest")
        assert described.past is not None
        assert (described.past.entries, described.past.since) == (before, Position(0, 0))
        before += segment.entries


async def test_executors_that_are_done_out_of_order_wait_for_their_turn() -> None:
    """The first is the last to end: nothing is committed before it is, and then all is."""
    rig = await planned()
    gate, seen = asyncio.Event(), list[Progress]()

    async def hold(task: SegmentTask, number: int) -> None:
        if task.begin == Position(0, 0):
            await gate.wait()

    job = backfill(rig, LocalRunner(rig, hold), slots=3, progress=seen.append)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(job.run())
        await until(lambda: bool(seen) and seen[-1].waiting == 4)
        assert len((await map_of(rig)).segments) == 1
        assert seen[-1].committed == 0
        gate.set()
        await running
    await whole(rig)


@pytest.mark.parametrize("killed_at", [1, 2, 4, 6])
async def test_a_driver_that_dies_is_succeeded_by_one_that_writes_nothing_twice(killed_at: int) -> None:
    """What was committed or written stays; what was begun is resumed; gc knows all of it meanwhile."""
    rig = await planned()

    async def hang(task: SegmentTask, number: int) -> None:
        if number >= killed_at:
            await asyncio.Event().wait()

    store, first = rig.tree.connect(), LocalRunner(rig, hang)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, first, store=store, slots=3).run())
        if killed_at > 5:
            await running
        else:
            await until(lambda: first.at_once > 0 and len(first.ran) - first.at_once == killed_at - 1)
            store.expire()  # what dies says nothing any more
            running.cancel()
    begun = set(await rig.tree.connect().children(paths.history_attempts(TOPIC)))
    assert begun <= {str(one) for one in (await references.read(rig.tree.connect())).attempts}
    runner = LocalRunner(rig)
    if killed_at > 5:
        with pytest.raises(AlreadyDone):
            await backfill(rig, runner, me="second").run()
    else:
        async with asyncio.timeout(PATIENCE_S):
            await backfill(rig, runner, me="second").run()
        assert len(runner.ran) <= 6 - killed_at
        assert begun <= {str(one.segment_id) for one in (await map_of(rig)).segments}
    await whole(rig)


async def test_an_executor_that_dies_is_replaced_and_its_parts_are_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one goes on with the same upload, after a pause."""
    faults = Faults()
    rig = await planned(segment_bytes=4000)
    rig.objects = FaultyStore(rig.store, faults)
    sent: list[str] = []
    paused: list[str] = []

    async def die(task: SegmentTask, number: int) -> None:
        sent.append(str(task.segment_id))
        if number in {1, 2, 3}:
            raise Died("the executor was killed")

    class Pauses(Backoff):
        async def wait(self, error: Exception) -> None:
            paused.append(str(error))

    monkeypatch.setattr(driver, "Backoff", Pauses)
    runner = LocalRunner(rig, die)
    async with asyncio.timeout(PATIENCE_S):
        ended = await backfill(rig, runner, slots=1).run()
    assert sent[0] == sent[1] == sent[2] == sent[3]
    assert [task.again for task in runner.ran[:5]] == [False, True, True, True, False]
    assert paused == ["the executor was killed"] * 3
    assert ended.retries == 3
    await whole(rig)


async def test_an_executor_is_cut_off_in_the_middle_of_its_segment() -> None:
    """A part is stored and not recorded, the rest is not sent: the same upload is completed by the next."""
    rig = await planned(600, segment_bytes=40_000)
    faults = Faults()
    rig.objects = FaultyStore(rig.store, faults)
    faults.fail("upload_part", Denied("not this one"), times=10_000)

    async def mend(task: SegmentTask, number: int) -> None:
        if number > 1:
            faults.heal()

    async with asyncio.timeout(PATIENCE_S):
        ended = await backfill(rig, LocalRunner(rig, mend), slots=1, patience_s=0.2).run()
    assert ended.retries >= 1
    await whole(rig, 600)


async def test_a_bucket_that_refuses_everything_ends_the_run_with_its_reason() -> None:
    """Nothing is committed; the next run goes on with what was begun."""
    rig = await planned()
    faults = Faults()
    rig.objects = FaultyStore(rig.store, faults)
    faults.fail("upload_part", Denied("no rights to write"), times=1_000_000)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BackfillFailed, match="no rights to write"):
            await backfill(rig, slots=1, patience_s=0.02).run()
    assert len((await map_of(rig)).segments) == 1
    faults.heal()
    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, me="later").run()
    await whole(rig)


async def test_a_bucket_that_refuses_one_executor_costs_its_segment_another_try() -> None:
    """Machines may have different rights: what one could not store another does, and nothing is left of the first."""
    rig = await planned()
    faults, bucket = Faults(), rig.store
    faults.fail("upload_part", Denied("this machine has no rights"), times=1_000_000)

    async def rights(_: SegmentTask, number: int) -> None:
        rig.objects = FaultyStore(bucket, faults) if number == 1 else bucket

    async with asyncio.timeout(60):
        ended = await backfill(rig, LocalRunner(rig, rights), patience_s=0.05).run()
    assert ended.retries >= 1
    rig.objects = bucket
    await whole(rig)


async def test_a_second_driver_is_refused_while_the_first_lives() -> None:
    """It is told who works on it; once the first is gone it may."""
    rig = await planned()
    gate = asyncio.Event()

    async def hold(task: SegmentTask, number: int) -> None:
        await gate.wait()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        runner = LocalRunner(rig, hold)
        running = group.create_task(backfill(rig, runner, me="first").run())
        await until(lambda: bool(runner.ran))
        with pytest.raises(Driven, match="driver first"):
            await backfill(rig, me="second").run()
        gate.set()
        await running
    await whole(rig)


async def test_a_driver_that_was_deposed_commits_nothing() -> None:
    """Nor do its executors change an attempt any more: what they hold is the successor's."""
    rig = await planned()
    gate = asyncio.Event()

    async def hold(task: SegmentTask, number: int) -> None:
        await gate.wait()

    async with asyncio.timeout(PATIENCE_S):
        runner = LocalRunner(rig, hold)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(refused(rig, runner))
            await until(lambda: len(runner.ran) == 2)
            store = rig.tree.connect()
            claim = await backfill_lease.claim(store, TOPIC, "second", rig.clock, depose=True)
            await backfill_lease.release(store, claim)
            gate.set()
            assert await running
        assert len((await map_of(rig)).segments) == 1
        await backfill(rig, me="third").run()
    await whole(rig)


async def refused(rig: Rig, runner: LocalRunner) -> bool:
    """Run a backfill that is deposed meanwhile."""
    with pytest.raises(Fenced):
        await backfill(rig, runner, me="first").run()
    return True


async def test_a_driver_whose_session_ends_stops() -> None:
    """Its claim may be another's by now."""
    rig = await planned()

    async def hang(task: SegmentTask, number: int) -> None:
        await asyncio.Event().wait()

    runner, store = LocalRunner(rig, hang), rig.tree.connect()

    async def ends() -> None:
        with pytest.raises(BackfillFailed, match="session"):
            await backfill(rig, runner, store=store).run()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(ends())
        await until(lambda: len(runner.ran) == 2)
        store.expire()


async def test_the_live_edge_goes_on_beside_it() -> None:
    """An engine offloads what comes in while the job commits; it sees the job's progress and its end."""
    rig = await planned()
    assert rig.ledgers is not None
    gate = asyncio.Event()

    async def hold(task: SegmentTask, number: int) -> None:
        if number == 3:
            await gate.wait()

    async with asyncio.timeout(PATIENCE_S), rig.engine("two") as engine, asyncio.TaskGroup() as group:
        topic = await offloader_of(engine)
        running = group.create_task(backfill(rig, LocalRunner(rig, hold), slots=1).run())
        await until(lambda: topic.map.history_end == Position(2, 19))
        last = await rig.ledgers.append(TOPIC, [b"more"])
        await topic.request_roll()
        await until(lambda: topic.offloaded == last)
        gate.set()
        await running
        await until(lambda: topic.map.unfinished is None)
        last = await rig.ledgers.append(TOPIC, [b"and more"])
        await topic.request_roll()
        await until(lambda: topic.offloaded == last)
    assert [one for _, one in await rig.committed()] == [*payloads(200), b"more", b"and more"]


@pytest.mark.parametrize("trimmed", [[0], [0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]])
async def test_a_ledger_that_is_trimmed_under_an_executor_is_a_recorded_loss(trimmed: list[int]) -> None:
    """The rest of its range becomes a segment; what an executor had of it is left to gc."""
    rig = await planned()
    ledgers = rig.ledgers
    assert ledgers is not None

    async def trim(task: SegmentTask, number: int) -> None:
        if number == 1:
            for ledger_id in trimmed:
                await ledgers.delete(TOPIC, ledger_id)

    async with asyncio.timeout(PATIENCE_S):
        ended = await backfill(rig, LocalRunner(rig, trim)).run()
    found = await map_of(rig)
    assert found.unfinished is None
    assert ended.losses == 1
    assert [loss.before for loss in found.losses] == [Position(len(trimmed), 0)]
    assert [one for _, one in await rig.committed()] == payloads(200)[30 * len(trimmed) :]


async def test_a_history_in_the_middle_of_which_ledgers_vanish_is_not_passed_over() -> None:
    """What was written before stays, the loss is recorded in its place."""
    rig = await planned()
    ledgers = rig.ledgers
    assert ledgers is not None

    async def trim(task: SegmentTask, number: int) -> None:
        if number == 2:
            for ledger_id in (0, 1, 2):
                await ledgers.delete(TOPIC, ledger_id)

    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, LocalRunner(rig, trim), slots=1).run()
    found = await map_of(rig)
    assert found.unfinished is None
    (loss,) = found.losses
    assert (loss.after, loss.before) == (Position(1, 9), Position(3, 0))
    assert [one for _, one in await rig.committed()] == [*payloads(200)[:40], *payloads(200)[90:]]


async def test_a_segment_whose_objects_vanished_before_its_commit_is_written_again() -> None:
    """A record alone is not believed."""
    rig = await planned()
    runner, seen = LocalRunner(rig), list[Progress]()
    gate = asyncio.Event()

    async def hold(task: SegmentTask, number: int) -> None:
        if task.begin == Position(0, 0):
            await gate.wait()

    runner.before = hold
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, runner, progress=seen.append).run())
        await until(lambda: bool(seen) and seen[-1].waiting > 0)
        key = next(one.key for one in [info async for info in rig.store.list()] if one.key.endswith("-index"))
        known = {str(one.segment_id) for one in (await map_of(rig)).segments}
        keys = [info.key async for info in rig.store.list() if info.key[4:40] not in known]
        key = next(one for one in keys if one.endswith("-index"))
        await rig.store.delete([key])
        gate.set()
        ended = await running
    assert ended.retries == 1
    await whole(rig)


async def test_who_is_not_to_be_offloaded_by_a_job_is_told_why() -> None:
    """Unknown, not enabled, no history, small, done, its source gone; nothing is written."""
    rig = await rig_with(200, daemon_bytes_max=0)
    with pytest.raises(BackfillFailed, match="not enabled"):
        await backfill(rig).run()
    rig = await rig_with(10, daemon_bytes_max=0)
    async with rig.engine() as engine:
        await enabled(engine)
        with pytest.raises(BackfillFailed, match="no planned history"):
            await backfill(rig).run()
    rig = await planned()
    found, store, path = await map_of(rig), rig.tree.connect(), paths.history_plan(TOPIC)
    assert found.history is not None
    daemons = history_record.encode(replace(found.history, worker=Worker.DAEMON))
    await store.replace(path, daemons, found.history_version)
    with pytest.raises(BackfillFailed, match="by its daemon"):
        plan_for_job(await map_of(rig))


async def test_a_topic_that_is_deleted_meanwhile_ends_the_run() -> None:
    """Its list does not go on to the boundary any more: that is no loss of everything."""
    rig = await planned()
    ledgers = rig.ledgers
    assert ledgers is not None

    class Gone:
        async def ledgers(self, topic: object) -> list[object]:
            return []

    job = backfill(rig, patience_s=0.05)
    job._context = replace(job._context, source=cast("LedgerStore", Gone()))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BackfillFailed, match="lists nothing"):
            await job.run()
    found = await map_of(rig)
    assert found.losses == ()
    assert found.history is not None
    assert found.history.holder == ""


async def test_a_closed_ledger_that_has_changed_stops_the_run() -> None:
    """Nothing is committed behind what does not join on."""
    rig = await planned()
    found, store, path = await map_of(rig), rig.tree.connect(), paths.history_plan(TOPIC)
    assert found.history is not None
    shorter = replace(found.history, last=Position(5, 20))
    await store.replace(path, history_record.encode(shorter), found.history_version)
    with pytest.raises(OffloaderError, match="history was planned to end"):
        await backfill(rig).run()
    assert len((await map_of(rig)).segments) == 1


async def test_ranges_and_attempts_show_who_works_on_what() -> None:
    """Ranges are claimed by the driver while they are written; the plan says until when it holds them."""
    rig = await planned()
    gate = asyncio.Event()

    async def hold(task: SegmentTask, number: int) -> None:
        await gate.wait()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        runner = LocalRunner(rig, hold)
        running = group.create_task(backfill(rig, runner).run())
        await until(lambda: len(runner.ran) == 2)
        found = await map_of(rig)
        assert found.history is not None
        assert found.history.holder == "driver"
        assert found.history.holder_until_ms > rig.clock.wall_ms()
        ranges = await stored_history.load(rig.tree.connect(), TOPIC, found.history.ranges)
        assert [(one.state.value, one.holder) for one in ranges.ranges[:3]] == [
            ("claimed", "driver"),
            ("claimed", "driver"),
            ("planned", ""),
        ]
        gate.set()
        await running


async def test_new_entries_that_wait_for_history_begin_when_it_is_done() -> None:
    """PIP-76's order: the daemon streams nothing before the job has committed everything."""
    rig = await rig_with(200, daemon_bytes_max=0, order=HistoryOrder.HISTORY_FIRST)
    async with asyncio.timeout(PATIENCE_S), rig.engine() as engine:
        topic = await enabled(engine)
        assert topic.map.unfinished is not None
        assert topic.map.segments == ()
        await backfill(rig).run()
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    await whole(rig)


async def test_an_executor_holds_a_few_parts_whatever_the_size_of_its_segment() -> None:
    """Its budget is never exceeded, and a segment is ten times as large."""
    rig = await planned(12_000, segment_bytes=1 << 30)
    rig.layout = LAYOUT
    rig.upload_bytes = 3 * rig.layout.part_bytes
    most = 0

    class Watched(ByteBudget):
        def _grant(self) -> None:
            nonlocal most
            super()._grant()
            most = max(most, self.used)

    context_of = rig.context

    def watched(metadata: MetadataStore, *, source: LedgerStore | None) -> TopicContext:
        made = context_of(metadata, source=source)
        return replace(made, upload_context=replace(made.upload_context, budget=Watched(rig.upload_bytes)))

    rig.context = watched  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, segment_bytes=1 << 30).run()
    assert (await map_of(rig)).segments[0].payload_bytes > 10 * rig.upload_bytes
    assert 0 < most <= rig.upload_bytes
    rig.context = context_of  # type: ignore[method-assign]
    await whole(rig, 12_000)


async def test_a_driver_without_its_metadata_store_ends_all_the_same() -> None:
    """It tries for a while to say that it is gone; the session's end says the rest."""
    rig = await planned()
    faults, runner = Faults(), LocalRunner(rig)
    store = rig.tree.connect()

    async def cut(task: SegmentTask, number: int) -> None:
        faults.fail("transact", Transient("away"), times=1_000_000)
        store.expire()
        await asyncio.Event().wait()

    runner.before = cut
    job = backfill(rig, runner)
    job._context = replace(job._context, metadata=FaultyMetadata(store, faults))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BackfillFailed, match="session"):
            await job.run()
    faults.heal()
    await backfill(rig, me="next").run()
    await whole(rig)
