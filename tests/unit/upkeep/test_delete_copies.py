"""Copies of segments that stay: they go by the trash list, and never what the map names or somebody may need."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.aio import Group
from offloaderd.core.errors import Transient
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records import deletion
from offloaderd.metadata.topic_map.last_copy import last_copy
from offloaderd.metadata.topic_map.mirroring import with_copy
from offloaderd.objects.keys import ObjectKind
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.protocol.v1 import places_pb2 as pb
from offloaderd.testing.faults import FaultyMetadata
from offloaderd.upkeep import deletion as deletion_duty
from offloaderd.upkeep.copy_removal import removal_of
from offloaderd.upkeep.deletion import KEPT_S, empty_trash, next_due_s
from offloaderd.upkeep.switching import unnamed
from tests.unit.api.test_manual import CALLER
from tests.unit.metadata.segments import made
from tests.unit.rigs.owned import Owned, offload_more
from tests.unit.rigs.rig import TOPIC, Rig, until
from tests.unit.upkeep.test_mirror import AWAY, HOME, THIRD, breaking, buckets_of, lag, mirroring, rig_of
from tests.unit.upkeep.test_mirrored import collected, mirrored, segments_of
from tests.unit.upkeep.test_switching import AWAY_TEXT, HOME_TEXT, offload, places_of, running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.objects.port import UploadInfo


async def dropped(*segments: int) -> tuple[Rig, Owned, CommittedSegment]:
    """Return an owner that has put the copy of its first segment on the trash list, and the segment with its copy."""
    rig = await mirrored(*segments)
    owned = await Owned.claim(rig)
    segment = owned.offloader.map.segments[0]
    await owned.offloader.record.drop_copy(segment.segment_id, AWAY)
    return rig, owned, segment


async def present(rig: Rig, segment: CommittedSegment) -> list[bool]:
    """Return which objects of a segment are where it says."""
    there = await buckets_of(rig).keys(segment.bucket)
    return [key in there for key in segment.keys.all]


def copy_of(segment: CommittedSegment) -> CommittedSegment:
    """Return the segment as it is in its mirror."""
    assert segment.copy is not None
    return segment.copy


def failure(owned: Owned) -> str:
    """Return the present error of the mirror."""
    status = owned.offloader.status().mirror
    return status.failure if status is not None else ""


async def trashed(rig: Rig) -> list[deletion.Trash]:
    """Return the trash records of the topic."""
    store, folder = rig.tree.connect(), paths.trash(TOPIC)
    found = [
        await nodes.record(store, f"{folder}/{name}", deletion.decode_trash) for name in await store.children(folder)
    ]
    return [one for one in found if one is not None]


async def test_a_moved_topic_keeps_its_segments_and_loses_the_old_copies() -> None:
    """Exchanged, without a mirror, and emptied: every object is in the new place, and none is left in the old one."""
    rig = rig_of(mirror=None)
    async with running(rig) as one:
        await offload(rig, one, 25)
        await offload(rig, one, 10, seed=1)
        await one.copied()
        await one.switch(AWAY_TEXT)
        await one.service.SetMirror(pb.SetMirrorRequest(topic=str(TOPIC), mirror=""), CALLER)
        request = pb.DeleteCopiesRequest(topic=str(TOPIC), dry_run=True)
        [found] = [it async for it in one.service.DeleteCopies(request, CALLER)]
        assert (found.copies, found.copies_total, list(found.places)) == (0, 2, [HOME_TEXT])
        assert await trashed(rig) == []
        request.dry_run = False
        *_, found = [it async for it in one.service.DeleteCopies(request, CALLER)]
        assert (found.copies, found.done) == (2, True)
        assert places_of(one.topic.map.segments) == [(AWAY, None)] * 2
        *_, again = [it async for it in one.service.DeleteCopies(request, CALLER)]
        assert again.copies_total == 0
        segments = one.topic.map.segments
        while await trashed(rig):
            await rig.clock.sleep(0.1)
        assert [await present(rig, it) for it in segments] == [[True] * 3] * 2
        assert len(await rig.committed()) == 35
    assert not [key for key in await buckets_of(rig).keys(HOME[0]) if str(segments[0].segment_id) in key]


async def test_a_copy_that_is_being_made_while_the_mirror_is_withdrawn_is_deleted_with_the_others() -> None:
    """It is recorded once it is verified, and the deletion of copies waits for that: none stays in the old place."""
    rig, seen, go_on = rig_of(mirror=None), asyncio.Event(), asyncio.Event()
    there = buckets_of(rig).at(AWAY[0])
    upload_part = there.upload_part

    async def slow(key: str, upload_id: str, number: int, pieces: Sequence[bytes]) -> object:
        seen.set()
        await go_on.wait()
        return await upload_part(key, upload_id, number, pieces)

    there.upload_part = slow  # type: ignore[method-assign,assignment]
    async with running(rig) as one, Group() as group:
        await offload(rig, one, 25)
        await seen.wait()
        await one.service.SetMirror(pb.SetMirrorRequest(topic=str(TOPIC), mirror=""), CALLER)

        async def delete() -> pb.DeleteCopiesProgress:
            request = pb.DeleteCopiesRequest(topic=str(TOPIC))
            *_, last = [it async for it in one.service.DeleteCopies(request, CALLER)]
            return last

        deleting = group.create_task(delete())
        await rig.clock.sleep(20.0)
        assert one.topic.users == 1, "the topic is not suspended under the call"
        go_on.set()
        found = await deleting
        assert one.topic.users == 0
        assert (found.copies, list(found.places)) == (1, [AWAY_TEXT])
        await rig.clock.sleep(20.0)
        assert places_of(one.topic.map.segments) == [(HOME, None)]
        assert await trashed(rig) == []
    assert not [key for key in await buckets_of(rig).keys(AWAY[0]) if str(one.topic.map.segments[0].segment_id) in key]


async def test_only_the_place_that_the_record_does_not_name_is_emptied() -> None:
    """The record of the copy is one of its own; readers keep it for their time, and the segment stays."""
    rig, owned, segment = await dropped(25)
    owned.context = replace(owned.context, reader_grace_s=60.0)
    [record] = await trashed(rig)
    assert (record.of_copy, record.bucket, record.prefix, record.mirror_bucket) == (True, *AWAY, None)
    dues_s: dict[str, float] = {}
    found = await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)
    assert (found.gone, found.left) == (0, 0)
    assert all(await present(rig, copy_of(segment)))
    await rig.clock.sleep(61.0)
    found = await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)
    assert (found.gone, found.left) == (1, 0)
    assert await present(rig, copy_of(segment)) == [False] * 3
    assert await present(rig, segment) == [True] * 3
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


async def test_a_place_that_the_map_names_is_not_emptied() -> None:
    """Whatever is on the trash list: a segment that has its copy there, or is read there, keeps it."""
    rig, owned, segment = await dropped(25)
    steps, _ = with_copy(owned.offloader.map, segment.segment_id, AWAY)
    await owned.context.metadata.transact(steps)
    await owned.offloader.record.reload()
    found = await empty_trash(owned.context, lambda: owned.offloader.map)
    assert (found.gone, found.left, found.held) == (0, 1, 1)
    assert all(await present(rig, copy_of(segment)))
    await collected(rig)
    assert all(await present(rig, copy_of(segment)))


@pytest.mark.parametrize("lacking", ["data", "index", "manifest", "a byte"])
async def test_the_last_copy_stays(lacking: str) -> None:
    """Where the first place has lost an object, or data are cut off, the copy is all there is."""
    rig, owned, segment = await dropped(25)
    there = buckets_of(rig).at(HOME[0])
    if lacking == "a byte":
        await there.put(segment.keys.data, (await there.get(segment.keys.data))[:-1])
    else:
        await there.delete([segment.keys.of(ObjectKind(lacking))])
    found = await empty_trash(owned.context, lambda: owned.offloader.map)
    assert (found.gone, found.left, found.kept) == (0, 1, 1)
    assert all(await present(rig, copy_of(segment)))


async def test_an_owner_that_was_fenced_leaves_the_copy_that_its_successor_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was slow in between, its map is an old one, and the keys are the same: the stored map decides."""
    rig, late, segment = await dropped(25)

    async def slow(*args: Any) -> str:  # noqa: ANN401 - passed on
        monkeypatch.undo()
        successor = await Owned.claim(rig)
        assert await successor.empty_trash() == 0
        async with mirroring(rig, successor):
            await until(lambda: not lag(successor))
        return await last_copy(*args)

    monkeypatch.setattr(deletion_duty, "last_copy", slow)
    await empty_trash(late.context, lambda: late.offloader.map)
    assert places_of(await segments_of(rig)) == [(HOME, AWAY)]
    assert await present(rig, copy_of(segment)) == [True] * 3
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


async def test_a_removal_that_a_store_holds_up_ends_before_a_copy_may_begin() -> None:
    """Uploads are listed for as long as a store likes; nothing is deleted when others count it as broken off."""
    rig, owned, segment = await dropped(25)
    there = buckets_of(rig).at(AWAY[0])
    list_uploads = there.list_uploads

    async def slow(prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
        await rig.clock.sleep(2 * copy_record.REMOVAL_S)
        async for one in list_uploads(prefix):
            yield one

    there.list_uploads = slow  # type: ignore[method-assign]
    async with asyncio.timeout(copy_record.REMOVAL_S):
        with pytest.raises(Transient, match="did not delete the copy"):
            await empty_trash(owned.context, lambda: owned.offloader.map)
    assert all(await present(rig, copy_of(segment)))
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is not None


@pytest.mark.parametrize(("operation", "when"), [("create", "after"), ("delete", "before")])
async def test_a_removal_whose_record_could_not_be_deleted_goes_on_at_once(operation: str, when: str) -> None:
    """Nothing of it is on its way; its record is found again, and holds up neither it nor copies."""
    rig, owned, segment = await dropped(25)
    faults = [Transient("no answer")]

    def plan(asked: str, path: str, then: str) -> Exception | None:
        return faults.pop() if (asked, path, then) == (operation, paths.mirror(TOPIC), when) and faults else None

    context = replace(owned.context, metadata=FaultyMetadata(rig.tree.connect(), plan))
    with pytest.raises(Transient, match="no answer"):
        await empty_trash(context, lambda: owned.offloader.map)
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is not None
    assert (await empty_trash(context, lambda: owned.offloader.map)).gone == 1
    assert await present(rig, copy_of(segment)) == [False] * 3
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is None


def test_a_wait_is_exact_whatever_the_time() -> None:
    """A longer one than KEPT_S is for readers alone, and does not wake the topic."""
    now_s = 4.4
    assert (now_s + KEPT_S) - now_s > KEPT_S
    assert next_due_s([now_s - 1, now_s + KEPT_S], now_s) == KEPT_S
    assert next_due_s([now_s], now_s) is None


async def test_nothing_is_emptied_while_a_copy_is_made() -> None:
    """The keys are used again: a copy on record, and a removal that may still be under way, are waited for."""
    rig, owned, segment = await dropped(25)
    store, dues_s = rig.tree.connect(), dict[str, float]()
    other = replace(removal_of(segment.segment_id, AWAY, 1), removing=False)
    await store.create(paths.mirror(TOPIC), copy_record.encode(other))
    found = await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)
    assert (found.gone, found.left, found.due_s) == (0, 0, KEPT_S)
    assert all(await present(rig, copy_of(segment)))
    await store.replace(paths.mirror(TOPIC), copy_record.encode(removal_of(segment.segment_id, AWAY, 1)), 0)
    for gone in (0, 0, 1):
        await rig.clock.sleep(copy_record.REMOVAL_S / 2 + KEPT_S)
        assert (await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)).gone == gone
    assert await present(rig, copy_of(segment)) == [False] * 3


async def test_no_copy_is_made_where_an_earlier_one_is_to_be_deleted() -> None:
    """It waits until the trash is empty, and then it is made."""
    rig, owned, segment = await dropped(25)
    async with mirroring(rig, owned):
        await until(lambda: bool(failure(owned)) or not lag(owned))
        assert "still to be deleted" in failure(owned)
        assert lag(owned) == 1
        assert await owned.empty_trash() == 0
        await until(lambda: not lag(owned))
    assert all(await present(rig, copy_of(segment)))
    assert places_of(await segments_of(rig)) == [(HOME, AWAY)]


async def test_an_earlier_copy_that_is_still_there_holds_up_its_own_segment_alone() -> None:
    """Readers may have it for an hour, and newer segments are copied meanwhile."""
    rig = await mirrored(25)
    await offload_more(rig, [10], seed=1)
    owned = await Owned.claim(rig)
    await owned.offloader.record.drop_copy(owned.offloader.map.segments[0].segment_id, AWAY)
    async with mirroring(rig, owned):
        await rig.clock.sleep(5.0)
        assert places_of(await segments_of(rig)) == [(HOME, None), (HOME, AWAY)]
        assert "still to be deleted" in failure(owned)
        assert await owned.empty_trash() == 0
        await until(lambda: not lag(owned))
        assert not failure(owned)


async def test_a_removal_that_failed_keeps_copies_waiting() -> None:
    """What was asked of the store may still be carried out, so the node stays, and the record."""
    rig, owned, segment = await dropped(25)
    breaking(rig, AWAY[0], lambda operation, *_: Transient("no answer") if operation.startswith("delete") else None)
    with pytest.raises(Transient):
        await empty_trash(owned.context, lambda: owned.offloader.map)
    assert await nodes.node(rig.tree.connect(), paths.mirror(TOPIC)) is not None
    assert len(await trashed(rig)) == 1
    assert segment.place == HOME


async def test_a_collection_empties_it_for_a_topic_without_an_owner() -> None:
    """Its grace age counts, and the segment stays."""
    rig, _, segment = await dropped(25)
    await collected(rig, grace_s=3600.0)
    assert all(await present(rig, copy_of(segment)))
    await collected(rig)
    assert await present(rig, copy_of(segment)) == [False] * 3
    assert await present(rig, segment) == [True] * 3
    assert await trashed(rig) == []


async def test_the_segment_may_be_deleted_meanwhile() -> None:
    """Both records are on the list beside each other, and all objects go."""
    rig, owned, segment = await dropped(25, 10)
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], "test")
    assert len(await trashed(rig)) == 2
    assert await owned.empty_trash() == 0
    assert [await present(rig, one) for one in (segment, copy_of(segment))] == [[False] * 3] * 2
    assert await trashed(rig) == []


def test_only_copies_in_places_that_the_policy_does_not_name_go() -> None:
    """The first place of a segment is never among them, wherever it is."""
    here, there, left = [
        replace(made(number, (number, 0, 9)), bucket=first[0], prefix=first[1], mirror=mirror)
        for number, (first, mirror) in enumerate([(HOME, AWAY), (AWAY, HOME), (HOME, None)], start=1)
    ]
    alone = OffloadPolicies(bucket=AWAY[0], prefix=AWAY[1], mirror="")
    assert unnamed([here, there, left], alone) == [(there, HOME)]
    assert unnamed([here, there, left], replace(alone, mirror=HOME_TEXT)) == []


async def test_the_first_place_is_never_dropped() -> None:
    """Nor a copy in another place than the one that is named; the record stays as it is."""
    rig = await mirrored(25)
    owned = await Owned.claim(rig)
    [segment] = owned.offloader.map.segments
    for place in (HOME, THIRD):
        await owned.offloader.record.drop_copy(segment.segment_id, place)
    assert places_of(await segments_of(rig)) == [(HOME, AWAY)]
    assert await trashed(rig) == []
