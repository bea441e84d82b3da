"""What goes on around a topic whose segments become whole ledgers: grants, readers, scrub, collector, rebuild."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import LedgerEnd
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.metadata.topic_map import conversion
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.read.segments import SegmentOptions
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind, Level
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.settings import GrantSettings
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import TopicVerifier, Verifier, Wish
from offloaderd.upkeep.verify.segment import Target, check_blocks, check_tables
from tests.unit.history.test_rollback import source_of
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC
from tests.unit.rigs.rolling import map_of, rolling, shape, streamed

if TYPE_CHECKING:
    from offloaderd.upkeep.flaws import Flaw
    from tests.unit.rigs.rig import Rig

SITE = Site(cluster="test", bucket="b", prefix="seg/")


async def test_grants_follow_the_copy() -> None:
    """Granted in segments, then rewritten: the grant names the object, and only the copy that is there counts."""
    rig, _ = await streamed(15, 10)
    owned = await Owned.claim(rig)
    options = GrantSettings(readback=True, interval_s=1.0)
    await Grants(owned.context, None, options, owned.book(deletion_lag_s=0.0), daemon_id="one").run_once(
        owned.offloader, {}
    )
    before = await grant_records.load_all(rig.tree.connect(), TOPIC)
    async with rolling(rig) as work:
        await work.order(0)
        await work.ended()
    owned = await Owned.claim(rig)
    grants = Grants(owned.context, owned.ledgers, options, owned.book(deletion_lag_s=0.0), daemon_id="one")
    known = await grants.run_once(owned.offloader, {})
    after = await grant_records.load_all(rig.tree.connect(), TOPIC)
    assert known[0].segments == after[0].segments
    (object_,) = after[0].segments
    assert object_.segment_id == owned.offloader.map.segments[0].segment_id
    assert after[0].not_before_ms == owned.offloader.map.segments[0].offloaded_ms
    assert after[1].segments == before[1].segments
    assert [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)] == [2]


async def test_a_grant_that_was_taken_back_stays_so_and_a_bad_copy_gets_none() -> None:
    """Rewritten under a revocation; rewritten, and its object damaged before the grant was looked at again."""
    rig, _ = await streamed(25)
    owned = await Owned.claim(rig)
    options = GrantSettings(readback=True, interval_s=1.0)
    await Grants(owned.context, None, options, owned.book(deletion_lag_s=0.0), daemon_id="one").run_once(
        owned.offloader, {}
    )
    store = rig.tree.connect()
    await grant_records.revoke(store, TOPIC, 0, reason="no", now_ms=5)
    before = await grant_records.load_all(store, TOPIC)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    damaged = (await map_of(rig)).segments[1]
    await rig.store.put(damaged.keys.data, bytes(damaged.object_bytes))
    owned = await Owned.claim(rig)
    await Grants(owned.context, owned.ledgers, options, owned.book(deletion_lag_s=0.0), daemon_id="one").run_once(
        owned.offloader, {}
    )
    after = await grant_records.load_all(store, TOPIC)
    assert after[0] == before[0]
    assert after[1].segments == before[1].segments
    assert [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)] == [0, 1, 2]


async def test_a_reader_in_the_middle_of_a_segment_goes_on_in_the_object() -> None:
    """It has a look at the topic from before; the segment is deleted under it, and it looks again."""
    rig, written = await streamed(55, ledger_entries=50)
    await source_of(rig).delete(TOPIC, 0)
    options = ReadOptions(batch_bytes=200, segments=SegmentOptions(cache_bytes=0, tables_bytes=0, read_ahead_bytes=0))
    async with (
        rolling(rig) as work,
        TopicReader(
            maps=work.engine,
            policies=work.engine.book,
            objects=rig.store,
            source=rig.ledgers,
            hot=HotBuffers(work.engine),
            clock=rig.clock,
            metrics=rig.metrics,
            options=options,
        ) as reader,
    ):
        await work.progress()
        found: list[bytes] = []
        async with aclosing(reader.read(TOPIC)) as batches:
            async for batch, _ in batches:
                found += batch.payloads
                if len(found) < 5:
                    await work.order()
                    await work.ended()
    assert found == written
    assert shape(await map_of(rig)) == ["V1 0:0-49", "1:0-4"]


async def test_the_scrub_and_the_collector_find_everything_in_order() -> None:
    """In the middle, with a segment that has lost a slice, and afterwards."""
    rig, _ = await streamed(15, 20, 10)
    for to in (1, 3):
        async with rolling(rig) as work:
            await work.order(to)
            await work.ended()
        topic_map = await map_of(rig)
        reader = RetryingReader(rig.store, clock=rig.clock)
        for segment in topic_map.segments:
            target = Target(bucket="b", keys=segment.keys, cluster="test", topic=TOPIC, committed=segment)
            tables = await check_tables(reader, target)
            assert tables.flaws == []
            assert tables.manifest is not None
            async with aclosing(check_blocks(reader, target, tables.manifest)) as steps:
                assert [flaws async for _, flaws in steps if flaws] == []
        gc = Collector(rig.store, rig.tree.connect(), [SITE], clock=rig.clock, metrics=rig.metrics)
        async with aclosing(gc.collect(grace_s=0.0, apply=True)) as finds:
            assert [one async for one in finds if isinstance(one, Finding)] == []


async def rebuilt(rig: Rig, **said: object) -> rebuild.Plan:
    """Plan all topics from the bucket alone."""
    found = await rebuild.read_buckets(rig.store, [SITE], lambda _: None)
    return rebuild.make_plan(found, **said)  # type: ignore[arg-type]


async def keep_deleted(rig: Rig) -> None:
    """Make deleting do nothing, so that whatever was replaced stays in the bucket."""

    async def nothing(keys: object) -> None:
        return None

    rig.store.delete = nothing  # type: ignore[method-assign]


@pytest.mark.parametrize("to", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_rebuild_gives_the_same_map_before_in_the_middle_and_afterwards(to: int | None, kept: bool) -> None:
    """Whether or not what was replaced is deleted by then: a whole ledger supersedes its slices in segments."""
    rig, _ = await streamed(15, 20, 10)
    if kept:
        await keep_deleted(rig)
    if to is not None:
        async with rolling(rig) as work:
            await work.order(to)
            await work.ended()
    plan = await rebuilt(rig)
    assert not plan.problems
    (topic,) = plan.topics
    assert not topic.blocked
    assert {problem.kind for problem in topic.problems} <= {Kind.SUPERSEDED}
    assert any(problem.kind is Kind.SUPERSEDED for problem in topic.problems) is (to is not None)
    stored = await map_of(rig)
    assert topic.map.segments == stored.segments
    assert {one: end.entries for one, end in topic.map.ends.items()} == {
        one: end.entries for one, end in stored.ends.items()
    }


async def test_a_rebuild_prefers_what_it_is_told_to() -> None:
    """The object was named as the worse one: the segment keeps its slices, the object is left out."""
    rig, _ = await streamed(15, 20, 10)
    before = await map_of(rig)
    await keep_deleted(rig)
    async with rolling(rig) as work:
        await work.order(0)
        await work.ended()
    (topic,) = (await rebuilt(rig, prefer=[before.segments[0].segment_id])).topics
    assert not topic.blocked
    assert topic.map.segments == before.segments
    wholes = [one.segment_id for one in (await map_of(rig)).segments[:1]]
    (topic,) = (await rebuilt(rig, without=wholes)).topics
    assert topic.map.segments == before.segments


async def test_an_object_that_was_never_exchanged_is_no_obstacle() -> None:
    """Finished, and its owner died before the exchange: the rebuilt map has it, and all entries once."""
    rig, _ = await streamed(15, 20, 10)
    before = await map_of(rig)
    await keep_deleted(rig)
    async with rolling(rig) as work:
        await work.order(1)
        await work.ended()
    middle = next(one for one in (await map_of(rig)).segments if one.begin.ledger_id == 1)
    first = (await map_of(rig)).segments[0]
    (topic,) = (await rebuilt(rig, without=[first.segment_id])).topics
    _, expected = conversion.with_whole(before, middle, now_ms=1)
    assert not topic.blocked
    assert topic.map.segments == expected.segments
    assert topic.map.ends[0] == LedgerEnd(10, 1)


@pytest.mark.parametrize("kept", [False, True])
async def test_verifying_finds_nothing_wrong_in_the_middle(kept: bool) -> None:
    """By the topic's map, by the bucket with all maps, and by the bucket alone, which tells of what is superseded."""
    rig, _ = await streamed(15, 20, 10)
    if kept:
        await keep_deleted(rig)
    async with rolling(rig) as work:
        await work.order(1)
        await work.ended()
        verifier = TopicVerifier(work.engine, lambda: RetryingReader(rig.store, clock=rig.clock), [SITE])
        async with aclosing(verifier.run(TOPIC, Level.FULL)) as reports:
            flaws = [flaw for one in [report async for report in reports] for flaw in one.flaws]
    assert flaws == []
    assert {flaw.kind for flaw in await verified(rig, maps=False)} == {Kind.SUPERSEDED}
    with_maps = await verified(rig, maps=True)
    assert not any(flaw.is_problem for flaw in with_maps)
    assert {flaw.kind for flaw in with_maps} <= {Kind.UNREFERENCED}


async def verified(rig: Rig, *, maps: bool) -> list[Flaw]:
    """Verify the bucket, with the maps or without."""

    reader = RetryingReader(rig.store, clock=rig.clock)
    verifier = Verifier(rig.store, [SITE], reader, clock=rig.clock, metadata=rig.tree.connect() if maps else None)
    async with aclosing(verifier.run(Wish())) as reports:
        return [flaw for one in [report async for report in reports] for flaw in one.flaws]
