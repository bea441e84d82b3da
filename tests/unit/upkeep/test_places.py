"""Topics that are stored elsewhere than in the daemon's own place: everything works on them where they lie."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import BucketMissing, first_of
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import OffloadMethod, Position, TierRetention
from offloaderd.core.names.patterns import of_topic
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.format import manifest_bytes
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.records import TopicPolicy
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding, Verdict
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import SegmentReport, TopicVerifier, Verifier, Wish
from tests.unit.broker_objects import BrokerLedger
from tests.unit.objects.buckets import Buckets
from tests.unit.rigs.owned import Owned, identified
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
from tests.unit.rigs.rolling import rolling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap

HOME, AWAY = ("b", "seg/"), ("eu", "topics/")
PLACES = (HOME, AWAY)
SITES = tuple(Site(cluster="test", bucket=bucket, prefix=prefix) for bucket, prefix in PLACES)


class GoneError(Exception):
    """The daemon is gone."""


def policy_of(place: tuple[str, str]) -> TopicPolicy:
    """A topic's policy that names a place."""
    return TopicPolicy(enabled=True, bucket=place[0], prefix=place[1])


def rig_of(places: tuple[tuple[str, str], ...] = PLACES) -> Rig:
    """A rig whose daemons work with these places."""
    rig = Rig(places=places)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    rig.objects = Buckets(rig.clock, *dict.fromkeys(bucket for bucket, _ in PLACES))
    return rig


def buckets_of(rig: Rig) -> Buckets:
    """The rig's buckets."""
    assert isinstance(rig.objects, Buckets)
    return rig.objects


async def scattered(*places: tuple[str, str], entries: int = 10) -> tuple[Rig, list[bytes]]:
    """Offload a ledger to each of the places, one after the other, by changing the policy; returns what was written."""
    rig, written = rig_of(), []
    assert isinstance(rig.ledgers, MemoryLedgers)
    async with rig.engine() as engine:
        for number, place in enumerate(places):
            topic = await enabled(engine, policy_of(place))
            while topic.policy.place != place:
                await topic.policy_changed.wait()
            content = payloads(entries, seed=number)
            written += content
            last = await rig.ledgers.append(TOPIC, content)
            await topic.request_roll()
            await until_offloaded(topic, last)
    return rig, written


async def map_of(rig: Rig) -> TopicMap:
    """What is committed."""
    return await catalog.load(rig.tree.connect(), TOPIC)


def places_of(segments: Sequence[CommittedSegment]) -> list[tuple[str, str]]:
    """Where segments lie, in order."""
    return [(one.bucket, one.prefix) for one in segments]


async def begun_and_left(rig: Rig) -> None:
    """Begin a segment away from home, and end without a drain once a part of it is recorded."""

    async def life() -> None:
        async with rig.engine() as engine:
            await enabled(engine, policy_of(AWAY))
            await until_left(rig.tree.connect(), paths.attempt(TOPIC))

    with pytest.raises(BaseExceptionGroup) as caught:
        await life()
    assert isinstance(first_of(caught.value), GoneError)


async def until_left(store: MetadataStore, path: str) -> None:
    """Wait for a recorded part, and raise GoneError."""
    while True:
        await turn()
        node = await nodes.node(store, path)
        if node is not None and attempt_record.decode(node.value, path=path).parts:
            raise GoneError


async def test_a_policy_decides_where_segments_go_from_the_next_one_on() -> None:
    """There and back again; each bucket has its own, and a read goes through all of them."""
    order = (HOME, AWAY, AWAY, HOME)
    rig, written = await scattered(*order)
    found = (await map_of(rig)).segments
    assert places_of(found) == list(order)
    for bucket, prefix in PLACES:
        expected = {key for one in found if one.bucket == bucket for key in one.keys.all}
        assert set(await buckets_of(rig).keys(bucket)) == expected
        assert all(key.startswith(prefix) for key in expected)
    assert [payload for _, payload in await rig.committed()] == written
    async with (
        rig.engine() as engine,
        TopicReader(
            maps=engine,
            policies=engine.book,
            objects=rig.store,
            source=None,
            hot=HotBuffers(engine),
            clock=rig.clock,
            metrics=rig.metrics,
            options=ReadOptions(batch_bytes=300),
        ) as reader,
        aclosing(reader.read(TOPIC)) as batches,
    ):
        assert [payload async for batch, _ in batches for payload in batch.payloads] == written


async def test_a_segment_knows_what_is_before_it_in_another_place() -> None:
    """A new owner reads that from the manifest of the segment before, wherever it lies."""
    rig, _ = await scattered(HOME)
    assert isinstance(rig.ledgers, MemoryLedgers)
    async with rig.engine("two") as engine:
        topic = await enabled(engine, policy_of(AWAY))
        last = await rig.ledgers.append(TOPIC, payloads(10, seed=1))
        await topic.request_roll()
        await until_offloaded(topic, last)
    before, after = (await map_of(rig)).segments
    assert places_of((before, after)) == [HOME, AWAY]
    described = manifest_bytes.decode(
        await buckets_of(rig).at(AWAY[0]).get(after.keys.manifest), key=after.keys.manifest
    )
    assert described.past is not None
    assert (described.past.entries, described.past.since) == (10, before.begin)


async def test_whole_ledgers_go_where_the_policy_says() -> None:
    """As segments do."""
    rig = rig_of()
    assert isinstance(rig.ledgers, MemoryLedgers)
    last = await rig.ledgers.append(TOPIC, payloads(25))
    policy = TopicPolicy(
        enabled=True, bucket=AWAY[0], prefix=AWAY[1], method=OffloadMethod.LEDGER_BASED, threshold_bytes=0
    )
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine, policy), Position(last.ledger_id - 1, 9))
    found = (await map_of(rig)).segments
    assert {(one.bucket, one.prefix, one.method) for one in found} == {(*AWAY, OffloadMethod.LEDGER_BASED)}
    assert await buckets_of(rig).keys(HOME[0]) == []


async def test_where_a_policy_names_no_place_of_the_daemon_nothing_is_stored() -> None:
    """It stalls and says so, loses nothing, writes nowhere else, and goes on when the policy names another."""
    rig = rig_of((HOME,))
    assert isinstance(rig.ledgers, MemoryLedgers)
    last = await rig.ledgers.append(TOPIC, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine, policy_of(AWAY))
        await until(lambda: topic.failure_tracker.stalled is not None)
        assert "no place of this daemon's" in str(topic.failure_tracker.stalled)
        assert await buckets_of(rig).keys(HOME[0]) + await buckets_of(rig).keys(AWAY[0]) == []
        await engine.select(of_topic(TOPIC), policy_of(HOME))
        await topic.request_roll()
        await until_offloaded(topic, last)
        assert topic.failure_tracker.stalled is None
    assert places_of((await map_of(rig)).segments) == [HOME]


async def test_an_attempt_is_completed_where_it_was_begun() -> None:
    """Its owner is gone and the policy has changed meanwhile; parts that are stored are not sent again."""
    rig = rig_of()
    assert isinstance(rig.ledgers, MemoryLedgers)
    rig.ledgers = memory_ledgers(rig.clock)
    await rig.ledgers.append(TOPIC, payloads(400))
    await begun_and_left(rig)
    [upload] = [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()]
    async with rig.engine("two") as engine:
        await engine.select(of_topic(TOPIC), policy_of(HOME))
        topic = await offloader_of(engine)
        last = await rig.ledgers.append(TOPIC, payloads(10, seed=1))
        await topic.request_roll()
        await until_offloaded(topic, last)
    [segment, *_] = (await map_of(rig)).segments
    assert (segment.keys.data, segment.bucket) == (upload.key, AWAY[0])
    assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []


async def test_an_attempt_of_a_place_that_is_gone_is_given_up_and_left_alone() -> None:
    """Its record stays on the trash list until somebody works there again."""
    rig = rig_of()
    assert isinstance(rig.ledgers, MemoryLedgers)
    rig.ledgers = memory_ledgers(rig.clock)
    last = await rig.ledgers.append(TOPIC, payloads(400))
    await begun_and_left(rig)
    rig.places = (HOME,)
    async with rig.engine("two") as engine:
        await engine.select(of_topic(TOPIC), policy_of(HOME))
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
    assert places_of((await map_of(rig)).segments) == [HOME]
    assert len([one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()]) == 1
    rig.places = PLACES
    assert await (await Owned.claim(rig)).empty_trash() == 0
    assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []


async def test_what_is_deleted_is_deleted_where_it_is() -> None:
    """The tier follows the source, and empties both buckets."""
    rig, _ = await scattered(HOME, AWAY, HOME)
    owned = await identified(rig)
    for info in await owned.ledgers.ledgers(TOPIC):
        await owned.ledgers.delete(TOPIC, info.ledger_id)
    await owned.ledgers.append(TOPIC, payloads(1))
    retention = Retention(
        owned.context, owned.ledgers, RetentionSettings(follow_lag_s=0.0), owned.book(retention=TierRetention.FOLLOW)
    )
    await retention.run_once(owned.offloader, {})
    assert await owned.empty_trash() == 0
    assert owned.offloader.map.segments == ()
    assert await buckets_of(rig).keys(HOME[0]) + await buckets_of(rig).keys(AWAY[0]) == []


async def test_grants_are_for_copies_in_any_place() -> None:
    """Read back where they lie; a copy whose bucket left the settings gets none. The newest ledger always stays."""
    rig, _ = await scattered(HOME, AWAY, HOME)
    options = GrantSettings(readback=True, interval_s=1.0)
    for places, kept in (((HOME,), [1, 2]), (PLACES, [2])):
        rig.places = places
        owned = await Owned.claim(rig)
        grants = Grants(owned.context, owned.ledgers, options, owned.book(deletion_lag_s=0.0), daemon_id="one")
        for _ in range(3):  # granted at the first look, deleted when the clock has gone on
            await grants.run_once(owned.offloader, {})
            await rig.clock.sleep(0.002)
        assert [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)] == kept


async def test_a_ledger_that_a_broker_offloaded_elsewhere_is_adopted() -> None:
    """From any bucket of the settings, without the prefix."""
    rig = rig_of()
    assert isinstance(rig.ledgers, MemoryLedgers)
    one = BrokerLedger(topic=TOPIC, ledger_id=0, object_id=rig.clock.uuid(), payloads=payloads(10), bucket=AWAY[0])
    await one.put(buckets_of(rig).at(AWAY[0]))

    class Offloads:
        """What the broker's list says."""

        async def offloaded(self, _: object) -> list[object]:
            """Return its one ledger."""
            return [one.info]

    rig.offloads = Offloads()  # type: ignore[assignment]
    last = await rig.ledgers.append(TOPIC, payloads(15))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
    found = (await map_of(rig)).segments
    assert [(one.bucket, one.prefix, one.foreign) for one in found] == [(AWAY[0], "", True), (*HOME, False)]


async def test_rewritten_ledgers_stay_in_their_place() -> None:
    """A rollback reads and writes in the bucket that has the segments."""
    rig, written = await scattered(AWAY, AWAY)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    found = (await map_of(rig)).segments
    assert {(one.bucket, one.prefix) for one in found} == {AWAY}
    assert OffloadMethod.LEDGER_BASED in {one.method for one in found}
    assert [payload for _, payload in await rig.committed()] == written


async def test_garbage_is_found_in_every_place() -> None:
    """Leftovers of both buckets go, what is referred to stays in both."""
    rig, written = await scattered(HOME, AWAY)
    for bucket, prefix in PLACES:
        store = buckets_of(rig).at(bucket)
        segment = next(one for one in (await map_of(rig)).segments if one.bucket == bucket)
        labels = (await store.head(segment.keys.data)).metadata
        await store.put(f"{prefix}{rig.clock.uuid()}", b"left", metadata=labels)
        await store.create_upload(f"{prefix}{rig.clock.uuid()}", metadata=labels)
    collector = Collector(rig.store, rig.tree.connect(), SITES, clock=rig.clock, metrics=Metrics())
    async with aclosing(collector.collect(grace_s=0, apply=True)) as found:
        finds = [one async for one in found if isinstance(one, Finding)]
    assert [one.verdict for one in finds] == [Verdict.DELETED] * 4
    assert [payload for _, payload in await rig.committed()] == written
    for bucket, _ in PLACES:
        assert len(await buckets_of(rig).keys(bucket)) == 3
        assert [one async for one in buckets_of(rig).at(bucket).list_uploads()] == []


async def test_a_place_that_is_shared_with_another_cluster_keeps_its_uploads_alone() -> None:
    """What lies in one place says nothing of uploads in another."""
    rig, _ = await scattered(HOME, AWAY)
    away = buckets_of(rig).at(AWAY[0])
    await away.put(f"{AWAY[1]}{rig.clock.uuid()}", b"theirs", metadata={"pulsarclustername": "other"})
    for bucket, prefix in PLACES:
        await buckets_of(rig).at(bucket).create_upload(f"{prefix}{rig.clock.uuid()}")
    collector = Collector(rig.store, rig.tree.connect(), SITES, clock=rig.clock, metrics=Metrics())
    async with aclosing(collector.collect(grace_s=0, apply=True)) as found:
        finds = [one async for one in found if isinstance(one, Finding) and one.upload_id]
    assert {one.key.partition("/")[0]: one.verdict for one in finds} == {"seg": Verdict.DELETED, "topics": Verdict.KEEP}


@pytest.mark.parametrize("damaged", [False, True])
async def test_every_place_is_verified(*, damaged: bool) -> None:
    """By the daemon, which has the map, and by whoever has the buckets alone: sound, or damaged where it is."""
    rig, _ = await scattered(HOME, AWAY, HOME)
    away = next(one for one in (await map_of(rig)).segments if one.bucket == AWAY[0])
    if damaged:
        await buckets_of(rig).at(AWAY[0]).put(away.keys.data, bytes(away.object_bytes))
    retrying_reader = RetryingReader(rig.store, clock=rig.clock)
    verifier = Verifier(rig.store, SITES, retrying_reader, clock=rig.clock)
    reports = [one async for one in verifier.run(Wish())]
    assert [one.segments for one in reports] == [3]
    assert {flaw.key for one in reports for flaw in one.flaws if flaw.is_problem} == (
        {away.keys.data} if damaged else set()
    )
    assert retrying_reader.read_bytes > 3 * 1000
    async with rig.engine() as engine:
        daemons = TopicVerifier(engine, lambda: RetryingReader(rig.store, clock=rig.clock), SITES)
        seen = [one async for one in daemons.run(TOPIC, Level.FULL) if isinstance(one, SegmentReport)]
    assert [any(flaw.is_problem for flaw in one.flaws) for one in seen] == [False, damaged, False]


async def test_a_rebuild_reads_every_place() -> None:
    """The map of a scattered topic comes back as it was, where each segment lies included."""
    rig, _ = await scattered(HOME, AWAY, HOME)
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, SITES, lambda _: None))
    assert [one.map.segments for one in plan.topics] == [(await map_of(rig)).segments]
    alone = rebuild.make_plan(await rebuild.read_buckets(rig.store, SITES[:1], lambda _: None))
    assert any(problem.blocks for one in alone.topics for problem in one.problems), "a gap where the other bucket is"


async def test_a_bucket_that_left_the_settings_is_told_to_readers() -> None:
    """By its name, and with what to do; nothing of it is looked for elsewhere."""
    rig, _ = await scattered(HOME, AWAY)
    rig.objects = one = Buckets(rig.clock, HOME[0])
    one.__dict__.update({name: value for name, value in buckets_of(rig).__dict__.items() if name != "_all"})
    async with (
        rig.engine() as engine,
        TopicReader(
            maps=engine,
            policies=engine.book,
            objects=one,
            source=None,
            hot=HotBuffers(engine),
            clock=rig.clock,
            metrics=rig.metrics,
        ) as reader,
    ):
        with pytest.raises(BucketMissing, match="'eu'"):
            async with aclosing(reader.read(TOPIC, first=Position(1, 0))) as batches:
                [_ async for _ in batches]
