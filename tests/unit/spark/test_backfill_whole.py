"""A backfill of whole ledgers (V1), and of history that a daemon has begun itself; on in-memory twins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import OutcomeUnknown, Transient
from offloaderd.core.model import HistoryOrder, OffloadMethod, Position
from offloaderd.format import manifest_bytes
from offloaderd.metadata import history as stored_history
from offloaderd.metadata import paths
from offloaderd.metadata.port import Create
from offloaderd.metadata.records.history import Worker
from offloaderd.spark.backfill import backfill as job
from offloaderd.spark.backfill.plan import AlreadyDone, BackfillFailed, Origin, plan_topic
from offloaderd.spark.jobs.driver import JobTopics
from offloaderd.spark.jobs.executors import Stores
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep.gc import references
from tests.patience import PATIENCE_S
from tests.unit.history.test_history import rig_with
from tests.unit.rigs.rig import TOPIC, enabled, offloader_of, payloads, until
from tests.unit.spark.backfill_rig import LocalRunner, backfill, map_of, planned, whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from offloaderd.core.model import LedgerInfo
    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.port import Step
    from offloaderd.spark.backfill.backfill import TopicBackfill
    from offloaderd.spark.jobs.task import SegmentTask
    from tests.unit.rigs.rig import Rig

WHOLE = OffloadMethod.LEDGER_BASED


async def by_ledger(entries: int = 200, *, threshold_bytes: int | None = None) -> Rig:
    """A topic under ledger-based of ledgers of 30 entries, not enabled yet; without a threshold nothing becomes due."""
    rig = await rig_with(entries)
    rig.policy = replace(
        rig.policy, method=WHOLE, threshold_bytes=threshold_bytes, history_order=HistoryOrder.ALONGSIDE
    )
    return rig


async def idle(entries: int = 200) -> Rig:
    """The same, enabled, and its daemon gone."""
    rig = await by_ledger(entries)
    async with rig.engine() as engine:
        await enabled(engine)
    return rig


def run_of(rig: Rig, runner: LocalRunner | None = None, *, me: str = "driver", slots: int = 2) -> TopicBackfill:
    """One run under the method."""
    return backfill(rig, runner, me=me, slots=slots, method=WHOLE)


def stores_of(rig: Rig) -> Stores:
    """What a command opens."""
    store, ledgers = rig.tree.connect(), rig.ledgers
    assert ledgers is not None
    return Stores(context=rig.context(store, source=ledgers), source=ledgers, book=rig.book(store))


async def drained(rig: Rig, count: int) -> None:
    """What came last is streamed by the daemon; everything is there once, and nothing is left over."""
    rig.policy = replace(rig.policy, method=OffloadMethod.STREAMING)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    found = await whole(rig, count)
    assert [one.method for one in found.segments[:-1]] == [WHOLE] * (len(found.segments) - 1)


async def test_closed_ledgers_become_objects_of_their_own_side_by_side() -> None:
    """Byte for byte the daemon's, in order, with manifests that know what lay before; the plan says what a run does."""
    rig = await idle()
    stores = stores_of(rig)
    plan = await plan_topic(stores, TOPIC)
    assert (plan.method, plan.origin, len(plan.ranges), plan.probes) == (WHOLE, Origin.NEW, 6, 0)
    runner = LocalRunner(rig)
    async with asyncio.timeout(PATIENCE_S):
        ended = await run_of(rig, runner).run()
    assert (ended.committed, ended.ranges_done, runner.at_once_most) == (6, 6, 2)
    found = await map_of(rig)
    assert found.history is not None
    assert (found.history.method, found.history.boundary) == (WHOLE, 6)
    assert [str(one.range) for one in found.segments] == [
        str(one) for one in (found.segments[n].range for n in range(6))
    ]
    assert [(one.begin, one.end) for one in found.segments] == [(Position(n, 0), Position(n, 29)) for n in range(6)]
    ours = [await rig.store.get(one.keys.data) for one in found.segments]
    for number, one in enumerate(found.segments):
        past = manifest_bytes.decode(await rig.store.get(one.keys.manifest), key="manifest").past
        assert past is not None
        assert (past.entries, past.since) == (30 * number, Position(0, 0))
    ((_, status),) = await job.status(stores, JobTopics(topics=[TOPIC]))
    assert status is not None
    assert (status.method, status.done) == (WHOLE, True)
    daemons = await by_ledger(threshold_bytes=0)
    async with daemons.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.offloaded == Position(5, 29))
    assert ours == [await daemons.store.get(one.keys.data) for one in (await map_of(daemons)).segments]
    with pytest.raises(AlreadyDone):
        await run_of(rig).run()
    await drained(rig, 200)


@pytest.mark.parametrize("killed_at", [1, 3, 6])
async def test_a_driver_that_dies_is_succeeded_without_a_ledger_written_twice(killed_at: int) -> None:
    """The plan is on record: the next run takes it up as it is, and gc knows all of it meanwhile."""
    rig = await idle()

    async def hang(task: SegmentTask, number: int) -> None:
        if number >= killed_at:
            await asyncio.Event().wait()

    store, first = rig.tree.connect(), LocalRunner(rig, hang)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, first, store=store, slots=3, method=WHOLE).run())
        await until(lambda: first.at_once > 0 and len(first.ran) - first.at_once == killed_at - 1)
        store.expire()
        running.cancel()
    begun = set(await rig.tree.connect().children(paths.history_attempts(TOPIC)))
    assert begun <= {str(one) for one in (await references.read(rig.tree.connect())).attempts}
    assert (await plan_topic(stores_of(rig), TOPIC)).split
    runner = LocalRunner(rig)
    async with asyncio.timeout(PATIENCE_S):
        await run_of(rig, runner, me="second").run()
    assert len(runner.ran) <= 7 - killed_at
    assert begun <= {str(one.segment_id) for one in (await map_of(rig)).segments}
    await drained(rig, 200)


async def test_a_daemon_gives_its_ledgers_to_a_job_and_goes_on_behind_them() -> None:
    """The job resumes its attempt, and it commits nothing of history any more; what closes later is its."""
    rig = await by_ledger(threshold_bytes=0)
    faults = Faults()
    rig.objects = FaultyStore(rig.store, faults)
    faults.fail("complete_upload", Transient("slow"), times=1_000_000)
    async with asyncio.timeout(PATIENCE_S), rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.attempt is not None and topic.attempt.seal is not None)
        begun = topic.attempt
        assert begun is not None
        assert (await plan_topic(stores_of(rig), TOPIC)).origin is Origin.NEW
        await run_of(rig, LocalRunner(rig, healing(faults))).run()
        assert begun.segment_id == (await map_of(rig)).segments[0].segment_id
        await until(lambda: committed_by(engine) == [*range(6)])
        assert rig.ledgers is not None
        await rig.ledgers.append(TOPIC, payloads(230)[200:])
        await until(lambda: committed_by(engine) == [*range(7)])
    await drained(rig, 230)


async def test_an_idle_owner_hears_of_the_plan() -> None:
    """It had nothing to write, and would never have been fenced: it claims the topic anew, and follows the job."""
    rig = await by_ledger()
    async with asyncio.timeout(PATIENCE_S), rig.engine() as engine:
        await enabled(engine)
        await run_of(rig).run()
        await until(lambda: committed_by(engine) == [*range(6)])
    await drained(rig, 200)


def committed_by(engine: Engine) -> list[int]:
    """Return the ledgers that the owner knows to be committed."""
    topic = engine.find(TOPIC)
    return [one.begin.ledger_id for one in topic.map.segments] if topic is not None else []


def healing(faults: Faults) -> Callable[[SegmentTask, int], Awaitable[None]]:
    """Return what mends the bucket once an executor begins."""

    async def mend(task: SegmentTask, number: int) -> None:
        faults.heal()

    return mend


async def test_a_ledger_that_was_streamed_in_part_is_streamed_to_its_end() -> None:
    """No whole object can hold the rest; those behind it go as a whole."""
    rig = await rig_with(40)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until(lambda: topic.map.unfinished is None and topic.offloaded == target)
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(200)[40:])
    rig.policy = replace(rig.policy, method=WHOLE)
    plan = await plan_topic(stores_of(rig), TOPIC)
    assert [str(one.begin) for one in plan.ranges] == ["1:10", "2:0", "3:0", "4:0", "5:0"]
    async with asyncio.timeout(PATIENCE_S):
        await run_of(rig).run()
    found = await map_of(rig)
    methods = {one.begin.ledger_id: one.method for one in found.segments if one.begin >= Position(1, 10)}
    assert methods == {1: OffloadMethod.STREAMING, **dict.fromkeys(range(2, 6), WHOLE)}
    rig.policy = replace(rig.policy, method=OffloadMethod.STREAMING)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    await whole(rig)


async def test_a_history_that_was_split_for_one_method_is_split_again_for_another() -> None:
    """What is committed stays; what was begun the other way goes to the trash."""
    rig = await planned()

    async def hang(task: SegmentTask, number: int) -> None:
        if number > 1:
            await asyncio.Event().wait()

    store, first = rig.tree.connect(), LocalRunner(rig, hang)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, first, store=store, slots=1).run())
        await until(lambda: len(first.ran) == 2)
        while (await map_of(rig)).find(Position(1, 9)) is None:  # the driver commits what the first one has stored
            await asyncio.sleep(0)  # noqa: TID251 - yields
        store.expire()
        running.cancel()
    rig.policy = replace(rig.policy, method=WHOLE)
    plan = await plan_topic(stores_of(rig), TOPIC)
    assert (plan.split, str(plan.ranges[0].begin)) == (False, "1:10")
    async with asyncio.timeout(PATIENCE_S):
        await run_of(rig, me="next").run()
    found = await whole(rig)
    assert [one.method for one in found.segments[2:6]] == [WHOLE] * 4
    assert found.history is not None
    ranges = await stored_history.load(rig.tree.connect(), TOPIC, found.history.ranges)
    assert len(ranges.ranges) == 5


async def test_a_daemons_small_history_is_taken_over_with_what_it_has_begun() -> None:
    """The plan becomes the job's in one transaction with the attempt; the daemon follows it then."""
    rig = await rig_with(200)
    faults = Faults()
    rig.objects = FaultyStore(rig.store, faults)
    faults.fail("complete_upload", Transient("slow"), times=1_000_000)
    async with asyncio.timeout(PATIENCE_S), rig.engine() as engine:
        topic = await enabled(engine)
        store = rig.tree.connect()
        while "attempt" not in await store.children(paths.history(TOPIC)):
            await rig.clock.sleep(0.01)
        found = await plan_topic(stores_of(rig), TOPIC)
        assert (found.origin, found.method) == (Origin.DAEMON, OffloadMethod.STREAMING)
        with pytest.raises(BackfillFailed, match="being offloaded by its daemon"):
            await job.cancel(stores_of(rig), TOPIC, discard=False)

        runner = LocalRunner(rig, healing(faults))
        await backfill(rig, runner).run()
        assert runner.ran[0].again
        assert "attempt" not in await store.children(paths.history(TOPIC))
        await until(lambda: topic.map.unfinished is None)
        assert topic.map.history is not None
        assert topic.map.history.worker is Worker.JOB
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    await whole(rig)


async def test_taking_over_whose_answer_is_lost_is_done_once() -> None:
    """It is read back, and nothing is planned twice."""
    rig = await idle()
    store = LosesPlans(rig.tree.connect(), Faults())
    run = run_of(rig)
    run._context = replace(run._context, metadata=store)
    async with asyncio.timeout(PATIENCE_S):
        await run.run()
    assert store.lost == 1
    found = await map_of(rig)
    assert found.history is not None
    assert found.history.epoch == 2
    await drained(rig, 200)


class LosesPlans(FaultyMetadata):
    """A store whose first answer to a plan is lost."""

    lost = 0

    async def transact(self, steps: Sequence[Step]) -> None:
        """Carry it out, and once say that nobody knows."""
        await super().transact(steps)
        if not self.lost and any(isinstance(one, Create) and one.path == paths.history_plan(TOPIC) for one in steps):
            self.lost = 1
            raise OutcomeUnknown("nobody knows")


async def test_a_length_that_is_wrong_is_counted_at_the_second_try() -> None:
    """An object is never cut short: the first attempt fails, and the ledger is read to know."""
    rig = await idle()
    assert isinstance(rig.ledgers, MemoryLedgers)
    true_length = rig.ledgers.length_at

    async def wrong(topic: object, ledger_id: int, entry_id: int) -> int:
        return await true_length(TOPIC, ledger_id, entry_id) - (7 if ledger_id == 2 else 0)

    rig.ledgers.length_at = wrong  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE_S):
        ended = await run_of(rig).run()
    assert ended.retries == 1
    rig.ledgers.length_at = true_length  # type: ignore[method-assign]
    await drained(rig, 200)


async def test_a_ledger_that_is_trimmed_under_an_executor_is_a_loss_in_its_place() -> None:
    """Those around it are whole."""
    rig = await idle()
    ledgers = rig.ledgers
    assert ledgers is not None

    async def trim(task: SegmentTask, number: int) -> None:
        if number == 1:
            await ledgers.delete(TOPIC, 0)

    async with asyncio.timeout(PATIENCE_S):
        ended = await run_of(rig, LocalRunner(rig, trim), slots=1).run()
    assert (ended.losses, ended.committed) == (1, 5)
    assert [str(one.begin) for one in (await map_of(rig)).segments] == [f"{n}:0" for n in range(1, 6)]


async def test_what_a_run_cannot_take_is_told_with_the_reason() -> None:
    """Nothing old, a topic that brokers have begun with, one that is not there."""
    rig = await idle(20)
    with pytest.raises(AlreadyDone, match="before the newest"):
        await run_of(rig).run()
    rig = await idle()

    class Brokers:
        async def offloaded(self, topic: object) -> list[LedgerInfo]:
            assert rig.ledgers is not None
            return list(await rig.ledgers.ledgers(TOPIC))[2:3]

    rig.offloads = Brokers()
    with pytest.raises(BackfillFailed, match="brokers have offloaded"):
        await run_of(rig).run()
    rig = await rig_with(200, order=HistoryOrder.HISTORY_FIRST)
    rig.history_bytes_max = 4 << 30
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.offloaded is not None)
    with pytest.raises(BackfillFailed, match="no planned history"):
        await backfill(rig).run()
