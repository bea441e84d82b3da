"""Emptying a topic's trash: what stays, until when, and what must not keep the rest waiting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import Transient
from offloaderd.metadata import paths
from offloaderd.metadata.port import Replace
from offloaderd.metadata.records import deletion
from offloaderd.metadata.topic_map import removal
from offloaderd.upkeep.deletion import empty_trash, keep_trash_empty
from tests.patience import PATIENCE_S
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.objects.port import UploadInfo


async def test_only_records_that_stay_for_readers_have_a_time() -> None:
    """One that another daemon has deleted, and one that is deleted, is not waited for."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    owned.context = replace(owned.context, reader_grace_s=3600.0)
    first, second = owned.offloader.map.segments[:2]
    dues_s: dict[str, float] = {}
    for segment in (first, second):
        assert await owned.offloader.record.remove_oldest(segment, reason="test")
        assert (await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)).due_s is not None
        await rig.clock.sleep(10)
    await rig.tree.connect().delete(paths.trash_record(TOPIC, first.segment_id))
    found = await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)
    assert dues_s.keys() == {str(second.segment_id)}
    assert found.due_s is not None
    await rig.clock.sleep(found.due_s)
    found = await empty_trash(owned.context, lambda: owned.offloader.map, dues_s)
    assert (found.gone, found.left, found.due_s) == (1, 0, None)


async def test_what_is_no_record_of_ours_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign node, a record that vanishes and one that cannot be read: the next is deleted; only the last counts."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="test")
    store, vanished = rig.tree.connect(), UUID(int=1)
    await store.create(paths.trash_record(TOPIC, UUID(int=2)), b"no record")
    await store.create(f"{paths.trash(TOPIC)}/000-note", b"")
    names = await store.children(paths.trash(TOPIC))

    async def children(_: str) -> list[str]:
        return sorted([*names, str(vanished)])

    monkeypatch.setattr(owned.context.metadata, "children", children)
    found = await empty_trash(owned.context, lambda: owned.offloader.map)
    assert (found.gone, found.left) == (1, 1)


async def test_an_upload_that_the_store_does_not_list_is_aborted_by_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing may lack an upload that has just begun; the record names it."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    keys = owned.offloader.map.segments[0].keys
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], reason="test")
    path, store = paths.trash_record(TOPIC, keys.segment_id), rig.tree.connect()
    node = await store.get(path)
    upload_id = await rig.store.create_upload(keys.data, metadata={})
    record = replace(deletion.decode_trash(node.value, path=path), upload_id=upload_id)
    await store.replace(path, deletion.encode_trash(record), node.version)

    async def nothing(_: str = "") -> AsyncGenerator[UploadInfo, None]:
        none: list[UploadInfo] = []
        for one in none:
            yield one

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "list_uploads", nothing)
        assert await owned.empty_trash() == 0
    assert [one async for one in rig.store.list_uploads()] == []


async def test_uploads_that_the_record_does_not_name_are_aborted_as_well() -> None:
    """A lost answer may have left one: nobody sees it, and its parts are paid for."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    segment = owned.offloader.map.segments[0]
    await rig.store.create_upload(segment.keys.data, metadata={})
    assert await owned.offloader.record.remove_oldest(segment, reason="test")
    assert await owned.empty_trash() == 0
    assert [one async for one in rig.store.list_uploads()] == []


async def test_a_segment_that_leaves_the_map_without_a_notification_is_deleted() -> None:
    """Whoever recorded that may have been cancelled before the answer: the duty looks again, and reads the map."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    oldest = owned.offloader.map.segments[0]
    steps, _ = removal.without_oldest(owned.offloader.map, oldest, reason="test", now_ms=rig.clock.wall_ms())
    duty = asyncio.get_running_loop().create_task(keep_trash_empty(owned.context, owned.offloader))
    await rig.clock.sleep(5)
    await rig.tree.connect().transact(steps)
    await rig.clock.sleep(600)
    assert await owned.keys() == 3
    assert oldest not in owned.offloader.map.segments
    duty.cancel()
    await asyncio.wait([duty])


async def test_waiters_hear_of_a_map_that_a_job_has_changed() -> None:
    """The duty reads the map again when the trash folder has changed, and notifies."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    duty = asyncio.get_running_loop().create_task(keep_trash_empty(owned.context, owned.offloader))
    await rig.clock.sleep(5)
    changed = owned.offloader.changed.wait()
    steps, _ = removal.without_oldest(
        owned.offloader.map, owned.offloader.map.segments[0], reason="test", now_ms=rig.clock.wall_ms()
    )
    folder = paths.trash(TOPIC)
    store = rig.tree.connect()
    await store.transact([*steps, Replace(folder, b"", (await store.get(folder)).version)])
    async with asyncio.timeout(PATIENCE_S):
        await changed
    assert len(owned.offloader.map.segments) == 1
    duty.cancel()
    await asyncio.wait([duty])


async def test_a_map_that_could_not_be_read_again_is_read_at_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the old map the segment would be part of the topic for ever: nothing of it would be deleted."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    record, failures = owned.offloader.record, [Transient("no answer")]
    reload = record.reload

    async def failing() -> None:
        if failures:
            raise failures.pop()
        await reload()

    monkeypatch.setattr(record, "reload", failing)
    duty = asyncio.get_running_loop().create_task(keep_trash_empty(owned.context, owned.offloader))
    await rig.clock.sleep(5)
    steps, _ = removal.without_oldest(record.map, record.map.segments[0], reason="test", now_ms=rig.clock.wall_ms())
    folder, store = paths.trash(TOPIC), rig.tree.connect()
    await store.transact([*steps, Replace(folder, b"", (await store.get(folder)).version)])
    await rig.clock.sleep(60)
    assert not failures
    assert len(record.map.segments) == 1
    assert await owned.keys() == 3
    duty.cancel()
    await asyncio.wait([duty])
