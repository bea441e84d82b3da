"""The mirror: each committed segment is copied to its second place, checked, recorded in the map, and resumed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.core.aio import Group
from offloaderd.core.errors import Archived, BucketMissing, Denied, Fenced, OutcomeUnknown, Transient, first_of
from offloaderd.core.model import OffloadMethod
from offloaderd.format.v2 import SegmentLayout
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.port import S3_PARTS
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import FaultyStore
from offloaderd.upkeep.mirror import AGAIN_S, Mirror, parts_of
from offloaderd.upkeep.settings import MirrorSettings
from tests.unit.objects.buckets import Buckets
from tests.unit.rigs.owned import Owned, offload_more
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.objects.port import ObjectReader
    from offloaderd.testing.faults import Plan

HOME, AWAY, THIRD = ("b", "seg/"), ("eu", "topics/"), ("us", "")
PLACES = (HOME, AWAY, THIRD)


class FaultyBuckets(Buckets):
    """Buckets of which one breaks by a plan."""

    broken: dict[str, FaultyStore]

    def at(self, bucket: str) -> Buckets:  # type: ignore[override]  # of another kind than itself
        """See SegmentStore."""
        found = getattr(self, "broken", {}).get(bucket)
        return found if found is not None else super().at(bucket)  # type: ignore[return-value]


def rig_of(*, mirror: tuple[str, str] | None = AWAY) -> Rig:
    """Return a rig with three places, whose topics have this mirror, and parts of a few blocks."""
    policy = RollPolicy(segment_bytes_max=100_000, segment_age_max_s=3600.0, mirror=mirror)
    rig = Rig(places=PLACES, policy=policy, layout=SegmentLayout(block_bytes=1024, part_bytes=3000))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    rig.objects = FaultyBuckets(rig.clock, *(bucket for bucket, _ in PLACES))
    return rig


def buckets_of(rig: Rig) -> FaultyBuckets:
    """Return the rig's buckets."""
    assert isinstance(rig.objects, FaultyBuckets)
    return rig.objects


def breaking(rig: Rig, bucket: str, plan: Plan) -> None:
    """Have a bucket break by a plan from now on."""
    buckets_of(rig).broken = {bucket: FaultyStore(super(FaultyBuckets, buckets_of(rig)).at(bucket), plan)}


def mended(rig: Rig) -> None:
    """Have all buckets work."""
    buckets_of(rig).broken = {}


async def offloaded(rig: Rig, *segments: int) -> Rig:
    """Offload segments of so many entries, without a mirror's duty."""
    await offload_more(rig, segments)
    return rig


@asynccontextmanager
async def mirroring(rig: Rig, owned: Owned | None = None) -> AsyncIterator[Owned]:
    """Have an owner copy in the background."""
    owner = owned or await Owned.claim(rig)
    async with Group() as group:
        duty = group.create_task(Mirror(owner.context, MirrorSettings()).run(owner.offloader))
        yield owner
        duty.cancel()


def lag(owned: Owned) -> int:
    """Return how many segments lack a copy."""
    status = owned.offloader.status().mirror
    assert status is not None
    return status.lag_segments


async def stored(rig: Rig, segment: CommittedSegment) -> list[bytes]:
    """Return the three objects of a segment where its record says."""
    store: ObjectReader = super(FaultyBuckets, buckets_of(rig)).at(segment.bucket)
    return [await store.get(key) for key in segment.keys.all]


async def check_copies(rig: Rig, *, mirror: tuple[str, str] = AWAY) -> None:
    """Check in the stores that every segment has an equal copy in the mirror, and nothing else is there."""
    found = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert [one.mirror for one in found] == [mirror] * len(found)
    for one in found:
        assert one.copy is not None
        assert await stored(rig, one.copy) == await stored(rig, one)
    assert len(await buckets_of(rig).keys(mirror[0])) == 3 * len(found)
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


async def test_every_segment_is_copied_with_the_same_bytes() -> None:
    """Those that were committed before, and those that come; with the labels, and nothing is left open."""
    rig = await offloaded(rig_of(), 25, 10)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
        assert rig.metrics.registry.get_sample_value("offloaderd_mirror_copies_total", {"outcome": "ok"}) == 2
    await check_copies(rig)
    for one in owned.offloader.map.segments:
        there = await buckets_of(rig).at(AWAY[0]).head(one.copy.keys.data if one.copy else "")
        assert there.metadata == (await buckets_of(rig).at(HOME[0]).head(one.keys.data)).metadata
    assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []


async def test_the_copy_of_a_whole_ledger_has_its_key() -> None:
    """Segments by the ledger-based method (PIP-17) are copied as others are."""
    rig = rig_of()
    rig.policy = replace(rig.policy, method=OffloadMethod.LEDGER_BASED, threshold_bytes=0)
    await offloaded(rig, 30)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    assert {one.method for one in owned.offloader.map.segments} == {OffloadMethod.LEDGER_BASED}
    await check_copies(rig)


async def test_without_a_mirror_nothing_is_copied_and_nothing_is_reported() -> None:
    """The policy of most topics."""
    rig = await offloaded(rig_of(mirror=None), 10)
    async with mirroring(rig) as owned:
        await rig.clock.sleep(3600)
        assert owned.offloader.status().mirror is None
    assert await buckets_of(rig).keys(AWAY[0]) == []


async def test_a_segment_in_the_mirror_is_copied_to_the_topics_own_place() -> None:
    """As after the two places were exchanged."""
    rig = rig_of()
    rig.places = (AWAY, HOME)
    await offloaded(rig, 10)
    rig.places, rig.policy = PLACES, replace(rig.policy, place=HOME, mirror=AWAY)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    [segment] = owned.offloader.map.segments
    assert (segment.place, segment.mirror) == (AWAY, HOME)


async def test_another_mirror_gets_copies_of_everything() -> None:
    """The record names the new place only, so the collector of garbage takes away the old copies."""
    rig = await offloaded(rig_of(), 10, 10)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
        owned.offloader.follow(replace(owned.offloader.policy, mirror=THIRD))
        assert lag(owned) == 2
        await until(lambda: not lag(owned))
    await check_copies(rig, mirror=THIRD)


async def test_the_next_owner_resumes_a_copy_and_sends_no_stored_part_again() -> None:
    """The upload is on record, and its parts are compared with what is read."""
    rig = await offloaded(rig_of(), 200)
    sent: list[str] = []

    def plan(operation: str, key: str, when: str) -> None:
        if operation == "upload_part":
            if when == "before" and len(sent) == 3:
                raise Transient("gone")
            sent.extend([key] if when == "after" else [])

    breaking(rig, AWAY[0], plan)
    async with mirroring(rig):
        await until(lambda: len(sent) == 3)
        await rig.clock.sleep(60)
    [upload] = [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()]
    assert len(await buckets_of(rig).at(AWAY[0]).list_parts(upload.key, upload.upload_id)) == 3
    sent.clear()
    breaking(rig, AWAY[0], lambda operation, key, when: sent.append(f"{operation} {when}"))
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    value = rig.metrics.registry.get_sample_value
    assert value("offloaderd_mirror_parts_total", {"outcome": "kept"}) == 3
    [segment] = owned.offloader.map.segments
    described, _, _ = await Mirror(owned.context, MirrorSettings()).tables(TOPIC, segment)
    parts = list(parts_of(described, 3000, replace(S3_PARTS, bytes_min=1)))
    assert sent.count("upload_part before") == len(parts) - 3 > 0
    assert sent.count("create_upload before") == 0
    await check_copies(rig)


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_copy_survives_the_loss_of_any_answer(operation: str, when: str) -> None:
    """Each request fails once, before it is carried out or after: the copy is whole, and no upload is left."""
    failed: list[str] = []
    rig = await offloaded(rig_of(), 20)

    def plan(asked: str, key: str, at: str) -> None:
        if (asked, at) == (operation, when) and not failed:
            failed.append(key)
            raise OutcomeUnknown("the answer is lost")

    breaking(rig, AWAY[0], plan)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    assert failed
    await check_copies(rig)
    assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put", "head"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_copy_survives_the_death_of_its_owner(operation: str, when: str) -> None:
    """The owner ends at a request; the next one finishes the copy, and no upload is left open."""
    rig, seen = await offloaded(rig_of(), 20), asyncio.Event()

    def plan(asked: str, key: str, at: str) -> None:
        if (asked, at) == (operation, when):
            seen.set()
            raise Transient("it is dead")

    breaking(rig, AWAY[0], plan)
    async with mirroring(rig):
        await seen.wait()
    mended(rig)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    await check_copies(rig)
    assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []


async def test_an_owner_that_was_fenced_records_no_copy() -> None:
    """The transaction checks the epoch; the next owner makes the copy."""
    rig = await offloaded(rig_of(), 10)
    first = await Owned.claim(rig)
    await Owned.claim(rig)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with mirroring(rig, first):
            await rig.clock.sleep(60)
    assert isinstance(first_of(caught.value), Fenced)
    assert [one.mirror for one in (await catalog.load(rig.tree.connect(), TOPIC)).segments] == [None]
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    await check_copies(rig)


async def test_damage_is_not_copied_and_does_not_hold_up_the_others() -> None:
    """A block with another byte ends the copy of its segment, which is tried again later, once it is repaired."""
    rig = await offloaded(rig_of(), 10, 10, 10)
    owned = await Owned.claim(rig)
    victim = owned.offloader.map.segments[1]
    home = buckets_of(rig).at(HOME[0])
    whole, info = await home.get(victim.keys.data), await home.head(victim.keys.data)
    await home.put(victim.keys.data, whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:], metadata=info.metadata)
    with capture_logs() as logs:
        async with mirroring(rig, owned):
            await rig.clock.sleep(AGAIN_S / 2)
            assert lag(owned) == 1
            status = owned.offloader.status().mirror
            assert status is not None
            assert str(victim.segment_id) in status.failure
            assert [one.mirror for one in owned.offloader.map.segments] == [AWAY, None, AWAY]
            await home.put(victim.keys.data, whole, metadata=info.metadata)
            await rig.clock.sleep(AGAIN_S)
            await until(lambda: not lag(owned))
    assert len([one for one in logs if one["event"] == "mirror.unreadable"]) == 1
    await check_copies(rig)


@pytest.mark.parametrize("error", [Transient("down"), Denied("no"), BucketMissing("gone")])
async def test_a_bucket_that_is_away_does_not_hold_up_segments_of_others(error: Exception) -> None:
    """The oldest segment is in it, and the error shows until that is copied as well."""
    rig = await offloaded(rig_of(), 10)
    rig.policy = replace(rig.policy, place=THIRD)
    rig.places = (THIRD, AWAY, HOME)
    await offloaded(rig, 12)

    def plan(operation: str, key: str, when: str) -> None:
        raise error

    breaking(rig, HOME[0], plan)
    async with mirroring(rig) as owned:
        await rig.clock.sleep(60.0)
        assert [(one.place, one.mirror) for one in owned.offloader.map.segments] == [(HOME, None), (THIRD, AWAY)]
        status = owned.offloader.status().mirror
        assert status is not None
        assert str(error) in status.failure
        mended(rig)
        await until(lambda: not lag(owned))
        status = owned.offloader.status().mirror
        assert status is not None
        assert not status.failure
    await check_copies(rig)


async def test_a_copy_that_reads_back_differently_begins_anew() -> None:
    """What a store has made of an upload is compared with the parts before the copy is recorded."""
    spoilt: list[str] = []
    rig = await offloaded(rig_of(), 10)
    there = super(FaultyBuckets, buckets_of(rig)).at(AWAY[0])
    complete = there.complete_upload

    async def other(key: str, upload_id: str, parts: object) -> object:
        done = await complete(key, upload_id, parts)  # type: ignore[arg-type]
        if not spoilt:
            spoilt.append(key)
            await there.put(key, bytes(done.size_bytes), metadata=done.metadata)
        return done

    there.complete_upload = other  # type: ignore[method-assign,assignment]
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    assert spoilt
    await check_copies(rig)


async def test_a_copy_is_read_back_where_segments_are() -> None:
    """By offload.verify: a part that a store took with other bytes than were sent is found before the copy counts."""
    spoilt: list[str] = []
    rig = await offloaded(rig_of(), 200)
    rig.readback = True
    there = super(FaultyBuckets, buckets_of(rig)).at(AWAY[0])
    upload_part = there.upload_part

    async def garbled(key: str, upload_id: str, number: int, pieces: Sequence[bytes]) -> object:
        data = bytearray(b"".join(pieces))
        if not spoilt:
            spoilt.append(key)
            data[-1] ^= 1
        return await upload_part(key, upload_id, number, [bytes(data)])

    there.upload_part = garbled  # type: ignore[method-assign,assignment]
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    assert spoilt
    await check_copies(rig)


async def test_copies_leave_half_of_the_memory_to_live_segments() -> None:
    """A copy waits while more than half of it is in use, and goes on when it is free."""
    rig = await offloaded(rig_of(), 10)
    owned = await Owned.claim(rig)
    budget = owned.context.upload_context.budget
    await budget.acquire(budget.limit // 2 + 1, "live")
    async with mirroring(rig, owned):
        await rig.clock.sleep(600)
        assert lag(owned) == 1
        assert budget.used == budget.limit // 2 + 1
        budget.release(budget.limit // 2 + 1, "live")
        await until(lambda: not lag(owned))
    assert budget.idle


async def test_a_copy_that_is_not_wanted_any_more_leaves_no_record() -> None:
    """The mirror is taken out of the policy in mid-copy: nothing holds the upload against the collector of garbage."""
    rig, seen = await offloaded(rig_of(), 20), asyncio.Event()

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, when) == ("upload_part", "before"):
            seen.set()
            raise Transient("gone")

    breaking(rig, AWAY[0], plan)
    async with mirroring(rig) as owned:
        await seen.wait()
        node = await nodes.node(rig.tree.connect(), paths.mirror(TOPIC))
        assert node is not None
        assert copy_record.decode(node.value, path="").place == AWAY
        owned.offloader.follow(replace(owned.offloader.policy, mirror=None))
        await rig.clock.sleep(600)
        assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


@pytest.mark.parametrize("by_policy", [True, False])
async def test_a_copy_that_is_not_on_record_any_more_begins_anew(*, by_policy: bool) -> None:
    """What it stored may be garbage by now: a mirror that is withdrawn and given again, or a deleted record."""
    rig, sent, answers = await offloaded(rig_of(), 200), [0], asyncio.Event()

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, when) == ("upload_part", "before") and not answers.is_set():
            if sent[0] == 3:
                raise Transient("gone")
            sent[0] += 1

    breaking(rig, AWAY[0], plan)
    async with mirroring(rig) as owned:
        await until(lambda: sent[0] == 3)
        await rig.clock.sleep(10)
        policy, store = owned.offloader.policy, rig.tree.connect()
        if by_policy:
            owned.offloader.follow(replace(policy, mirror=None))
            await rig.clock.sleep(60)
            assert await owned.empty_trash() == 0
            assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []
        else:
            await store.delete(paths.mirror(TOPIC))
        assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None
        answers.set()
        owned.offloader.follow(policy)
        await rig.clock.sleep(120)
        assert lag(owned) == 0
    await check_copies(rig)
    assert [one async for one in buckets_of(rig).at(AWAY[0]).list_uploads()] == []


async def test_a_segment_that_leaves_in_mid_copy_is_not_recorded() -> None:
    """Retention has removed it meanwhile; the next one is copied, and nothing stays of the first, damaged or not."""
    rig, seen = await offloaded(rig_of(), 10, 10), asyncio.Event()
    go_on = asyncio.Event()

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, when) == ("put", "before") and not go_on.is_set():
            seen.set()
            raise Transient("wait")

    breaking(rig, AWAY[0], plan)
    async with mirroring(rig) as owned:
        await seen.wait()
        left = replace(owned.offloader.map.segments[0].keys, prefix=AWAY[1])
        assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="test")
        for key in left.all[1:]:  # a collection of garbage could not tell what the segment holds
            await super(FaultyBuckets, buckets_of(rig)).at(AWAY[0]).put(key, b"rotten")
        go_on.set()
        await until(lambda: not lag(owned))
        await rig.clock.sleep(owned.context.reader_grace_s)
        assert (await owned.empty_trash(), await rig.tree.connect().children(paths.trash(TOPIC))) == (0, [])
    await check_copies(rig)


async def test_parts_are_whole_blocks_within_the_limits_of_the_store() -> None:
    """Each but the last has the least size; a great object has larger parts, so that there are not too many."""
    rig = await offloaded(rig_of(), 40)
    owned = await Owned.claim(rig)
    mirror = Mirror(owned.context, MirrorSettings())
    [segment] = owned.offloader.map.segments
    described, _, _ = await mirror.tables(TOPIC, segment)
    rules = replace(S3_PARTS, bytes_min=2000)
    for part_bytes, most in ((1, 10_000), (5000, 10_000), (1, 2)):
        parts = list(parts_of(described, part_bytes, replace(rules, number_max=most)))
        assert [block for part in parts for block in part] == list(described.blocks)
        sizes = [sum(block.length for block in part) for part in parts]
        assert min(sizes[:-1], default=2000) >= max(part_bytes, 2000) - described.preamble_bytes
        assert len(parts) <= most


async def test_a_mirror_that_is_the_topics_own_place_is_no_copy() -> None:
    """Levels may give that together: nothing has a second copy, and the status and the lag say so."""
    rig = await offloaded(rig_of(mirror=HOME), 10)
    async with mirroring(rig) as owned:
        await rig.clock.sleep(60)
        status = owned.offloader.status().mirror
        assert status is not None
        assert (status.lag_segments, status.segments) == (1, 0)
        assert "no copy is made" in status.failure
        assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


async def test_an_archived_segment_does_not_hold_up_the_others() -> None:
    """Nobody can read it before an operator has restored it, which may never be."""
    rig = await offloaded(rig_of(), 10, 10, 10)
    owned = await Owned.claim(rig)
    victim = owned.offloader.map.segments[0]

    def plan(operation: str, key: str, when: str) -> None:
        if operation.startswith("get") and key == victim.keys.data:
            raise Archived("it is in an archive", hint="restore it")

    breaking(rig, HOME[0], plan)
    async with mirroring(rig, owned):
        await until(lambda: lag(owned) == 1)
        assert "restore it" in getattr(owned.offloader.status().mirror, "failure", "")
        assert await rig.tree.connect().children(paths.trash(TOPIC)) == []  # what is still to be copied stays
        mended(rig)
        await rig.clock.sleep(AGAIN_S + 60)
        await until(lambda: not lag(owned))
    await check_copies(rig)


async def test_a_segment_whose_objects_are_deleted_in_mid_copy_is_no_failure() -> None:
    """Retention has removed it, and the trash is emptied: it is not reported as one that cannot be read."""
    rig, seen, gone = await offloaded(rig_of(), 200, 10), asyncio.Event(), asyncio.Event()
    there = super(FaultyBuckets, buckets_of(rig)).at(AWAY[0])
    upload_part = there.upload_part

    async def slow(key: str, upload_id: str, number: int, pieces: Sequence[bytes]) -> object:
        if number == 2:
            seen.set()
            await gone.wait()
        return await upload_part(key, upload_id, number, pieces)

    there.upload_part = slow  # type: ignore[method-assign,assignment]
    with capture_logs() as logs:
        async with mirroring(rig) as owned:
            await seen.wait()
            assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="test")
            assert await owned.empty_trash() == 0
            gone.set()
            await until(lambda: not lag(owned))
            await rig.clock.sleep(1)
            status = owned.offloader.status().mirror
            assert status is not None
            assert not status.failure
    assert "mirror.unreadable" not in {one["event"] for one in logs}


async def test_a_mirror_that_is_no_place_of_the_daemons_is_told_as_that() -> None:
    """The segments themselves are offloaded all the same."""
    rig = await offloaded(rig_of(), 10)
    owned = await Owned.claim(rig)
    owned.offloader.follow(replace(owned.offloader.policy, mirror=("gone", "x/")))
    async with mirroring(rig, owned):
        await rig.clock.sleep(60)
        status = owned.offloader.status().mirror
        assert status is not None
        assert "bucket 'gone', prefix 'x/', which is no place of this daemon's" in status.failure
        assert "nothing is copied there" in status.failure
        assert "offloaded" not in status.failure


async def test_a_mirror_that_is_away_at_the_claim_holds_up_no_commit() -> None:
    """Not even one of the same service: its head is compared later, and until then nothing is deleted or granted."""
    rig = rig_of()
    assert rig.ledgers is not None

    def plan(operation: str, key: str, when: str) -> None:
        raise Denied("no right to that bucket")

    breaking(rig, AWAY[0], plan)
    async with rig.engine() as engine:
        topic = await enabled(engine, TopicPolicy(enabled=True, mirror="eu/topics/"))
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until_offloaded(topic, last)
        assert not topic.identity.checked.is_set()
        mended(rig)
        await until(topic.identity.checked.is_set)
