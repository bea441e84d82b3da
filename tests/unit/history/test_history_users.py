"""What must not be concluded from a map while history is still to come: reading, deleting, granting, verifying."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient, Unsound
from offloaderd.core.model import HistoryOrder, LedgerEnd, Loss, Position, TierRetention
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.format import head as head_format
from offloaderd.history.boundaries import Split
from offloaderd.history.plan import left_of
from offloaderd.history.record import HistoryRecord
from offloaderd.metadata import history, paths
from offloaderd.metadata.port import Replace, Versioned
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.history import HistoryPlan, HistoryRange, RangeState, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from offloaderd.objects import keys
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import HistoryGap
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind, Level
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.grants.copy_check import segments_of
from offloaderd.upkeep.grants.grants import has_successor
from offloaderd.upkeep.retention import Limits, deletion_plan, over_limit
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import Between, TopicVerifier
from tests.unit.history.test_history import checked, map_of, plan_of, rig_with, until_done
from tests.unit.read.test_plan import segment
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.records.history import HistoryPlan as Plan
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.testing.memory.ledgers import MemoryLedgers

SITE = Site(cluster="test", bucket="b", prefix="seg/")
PLAN = HistoryPlan(
    boundary=9,
    first=3,
    last=Position(7, 9),
    order=HistoryOrder.ALONGSIDE,
    worker=Worker.DAEMON,
    planned_ms=1,
    epoch=1,
    daemon_id="one",
    entries=30,
    payload_bytes=300,
)


def map_with(plan: Plan | None = PLAN) -> TopicMap:
    """Ledger 3 is offloaded of 3, 5 and 7, and behind the boundary ledger 9."""
    planned = Versioned(history_record.encode(plan), 4) if plan is not None else None
    current = catalog.TopicMap.build(TOPIC, {}, plan=planned)
    _, current = current.with_commit(segment(2, (9, 0, 9)), {9: LedgerEnd(10, 11)})
    _, current = current.with_commit(segment(1, (3, 0, 9)), {3: LedgerEnd(10, None)})
    return current


def test_where_the_two_sides_stand() -> None:
    """Live segments go on behind their last one, or at the boundary; history behind its own last one."""
    topic_map = map_with()
    assert (topic_map.offloaded, topic_map.standing, topic_map.history_end) == ((9, 9), (9, 9), (3, 9))
    assert topic_map.history_version == 4
    assert [topic_map.awaits(Position(*at)) for at in ((3, 9), (3, 10), (5, 0), (7, 9), (8, 0), (9, 0), (9, 9))] == [
        False, True, True, True, True, False, False,
    ]  # fmt: skip
    empty = catalog.TopicMap.build(TOPIC, {}, plan=Versioned(history_record.encode(PLAN), 0))
    assert (empty.offloaded, empty.standing, empty.history_end) == (None, (7, 9), None)
    assert empty.awaits(Position(3, 0))
    done = map_with(replace(PLAN, done_ms=1))
    assert done.unfinished is None
    assert not done.awaits(Position(5, 0))


def test_losses_of_history_and_of_the_live_edge_are_apart() -> None:
    """Both may end and begin at the boundary; neither takes in the other."""
    old, new = Loss(Position(3, 9), Position(9, 0), 5), Loss(Position(7, 9), Position(12, 0), 7)
    for losses in ([old, new], [new, old]):
        current = catalog.TopicMap.build(TOPIC, {}, plan=Versioned(history_record.encode(PLAN), 0))
        for loss in losses:
            _, current = current.with_loss(loss)
        assert current.losses == (old, new)


def test_nothing_is_removed_before_history_is_done() -> None:
    """Neither what is over a limit nor what is marked: the floor says that all up to it was offloaded."""
    limits = Limits(TierRetention.LIMITED, size_bytes=1)
    assert over_limit(map_with(), limits, set(), now_ms=0) is None
    assert over_limit(map_with(replace(PLAN, done_ms=1)), limits, set(), now_ms=0) == "size"
    _, marked = removal.mark_deleted(map_with(), [3], now_ms=1)
    assert deletion_plan(marked, [3]).segments == ()
    assert deletion_plan(replace(marked, history=None), [3]).segments != ()


async def test_an_owner_removes_nothing_before_history_is_done() -> None:
    """Even if it is asked for the oldest segment by name."""
    rig = await pending()
    owned = await Owned.claim(rig)
    oldest = owned.offloader.map.segments[0]
    assert not await owned.offloader.record.remove_oldest(oldest, "age")
    assert owned.offloader.map.segments[0] == oldest


def test_ledgers_are_granted_one_by_one() -> None:
    """One that is covered is, on either side of what is missing; what follows a ledger of history is known or not."""
    topic_map = map_with()
    assert [one.begin for one in segments_of(topic_map, 3)] == [Position(3, 0)]
    assert [one.begin for one in segments_of(topic_map, 9)] == [Position(9, 0)]
    done = map_with(replace(PLAN, done_ms=1))
    with pytest.raises(Unsound):
        segments_of(replace(done, ends={**done.ends, 3: LedgerEnd(11, 5)}), 9)
    assert not has_successor(topic_map, 3)
    assert has_successor(replace(topic_map, history=None), 3)
    assert has_successor(topic_map, 9)


async def pending(entries: int = 200) -> Rig:
    """A topic whose live edge is offloaded, and nothing of its history, which is a job's."""
    rig = await rig_with(entries, daemon_bytes_max=0)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until(lambda: topic.offloaded == target)
    return rig


class Away:
    """A source that does not answer."""

    async def ledgers(self, topic: object) -> object:
        """Fail."""
        raise Transient("away")


def reader_of(rig: Rig, engine: Engine, source: object) -> TopicReader:
    """Return a reader over all tiers."""
    return TopicReader(
        maps=engine,
        policies=engine.book,
        objects=rig.store,
        source=source,  # type: ignore[arg-type]
        hot=HotBuffers(engine),
        clock=rig.clock,
        metrics=rig.metrics,
        options=ReadOptions(batch_bytes=1000),
    )


async def read(reader: TopicReader, first: Position | None = None, last: Position | None = None) -> list[bytes]:
    """Read to the end, or to `last`."""
    found: list[bytes] = []
    async with aclosing(reader.read(TOPIC, first=first, last=last)) as batches:
        async for batch, _ in batches:
            found += batch.payloads
    return found


async def test_entries_before_the_boundary_come_from_the_source_until_they_are_offloaded() -> None:
    """A read from the first position gives all of them in order at any moment; without the source it is an error."""
    rig = await pending()
    async with rig.engine("two") as engine:
        await offloader_of(engine)
        async with reader_of(rig, engine, rig.ledgers) as reader:
            assert await read(reader) == payloads(200)
        async with reader_of(rig, engine, Away()) as reader:
            with pytest.raises(Transient):
                await read(reader, Position(0, 0), Position(6, 5))
    rig.history_bytes_max = 4 << 30
    async with rig.engine("three") as engine:
        topic = await offloader_of(engine)
        async with reader_of(rig, engine, rig.ledgers) as reader:
            while topic.map.unfinished is not None:
                assert await read(reader) == payloads(200)
            assert await read(reader) == payloads(200)


async def test_a_reader_does_not_jump_over_history_that_the_source_has_lost() -> None:
    """Trimmed and not recorded yet: an error, whichever ledger it is; recorded: the loss."""
    rig = await pending()
    ledgers = rig.ledgers
    assert ledgers is not None
    async with rig.engine("two") as engine:
        for ledger_id in (0, 1, 2, 3, 4):
            await ledgers.delete(TOPIC, ledger_id)
        async with reader_of(rig, engine, ledgers) as reader:
            assert await read(reader, Position(6, 0)) == payloads(200)[180:]
            with pytest.raises(OffloaderError):
                await read(reader, Position(3, 0))
    rig.history_bytes_max = 4 << 30
    async with rig.engine("three") as engine:
        await until_done(await offloader_of(engine))
        async with reader_of(rig, engine, ledgers) as reader:
            assert await read(reader) == payloads(200)[150:]
            with pytest.raises(NotFound):
                await read(reader, Position(3, 0))


async def test_verifying_finds_no_gap_where_history_is_still_to_come() -> None:
    """It does as soon as history is said to be done."""
    rig = await rig_with(200)
    async with rig.engine() as engine:
        await until_done(await enabled(engine))
    found = await map_of(rig)
    plan = await plan_of(rig)
    assert [flaw async for flaw in flaws(rig, found)] == []
    half = replace(found, segments=(*found.segments[:2], *found.segments[-1:]))
    assert len([flaw async for flaw in flaws(rig, half)]) == 1
    undone = replace(half, history=replace(plan, done_ms=0))
    assert [flaw async for flaw in flaws(rig, undone)] == []
    none = replace(undone, segments=found.segments[-1:])
    assert [flaw async for flaw in flaws(rig, none)] == []


async def flaws(rig: Rig, topic_map: TopicMap) -> AsyncIterator[object]:
    """Verify a map."""

    class Maps:
        async def topic_map(self, topic: object) -> TopicMap:
            return topic_map

    verifier = TopicVerifier(Maps(), lambda: RetryingReader(rig.store, clock=rig.clock), [SITE])
    async for report in verifier.run(TOPIC, Level.METADATA):
        for flaw in report.flaws:
            assert isinstance(report, Between)
            yield flaw


async def test_a_map_that_was_rebuilt_without_its_history_has_it_planned_again() -> None:
    """The bucket alone names the gap; behind it the topic begins anew, and the source's older ledgers are history."""
    rig = await pending()
    known = await map_of(rig)
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None))
    assert [problem.kind for problem in plan.topics[0].problems] == [Kind.FRONT]
    rig.tree = type(rig.tree)()
    store = rig.tree.connect()
    await rebuild.write(store, plan, topics=(), enable=True, now_ms=1, progress=lambda _: None)
    assert (await map_of(rig)).segments == known.segments
    rig.history_bytes_max = 4 << 30
    async with rig.engine("two") as engine:
        await until_done(await offloader_of(engine))
    await checked(rig, 200)
    assert (await plan_of(rig)).boundary == 6


async def test_history_is_planned_once_the_source_answers_that_was_away_at_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the same owner: the next claim may be long after the source has deleted what nobody had planned."""
    rig = await pending()
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None))
    rig.tree = type(rig.tree)()
    await rebuild.write(rig.tree.connect(), plan, topics=(), enable=True, now_ms=1, progress=lambda _: None)
    rig.history_bytes_max = 4 << 30
    with monkeypatch.context() as patch:
        patch.setattr(rig.ledgers, "ledgers", Away().ledgers)
        async with rig.engine("two") as engine:
            assert (await offloader_of(engine)).map.history is None
            patch.undo()
            await until(lambda: (found := engine.find(TOPIC)) is not None and found.map.history is not None)
            await until_done(await offloader_of(engine))
    await checked(rig, 200)


async def test_no_history_is_planned_by_the_list_of_another_source() -> None:
    """An owner that was misled would leave a plan of ledgers that the right source never had."""
    rig = await pending()
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None))
    rig.tree = type(rig.tree)()
    store = rig.tree.connect()
    await rebuild.write(store, plan, topics=(), enable=True, now_ms=1, progress=lambda _: None)
    rig.origin = rig.register = cast("MemoryLedgers", rig.ledgers)
    known = rig.known_source(store)
    assert known is not None
    await known.confirm()
    other = memory_ledgers(rig.clock, ledger_entries_max=60)
    await other.append(TOPIC, payloads(900, seed=99))
    other.store_id = "staging"
    rig.ledgers = rig.origin = rig.register = other
    async with rig.engine("two") as engine:
        await until(lambda: [one.state for one in engine.statuses()] == ["stalled"])
        assert "staging" in engine.statuses()[0].stalled_reason
    assert (await map_of(rig)).history is None


async def test_a_gap_in_what_a_bucket_has_of_history_stops_a_rebuild() -> None:
    """Some of history is there, and it is known that there was more: somebody has to decide."""
    rig = await rig_with(200)
    async with rig.engine() as engine:
        await until_done(await enabled(engine))
    third = (await map_of(rig)).segments[2]
    found = await rebuild.read_buckets(rig.store, [SITE], lambda _: None)
    plan = rebuild.make_plan(found, without=[third.segment_id])
    assert [problem.kind for problem in plan.topics[0].problems] == [Kind.GAP]


async def test_a_live_segment_that_begins_in_history_is_refused() -> None:
    """As is one that certainly leaves something out: an error of its own, and nothing is committed."""
    rig = await rig_with(100, daemon_bytes_max=0)
    async with rig.engine() as engine:
        await enabled(engine)
    owned = await Owned.claim(rig)
    record = owned.offloader.record
    assert rig.ledgers is not None
    record.chain.update(await rig.ledgers.ledgers(TOPIC))
    for wrong in (segment(7, (2, 0, 3)), segment(7, (3, 4, 5))):
        with pytest.raises(HistoryGap):
            await record.commit(wrong, {})
    assert (await map_of(rig)).segments == ()
    await rig.ledgers.roll(TOPIC)
    await rig.ledgers.append(TOPIC, [b"x"])
    record.chain.update(await rig.ledgers.ledgers(TOPIC))
    with pytest.raises(HistoryGap):
        await record.commit(segment(7, (4, 0, 0)), {})
    assert (await map_of(rig)).segments == ()


async def test_the_second_live_segment_follows_one_that_retention_has_removed() -> None:
    """It begins in the middle of the first live ledger, and no live segment is in the map any more."""
    rig = await rig_with(100)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_done(topic)
        end = await topic.request_roll()
        assert end is not None
        await until_offloaded(topic, end)
    owned = await Owned.claim(rig)
    record = owned.offloader.record
    for one in record.map.segments:
        assert await record.remove_oldest(one, "age")
    assert (record.map.segments, record.map.floor) == ((), end)
    following = segment(7, (end.ledger_id, end.entry_id + 1, end.entry_id + 3))
    await record.begin(replace(attempt_at(owned, following.begin), segment_id=following.segment_id))
    await record.commit(following, {})
    assert [one.range for one in (await map_of(rig)).segments] == [following.range]


async def test_the_head_names_the_newest_segment_of_a_history_that_is_done() -> None:
    """Metadata from before its end know nothing of it: without the head they would record its entries as lost."""
    rig = await rig_with(100)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.map.history is not None and topic.map.history.done_ms > 0)
        end = await topic.request_roll()
        assert end is not None
        await until_offloaded(topic, end)
    key = keys.head("seg/", "test", TOPIC.managed_ledger)
    head = head_format.decode_head(await rig.store.get(key), key=key)
    assert head.newest is not None
    assert head.history is not None
    assert (head.newest.end, head.history.end) == (end, Position(2, 29))


async def test_a_plan_that_another_process_has_changed_fences_history() -> None:
    """Each of its transactions checks the plan: who has not seen a change commits nothing."""
    rig = await pending(100)
    owned = await Owned.claim(rig)
    record, store = owned.offloader.record, rig.tree.connect()
    plan = await plan_of(rig)
    path = paths.history_plan(TOPIC)
    await store.replace(path, history_record.encode(replace(plan, holder="job")), record.map.history_version)
    with pytest.raises(Conflict):
        await record.change_plan(replace(plan, done_ms=1))
    await record.reload()
    assert record.map.history is not None
    assert record.map.history.holder == "job"


async def history_of(rig: Rig) -> tuple[Owned, HistoryRecord, AttemptLog]:
    """One owner's view of a pending history, with ranges of one ledger each."""
    owned = await Owned.claim(rig)
    record, claim = owned.offloader.record, owned.offloader.claim
    attempts = AttemptLog(
        owned.context.metadata, claim, clock=rig.clock, metrics=rig.metrics, path=paths.history_attempt(TOPIC)
    )
    assert record.map.history is not None
    found = HistoryRecord(record, record.map.history, attempts, None, holder="one")
    source = rig.ledgers
    assert source is not None
    infos = await found.refresh(lambda: source.ledgers(TOPIC))
    ranges = [
        HistoryRange(begin=Position(one.ledger_id, 0), end=Position(one.ledger_id, 29), entries=30, payload_bytes=3000)
        for one in infos
    ]
    await found.store(Split(ranges=tuple(ranges)), 3000)
    return owned, found, attempts


def attempt_at(owned: Owned, begin: Position) -> Attempt:
    """An attempt of that owner."""
    return Attempt(
        segment_id=uuid.UUID(int=77),
        begin=begin,
        assigned_ms=1,
        epoch=owned.offloader.claim.epoch,
        status=AttemptStatus.ASSIGNED,
        driver_properties=owned.context.places.home.driver,
        layout=owned.context.layout,
    )


async def test_who_has_not_seen_that_history_was_taken_over_begins_nothing() -> None:
    """A job writes itself into the plan; the owner's next attempt fails on its version and leaves no trace."""
    rig = await pending(100)
    owned, found, attempts = await history_of(rig)
    store, topic_map = rig.tree.connect(), await map_of(rig)
    theirs = replace(await plan_of(rig), worker=Worker.JOB, holder="driver")
    await store.replace(paths.history_plan(TOPIC), history_record.encode(theirs), topic_map.history_version)
    with pytest.raises(Conflict):
        await found.begin(attempt_at(owned, Position(0, 0)))
    assert await attempts.load() is None


async def test_what_is_being_written_of_history_is_referred_to() -> None:
    """By its attempt and by whoever has claimed a range; once it was given up, by the trash alone."""
    rig = await pending(100)
    owned, found, attempts = await history_of(rig)
    attempt = attempt_at(owned, Position(0, 0))
    await found.begin(attempt)
    store = rig.tree.connect()
    assert (await references.read(store)).attempts == {attempt.segment_id: TOPIC}
    assert found.ranges.ranges[0].state is RangeState.CLAIMED
    await store.delete(paths.history_attempt(TOPIC))
    assert (await references.read(store)).attempts == {attempt.segment_id: TOPIC}
    await store.create(paths.history_attempt(TOPIC), attempt_record.encode(attempt))
    await attempts.load()
    await found.give_up(attempt, "gone")
    seen = await references.read(store)
    assert (seen.attempts, list(seen.trash)) == ({}, [attempt.segment_id])
    first = found.ranges.ranges[0]
    assert (first.state, first.tries, first.last_error, first.segment_id) == (RangeState.PLANNED, 1, "gone", None)
    assert await history.load(store, TOPIC, 3) == found.ranges


@pytest.mark.parametrize(
    ("slices", "ends"),
    [
        (((1, 0, 29),), {1: LedgerEnd(30, 2)}),
        (((0, 1, 29),), {0: LedgerEnd(30, 1)}),
        (((0, 0, 29), (1, 0, 29), (2, 0, 29), (3, 0, 9)), {}),
        (((0, 0, 29), (1, 0, 29), (2, 0, 29)), {2: LedgerEnd(31, 3)}),
    ],
)
async def test_a_segment_of_history_that_does_not_join_on_is_refused(
    slices: tuple[tuple[int, int, int], ...], ends: dict[int, LedgerEnd]
) -> None:
    """Not at the begin, not behind the last one, over the boundary, or of a ledger that is longer than was planned."""
    rig = await pending(100)
    _, found, _ = await history_of(rig)
    with pytest.raises(OffloaderError) as error:
        await found.commit(segment(7, *slices), ends)
    assert isinstance(error.value, HistoryGap | Conflict)
    assert [one.begin for one in (await map_of(rig)).segments] == [Position(3, 0)]


async def test_a_gap_between_two_segments_of_history_is_refused() -> None:
    """The second begins a ledger too late."""
    rig = await pending(100)
    owned, found, _ = await history_of(rig)
    await found.begin(replace(attempt_at(owned, Position(0, 0)), segment_id=segment(7, (0, 0, 29)).segment_id))
    await found.commit(segment(7, (0, 0, 29)), {0: LedgerEnd(30, 1)})
    assert [one.state for one in found.ranges.ranges] == [RangeState.DONE, RangeState.PLANNED, RangeState.PLANNED]
    with pytest.raises(HistoryGap):
        await found.commit(segment(8, (1, 5, 29)), {})
    with pytest.raises(HistoryGap):
        await found.finish(1)
    assert (await plan_of(rig)).done_ms == 0


async def test_what_a_job_commits_shows_at_the_owner() -> None:
    """Each of its commits changes the plan in the same transaction; lag and what is left follow, live commits go on."""
    rig = await pending()
    store = rig.tree.connect()

    async def commit(topic_map: TopicMap, plan: Plan, *slices: tuple[int, int, int]) -> None:
        ends = {ledger_id: LedgerEnd(30, ledger_id + 1) for ledger_id, _, _ in slices}
        steps, _ = topic_map.with_commit(segment(90 + slices[0][0], *slices), ends)
        path, version = paths.history_plan(TOPIC), topic_map.history_version
        await store.transact([Replace(path, history_record.encode(plan), version), *steps])

    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        plan = replace(await plan_of(rig), holder="driver", holder_until_ms=5)
        await commit(await map_of(rig), plan, (0, 0, 29))
        await until(lambda: topic.map.history_end == Position(0, 29))
        assert (left_of(topic.map).entries, topic.status().lag_entries) == (150, 150)
        assert rig.ledgers is not None
        last = await rig.ledgers.append(TOPIC, [b"more"])
        await topic.request_roll()
        await until(lambda: topic.offloaded == last)
        rest = [(ledger_id, 0, 29) for ledger_id in range(1, 6)]
        await commit(await map_of(rig), replace(plan, done_ms=7), *rest)
        await until(lambda: topic.map.unfinished is None)
        assert (topic.status().lag_entries, topic.status().history) == (0, None)
        last = await rig.ledgers.append(TOPIC, [b"and more"])
        await topic.request_roll()
        await until(lambda: topic.offloaded == last)
    found = await map_of(rig)
    assert all(found.joined(before.end, after.begin) for before, after in pairwise(found.segments))
