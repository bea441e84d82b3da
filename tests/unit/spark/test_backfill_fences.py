"""What keeps a backfill apart from others: claims, writers of one segment, references, cancel; plans and limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, Fenced, Transient
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.metadata import history, paths
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.attempt import AttemptStatus
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.spark.backfill import backfill as job
from offloaderd.spark.backfill.backfill import Progress
from offloaderd.spark.backfill.plan import BackfillFailed, plan_topic
from offloaderd.spark.backfill.record import JobRecord
from offloaderd.spark.backfill.transfer import hand_back
from offloaderd.spark.jobs import lease as backfill_lease
from offloaderd.spark.jobs.driver import Driver, JobTopics
from offloaderd.spark.jobs.executors import RatedPace, Stores, share
from offloaderd.spark.jobs.lease import Driven
from offloaderd.spark.jobs.task import Outcome, SegmentTask, write_segment
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.upkeep.gc import references
from tests.patience import PATIENCE_S
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, until
from tests.unit.spark.backfill_rig import LocalRunner, backfill, map_of, planned, whole

if TYPE_CHECKING:
    from tests.unit.rigs.rig import Rig


async def stopped(rig: Rig, *, segments: int) -> LocalRunner:
    """Run a backfill and let its driver die while its executors write so many segments and cannot end."""

    async def hang(task: SegmentTask, number: int) -> None:
        await asyncio.Event().wait()

    runner, store = LocalRunner(rig, hang), rig.tree.connect()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, runner, store=store, slots=segments).run())
        await until(lambda: len(runner.ran) == segments)
        store.expire()
        running.cancel()
    return runner


def stores_of(rig: Rig) -> Stores:
    """What a command opens."""
    store, ledgers = rig.tree.connect(), rig.ledgers
    assert ledgers is not None
    return Stores(context=rig.context(store, source=ledgers), source=ledgers, book=rig.book(store))


async def test_a_claim_is_one_drivers_until_it_is_released_or_deposed() -> None:
    """Each claim raises the number; who is deposed is told by its version."""
    rig = await planned(100)
    store = rig.tree.connect()
    first = await backfill_lease.claim(store, TOPIC, "first", rig.clock)
    await backfill_lease.check_free(store, TopicName.parse("public/default/other"))
    with pytest.raises(Driven, match="driver first"):
        await backfill_lease.check_free(store, TOPIC)
    with pytest.raises(Driven):
        await backfill_lease.claim(rig.tree.connect(), TOPIC, "second", rig.clock)
    second = await backfill_lease.claim(rig.tree.connect(), TOPIC, "second", rig.clock, depose=True)
    assert (first.epoch, second.epoch, second.epoch_version) == (1, 2, first.epoch_version + 1)
    await backfill_lease.release(store, first)
    with pytest.raises(Driven, match="driver second"):
        await backfill_lease.check_free(store, TOPIC)
    await backfill_lease.release(store, second)
    await backfill_lease.check_free(store, TOPIC)


async def test_a_claim_whose_answer_was_lost_is_found_again() -> None:
    """It is not claimed twice."""
    rig = await planned(100)
    faults = Faults()
    store = FaultyMetadata(rig.tree.connect(), faults)
    faults.lose_answer("transact")
    faults.fail("get", Transient("away"))
    claim = await backfill_lease.claim(store, TOPIC, "me", rig.clock)
    path = paths.history_driver(TOPIC)
    node = await store.get(path)
    assert (claim.epoch, claim.epoch_version) == (1, node.version)
    assert ownership.decode_epoch(node.value, path=path).daemon_id == "me"


async def test_a_dead_drivers_holder_goes_with_its_session() -> None:
    """The next one need not depose anybody."""
    rig = await planned(100)
    store = rig.tree.connect()
    await backfill_lease.claim(store, TOPIC, "first", rig.clock)
    store.expire()
    assert (await backfill_lease.claim(rig.tree.connect(), TOPIC, "second", rig.clock)).epoch == 2


async def test_what_a_job_has_written_is_referred_to_whatever_its_ranges_say() -> None:
    """gc goes by the attempt, which is there before the first byte and until the commit."""
    rig = await planned()
    runner = await stopped(rig, segments=2)
    store = rig.tree.connect()
    path = paths.history_range_node(TOPIC, 0)
    node = await store.get(path)
    ranges = history_record.decode_ranges(node.value, path=path)
    forgotten = [replace(one, state=history_record.RangeState.PLANNED, segment_id=None) for one in ranges]
    await store.replace(path, history_record.encode_ranges(forgotten), node.version)
    seen = await references.read(store)
    assert {one.segment_id for one in runner.ran} == set(seen.attempts)


async def test_an_executor_waits_for_another_that_writes_the_same_segment() -> None:
    """As long as that one lives; both at once would write over each other's record."""
    rig = await planned()
    (task,) = (await stopped(rig, segments=1)).ran
    other = rig.tree.connect()
    claim = await backfill_lease.claim(other, TOPIC, "next", rig.clock)
    task = replace(task, claim=claim, again=True)
    await other.create(paths.history_writer(TOPIC, task.segment_id), b"", ephemeral=True)
    ledgers = rig.ledgers
    assert ledgers is not None
    store = rig.tree.connect()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        writing = group.create_task(write_segment(rig.context(store, source=ledgers), ledgers, task))
        await rig.clock.sleep(5)
        assert not writing.done()
        other.expire()
        written = await writing
    assert (written.outcome, written.payload_bytes) == (Outcome.READY, 4000)
    again = await write_segment(rig.context(store, source=ledgers), ledgers, task)
    assert (again.outcome, again.payload_bytes) == (Outcome.READY, 0)
    assert await store.children(paths.history_writers(TOPIC)) == []


async def test_an_executor_that_lost_its_session_leaves_its_successors_lock() -> None:
    """Its own went with the session; what lies there now is somebody else's."""
    rig = await planned()
    (task,) = (await stopped(rig, segments=1)).ran
    claim = await backfill_lease.claim(rig.tree.connect(), TOPIC, "next", rig.clock)
    store, other, ledgers = rig.tree.connect(), rig.tree.connect(), rig.ledgers
    assert ledgers is not None
    faults = Faults()
    faults.fail("create_upload", Transient("slow"), times=-1)
    faults.fail("list_uploads", Transient("slow"), times=-1)
    rig.objects = FaultyStore(rig.store, faults)
    path = paths.history_writer(TOPIC, task.segment_id)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        task = replace(task, claim=claim, patience_s=PATIENCE_S)
        writing = group.create_task(write_segment(rig.context(store, source=ledgers), ledgers, task))
        await until(lambda: faults.fired > 0)
        store.expire()
        await other.create(path, b"", ephemeral=True)
        written = await writing
    assert (written.outcome, await other.children(paths.history_writers(TOPIC))) == (
        Outcome.UNFINISHED,
        [str(task.segment_id)],
    )


async def test_an_executor_that_was_taken_for_lost_changes_no_record_of_its_successor() -> None:
    """Both write under the driver's claim; the record is that of whoever wrote it last, and says that all is stored."""
    rig = await planned()
    (task,) = (await stopped(rig, segments=1)).ran
    store = rig.tree.connect()
    claim = await backfill_lease.claim(store, TOPIC, "next", rig.clock)
    path = paths.history_job_attempt(TOPIC, task.segment_id)
    first, second = (AttemptLog(store, claim, clock=rig.clock, metrics=rig.metrics, path=path) for _ in range(2))
    begun = await first.load()
    assert begun is not None
    await first.update(replace(begun, upload_id="u"))
    known = await second.load()
    assert known is not None
    await second.update(stored := replace(known, status=AttemptStatus.OFFLOADED))
    for late in (begun, replace(begun, upload_id="v")):
        with pytest.raises(Conflict):
            await first.update(late)
    assert await second.load() == stored


async def test_an_executor_of_a_deposed_driver_is_fenced() -> None:
    """It changes no record, whatever it has stored."""
    rig = await planned()
    (task,) = (await stopped(rig, segments=1)).ran
    store, ledgers = rig.tree.connect(), rig.ledgers
    assert ledgers is not None
    await backfill_lease.claim(store, TOPIC, "next", rig.clock)
    path = paths.history_job_attempt(TOPIC, task.segment_id)
    before = await store.get(path)
    written = await write_segment(rig.context(rig.tree.connect(), source=ledgers), ledgers, task)
    assert written.outcome is Outcome.FENCED
    assert await store.get(path) == before


async def test_a_history_that_was_given_back_is_out_of_the_jobs_reach() -> None:
    """A driver that was paused meanwhile, and its executors, change nothing of what is the daemon's."""
    rig = await planned()
    (task,) = (await stopped(rig, segments=1)).ran
    stores = stores_of(rig)
    store, ledgers = stores.context.metadata, rig.ledgers
    assert ledgers is not None
    claim = await backfill_lease.claim(rig.tree.connect(), TOPIC, "paused", rig.clock)
    record = await JobRecord.open(stores.context, ledgers, claim, me="paused", patience_s=5.0)
    await record.hold()
    await hand_back(stores_of(rig), TOPIC)
    before = (await map_of(rig)).history
    assert before is not None
    assert (before.worker, before.holder) == (history_record.Worker.DAEMON, "")
    with pytest.raises(Fenced):
        await record.hold()
    written = await write_segment(rig.context(store, source=ledgers), ledgers, replace(task, claim=claim))
    assert written.outcome is Outcome.FENCED
    assert (await map_of(rig)).history == before
    assert await store.children(paths.history_attempts(TOPIC)) == []


@pytest.mark.parametrize("discard", [False, True])
async def test_a_cancelled_backfill_is_gone_on_with_or_discarded(*, discard: bool) -> None:
    """Nobody holds it afterwards; what was begun stays for the next run, or goes to the trash."""
    rig = await planned()
    runner = await stopped(rig, segments=2)
    assert await job.cancel(stores_of(rig), TOPIC, discard=discard) == (2, OffloadMethod.STREAMING)
    store = rig.tree.connect()
    found = await catalog.load(store, TOPIC)
    assert found.history is not None
    assert found.history.holder == ""
    left = await store.children(paths.history_attempts(TOPIC))
    assert len(left) == (0 if discard else 2)
    if discard:
        ranges = await history.load(store, TOPIC, found.history.ranges)
        assert {one.state.value for one in ranges.ranges} == {"planned"}
        assert len(await store.children(paths.trash(TOPIC))) == 2
        assert await (await Owned.claim(rig)).empty_trash() == 0
        assert await rig.leftovers() == []
    next_run = LocalRunner(rig)
    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, next_run, me="next").run()
    same = {one.segment_id for one in runner.ran} & {one.segment_id for one in next_run.ran}
    assert len(same) == (0 if discard else 2)
    await whole(rig)


async def test_a_plan_says_what_a_run_then_does() -> None:
    """Before history is split, in the middle, and when nothing is left; probes are those of the run."""
    rig = await planned()
    stores = stores_of(rig)
    first = await plan_topic(stores, TOPIC)
    assert [one.entries for one in first.ranges] == [40, 40, 40, 40, 20]
    assert (first.entries, first.payload_bytes, first.split) == (180, 18_000, False)
    assert first.probes <= first.boundaries * 6
    larger = await plan_topic(stores, TOPIC, 9000)
    assert len(larger.ranges) == 2
    await stopped(rig, segments=1)
    known = await plan_topic(stores, TOPIC, 9000)
    assert (known.split, known.segment_bytes, len(known.ranges)) == (True, 4000, 5)
    assert known.probes == first.probes
    ((_, state),) = await job.status(stores, JobTopics(namespaces=[("public", "default")]))
    assert state is not None
    assert (state.driver, state.ranges, state.written, state.entries_left) == ("", 5, 1, 180)
    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig).run()
    ((_, refused),) = await job.plan(stores, JobTopics(topics=[TOPIC]), 0)
    assert isinstance(refused, BackfillFailed)
    assert await job.checked(stores, JobTopics(topics=[TOPIC])) == ([], [TOPIC])
    assert await job.checked(stores, JobTopics(namespaces=[("public", "default")])) == ([], [])


async def test_one_topic_that_fails_does_not_end_the_others() -> None:
    """Each is told of by itself; all that are wrong by name are named before anything begins."""
    rig = await planned()
    stores = stores_of(rig)
    unknown, other = TopicName.parse("public/default/unknown"), TopicName.parse("public/default/other")
    with pytest.raises(BackfillFailed) as error:
        await job.checked(stores, JobTopics(topics=[unknown, TOPIC, other]))
    assert str(unknown) in error.value.message
    assert str(other) in error.value.message
    driver = Driver[SegmentTask, Progress](write=LocalRunner(rig).run, slots=asyncio.Semaphore(2), me="driver")
    async with asyncio.timeout(PATIENCE_S):
        ended = await job.drive(stores, [unknown, TOPIC], driver, 0)
    assert isinstance(ended[0].error, BackfillFailed)
    assert ended[1].progress is not None
    assert (await map_of(rig)).unfinished is None


async def test_a_topic_that_is_named_twice_is_worked_on_once() -> None:
    """By its name, and by its namespace: a second driver of one run would be refused by the first."""
    rig = await planned()
    named = JobTopics(topics=[TOPIC, TOPIC], namespaces=[(TOPIC.tenant, TOPIC.namespace)])
    assert await named.enabled(rig.tree.connect()) == [TOPIC]


def test_limits_are_split_over_all_executors() -> None:
    """What each may use adds up to no more than the limit; no limit stays none."""
    assert share(1000, 3) * 3 <= 1000
    assert share(2, 3) == 1
    assert share(0, 8) == 0


async def test_parts_are_sent_at_their_rate() -> None:
    """Each counts as a whole part; a second's worth goes at once."""
    slept: list[float] = []

    class Told:
        def monotonic(self) -> float:
            return 100.0

        async def sleep(self, seconds: float) -> None:
            slept.append(round(seconds, 3))

    pace = RatedPace(8, bytes_per_s=100, part_bytes=50, clock=Told())  # type: ignore[arg-type]
    for _ in range(5):
        async with pace.held():
            pass
    assert slept == [0.5, 1.0]
