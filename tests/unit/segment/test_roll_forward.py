"""Metadata that were restored from a backup: what was finished since is taken up again, and nothing is deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from offloaderd.core.model import Loss, Position, RefusalKind
from offloaderd.format import manifest_bytes
from offloaderd.format.chunks import CHUNK_BYTES
from offloaderd.metadata import identity, nodes, paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus, Seal
from offloaderd.metadata.records.identity import Acceptance
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.last_copy import last_copy
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import SegmentKeys
from offloaderd.segment.resume import as_finished, unrecorded
from offloaderd.segment.roll import RollPolicy
from tests.unit.history.test_history import rig_with, until_done
from tests.unit.rigs.lives import recorded, until_recorded
from tests.unit.rigs.owned import Owned, offloaded_topic
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.fleet.engine import Engine
    from offloaderd.testing.memory.metadata import MemoryTree
    from offloaderd.topic.outage import TopicContext

ENTRIES = 700


async def backed_up(*, chunk_bytes: int | None = None) -> tuple[Rig, MemoryTree, Position]:
    """Return a rig whose topic was offloaded in one segment, and a backup from before that segment was sealed."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=250)
    if chunk_bytes is not None:
        rig.context = _with_chunks(rig.context, chunk_bytes)  # type: ignore[method-assign]
    async with rig.engine() as engine:
        topic = await enabled(engine)
        last = await rig.ledgers.append(TOPIC, payloads(ENTRIES))
        await until_recorded(rig, lambda attempt: len(attempt.parts) >= 2)
        backup = rig.tree.backup()
        await topic.request_roll()
        await until_offloaded(topic, last)
    return rig, backup, last


async def trim(rig: Rig, *, keep: int = 1) -> None:
    """Let the source delete all ledgers but the newest ones."""
    assert rig.ledgers is not None
    for info in (await rig.ledgers.ledgers(TOPIC))[:-keep]:
        await rig.ledgers.delete(TOPIC, info.ledger_id)


async def test_a_segment_that_was_committed_after_the_backup_is_committed_again() -> None:
    """Its attempt is open in the backup, its upload is gone, its source is trimmed: all of it is there as before."""
    rig, backup, last = await backed_up()
    before = await rig.committed()
    keys = sorted([info.key async for info in rig.store.list()])
    await trim(rig)
    rig.tree = backup
    with capture_logs() as logs:
        async with rig.engine("two") as engine:
            topic = await offloader_of(engine)
            await until_offloaded(topic, last)
            assert topic.map.losses == ()
    assert await rig.committed() == before
    assert sorted([info.key async for info in rig.store.list()]) == keys
    assert [one["sealed"] for one in logs if one["event"] == "segment.rolled_forward"] == [False]
    assert recorded(rig) is None


async def test_an_index_that_was_damaged_or_is_missing_is_put_again() -> None:
    """It follows from the manifest: entries that only the bucket has are not given up for it."""
    for damage in (b"rotten", None):
        rig, backup, last = await backed_up()
        segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
        sound = await rig.store.get(segment.keys.index)
        await rig.store.delete([segment.keys.index])
        if damage is not None:
            await rig.store.put(segment.keys.index, damage)
        await trim(rig)
        rig.tree = backup
        async with rig.engine("two") as engine:
            topic = await offloader_of(engine)
            await until_offloaded(topic, last)
            assert topic.map.losses == ()
        assert await rig.store.get(segment.keys.index) == sound


async def test_history_that_was_committed_after_the_backup_is_committed_again() -> None:
    """The owner's attempt at it is open in the backup as well; the source has nothing of it any more."""
    rig = await rig_with(200, segment_bytes=1 << 20)
    store, path = rig.tree.connect(), paths.history_attempt(TOPIC)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        while (node := await nodes.node(store, path)) is None or not attempt_record.decode(
            node.value, path=path
        ).upload_id:
            await turn()
        backup = rig.tree.backup()
        await until_done(topic)
        last = topic.offloaded
    before = await rig.committed()
    keys = {info.key async for info in rig.store.list() if info.key.endswith("-manifest")}
    await trim(rig)
    rig.tree = backup
    with capture_logs() as logs:
        async with rig.engine("two") as engine:
            topic = await offloader_of(engine)
            await until_done(topic)
            assert (topic.offloaded, topic.map.losses) == (last, ())
    assert await rig.committed() == before
    assert keys <= {info.key async for info in rig.store.list()}
    assert "segment.rolled_forward" in [one["event"] for one in logs]


async def test_offloading_goes_on_behind_what_was_taken_up_again() -> None:
    """The next entries follow in a segment of their own: nothing is skipped, nothing is twice."""
    rig, backup, last = await backed_up()
    before = await rig.committed()
    await trim(rig)
    rig.tree = backup
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await until_offloaded(topic, last)
        assert rig.ledgers is not None
        more = await rig.ledgers.append(TOPIC, payloads(50, seed=9))
        await topic.request_roll()
        await until_offloaded(topic, more)
    found = await rig.committed()
    assert found[: len(before)] == before
    assert len(found) == ENTRIES + 50


async def test_a_loss_of_a_finished_segment_is_recorded_again_as_its_manifest_has_it() -> None:
    """The backup knows a part of it: no entry is counted twice, and it was noticed when it was noticed (P9)."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    record = owned.offloader.record
    told = Loss(Position(50, 16), Position(60, 0), 9, noticed_ms=7)
    await record.lost(Loss(Position(50, 18), Position(60, 0), 4))
    seal = Seal(sealed_ms=1, epoch=1, software_version="", data_bytes=1, part_count=1, ledgers=(), losses=(told,))
    left = Attempt(
        segment_id=UUID(int=7),
        begin=Position(50, 0),
        assigned_ms=1,
        epoch=1,
        status=AttemptStatus.OFFLOADED,
        driver_properties=owned.context.places.home.driver,
        seal=seal,
        proven=True,
    )
    for loss in unrecorded(record.map, left):
        await record.lost(loss)
    assert record.map.losses == (told,)
    assert owned.rig.metrics.registry.get_sample_value("offloaderd_source_lost_entries_total") == 9


async def test_an_attempt_without_an_upload_is_taken_up_as_well() -> None:
    """The backup is from before the upload began: the object under its key is no less finished."""
    rig, backup, last = await backed_up()
    before = await rig.committed()
    await rewrite(backup, upload_id="", parts=())
    await trim(rig)
    rig.tree = backup
    async with rig.engine("two") as engine:
        await until_offloaded(await offloader_of(engine), last)
    assert await rig.committed() == before
    assert await rig.leftovers() == []


async def test_an_object_without_a_manifest_is_not_written_again_under_its_key() -> None:
    """Whoever completed it may still be about to put an index that ends elsewhere; the next segment has another key."""
    rig, backup, last = await backed_up()
    before = await rig.committed()
    old = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
    stored = await rig.store.get(old.keys.index)
    await rig.store.delete([old.keys.manifest, old.keys.index])
    await rewrite(backup, upload_id="", parts=())
    rig.tree = backup
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        topic.requests.seal_to(last)
        await until_offloaded(topic, last)
        await rig.store.put(old.keys.index, stored)
    assert await rig.committed() == before
    assert old.segment_id not in {one.segment_id for one in (await catalog.load(backup.connect(), TOPIC)).segments}


async def test_what_was_sealed_and_lacks_entries_is_taken_up_as_well() -> None:
    """Its end is on record and not all of its parts: the manifest has what the source has no more."""
    rig, backup, last = await backed_up()
    before = await rig.committed()
    segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
    described = manifest_bytes.decode(await rig.store.get(segment.keys.manifest), key="manifest")
    seal = Seal(
        sealed_ms=described.sealed_ms,
        epoch=described.epoch,
        software_version=described.software_version,
        data_bytes=described.data_bytes,
        part_count=99,
        ledgers=described.ledgers,
    )
    await rewrite(backup, seal=seal)
    await trim(rig)
    rig.tree = backup
    async with rig.engine("two") as engine:
        await until_offloaded(await offloader_of(engine), last)
    assert await rig.committed() == before


@pytest.mark.parametrize("damage", ["data", "manifest"])
async def test_what_cannot_be_verified_stops_the_topic_and_stays(damage: str) -> None:
    """A finished segment with a flaw is neither committed nor given up, until an operator accepts that."""
    rig, backup, _ = await backed_up()
    segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
    key = segment.keys.data if damage == "data" else segment.keys.manifest
    stored = bytearray(await rig.store.get(key))
    stored[len(stored) // 2] ^= 1
    await rig.store.put(key, bytes(stored))
    await trim(rig)
    rig.tree = backup
    async with rig.engine("two") as engine:
        await until(lambda: _stalled(engine))
        status = engine.statuses()[0]
        assert [one.kind for one in status.refusals] == [RefusalKind.METADATA_WENT_BACK]
        assert str(segment.segment_id) in status.stalled_reason
        assert status.stalled_class == "identity"
        record, version = await identity.load(rig.tree.connect(), TOPIC)
        assert version is not None
        assert await rig.store.get(key) == bytes(stored)
        accepted = Acceptance(kind=record.refusals[0].kind, evidence=record.refusals[0].evidence, by="ann", at_ms=1)
        value = identity_record.encode(record.accepting(accepted))
        await rig.tree.connect().replace(paths.identity(TOPIC), value, version)
        topic = await offloader_of(engine)
        assert rig.ledgers is not None
        more = await rig.ledgers.append(TOPIC, payloads(50, seed=9))
        await topic.request_roll()
        await until_offloaded(topic, more)
    if damage == "data":
        assert await rig.store.get(key) == bytes(stored)
        assert await rig.tree.connect().children(paths.trash(TOPIC)) == [str(segment.segment_id)]


async def test_the_refusal_ends_once_it_can_be_verified() -> None:
    """What was damaged on its way, or is repaired, is committed, and deletions of the topic are permitted again."""
    rig, backup, last = await backed_up()
    segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
    sound = await rig.store.get(segment.keys.data)
    damaged = bytearray(sound)
    damaged[len(damaged) // 2] ^= 1
    await rig.store.put(segment.keys.data, bytes(damaged))
    rig.tree = backup
    async with rig.engine("two") as engine:
        await until(lambda: _stalled(engine))
        await rig.store.put(segment.keys.data, sound)
        await until(lambda: not _stalled(engine))
        await until_offloaded(await offloader_of(engine), last)
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""


async def finished(rig: Rig, tree: MemoryTree, *, chunk_bytes: int = CHUNK_BYTES) -> Attempt:
    """Return the attempt that a tree has, as a new owner finds it finished."""
    rig.tree = tree
    found = recorded(rig)
    assert found is not None
    owned = await Owned.claim(rig)
    context, topic = replace(owned.context, chunk_bytes=chunk_bytes), owned.offloader
    return await as_finished(context, found, failure_tracker=topic.failure_tracker, identity=topic.identity)


async def test_a_manifest_of_another_seal_does_not_replace_what_was_sealed() -> None:
    """Entries that the record says to be in the segment would be missing, or be in two."""
    rig, backup, _ = await backed_up()
    sealed = await finished(rig, backup)
    assert sealed.seal is not None
    for wrong in (replace(sealed.seal, epoch=99), replace(sealed.seal, ledgers=sealed.seal.ledgers[:-1])):
        await rewrite(backup, seal=wrong)
        found = await finished(rig, backup)
        assert (found.seal, found.proven) == (wrong, False)


async def test_losses_that_only_the_manifest_has_are_recorded_again() -> None:
    """A reader would otherwise find no trace of the entries that the source had lost."""
    rig, backup, _ = await backed_up()
    segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
    described = manifest_bytes.decode(await rig.store.get(segment.keys.manifest), key="manifest")
    loss = Loss(Position(0, 249), Position(1, 0), 0, 7)
    await rig.store.put(segment.keys.manifest, manifest_bytes.encode(replace(described, losses=(loss,))))
    found = await finished(rig, backup)
    assert found.seal is not None
    assert found.seal.losses == (loss,)
    assert unrecorded(TopicMap(TOPIC), found) == [loss]


@pytest.mark.parametrize("number", [0, 2])
async def test_what_is_finished_is_recognized_through_damaged_reads(number: int) -> None:
    """Bytes that differ from read to read are damaged on their way, and stop no topic; the index is not read."""
    rig, backup, _ = await backed_up()
    key = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0].keys.all[number]
    sound, reads = rig.store.get, 0

    async def get(asked: str, first: int = 0, length: int | None = None) -> bytes:
        nonlocal reads
        data = await sound(asked, first, length)
        reads += asked == key
        return data[:-1] + bytes([data[-1] ^ reads]) if asked == key and reads < 4 else data

    rig.store.get = get  # type: ignore[method-assign,assignment]
    assert (await finished(rig, backup)).proven
    assert reads > 3


async def test_chunks_of_another_length_are_not_taken_from_the_manifest() -> None:
    """One manifest has one length of chunks: readers of the segment would check bytes by the wrong sums."""
    rig, backup, _ = await backed_up(chunk_bytes=256)
    assert all(block.chunks for block in (await finished(rig, backup, chunk_bytes=256)).parts[0].blocks)
    assert not any(block.chunks for block in (await finished(rig, backup, chunk_bytes=512)).parts[0].blocks)


async def test_a_manifest_that_was_damaged_on_its_way_is_read_again() -> None:
    """One bad read makes no rubbish of the last copy of entries."""
    rig, _, _ = await backed_up()
    segment = (await catalog.load(rig.tree.connect(), TOPIC)).segments[0]
    sound, reads = rig.store.get, 0

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        nonlocal reads
        reads += 1
        data = await sound(key, first, length)
        return data if reads > 1 else data[:-1] + bytes([data[-1] ^ 1])

    rig.store.get = get  # type: ignore[method-assign]
    assert "no other segment holds" in await last_copy(rig.store, TopicMap(TOPIC), segment.bucket, segment.keys)


async def test_a_finished_segment_on_the_trash_list_stays_until_others_hold_its_entries() -> None:
    """Whoever decided its deletion, the last copy of an entry is not deleted (P1, P5)."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    newest = owned.offloader.map.segments[-1]
    contexts = {part.ledger_id for part in newest.slices}
    store = rig.tree.connect()
    for ledger_id in contexts:
        await store.delete(paths.ledger(TOPIC, ledger_id))  # a map that went back
    record = deletion.Trash(
        segment_id=newest.segment_id, upload_id="", reason="gone", decided_ms=1, bucket="b", prefix="seg/"
    )
    await store.create(paths.trash_record(TOPIC, newest.segment_id), deletion.encode_trash(record))
    await owned.offloader.record.reload()
    with capture_logs() as logs:
        assert await owned.empty_trash() == 1
    assert "which no other segment holds" in next(one["why"] for one in logs if one["event"] == "trash.blocked")
    assert len(await rig.leftovers()) == 3
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, newest.end)
        while not await _is_empty(rig):
            await turn()
    assert await rig.leftovers() == []


async def test_a_copy_whose_data_is_gone_covers_nothing() -> None:
    """What the map says to hold the entries has to be in the bucket, or the segment on the trash list stays."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    newest = owned.offloader.map.segments[-1]
    described = manifest_bytes.decode(await rig.store.get(newest.keys.manifest), key="manifest")
    twin = SegmentKeys("seg/", UUID(int=7))
    await rig.store.put(twin.data, b"x" * described.data_bytes)
    await rig.store.put(twin.manifest, manifest_bytes.encode(replace(described, segment_id=twin.segment_id)))
    record = deletion.Trash(
        segment_id=twin.segment_id, upload_id="", reason="gone", decided_ms=1, bucket="b", prefix="seg/"
    )
    await rig.tree.connect().create(paths.trash_record(TOPIC, twin.segment_id), deletion.encode_trash(record))
    stored = await rig.store.get(newest.keys.data)
    await rig.store.delete([newest.keys.data])
    assert await owned.empty_trash() == 1
    assert twin.manifest in [info.key async for info in rig.store.list()]
    await rig.store.put(newest.keys.data, stored)
    assert await owned.empty_trash() == 0


def _with_chunks(make: Callable[..., TopicContext], chunk_bytes: int) -> Callable[..., TopicContext]:
    return lambda *given, **named: replace(make(*given, **named), chunk_bytes=chunk_bytes)


def _stalled(engine: Engine) -> bool:
    return any(one.state == "stalled" for one in engine.statuses())


async def rewrite(tree: MemoryTree, **changes: Any) -> None:  # noqa: ANN401 - each value its own type
    """Change the attempt that a tree has."""
    store, path = tree.connect(), paths.attempt(TOPIC)
    node = await store.get(path)
    attempt = replace(attempt_record.decode(node.value, path=path), **changes)
    await store.replace(path, attempt_record.encode(attempt), node.version)


async def _is_empty(rig: Rig) -> bool:
    return not await rig.tree.connect().children(paths.trash(TOPIC))
