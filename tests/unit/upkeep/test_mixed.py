"""Upkeep of a topic of both methods: what looks at segments looks at whole ledgers as well."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from random import Random  # noqa: TID251 - a seed of the test's own
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.core.model import OffloadMethod, TierRetention
from offloaderd.format import manifest_bytes
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.removal import without_oldest
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.retrying import RetryingReader
from offloaderd.upkeep.explain import Explainer, State
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding, Kind, Summary, Verdict
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.grants.records import load_all
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, ScrubSettings
from offloaderd.upkeep.stored import KINDS
from offloaderd.upkeep.verify.cluster import Report, Verifier, Wish
from offloaderd.upkeep.verify.scrub import Scrubber
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, turn
from tests.unit.upkeep.mixed import SITE, Mixed, mixed_topic, random_topic, whole
from tests.unit.upkeep.test_explain import NOWHERE, Tiers
from tests.unit.upkeep.test_rebuild_living import nodes, rebuilt
from tests.unit.upkeep.test_retention import FOLLOW, Register

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.records.verified import SegmentVerified

OPTIONS = GrantSettings(readback=True, interval_s=1.0)


@pytest.fixture
async def mixed() -> Mixed:
    """The topic, nobody at work on it any more."""
    return await mixed_topic()


async def first_whole(mixed: Mixed) -> CommittedSegment:
    """Return the first segment that is a whole ledger."""
    return next(one for one in (await mixed.map()).segments if one.method is OffloadMethod.LEDGER_BASED)


async def verified(mixed: Mixed, level: Level = Level.FULL) -> list[Report]:
    """Verify everything against the map."""
    store, clock = mixed.rig.store, mixed.rig.clock
    verifier = Verifier(
        store, [SITE], RetryingReader(store, clock=clock), clock=clock, metadata=mixed.rig.tree.connect()
    )
    async with aclosing(verifier.run(Wish(level=level))) as reports:
        return [report async for report in reports]


async def collected(mixed: Mixed, *, apply: bool = True) -> list[Finding]:
    """Collect, everything being old enough."""
    rig = mixed.rig
    collector = Collector(rig.store, rig.tree.connect(), [SITE], clock=rig.clock, metrics=rig.metrics)
    async with aclosing(collector.collect(grace_s=0.0, apply=apply)) as found:
        return [one async for one in found if not isinstance(one, Summary)]


async def test_the_topic_is_what_it_is_for(mixed: Mixed) -> None:
    """Streamed, the rest of a ledger streamed, whole ledgers, and streamed again."""
    topic_map = await mixed.map()
    assert whole(topic_map) == [2, 3, 4]
    assert topic_map.segments[0].method is topic_map.segments[-1].method is OffloadMethod.STREAMING
    assert dict(await mixed.rig.committed()) == mixed.entries
    described = [one.method for one in topic_map.segments]
    assert described.index(OffloadMethod.LEDGER_BASED) >= 2


@pytest.mark.parametrize("level", list(Level))
async def test_a_sound_topic_has_no_flaw(mixed: Mixed, level: Level) -> None:
    """At every level of verifying."""
    (report,) = await verified(mixed, level)
    assert (report.flaws, report.segments, report.entries) == (
        [],
        len((await mixed.map()).segments),
        len(mixed.entries),
    )


async def test_a_flipped_bit_of_a_whole_ledger_is_found(mixed: Mixed) -> None:
    """Anywhere in its three objects, header, padding and index alike."""
    segment, chance = await first_whole(mixed), Random(1)  # noqa: S311 - repeatable on purpose
    for key in segment.keys.all:
        size = (await mixed.rig.store.head(key)).size_bytes
        for at in {0, 5, 25, 130, size - 1, *chance.sample(range(size), 40)}:
            before = await mixed.flip(key, min(at, size - 1))
            found = [flaw for report in await verified(mixed) for flaw in report.flaws if flaw.is_problem]
            assert {flaw.key for flaw in found if flaw.offset is not None} == {key}, f"byte {at} of {key}"
            await mixed.rig.store.put(key, before, metadata=(await mixed.rig.store.head(key)).metadata)
    assert [flaw for report in await verified(mixed) for flaw in report.flaws] == []


async def test_every_entry_is_explained_to_the_byte(mixed: Mixed) -> None:
    """In runs with and without a block's header before them."""
    rig = mixed.rig
    explainer = Explainer(
        mixed, Tiers(NOWHERE).held, rig.tree.connect(), RetryingReader(rig.store, clock=rig.clock), [SITE]
    )
    for position, payload in mixed.entries.items():
        found = await explainer.explain(TOPIC, position)
        place = found.place
        assert found.state is State.OFFLOADED
        assert place is not None
        assert place.entry_offset is not None
        head = await rig.store.get(place.data_key, place.entry_offset, 12)
        assert head == len(payload).to_bytes(4, "big") + position.entry_id.to_bytes(8, "big"), position
        assert await rig.store.get(place.data_key, place.entry_offset + 12, len(payload)) == payload


async def test_the_scrub_reads_whole_ledgers(mixed: Mixed) -> None:
    """It finds damage in one, says so, and has nothing to say of the others."""
    rig = mixed.rig
    segment = await first_whole(mixed)
    await mixed.flip(segment.keys.data, segment.object_bytes // 2)
    owned = await Owned.claim(rig)
    options = ScrubSettings.model_construct(interval_s=3600.0, first_after_s=0.0, bytes_per_s=10**9)
    told: list[tuple[int, ...]] = []

    async def damaged(_: object, ledgers: Sequence[int], __: str) -> None:
        told.append(tuple(ledgers))

    scrub = Scrubber(
        rig.store, rig.tree.connect(), [SITE], options, clock=rig.clock, metrics=rig.metrics, damaged=damaged
    )
    path, count = paths.verified(TOPIC), len(owned.offloader.map.segments)
    seen: Mapping[UUID, SegmentVerified] = {}
    async with asyncio.TaskGroup() as group:
        duty = group.create_task(scrub.run(owned.offloader))
        while len(seen) < count:
            found = await node(rig.tree.connect(), path)
            seen = verified_record.decode(found.value, path=path).segments if found is not None else {}
            await turn()
        duty.cancel()
    assert told == [(segment.begin.ledger_id,)]
    assert [segment_id for segment_id, one in seen.items() if one.flaws] == [segment.segment_id]


@pytest.mark.parametrize("readback", [False, True])
async def test_whole_ledgers_are_granted(mixed: Mixed, readback: bool) -> None:
    """Their one object covers them; one whose data is damaged keeps its source."""
    damaged = await first_whole(mixed)
    await mixed.flip(damaged.keys.index, 30)
    owned = await Owned.claim(mixed.rig)
    grants = Grants(
        owned.context,
        None,
        OPTIONS.model_copy(update={"readback": readback}),
        owned.book(deletion_lag_s=0.0),
        daemon_id="one",
    )
    await grants.run_once(owned.offloader, {})
    found = await load_all(mixed.rig.tree.connect(), TOPIC)
    assert found.keys() == {0, 1, 2, 3, 4, 5} - {damaged.begin.ledger_id}
    for ledger_id in set(whole(await mixed.map())) - {damaged.begin.ledger_id}:
        (part,) = found[ledger_id].segments
        assert (part.first_entry_id, part.last_entry_id) == (0, 39)
        assert part.objects[0].key.endswith(f"-ledger-{ledger_id}")
        assert (part.objects[0].crc32c is not None) == readback


@pytest.mark.parametrize("by_size", [False, True])
async def test_retention_takes_whole_ledgers_from_the_front(mixed: Mixed, by_size: bool) -> None:
    """As the source drops them, or by size; objects go with their segments, and what is left is read as before."""
    rig = mixed.rig
    after = segments = (await mixed.map()).segments
    for first in range(1, len(segments)):
        owned = await Owned.claim(rig)
        said: dict[str, Any] = {"retention": TierRetention.FOLLOW}
        if by_size:
            payload_bytes = sum(one.payload_bytes for one in segments[first:])
            said = {"retention": TierRetention.LIMITED, "retention_bytes": payload_bytes}
            for ledger_id in range(segments[first - 1].begin.ledger_id, segments[first].begin.ledger_id):
                await owned.ledgers.delete(TOPIC, ledger_id)
        register = Register(range(segments[first].begin.ledger_id, 7))
        await Retention(owned.context, register, FOLLOW, owned.book(**said)).run_once(owned.offloader, {})
        assert await owned.empty_trash() == 0
        after = (await mixed.map()).segments
        left = {position: payload for position, payload in mixed.entries.items() if position >= after[0].begin}
        assert dict(await rig.committed()) == left
        assert await rig.leftovers() == []
        assert await collected(mixed) == []
        assert not any(flaw.is_problem for report in await verified(mixed) for flaw in report.flaws)
    assert after == segments[-1:]


async def test_trash_of_whole_ledgers_goes_without_an_owner(mixed: Mixed) -> None:
    """What was decided is done by the collector."""
    store, current = mixed.rig.tree.connect(), await mixed.map()
    for one in current.segments[:-2]:
        steps, current = without_oldest(current, one, reason="old", now_ms=1)
        await store.transact(steps)
    finds = await collected(mixed)
    assert {find.kind for find in finds} == {Kind.TRASH}
    assert len(await mixed.rig.leftovers()) == 0
    assert await collected(mixed) == []


async def test_what_nobody_refers_to_goes_unless_it_is_the_last_copy(mixed: Mixed) -> None:
    """A whole ledger that is in no map is kept while its entries are nowhere else, and goes when they are."""
    store, segment = mixed.rig.tree.connect(), await first_whole(mixed)
    path = paths.ledger(TOPIC, segment.begin.ledger_id)
    node = await store.get(path)
    await store.delete(path)
    (uncovered,) = {(find.kind, find.verdict) for find in await collected(mixed)}
    assert uncovered == (Kind.UNCOVERED, Verdict.ALARM)
    await store.create(path, node.value)
    copied = replace_id(segment)
    for kind in KINDS:
        info = await mixed.rig.store.head(segment.keys.of(kind))
        data = await mixed.rig.store.get(info.key)
        if kind is ObjectKind.MANIFEST:
            described = manifest_bytes.decode(data, key=info.key)
            data = manifest_bytes.encode(replace(described, segment_id=copied.segment_id))
        await mixed.rig.store.put(copied.keys.of(kind), data, metadata=info.metadata)
    assert {(find.kind, find.verdict, find.key) for find in await collected(mixed)} == {
        (Kind.SUPERSEDED, Verdict.DELETED, key) for key in copied.keys.all
    }
    assert await mixed.rig.leftovers() == []


async def test_what_was_never_finished_goes(mixed: Mixed) -> None:
    """Of a whole ledger of ours what lacks its data; a broker's object stays."""
    segment = await first_whole(mixed)
    copied = replace_id(segment)
    left = [ObjectKind.INDEX, ObjectKind.MANIFEST]
    for kind in left:
        labels = (await mixed.rig.store.head(segment.keys.of(kind))).metadata
        await mixed.rig.store.put(copied.keys.of(kind), b"x", metadata=labels)
    brokers = SegmentKeys("seg/", UUID(int=8), 12)
    for kind in (ObjectKind.DATA, ObjectKind.INDEX):
        labels = dict((await mixed.rig.store.head(segment.keys.of(kind))).metadata)
        await mixed.rig.store.put(brokers.of(kind), b"y", metadata=labels | {keys.SOFTWARE_VERSION_KEY: "4.0.8"})
    finds = await collected(mixed)
    assert {find.key for find in finds if find.verdict is Verdict.DELETED} == {copied.keys.of(kind) for kind in left}
    assert set(await mixed.rig.leftovers()) == {*brokers.all[:2]}


def replace_id(segment: CommittedSegment) -> CommittedSegment:
    """Return the same with another id."""
    return replace(segment, segment_id=UUID(int=7))


async def test_the_bucket_alone_restores_the_map(mixed: Mixed) -> None:
    """Byte for byte, whole ledgers and the rest of one that was begun otherwise."""
    target, failure_tracker = await rebuilt(mixed.rig)
    assert failure_tracker == []
    assert (await catalog.load(target, TOPIC)).segments == (await mixed.map()).segments
    assert await nodes(target) == await nodes(mixed.rig.tree.connect())


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_methods_owners_had_all_of_it_is_sound(seed: int) -> None:
    """Verified without a flaw, nothing to collect, and the map comes back from the bucket as it was."""
    mixed = await random_topic(seed)
    live = await mixed.map()
    stored = await mixed.rig.committed()
    assert stored == [(position, mixed.entries[position]) for position, _ in stored]
    lost = mixed.entries.keys() - {position for position, _ in stored}
    assert all(any(loss.holds(position) for loss in live.losses) for position in lost)
    assert not any(flaw.is_problem for report in await verified(mixed) for flaw in report.flaws)
    assert await collected(mixed) == []
    target, failure_tracker = await rebuilt(mixed.rig)
    assert failure_tracker == []
    assert (await catalog.load(target, TOPIC)).segments == live.segments
    wanted, found = await nodes(mixed.rig.tree.connect()), await nodes(target)
    last = paths.ledger(TOPIC, live.segments[-1].end.ledger_id)
    assert {path: value for path, value in found.items() if path != last} == {
        path: value for path, value in wanted.items() if path != last
    }


async def test_the_seeds_have_what_they_are_for() -> None:
    """Both methods in one topic, and losses."""
    maps = [await (await random_topic(seed)).map() for seed in range(12)]
    both = [one for one in maps if {segment.method for segment in one.segments} >= {OffloadMethod.LEDGER_BASED}]
    assert sum(any(one.method is OffloadMethod.STREAMING for one in found.segments) for found in both) >= 6
    assert sum(bool(one.losses) for one in maps) >= 2
