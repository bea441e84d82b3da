"""A history that a job has taken and gives back to the topic's daemon; on in-memory twins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import HistoryOrder, OffloadMethod, Position
from offloaderd.metadata import history as stored_history
from offloaderd.metadata.records.history import RangeState, Worker
from offloaderd.spark.backfill.plan import AlreadyDone, BackfillFailed, Origin, aim_of, plan_topic
from offloaderd.spark.backfill.transfer import hand_back, take_up
from offloaderd.spark.jobs import lease as backfill_lease
from tests.patience import PATIENCE_S
from tests.unit.rigs.rig import TOPIC, enabled, offloader_of, until
from tests.unit.spark.backfill_rig import LocalRunner, backfill, map_of, planned, whole
from tests.unit.spark.test_backfill_whole import WHOLE, by_ledger, drained, idle, stores_of

if TYPE_CHECKING:
    from offloaderd.fleet.engine import Engine
    from offloaderd.spark.jobs.task import SegmentTask, Written
    from tests.unit.rigs.rig import Rig

LEDGERS = [Position(number, 0) for number in range(6)]


async def broken_off(rig: Rig, *, method: OffloadMethod, written: set[int], slots: int = 4) -> LocalRunner:
    """Run a backfill until the tasks of these numbers are carried out and the others hang, and let its driver die."""
    done: list[int] = []

    async def hang(task: SegmentTask, number: int) -> None:
        if number not in written:
            await asyncio.Event().wait()
        done.append(number)

    runner, store = LocalRunner(rig, hang), rig.tree.connect()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, runner, store=store, slots=slots, method=method).run())
        await until(lambda: len(done) == len(written) and runner.at_once == slots)
        store.expire()
        running.cancel()
    return runner


async def test_whole_ledgers_that_a_job_has_left_are_written_by_the_daemon() -> None:
    """What was whole and next is committed as it is, what was begun beside it goes; the rest are whole ledgers too."""
    rig = await idle()
    runner = await broken_off(rig, method=WHOLE, written={2, 4})
    ready = {task.begin: task.segment_id for task in runner.ran}
    stores = stores_of(rig)
    found = await hand_back(stores, TOPIC)
    assert (found.method, found.committed, found.discarded) == (WHOLE, 0, len(ready))
    assert found.left.entries == 180
    assert (await plan_topic(stores, TOPIC)).origin is Origin.DAEMON
    async with asyncio.timeout(PATIENCE_S), rig.engine("next") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.map.unfinished is None)
    after = await map_of(rig)
    assert after.history is not None
    assert (after.history.worker, after.history.method) == (Worker.DAEMON, WHOLE)
    assert [one.begin for one in after.segments] == LEDGERS
    assert not {one.segment_id for one in after.segments} & set(ready.values())
    ranges = await stored_history.load(rig.tree.connect(), TOPIC, after.history.ranges)
    assert {one.state for one in ranges.ranges} == {RangeState.DONE}
    await drained(rig, 200)


async def test_what_is_whole_and_comes_next_is_committed_before() -> None:
    """A driver that died between an executor's last word and its commit has left it; it is not written twice."""
    rig = await idle()

    class Mute(LocalRunner):
        """Never says what it has had written."""

        ready = 0

        async def run(self, task: SegmentTask) -> Written:
            written = await super().run(task)
            self.ready += 1
            await asyncio.Event().wait()
            return written

    runner, store = Mute(rig), rig.tree.connect()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, runner, store=store, slots=3, method=WHOLE).run())
        await until(lambda: runner.ready == 3)
        store.expire()
        running.cancel()
    found = await hand_back(stores_of(rig), TOPIC)
    assert (found.committed, found.discarded, found.left.entries) == (3, 0, 90)
    assert [one.segment_id for one in (await map_of(rig)).segments] == [
        task.segment_id for task in sorted(runner.ran, key=lambda task: task.begin)
    ]
    async with asyncio.timeout(PATIENCE_S), rig.engine("next") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.map.unfinished is None)
    await drained(rig, 200)


async def test_an_owner_that_follows_the_job_goes_on_itself() -> None:
    """Nobody has to restart it: the plan's change tells it; a job may take it over once more."""
    rig = await by_ledger()
    async with asyncio.timeout(PATIENCE_S), rig.engine() as engine:
        await enabled(engine)
        await broken_off(rig, method=WHOLE, written={1}, slots=1)
        await until(lambda: engine.find(TOPIC) is not None and follows(engine))
        await hand_back(stores_of(rig), TOPIC)
        await until(lambda: not follows(engine))
        with pytest.raises(AlreadyDone):
            await hand_back(stores_of(rig), TOPIC)
    assert [one.begin for one in (await map_of(rig)).segments] == LEDGERS
    await drained(rig, 200)


def follows(engine: Engine) -> bool:
    """Say whether the owner knows of history that is not all offloaded."""
    topic = engine.find(TOPIC)
    return topic is None or topic.map.unfinished is not None


async def test_streamed_history_goes_back_the_same_way() -> None:
    """However large it is; nothing is given back of what is the daemon's already."""
    rig = await planned()
    await broken_off(rig, method=OffloadMethod.STREAMING, written={1}, slots=2)
    await hand_back(stores_of(rig), TOPIC)
    with pytest.raises(BackfillFailed, match="being offloaded by its daemon"):
        await hand_back(stores_of(rig), TOPIC)
    async with asyncio.timeout(PATIENCE_S), rig.engine("next") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.map.unfinished is None)
    found = await whole(rig)
    assert found.history is not None
    assert (found.history.worker, found.history.method) == (Worker.DAEMON, OffloadMethod.STREAMING)


async def test_what_nobody_has_split_yet_is_split_before() -> None:
    """A driver that died between plan and split: the ledgers go whole all the same, and live entries wait no longer."""
    rig = await by_ledger()
    rig.policy = replace(rig.policy, history_order=HistoryOrder.HISTORY_FIRST)
    async with rig.engine() as engine:
        await enabled(engine)
    dead, store = stores_of(rig), rig.tree.connect()
    claim = await backfill_lease.claim(store, TOPIC, "dead", rig.clock)
    await take_up(dead.context, claim, await aim_of(dead, TOPIC, 0), me="dead")
    store.expire()
    found = await hand_back(stores_of(rig), TOPIC)
    assert (found.committed, found.discarded, found.left.entries) == (0, 0, 180)
    async with asyncio.timeout(PATIENCE_S), rig.engine("next") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.map.unfinished is None)
    assert {one.method for one in (await map_of(rig)).segments} == {WHOLE}
    await drained(rig, 200)
