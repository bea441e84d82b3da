"""Segments that are rewritten by a job: V1, V2, merged; killed anywhere, beside an owner; on in-memory twins."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Fenced, Transient
from offloaderd.core.model import HistoryOrder, OffloadMethod, Position, TopicName
from offloaderd.format import manifest_bytes
from offloaderd.format.verify import check_index, decode_verified_block
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.spark import convert
from offloaderd.spark.convert import ConversionFailed, Progress, Target, TopicConversion, Wish, plan_objects
from offloaderd.spark.jobs import lease as backfill_lease
from offloaderd.spark.jobs.driver import Driver
from offloaderd.spark.jobs.lease import Driven
from offloaderd.spark.jobs.task import RewriteTask, rewrite_segment
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.stored import Site
from tests.patience import PATIENCE_S
from tests.unit.history.test_history import rig_with
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, enabled, offloader_of, payloads, until
from tests.unit.spark.backfill_rig import map_of, planned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.spark.jobs.task import Written
    from offloaderd.testing.faults import When
    from tests.unit.rigs.rig import Rig

STREAMING, WHOLE = OffloadMethod.STREAMING, OffloadMethod.LEDGER_BASED
SITE = Site(cluster="test", bucket="b", prefix="seg/")


async def streamed(entries: int = 200, *, ledger_entries: int = 30, segment_bytes: int = 4000) -> Rig:
    """A topic that is all offloaded in streaming segments, and its daemon gone."""
    rig = await rig_with(
        entries, order=HistoryOrder.HISTORY_FIRST, ledger_entries=ledger_entries, segment_bytes=segment_bytes
    )
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    return rig


class Runner:
    """Carries tasks out on this loop, each with a session of its own; `before` is called with each, and may raise."""

    def __init__(self, rig: Rig, before: Callable[[RewriteTask], Awaitable[None]] | None = None) -> None:
        self.ran: list[RewriteTask] = []
        self._rig = rig
        self._before = before

    async def run(self, task: RewriteTask) -> Written:
        """Write the object as an executor would."""
        self.ran.append(task)
        store = self._rig.tree.connect()
        try:
            if self._before is not None:
                await self._before(task)
            return await rewrite_segment(self._rig.context(store, source=None), task)
        finally:
            store.close()


def conversion(
    rig: Rig,
    target: Target,
    *,
    runner: Runner | None = None,
    store: MetadataStore | None = None,
    me: str = "driver",
    segment_bytes: int = 4000,
    small_bytes: int = 2000,
) -> TopicConversion:
    """One run over the rig's topic."""
    context = rig.context(store or rig.tree.connect(), source=None)
    driver: Driver[RewriteTask, Progress] = Driver(
        write=(runner or Runner(rig)).run, slots=asyncio.Semaphore(2), me=me, patience_s=5.0
    )
    return TopicConversion(
        context, TOPIC, driver, Wish(target=target, segment_bytes=segment_bytes, small_bytes=small_bytes)
    )


async def stored(rig: Rig) -> list[bytes]:
    """Return the entries of the map in order, each read from the bucket; of a segment what the map holds of it."""
    found: list[bytes] = []
    for segment in (await map_of(rig)).segments:
        data = await rig.store.get(segment.keys.data)
        described = manifest_bytes.decode(await rig.store.get(segment.keys.manifest), key="manifest")
        check_index(await rig.store.get(segment.keys.index), described, key="index")
        assert segment.is_run_of(described.ledgers)
        for block in described.blocks:
            piece = data[block.offset : block.offset + block.length]
            batch = decode_verified_block(piece, block, key="data", method=segment.method)
            if segment.holds(batch.first):
                found += [bytes(one) for one in batch.payloads]
    return found


async def whole(rig: Rig, count: int = 200) -> TopicMap:
    """Everything is there once, in order; when the trash was emptied nothing is left over, and a rebuild agrees."""
    found = await map_of(rig)
    assert await stored(rig) == payloads(count)
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        assert found.joined(before.end, after.begin)
    (plan,) = rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None)).topics
    assert not plan.blocked, plan.problems
    assert [entry for one in plan.map.segments for entry in one.slices] != []
    assert plan.map.segments[-1].end == found.segments[-1].end
    assert await (await Owned.claim(rig)).empty_trash() == 0
    assert await rig.leftovers() == []
    (plan,) = rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None)).topics
    assert plan.map.segments == found.segments
    assert await rig.tree.connect().children(paths.history_attempts(TOPIC)) == []
    return found


def shape(topic_map: TopicMap) -> list[tuple[str, str]]:
    """Return what the segments are, and where they begin."""
    return [(one.method.value, str(one.begin)) for one in topic_map.segments]


async def test_segments_become_whole_ledgers_and_streaming_ones_again() -> None:
    """All but the newest ledger; twice there and back the entries are the same, and the old objects are gone."""
    rig = await streamed()
    ended = await conversion(rig, Target.LEDGER_BASED).run()
    assert (ended.done, ended.goals, ended.failures) == (6, 6, ())
    found = await whole(rig)
    assert shape(found)[:6] == [("ledger-based", f"{n}:0") for n in range(6)]
    ended = await conversion(rig, Target.STREAMING, segment_bytes=9000).run()
    assert (ended.done, ended.bytes_done) == (2, 18_000)
    found = await whole(rig)
    assert shape(found)[:2] == [("streaming", "0:0"), ("streaming", "3:0")]
    assert [found.ends[n].entries for n in range(6)] == [30] * 6
    assert (await conversion(rig, Target.STREAMING).run()).goals == 0
    await conversion(rig, Target.LEDGER_BASED).run()
    assert shape(await whole(rig))[5] == ("ledger-based", "5:0")


async def test_small_segments_become_larger_ones() -> None:
    """Neighbours up to the size, also several of one ledger; those that are large, and the newest, stay."""
    rig = await streamed(200, ledger_entries=50, segment_bytes=700)
    before = await map_of(rig)
    ended = await conversion(rig, Target.MERGED, segment_bytes=3500, small_bytes=1000).run()
    found = await whole(rig)
    assert ended.done == len({one.segment_id for one in found.segments} - {one.segment_id for one in before.segments})
    assert ended.done > 2
    assert len(found.segments) < len(before.segments) / 2
    assert max(one.payload_bytes for one in found.segments) == 3500
    again = await conversion(rig, Target.MERGED, segment_bytes=3500, small_bytes=1000).run()
    assert again.goals == 0


class Killed:
    """A plan of faults: from one moment on nothing of it reaches any store, before or after a certain write."""

    WRITES = ("create", "transact", "put", "create_upload", "upload_part", "complete_upload", "delete")

    def __init__(self, at: int) -> None:
        self.moments = 0
        self.dead = asyncio.Event()
        self._at = at

    def __call__(self, operation: str, key: str, when: When) -> Exception | None:
        """Count the moments around writes."""
        if not self.dead.is_set() and operation in self.WRITES:
            self.moments += 1
            if self.moments == self._at:
                self.dead.set()
        return Transient("dead") if self.dead.is_set() else None


async def killed(rig: Rig, target: Target, at: int) -> int:
    """Run a conversion whose process dies at a moment; returns how many moments there were until then."""
    kill, objects = Killed(at), rig.store
    tree = rig.tree.connect()
    rig.objects = FaultyStore(objects, kill)
    store = FaultyMetadata(tree, kill)
    context = rig.context(store, source=None)
    driver: Driver[RewriteTask, Progress] = Driver(
        write=partial(rewrite_segment, context), slots=asyncio.Semaphore(1), me=f"dies-{at}"
    )
    wish = Wish(target=target, segment_bytes=2500, small_bytes=2500)
    async with asyncio.timeout(PATIENCE_S):
        running = asyncio.ensure_future(TopicConversion(context, TOPIC, driver, wish).run())  # noqa: TID251 - to be killed
        dying = asyncio.ensure_future(kill.dead.wait())  # noqa: TID251 - as above
        await asyncio.wait([running, dying], return_when=asyncio.FIRST_COMPLETED)
        tree.expire()
        for one in (running, dying):
            one.cancel()
        await asyncio.wait([running, dying])
        if not kill.dead.is_set():
            running.result()  # one that dies at its very last write may have ended all the same
    rig.objects = objects
    return kill.moments


@pytest.mark.parametrize("target", Target)
async def test_a_conversion_may_be_killed_at_any_write(target: Target) -> None:
    """Before or after some of them: the map is whole then, gc knows all, and the next run ends what was begun."""
    at, moments = 0, 1
    while at <= moments:
        at += 6
        rig = await streamed(40, ledger_entries=10, segment_bytes=1200)
        if target is Target.STREAMING:
            await conversion(rig, Target.LEDGER_BASED).run()
        moments = await killed(rig, target, at)
        assert await stored(rig) == payloads(40)
        begun = set(await rig.tree.connect().children(paths.history_attempts(TOPIC)))
        assert begun <= {str(one) for one in (await references.read(rig.tree.connect())).attempts}
        async with asyncio.timeout(PATIENCE_S):
            ended = await conversion(rig, target, me="next", segment_bytes=2500, small_bytes=2500).run()
        assert ended.failures == ()
        await whole(rig, 40)
        if moments < at:
            break
    assert at > 24


@pytest.mark.parametrize("target", [Target.LEDGER_BASED, Target.MERGED])
async def test_an_exchange_whose_answer_is_lost_is_read_back(target: Target) -> None:
    """It is neither repeated nor undone."""
    rig = await streamed(200, segment_bytes=1500)
    faults = Faults()
    store = FaultyMetadata(rig.tree.connect(), faults)
    run = conversion(rig, target, store=store)
    lose = run._exchange

    async def exchange(item: object) -> None:
        faults.lose_answer("transact")
        await lose(item)  # type: ignore[arg-type]

    run._exchange = exchange  # type: ignore[method-assign]
    ended = await run.run()
    assert ended.done == ended.goals > 1
    await whole(rig)


async def test_the_owner_follows_before_it_deletes_anything() -> None:
    """It reads what is there, empties the trash, and goes on writing at its end."""
    rig = await streamed()
    async with asyncio.timeout(PATIENCE_S), rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await conversion(rig, Target.LEDGER_BASED).run()
        await until(lambda: sum(one.method is WHOLE for one in topic.map.segments) == 6)
        await until_empty(rig)
        await conversion(rig, Target.STREAMING, segment_bytes=6000).run()
        await until_empty(rig)
        await until(lambda: all(one.method is STREAMING for one in topic.map.segments))
        assert rig.ledgers is not None
        last = await rig.ledgers.append(TOPIC, payloads(230)[200:])
        await topic.request_roll()
        await until(lambda: topic.offloaded == last)
        assert engine.find(TOPIC) is topic
    await whole(rig, 230)


async def until_empty(rig: Rig) -> None:
    """Wait until nothing is left of the old objects."""
    while await rig.tree.connect().children(paths.trash(TOPIC)) or await rig.leftovers():
        await rig.clock.sleep(0.01)


async def test_what_retention_takes_meanwhile_is_not_brought_back() -> None:
    """The oldest segment leaves, and a ledger is marked, while their objects are written: these are given up."""
    rig = await streamed(segment_bytes=3000)
    await conversion(rig, Target.LEDGER_BASED).run()
    await (await Owned.claim(rig)).empty_trash()
    owner = await Owned.claim(rig)

    async def trim(task: RewriteTask) -> None:
        if task.begin == Position(0, 0) and not task.again and not owner.offloader.map.deleted:
            await owner.offloader.record.mark_deleted([0, 3])
            assert await owner.offloader.record.remove_oldest(owner.offloader.map.segments[0], "test")

    ended = await conversion(rig, Target.STREAMING, runner=Runner(rig, trim), segment_bytes=3000).run()
    assert (ended.done, len(ended.failures)) == (4, 2), ended.failures
    found = await map_of(rig)
    assert shape(found)[:3] == [("streaming", "1:0"), ("streaming", "2:0"), ("ledger-based", "3:0")]
    assert set(found.deleted) == {3}
    assert found.floor == Position(0, 29)
    await (await Owned.claim(rig)).empty_trash()
    assert await rig.leftovers() == []


async def test_an_owner_that_knows_the_map_of_before_looks_again_before_it_changes_it() -> None:
    """Its marks name versions of contexts that have changed: they are refused, and made of what is there now."""
    rig = await streamed(segment_bytes=3000)
    owner = await Owned.claim(rig)
    await conversion(rig, Target.LEDGER_BASED).run()
    assert await owner.empty_trash() > 0
    before, known = await map_of(rig), owner.offloader.map
    assert known != before
    await owner.offloader.record.mark_deleted([0])
    marked = await map_of(rig)
    assert (marked, marked.segments) == (owner.offloader.map, before.segments)
    assert set(marked.deleted) == {0}
    assert await owner.empty_trash() == 0
    assert await rig.leftovers() == []


async def test_a_deposed_driver_exchanges_nothing() -> None:
    """Nor do its executors mark anything; a second one is refused while it lives."""
    rig = await streamed()
    gate = asyncio.Event()

    async def hold(task: RewriteTask) -> None:
        await gate.wait()

    async def refused(runner: Runner) -> None:
        with pytest.raises(Fenced):
            await conversion(rig, Target.LEDGER_BASED, runner=runner).run()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        runner = Runner(rig, hold)
        running = group.create_task(refused(runner))
        await until(lambda: len(runner.ran) == 2)
        with pytest.raises(Driven, match="driver driver"):
            await conversion(rig, Target.LEDGER_BASED, me="second").run()
        store = rig.tree.connect()
        claim = await backfill_lease.claim(store, TOPIC, "second", rig.clock, depose=True)
        before = await map_of(rig)
        await backfill_lease.release(store, claim)
        gate.set()
        await running
    assert await map_of(rig) == before
    await conversion(rig, Target.LEDGER_BASED, me="third").run()
    await whole(rig)


@pytest.mark.parametrize("damaged", ["data", "manifest"])
async def test_what_cannot_be_read_stays_and_the_rest_goes_on(damaged: str) -> None:
    """A flipped bit is found by its checksum, by an executor or before one is asked: nothing of it is replaced."""
    rig = await streamed(segment_bytes=3000)
    await conversion(rig, Target.LEDGER_BASED).run()
    await (await Owned.claim(rig)).empty_trash()
    segment = (await map_of(rig)).segments[1]
    key = getattr(segment.keys, damaged)
    data = bytearray(await rig.store.get(key))
    data[len(data) // 2] ^= 1
    await rig.store.put(key, bytes(data))
    ended = await conversion(rig, Target.STREAMING, segment_bytes=3000).run()
    assert (ended.done, ended.goals) == (5, 6)
    (failure,) = ended.failures
    assert key in failure
    found = await map_of(rig)
    assert found.segments[1] == segment
    assert await (await Owned.claim(rig)).empty_trash() == 0
    assert await rig.leftovers() == []


async def test_an_object_whose_executors_die_is_left_after_three_tries_and_resumed_by_the_next_run() -> None:
    """The second executor hears that another may have begun; the other objects are made meanwhile."""
    rig = await streamed(segment_bytes=3000)

    async def die(task: RewriteTask) -> None:
        if task.begin == Position(0, 0):
            raise Transient("killed")

    runner = Runner(rig, die)
    async with asyncio.timeout(PATIENCE_S):
        ended = await conversion(rig, Target.LEDGER_BASED, runner=runner).run()
    assert [task.again for task in runner.ran if task.begin == Position(0, 0)] == [False, True, True]
    assert ended.done == ended.goals - 1
    assert [failure.endswith(": killed") for failure in ended.failures] == [True]
    later = Runner(rig)
    async with asyncio.timeout(PATIENCE_S):
        ended = await conversion(rig, Target.LEDGER_BASED, runner=later, me="later").run()
    assert [task.again for task in later.ran] == [True]
    assert (ended.done, ended.goals, ended.failures) == (1, 1, ())
    assert await stored(rig) == payloads(200)
    await (await Owned.claim(rig)).empty_trash()
    assert await rig.leftovers() == []


async def test_a_cancelled_conversion_leaves_nothing_behind() -> None:
    """What was begun goes to the trash."""
    rig = await streamed()

    async def hang(task: RewriteTask) -> None:
        await asyncio.Event().wait()

    runner, store = Runner(rig, hang), rig.tree.connect()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(conversion(rig, Target.LEDGER_BASED, runner=runner, store=store).run())
        await until(lambda: len(runner.ran) == 2)
        store.expire()
        running.cancel()
    context = rig.context(rig.tree.connect(), source=None)
    assert (await convert.status(context.metadata, TOPIC)).begun == 2
    assert await convert.cancel(context, TOPIC) == 2
    assert (await convert.status(context.metadata, TOPIC)).begun == 0
    await whole(rig)


async def test_a_plan_says_what_is_left_alone_and_why() -> None:
    """The newest segment, large ones; a topic without anything, or whose history is not done, is refused."""
    rig = await streamed()
    context = rig.context(rig.tree.connect(), source=None)
    book = rig.book(context.metadata)
    options = convert.Options(target=Target.LEDGER_BASED)
    ((_, plan),) = await convert.plan(context, book, [TOPIC], options)
    assert isinstance(plan, convert.Plan)
    assert (len(plan.objects.goals), plan.entries, plan.payload_bytes) == (6, 180, 18_000)
    assert plan.objects.left == {"it is not closed, or not offloaded to its end": 1}
    ((_, refused),) = await convert.plan(context, book, [TopicName.parse("public/default/unknown")], options)
    assert isinstance(refused, ConversionFailed)
    unfinished = await planned()
    with pytest.raises(ConversionFailed, match="still being offloaded"):
        await conversion(unfinished, Target.LEDGER_BASED).run()
    found = await catalog.load(rig.tree.connect(), TOPIC)
    wish = Wish(target=Target.MERGED, segment_bytes=8000, small_bytes=5000)
    left = plan_objects(found, wish, {"other"}).left
    assert left == {"it is in another bucket": 4, "it is the newest of the tier": 1}
