"""What is stored twice: deletion, collection of garbage, verification, rebuild and rewriting know both places."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.format import manifest_bytes
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.copy import REMOVAL_S, CopyAttempt
from offloaderd.metadata.records.verified import Cursor, Verified
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import merging
from offloaderd.metadata.topic_map.mirroring import with_copy
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind as FlawKind
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding, Kind, Verdict
from offloaderd.upkeep.settings import ScrubSettings
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import IN_A_ROW_MAX, SegmentReport, TopicVerifier, Verifier, Wish
from offloaderd.upkeep.verify.scrub import Scrubber
from tests.unit.rigs.owned import Owned, offload_more
from tests.unit.rigs.rig import TOPIC, Rig, until
from tests.unit.upkeep.test_mirror import (
    AWAY,
    HOME,
    PLACES,
    THIRD,
    breaking,
    buckets_of,
    check_copies,
    lag,
    mended,
    mirroring,
    offloaded,
    rig_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.topic_map.map import TopicMap


class ReadableMap:
    """The map of a topic, as its owner has it."""

    def __init__(self, owned: Owned) -> None:
        self._owned = owned

    async def topic_map(self, _: TopicName) -> TopicMap:
        """See Maps."""
        return self._owned.offloader.map


SITES = tuple(Site(cluster="test", bucket=bucket, prefix=prefix) for bucket, prefix in PLACES)


async def mirrored(*segments: int) -> Rig:
    """Return a rig with a topic whose segments all have a copy."""
    rig = await offloaded(rig_of(), *segments)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    return rig


async def segments_of(rig: Rig) -> tuple[CommittedSegment, ...]:
    """Return what is committed."""
    return (await catalog.load(rig.tree.connect(), TOPIC)).segments


async def collected(rig: Rig, *, grace_s: float = 0.0) -> list[Finding]:
    """Collect garbage in all places."""
    collector = Collector(rig.store, rig.tree.connect(), SITES, clock=rig.clock, metrics=Metrics())
    async with aclosing(collector.collect(grace_s=grace_s, apply=True)) as found:
        return [one async for one in found if isinstance(one, Finding)]


async def damage(rig: Rig, segment: CommittedSegment) -> None:
    """Change a byte in the middle of the data."""
    store = buckets_of(rig).at(segment.bucket)
    data, info = bytearray(await store.get(segment.keys.data)), await store.head(segment.keys.data)
    data[len(data) // 2] ^= 1
    await store.put(segment.keys.data, bytes(data), metadata=info.metadata)


async def counts(rig: Rig) -> list[int]:
    """Return the number of segments' objects in each place."""
    return [len(await buckets_of(rig).keys(bucket)) for bucket, _ in PLACES]


async def test_deletion_removes_both_copies() -> None:
    """The trash record names both places, so neither is left, even if the policy names no mirror any more."""
    rig = await mirrored(10, 10)
    rig.policy = replace(rig.policy, mirror=None)
    owned = await Owned.claim(rig)
    oldest = owned.offloader.map.segments[0]
    assert await owned.offloader.record.remove_oldest(oldest, reason="age")
    path = paths.trash_record(TOPIC, oldest.segment_id)
    record = deletion.decode_trash((await rig.tree.connect().get(path)).value, path=path)
    assert record.places(HOME) == (HOME, AWAY)
    assert await owned.empty_trash() == 0
    assert await counts(rig) == [3, 3, 0]
    assert await collected(rig) == []


async def test_a_copy_in_a_place_that_left_the_settings_keeps_the_record() -> None:
    """Nothing of the segment is deleted, until a daemon has both places again."""
    rig = await mirrored(10, 10)
    rig.places, rig.policy = (HOME,), replace(rig.policy, mirror=None)
    owned = await Owned.claim(rig)
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="age")
    assert await owned.empty_trash() == 1
    rig.places = PLACES
    assert await (await Owned.claim(rig)).empty_trash() == 0
    assert await counts(rig) == [3, 3, 0]


async def test_the_trash_of_a_topic_without_an_owner_is_emptied_in_both_places() -> None:
    """By the collector, once it is old enough."""
    rig = await mirrored(10, 10)
    owned = await Owned.claim(rig)
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="age")
    finds = await collected(rig)
    assert {(one.kind, one.verdict) for one in finds} == {(Kind.TRASH, Verdict.DELETED)}
    assert len(finds) == 6
    assert await counts(rig) == [3, 3, 0]
    assert await collected(rig) == []


async def test_copies_are_held_by_the_map_alone() -> None:
    """What the map names is kept; after another mirror was copied to, the old copies are garbage."""
    rig = await mirrored(10, 10)
    assert await collected(rig) == []
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    finds = await collected(rig)
    assert {(one.kind, one.verdict) for one in finds} == {(Kind.SUPERSEDED, Verdict.DELETED)}
    assert len(finds) == 6
    assert await counts(rig) == [6, 0, 6]
    await check_copies(rig, mirror=THIRD)


async def test_an_unfinished_copy_is_held_by_its_record() -> None:
    """Objects that no map names yet, and the open upload, stay for as long as the copy is on record."""
    rig = await offloaded(rig_of(), 10)
    [segment] = await segments_of(rig)
    there, home = buckets_of(rig).at(AWAY[0]), buckets_of(rig).at(HOME[0])
    labels = (await home.head(segment.keys.data)).metadata
    key = replace(segment, prefix=AWAY[1]).keys.data
    await there.put(key, await home.get(segment.keys.data), metadata=labels)
    await there.create_upload(key, metadata=labels)
    store, path = rig.tree.connect(), paths.mirror(TOPIC)
    record = CopyAttempt(segment_id=segment.segment_id, bucket=AWAY[0], prefix=AWAY[1], part_bytes=1, begun_ms=1)
    await store.create(path, copy_record.encode(record))
    assert await collected(rig) == []
    await store.delete(path)
    assert [(one.kind, one.verdict) for one in await collected(rig)] == 2 * [(Kind.LEFTOVER, Verdict.DELETED)]
    assert await counts(rig) == [3, 0, 0]
    assert [one async for one in there.list_uploads()] == []


async def test_no_copy_begins_while_an_earlier_one_is_deleted() -> None:
    """A collection holds the record of the topic's copies meanwhile; one that was broken off holds it for a while."""
    rig = await mirrored(10)
    [segment] = await segments_of(rig)
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    store, path = rig.tree.connect(), paths.mirror(TOPIC)

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, when) == ("delete", "before") and str(segment.segment_id) in key:
            raise Transient("gone")

    breaking(rig, AWAY[0], plan)
    assert {one.verdict for one in await collected(rig)} == {Verdict.FAILED}
    assert copy_record.decode((await store.get(path)).value, path=path).removing
    mended(rig)
    owned = await Owned.claim(rig)
    owned.offloader.follow(replace(owned.offloader.policy, mirror=AWAY))
    async with mirroring(rig, owned):
        await rig.clock.sleep(REMOVAL_S / 2)
        assert lag(owned) == 1
        await rig.clock.sleep(REMOVAL_S)
        await until(lambda: not lag(owned))
    assert await nodes.node(store, path) is None
    assert [one.mirror for one in await segments_of(rig)] == [AWAY]
    assert segment.segment_id == (await segments_of(rig))[0].segment_id


async def test_nothing_is_deleted_where_a_copy_is_being_made() -> None:
    """The collector finds the record taken, and leaves what it took for garbage."""
    rig = await mirrored(10)
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    store, path = rig.tree.connect(), paths.mirror(TOPIC)
    other = CopyAttempt(segment_id=rig.clock.uuid(), bucket="us", prefix="", part_bytes=1, begun_ms=1)
    await store.create(path, copy_record.encode(other))
    finds = await collected(rig)
    assert {one.verdict for one in finds if one.key.startswith(AWAY[1])} == {Verdict.KEEP}
    assert await counts(rig) == [3, 3, 3]


async def test_an_unfinished_copy_of_a_disabled_topic_is_given_up() -> None:
    """Nobody will claim the topic; the record goes on the trash list first, what it held with the next collection."""
    rig = await offloaded(rig_of(), 10)
    [segment] = await segments_of(rig)
    store, path = rig.tree.connect(), paths.mirror(TOPIC)
    record = CopyAttempt(segment_id=segment.segment_id, bucket=AWAY[0], prefix=AWAY[1], part_bytes=1, begun_ms=1)
    await store.create(path, copy_record.encode(record))
    assert await collected(rig) == []
    policy = paths.policy(TOPIC)
    await store.replace(policy, encode_policy(TopicPolicy(enabled=False)), (await store.get(policy)).version)
    await buckets_of(rig).at(AWAY[0]).put(replace(segment, prefix=AWAY[1]).keys.index, b"rotten")
    assert [(one.kind, one.verdict) for one in await collected(rig)] == [(Kind.UPLOAD, Verdict.DELETED)]
    assert await nodes.node(store, path) is None
    assert len(await store.children(paths.trash(TOPIC))) == 1
    assert {(one.kind, one.verdict) for one in await collected(rig)} == {(Kind.TRASH, Verdict.DELETED)}
    assert await store.children(paths.trash(TOPIC)) == []
    assert await counts(rig) == [3, 0, 0]


async def test_a_copy_that_lacks_an_object_is_an_alarm() -> None:
    """As a segment is."""
    rig = await mirrored(10)
    [segment] = await segments_of(rig)
    assert segment.copy is not None
    await buckets_of(rig).at(AWAY[0]).delete([segment.copy.keys.index])
    assert [(one.kind, one.verdict, one.key) for one in await collected(rig)] == [
        (Kind.MISSING, Verdict.ALARM, segment.copy.keys.index)
    ]


async def test_a_copy_that_nobody_names_is_kept_while_the_segment_itself_is_broken() -> None:
    """It is the last copy of its entries: an alarm, and no garbage."""
    rig = await mirrored(10)
    [segment] = await segments_of(rig)
    assert segment.copy is not None
    topic_map = await catalog.load(rig.tree.connect(), TOPIC)
    steps, _ = with_copy(topic_map, segment.segment_id, THIRD)
    for key in segment.keys.all:
        store = buckets_of(rig).at(HOME[0])
        await (
            buckets_of(rig)
            .at(THIRD[0])
            .put(key.removeprefix(HOME[1]), await store.get(key), metadata=(await store.head(key)).metadata)
        )
    await rig.tree.connect().transact(steps)
    await buckets_of(rig).at(HOME[0]).delete([segment.keys.data])
    kinds = {one.key: (one.kind, one.verdict) for one in await collected(rig)}
    assert kinds == {segment.keys.data: (Kind.MISSING, Verdict.ALARM)} | dict.fromkeys(
        segment.copy.keys.all, (Kind.UNCOVERED, Verdict.ALARM)
    )
    assert await counts(rig) == [2, 3, 3]


async def test_a_rebuild_takes_each_segment_once_with_its_copy() -> None:
    """The map comes back as it was, copies included."""
    rig = await mirrored(10, 10)
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, SITES, lambda _: None))
    assert [one.map.segments for one in plan.topics] == [await segments_of(rig)]
    assert [one.problems for one in plan.topics] == [()]


@pytest.mark.parametrize("place", [HOME, AWAY])
async def test_a_rebuild_takes_a_segment_from_either_place(place: tuple[str, str]) -> None:
    """One that is incomplete or unreadable in one place is taken from the other, and noted."""
    rig = await mirrored(10, 10)
    first, second = await segments_of(rig)
    lost, spoilt = (next(it for it in one.each_place if it.place == place) for one in (first, second))
    store = buckets_of(rig).at(place[0])
    await store.delete([lost.keys.data])
    await store.put(spoilt.keys.manifest, b"\0" * 100)
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, SITES, lambda _: None))
    [topic] = plan.topics
    other = AWAY if place == HOME else HOME
    assert not topic.blocked
    assert not plan.blocked
    assert [(one.segment_id, one.place, one.mirror) for one in topic.map.segments] == [
        (first.segment_id, other, None),
        (second.segment_id, other, None),
    ]
    assert {one.kind for one in [*topic.problems, *plan.problems]} == {FlawKind.DAMAGED_COPY}


async def test_places_with_different_manifests_are_for_an_operator() -> None:
    """A rebuild does not choose between two readable manifests of one segment that differ."""
    rig = await mirrored(10)
    found = await rebuild.read_buckets(rig.store, SITES, lambda _: None)
    found.known[1] = replace(found.known[1], epoch=found.known[1].epoch + 1)
    plan = rebuild.make_plan(found)
    assert [one.kind for one in plan.topics[0].problems] == [FlawKind.CONTRADICTION]
    assert plan.topics[0].blocked


@pytest.mark.parametrize("place", [HOME, AWAY])
@pytest.mark.parametrize("with_map", [False, True])
async def test_verify_says_which_place_is_right(place: tuple[str, str], *, with_map: bool) -> None:
    """Both places have other bytes: the one that agrees with the checksums of the manifest is named."""
    rig = await mirrored(10, 10)
    wrong = next(one for one in (await segments_of(rig))[0].each_place if one.place == place)
    await damage(rig, wrong)
    reader = RetryingReader(rig.store, clock=rig.clock)
    metadata = rig.tree.connect() if with_map else None
    verifier = Verifier(rig.store, SITES, reader, clock=rig.clock, metadata=metadata)
    [report] = [one async for one in verifier.run(Wish())]
    assert (report.segments, report.entries) == (2, 20)
    right = AWAY if place == HOME else HOME
    [flaw] = report.flaws
    assert flaw.key == wrong.keys.data
    assert repr(place[0]) in flaw.found
    assert repr(right[0]) in flaw.what_to_do
    async with rig.engine() as engine:
        daemons = TopicVerifier(engine, lambda: RetryingReader(rig.store, clock=rig.clock), SITES)
        seen = [one async for one in daemons.run(TOPIC, Level.FULL) if isinstance(one, SegmentReport)]
    assert [[repr(right[0]) in it.what_to_do for it in one.flaws] for one in seen] == [[True], []]


async def test_verify_misses_a_copy_that_the_map_names_and_notes_one_that_it_does_not() -> None:
    """Against the map."""
    rig = await mirrored(10, 10)
    first, second = await segments_of(rig)
    assert first.copy is not None
    await buckets_of(rig).at(AWAY[0]).delete(first.copy.keys.all)
    for key in second.keys.all:
        store = buckets_of(rig).at(HOME[0])
        await (
            buckets_of(rig)
            .at(THIRD[0])
            .put(key.removeprefix(HOME[1]), await store.get(key), metadata=(await store.head(key)).metadata)
        )
    reader = RetryingReader(rig.store, clock=rig.clock)
    verifier = Verifier(rig.store, SITES, reader, clock=rig.clock, metadata=rig.tree.connect())
    [report] = [one async for one in verifier.run(Wish(level=Level.METADATA))]
    missing = [one for one in report.flaws if one.kind is FlawKind.MISSING]
    assert {one.key for one in missing} == set(first.copy.keys.all)
    assert {one.segment_id for one in report.flaws if one.kind is FlawKind.UNREFERENCED} == {second.segment_id}
    assert (report.segments, report.problems) == (2, 3)


async def scrubbed(owned: Owned) -> list[str]:
    """Scrub the segment that is due; return what is said of damage."""
    said: list[str] = []

    async def damaged(_topic: object, _ledgers: object, why: str) -> None:
        said.append(why)

    up, options = owned.context.upload_context, ScrubSettings(first_after_s=0.0)
    scrubber = Scrubber(
        up.objects, owned.context.metadata, SITES, options, clock=up.clock, metrics=up.metrics, damaged=damaged
    )
    await scrubber.turn(owned.offloader, await scrubber._load(owned.offloader))
    return said


async def test_the_scrub_reads_the_copy_as_well() -> None:
    """Damage of the copy is found, and its place is said."""
    rig = await mirrored(10)
    [segment] = await segments_of(rig)
    assert segment.copy is not None
    await damage(rig, segment.copy)
    [why] = await scrubbed(await Owned.claim(rig))
    assert repr(AWAY[0]) in why


async def test_a_scrub_that_stopped_in_the_copy_skips_no_block_of_it() -> None:
    """The cursor counts the blocks of both places: those of the first one are not left out of the copy as well."""
    rig = await mirrored(150)
    [segment] = await segments_of(rig)
    assert segment.copy is not None
    manifest = await buckets_of(rig).at(HOME[0]).get(segment.keys.manifest)
    blocks = len(manifest_bytes.decode(manifest, key=segment.keys.manifest).blocks)
    assert blocks > 2
    stopped = Verified({}, Cursor(segment.segment_id, blocks + 1))
    await rig.tree.connect().create(paths.verified(TOPIC), verified_record.encode(stopped))
    await damage(rig, segment.copy)
    [why] = await scrubbed(await Owned.claim(rig))
    assert repr(AWAY[0]) in why


async def test_a_merged_segment_puts_both_copies_of_its_sources_in_the_trash() -> None:
    """It has no copy itself until one is made."""
    rig = await mirrored(10, 10, 10)
    topic_map = await catalog.load(rig.tree.connect(), TOPIC)
    goal = merging.goal_of(topic_map.segments[:2])
    merged = replace(
        topic_map.segments[0],
        segment_id=rig.clock.uuid(),
        slices=goal.slices,
        mirror=None,
    )
    steps, after = merging.with_merged(topic_map, merged, now_ms=1)
    await rig.tree.connect().transact(steps)
    assert [one.mirror for one in (await segments_of(rig))] == [None, AWAY]
    assert (await catalog.load(rig.tree.connect(), TOPIC)).segments == after.segments
    for source in topic_map.segments[:2]:
        path = paths.trash_record(TOPIC, source.segment_id)
        record = deletion.decode_trash((await rig.tree.connect().get(path)).value, path=path)
        assert record.places(HOME) == (HOME, AWAY)


async def left_by_a_collection(rig: Rig, *, clock_off_ms: int = 0) -> CommittedSegment:
    """Have a collection of the copies in the mirror die at its record; returns the segment."""
    [segment] = await segments_of(rig)
    removal = CopyAttempt(
        segment_id=segment.segment_id,
        bucket=AWAY[0],
        prefix=AWAY[1],
        part_bytes=1,
        begun_ms=rig.clock.wall_ms() + clock_off_ms,
        removing=True,
    )
    await rig.tree.connect().create(paths.mirror(TOPIC), copy_record.encode(removal))
    return segment


@pytest.mark.parametrize("clock_off_ms", [-86_400_000, 0, 86_400_000])
async def test_a_collection_is_waited_for_by_the_clock_of_the_owner(clock_off_ms: int) -> None:
    """The collector's machine may be a day off: no copy begins while it deletes, nor is one held up for a day."""
    rig = await offloaded(rig_of(), 10)
    await left_by_a_collection(rig, clock_off_ms=clock_off_ms)
    async with mirroring(rig) as owned:
        await rig.clock.sleep(REMOVAL_S / 2)
        assert lag(owned) == 1
        await rig.clock.sleep(REMOVAL_S)
        assert lag(owned) == 0


async def test_each_collection_is_waited_for_anew() -> None:
    """That one broke off long ago says nothing of the next, which deletes what lies under the keys of the copy."""
    rig = await offloaded(rig_of(), 10)
    await left_by_a_collection(rig)
    async with mirroring(rig) as owned:
        await rig.clock.sleep(2 * REMOVAL_S)
        assert lag(owned) == 0
        await left_by_a_collection(rig)
        owned.offloader.follow(replace(owned.offloader.policy, mirror=THIRD))
        await rig.clock.sleep(REMOVAL_S / 2)
        assert lag(owned) == 1
        await rig.clock.sleep(REMOVAL_S)
        assert lag(owned) == 0


async def test_garbage_of_a_collection_that_died_is_collected_later() -> None:
    """Its owner has nothing to copy and does not read the record; the copies that nobody names go all the same."""
    rig = await mirrored(10)
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
        await left_by_a_collection(rig)
        assert {one.verdict for one in await collected(rig)} == {Verdict.KEEP}
        await rig.clock.sleep(REMOVAL_S)
        assert {one.verdict for one in await collected(rig)} == {Verdict.DELETED}
    assert await counts(rig) == [3, 0, 3]
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


async def test_a_slow_collection_does_not_take_the_record_of_a_copy() -> None:
    """The owner took it for broken off and copies again; the collector deletes its own record only."""
    rig = await mirrored(10)
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    store, path = rig.tree.connect(), paths.mirror(TOPIC)
    copy = CopyAttempt(segment_id=rig.clock.uuid(), bucket="us", prefix="", part_bytes=1, begun_ms=1)
    there = buckets_of(rig).at(AWAY[0])
    delete = there.delete

    async def slow(keys: Sequence[str]) -> None:
        if not keys[0].endswith("clock"):
            await store.replace(path, copy_record.encode(copy), (await store.get(path)).version)
        await delete(keys)

    there.delete = slow  # type: ignore[method-assign]
    await collected(rig)
    assert copy_record.decode((await store.get(path)).value, path=path) == copy


async def test_a_place_that_is_away_keeps_only_the_trash_that_needs_it() -> None:
    """What has no copy there is deleted meanwhile; the rest goes once the place is back."""
    rig = await mirrored(10, 10)
    rig.policy = replace(rig.policy, mirror=None)
    await offload_more(rig, (10, 10), seed=9)
    owned = await Owned.claim(rig)
    for segment in owned.offloader.map.segments[:3]:
        assert await owned.offloader.record.remove_oldest(segment, reason="age")
    asked: list[str] = []

    def plan(operation: str, key: str, when: str) -> None:
        asked.append(key)
        raise Transient("gone")

    breaking(rig, AWAY[0], plan)
    with pytest.raises(Transient, match="gone"):
        await owned.empty_trash()
    mended(rig)
    assert len(asked) == 1
    assert await counts(rig) == [9, 6, 0]
    assert await owned.empty_trash() == 0
    assert await counts(rig) == [3, 0, 0]


async def verified(verifier: TopicVerifier) -> tuple[list[SegmentReport], str]:
    """Return the reports of segments, and with what the verification ended."""
    reports: list[SegmentReport] = []
    try:
        async for one in verifier.run(TOPIC, Level.FULL):
            reports += [one] if isinstance(one, SegmentReport) else []
    except Transient as error:
        return reports, str(error)
    return reports, ""


@pytest.mark.parametrize("place", [HOME, AWAY])
async def test_a_place_that_is_away_does_not_hide_damage_of_the_other(place: tuple[str, str]) -> None:
    """The scrub and verify report it at once, so that the source keeps its ledger; verify ends with an error."""
    rig = await mirrored(10, 10)
    oldest = (await segments_of(rig))[0]
    other = AWAY if place == HOME else HOME
    await damage(rig, next(it for it in oldest.each_place if it.place == place))

    def plan(operation: str, key: str, when: str) -> None:
        raise Transient("gone")

    breaking(rig, other[0], plan)
    owned = await Owned.claim(rig)
    [why] = await scrubbed(owned)
    assert f"in bucket {place[0]!r}" in why
    found: list[str] = []
    verifier = TopicVerifier(
        ReadableMap(owned), partial(RetryingReader, rig.store, clock=rig.clock), SITES, lambda *it: found.append(it[2])
    )
    reports, error = await verified(verifier)
    assert "2 of 2 segments" in error
    assert [[flaw.is_problem for flaw in one.flaws] for one in reports] == [
        [one == place for one in (HOME, AWAY)],
        [False],
    ]
    [why] = found
    assert f"in bucket {place[0]!r}" in why


async def test_verify_gives_up_a_place_and_not_the_other() -> None:
    """After some segments in a row nothing more is asked for there, and the other place is read to the end."""
    rig = await mirrored(10, 10, 10, 10, 10)
    asked: list[str] = []

    def plan(operation: str, key: str, when: str) -> None:
        asked.append(key)
        raise Transient("gone")

    breaking(rig, AWAY[0], plan)
    owned = await Owned.claim(rig)
    verifier = TopicVerifier(ReadableMap(owned), partial(RetryingReader, rig.store, clock=rig.clock), SITES)
    reports, error = await verified(verifier)
    assert "5 of 5 segments" in error
    assert "the others were" in error
    assert len({key.partition(".")[0] for key in asked}) == IN_A_ROW_MAX
    assert [[flaw.kind for flaw in one.flaws] for one in reports] == 5 * [[FlawKind.UNREACHABLE]]


async def test_verify_gives_a_place_up_only_after_segments_in_a_row() -> None:
    """What is read between begins the count anew: each segment is asked for, however many were not read in all."""
    rig = await mirrored(10, 10, 10, 10, 10, 10, 10)
    owned = await Owned.claim(rig)
    ids = [str(one.segment_id) for one in owned.offloader.map.segments]
    gone = [*ids[:2], *ids[3:5], *ids[6:]]
    assert len(gone) > IN_A_ROW_MAX
    asked: set[str] = set()

    def plan(operation: str, key: str, when: str) -> None:
        for one in gone:
            if one in key:
                asked.add(one)
                raise Transient("gone")

    breaking(rig, AWAY[0], plan)
    verifier = TopicVerifier(ReadableMap(owned), partial(RetryingReader, rig.store, clock=rig.clock), SITES)
    reports, error = await verified(verifier)
    assert f"{len(gone)} of {len(ids)} segments" in error
    assert asked == set(gone)
    assert [bool(one.flaws) for one in reports] == [one in gone for one in ids]
