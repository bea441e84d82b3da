"""Garbage: what goes, what stays and why; and that nothing goes while the metadata cannot be trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs

from offloaderd.core.errors import Conflict, CorruptData
from offloaderd.core.model import RefusalKind
from offloaderd.metadata import paths
from offloaderd.metadata.records import deletion, identity
from offloaderd.metadata.records.deletion import Trash
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.topic_map.removal import without_oldest
from offloaderd.objects import keys
from offloaderd.testing.faults import FaultyStore
from offloaderd.upkeep.gc.findings import Finding, Kind, Verdict
from tests.unit.upkeep.site import (
    CLUSTER,
    DAY_S,
    GRACE_S,
    OURS,
    PREFIX,
    TOPIC,
    Ground,
    all_keys,
    committed,
    data_key,
    index_key,
    manifest_key,
    runs,
    segment_id,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.objects.port import ObjectInfo
    from tests.unit.format.builders import Run


def kinds(finds: list[Finding]) -> dict[str, tuple[Kind, Verdict]]:
    """Return what was found, by key."""
    return {find.key: (find.kind, find.verdict) for find in finds}


async def test_what_is_referred_to_is_no_find(ground: Ground) -> None:
    """Committed, being written and in the trash: nothing of it is found, however old it is."""
    await ground.begin(2)
    await ground.objects.create_upload(data_key(2), metadata=OURS)
    await ground.objects.put(data_key(3), b"x", metadata=OURS)
    await ground.discard(3)
    await ground.metadata.create(paths.owner(TOPIC), b"", ephemeral=True)
    await ground.age(9)
    before = await ground.keys()
    finds, summary = await ground.collect(grace_s=0)
    assert finds == []
    assert await ground.keys() == before
    assert (summary.topics, summary.segments, summary.objects, summary.others) == (1, 2, 4, 0)


@pytest.mark.parametrize("kept", [(0,), (1,), (2,), (0, 1), (1, 2)])
async def test_leftovers_of_an_unfinished_segment_go(ground: Ground, kept: tuple[int, ...]) -> None:
    """Any part of a segment that nobody refers to is deleted once it is old, and only with `apply`."""
    await ground.store(2, runs(1, 10, 5))
    await ground.objects.delete([key for number, key in enumerate(all_keys(2)) if number not in kept])
    await ground.age()
    left = [key for number, key in enumerate(all_keys(2)) if number in kept]
    finds, summary = await ground.collect(apply=False)
    assert kinds(finds) == dict.fromkeys(left, (Kind.LEFTOVER, Verdict.DELETE))
    assert await ground.keys() == sorted(all_keys(1) + left)
    assert summary.rubbish_bytes == sum(find.size_bytes for find in finds) > 0
    finds, summary = await ground.collect()
    assert kinds(finds) == dict.fromkeys(left, (Kind.LEFTOVER, Verdict.DELETED))
    assert all(find.age_s == pytest.approx(2 * 86_400) and "never finished" in find.reason for find in finds)
    assert await ground.keys() == all_keys(1)
    assert summary.deleted_bytes == summary.rubbish_bytes
    assert (await ground.collect())[0] == []


async def test_young_things_stay_by_the_clock_of_the_store(ground: Ground) -> None:
    """Neither a clock of ours that is years ahead nor one that is behind changes the age of an object."""
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    await ground.objects.create_upload(data_key(3), metadata=OURS)
    await ground.store_clock.advance(GRACE_S - 1)
    for jump in (10**11, -2 * 10**11):
        ground.clock.jump(jump)
        finds, _ = await ground.collect()
        young = (Kind.YOUNG, Verdict.KEEP)
        assert kinds(finds) == {data_key(2): young, data_key(3): young}
    await ground.store_clock.advance(2)
    finds, _ = await ground.collect()
    assert {find.verdict for find in finds} == {Verdict.DELETED}


async def test_a_segment_is_as_young_as_its_newest_object(ground: Ground) -> None:
    """An index that was stored a moment ago keeps the data object, however old that is."""
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    await ground.age()
    await ground.objects.put(index_key(2), b"x", metadata=OURS)
    finds, _ = await ground.collect()
    assert set(kinds(finds).values()) == {(Kind.YOUNG, Verdict.KEEP)}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (keys.segment_metadata("other"), "of cluster 'other'"),
        ({}, "it does not say which cluster it is of"),
        ({**OURS, keys.SOFTWARE_VERSION_KEY: "4.0.1"}, "written by '4.0.1'"),
        ({keys.CLUSTER_KEY: CLUSTER}, "written by 'an unknown program'"),
    ],
)
async def test_what_others_wrote_stays(ground: Ground, metadata: dict[str, str], reason: str) -> None:
    """Objects of another cluster, of Pulsar itself or of nobody are reported and left."""
    await ground.objects.put(data_key(2), b"x", metadata=metadata)
    await ground.objects.put(index_key(2), b"x", metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys([data_key(2), index_key(2)], (Kind.FOREIGN, Verdict.KEEP))
    assert {find.reason for find in finds} == {reason}


async def test_other_keys_are_not_looked_at(ground: Ground) -> None:
    """What brokers offload, files of operators and objects outside of the prefix are counted, no more."""
    others = [keys.SegmentKeys(PREFIX, segment_id(9), 7).data, keys.SegmentKeys(PREFIX, segment_id(9), 7).index]
    others += [f"{PREFIX}README", f"{PREFIX}{segment_id(9)}-backup", f"{PREFIX}sub/{segment_id(9)}", str(segment_id(9))]
    for key in others:
        await ground.objects.put(key, b"x", metadata=OURS | {keys.SOFTWARE_VERSION_KEY: "4.0.8"})
    upload = keys.SegmentKeys(PREFIX, segment_id(8), 9).data
    await ground.objects.create_upload(upload, metadata=OURS)
    await ground.age()
    finds, summary = await ground.collect()
    assert finds == []
    assert [one.key async for one in ground.objects.list_uploads()] == [upload]
    assert summary.others == 5
    assert set(others) < set(await ground.keys())


async def test_a_copy_of_stored_entries_goes(ground: Ground) -> None:
    """A finished segment that lost the race for its range is deleted: other segments hold all of its entries."""
    await ground.segment(2, [*runs(1, 10, 5), *runs(3, 0, 4)])
    await ground.store(3, [*runs(1, 4, 11), *runs(3, 0, 2)])
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(3), (Kind.SUPERSEDED, Verdict.DELETED))
    assert await ground.keys() == all_keys(1, 2)


@pytest.mark.parametrize(
    ("entries", "hole"),
    [(runs(1, 5, 6), "1:10"), (runs(2, 0, 1), "2:0"), ([*runs(1, 0, 10), *runs(4, 0, 1)], "4:0")],
)
async def test_the_last_copy_of_an_entry_stays(ground: Ground, entries: list[Run], hole: str) -> None:
    """A finished segment with one entry that no other segment holds is kept and reported, in no map though it is."""
    await ground.store(2, entries)
    await ground.age()
    finds, summary = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(2), (Kind.UNCOVERED, Verdict.ALARM))
    assert all(f"holds {hole}" in find.reason and find.topic == TOPIC for find in finds)
    assert summary.alarms == 3
    assert await ground.keys() == all_keys(1, 2)
    assert ground.metrics.registry.get_sample_value("offloaderd_gc_alarms", {"kind": "uncovered"}) == 3


async def test_an_index_that_is_missing_makes_no_leftover_of_the_last_copy(ground: Ground) -> None:
    """Data and manifest alone can be read: they go only if their entries are elsewhere."""
    await ground.store(2, runs(1, 10, 5))
    await ground.store(3, runs(1, 0, 10))
    await ground.objects.delete([all_keys(2)[1], all_keys(3)[1]])
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == {
        **dict.fromkeys(all_keys(2)[::2], (Kind.UNCOVERED, Verdict.ALARM)),
        **dict.fromkeys(all_keys(3)[::2], (Kind.SUPERSEDED, Verdict.DELETED)),
    }


async def test_a_copy_stays_while_the_original_is_where_no_check_reads(ground: Ground) -> None:
    """A committed segment in another bucket may be whole or not, so its copy here counts as the last."""
    described = await ground.store(2, runs(1, 10, 5))
    steps, _ = (await ground.map()).with_commit(replace(committed(described), bucket="old"))
    await ground.metadata.transact(steps)
    await ground.objects.delete(all_keys(2))
    await ground.store(3, runs(1, 10, 5))
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(3), (Kind.UNCOVERED, Verdict.ALARM))


async def test_a_copy_stays_while_the_original_is_damaged(ground: Ground) -> None:
    """A segment in no map is worth keeping if the one in the map has lost an object."""
    await ground.store(2, runs(1, 0, 10))
    await ground.age()
    await ground.objects.delete([data_key(1)])
    finds, _ = await ground.collect()
    assert kinds(finds) == {
        data_key(1): (Kind.MISSING, Verdict.ALARM),
        **dict.fromkeys(all_keys(2), (Kind.UNCOVERED, Verdict.ALARM)),
    }
    assert set(all_keys(2)) <= set(await ground.keys())


async def test_below_the_floor_nothing_is_worth_keeping(ground: Ground) -> None:
    """What retention has deleted does not come back by a copy that was left over."""
    topic_map = await ground.map()
    steps, _ = without_oldest(topic_map, topic_map.segments[0], reason="old", now_ms=1)
    await ground.metadata.transact(steps)
    await ground.metadata.delete(paths.trash_record(TOPIC, segment_id(1)))
    await ground.store(2, [*runs(0, 0, 3), *runs(1, 0, 10)])
    await ground.age()
    finds, _ = await ground.collect()
    assert {find.kind for find in finds} == {Kind.SUPERSEDED}
    assert await ground.keys() == []


async def test_a_wiped_metadata_store_deletes_nothing() -> None:
    """With no topic at all everything in the bucket looks unreferenced; it is reported, to the last upload."""
    ground = Ground()
    await ground.store(1, runs(1, 0, 10))
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    await ground.objects.create_upload(data_key(3), metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert {(find.kind, find.verdict) for find in finds} == {(Kind.UNKNOWN_TOPIC, Verdict.ALARM)}
    assert {find.key for find in finds} == {*all_keys(1), data_key(2), data_key(3)}
    assert all("rebuild" in find.reason for find in finds if not find.upload_id)
    assert len(await ground.keys()) == 4


async def test_a_wiped_metadata_store_is_an_alarm_however_young_the_objects() -> None:
    """An attempt is recorded before its first byte; the log has one line and a count, not one for each object."""
    ground = Ground()
    for number in range(1, 5):
        await ground.store(number, runs(number, 0, 10))
    await ground.objects.create_upload(data_key(9), metadata=OURS)
    with capture_logs() as lines:
        finds, _ = await ground.collect()
    assert {(find.kind, find.verdict) for find in finds} == {(Kind.UNKNOWN_TOPIC, Verdict.ALARM)}
    told = [(line["event"], line.get("objects")) for line in lines if line["log_level"] == "error"]
    assert told == [("gc.alarm", None), ("gc.alarm", None), ("gc.alarm_repeated", 12)]
    assert len(await ground.keys()) == 12


async def test_a_topic_that_the_metadata_has_lost_is_kept(ground: Ground) -> None:
    """A finished segment of a topic that nobody knows is an alarm, not rubbish."""
    await ground.store(2, runs(9, 0, 3), topic=replace(TOPIC, local="gone"))
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(2), (Kind.UNKNOWN_TOPIC, Verdict.ALARM))


async def test_a_manifest_that_cannot_be_read_keeps_its_segment(ground: Ground) -> None:
    """Data and index with a broken or a wrong manifest are kept: nobody can say what is in them."""
    await ground.store(2, runs(1, 0, 3))
    broken = bytearray(await ground.objects.get(manifest_key(2)))
    broken[30] ^= 1
    await ground.objects.put(manifest_key(2), bytes(broken), metadata=OURS)
    await ground.store(3, runs(1, 0, 3))
    await ground.objects.put(manifest_key(3), await ground.objects.get(manifest_key(1)), metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(2, 3), (Kind.UNREADABLE, Verdict.ALARM))


async def test_what_an_operator_names_is_deleted_although_it_raises_an_alarm(ground: Ground) -> None:
    """Named segments alone, and neither one that a topic refers to nor one that others wrote nor a young one."""
    await ground.store(2, runs(1, 20, 3))
    await ground.store(3, runs(1, 30, 3))
    await ground.objects.put(data_key(4), b"x", metadata=keys.segment_metadata("other"))
    await ground.age()
    await ground.store(5, runs(1, 40, 3))
    finds, _ = await ground.collect(also=(1, 2, 4, 5))
    assert kinds(finds) == {
        **dict.fromkeys(all_keys(2), (Kind.NAMED, Verdict.DELETED)),
        **dict.fromkeys(all_keys(3), (Kind.UNCOVERED, Verdict.ALARM)),
        data_key(4): (Kind.FOREIGN, Verdict.KEEP),
        **dict.fromkeys(all_keys(5), (Kind.YOUNG, Verdict.KEEP)),
    }
    assert await ground.keys() == sorted([*all_keys(1, 3, 5), data_key(4)])


async def test_objects_shorter_than_their_manifest_are_leftovers(ground: Ground) -> None:
    """A data object that is not what the manifest says was never a finished segment."""
    await ground.store(2, runs(1, 20, 3))
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys(all_keys(2), (Kind.LEFTOVER, Verdict.DELETED))


async def test_missing_and_shortened_objects_are_alarms(ground: Ground) -> None:
    """What a committed segment lacks is told, and never repaired; the data object's length counts too."""
    await ground.segment(2, runs(1, 10, 5))
    await ground.objects.delete([index_key(1), manifest_key(1)])
    await ground.objects.put(data_key(2), b"short", metadata=OURS)
    with structlog.testing.capture_logs() as logs:
        finds, summary = await ground.collect(grace_s=0)
    assert kinds(finds) == {
        index_key(1): (Kind.MISSING, Verdict.ALARM),
        manifest_key(1): (Kind.MISSING, Verdict.ALARM),
        data_key(2): (Kind.WRONG_SIZE, Verdict.ALARM),
    }
    assert summary.alarms == 3
    assert [one["event"] for one in logs].count("gc.alarm") == 3
    assert len((await ground.map()).segments) == 2


async def test_what_retention_takes_meanwhile_is_not_missing(ground: Ground) -> None:
    """A segment that leaves the map, and loses its objects, while it is looked for raises no alarm."""
    await ground.objects.delete(all_keys(1))
    topic_map = await ground.map()
    steps, _ = without_oldest(topic_map, topic_map.segments[0], reason="old", now_ms=1)

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, key, when) == ("head", data_key(1), "before"):
            ground.tree.apply(steps, "")

    finds, _ = await ground.collect(objects=FaultyStore(ground.objects, plan))
    assert finds == []


async def test_what_is_committed_after_the_listing_is_not_missing(ground: Ground) -> None:
    """Objects that a listing does not show yet are asked for by name."""
    described = await ground.store(2, runs(1, 10, 5))
    steps, _ = (await ground.map()).with_commit(committed(described))
    stored = {key: await ground.objects.get(key) for key in all_keys(2)}
    await ground.objects.delete(all_keys(2))

    class Late(FaultyStore):
        async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
            listed = [info async for info in super().list(prefix)]
            for key, data in stored.items():
                await ground.objects.put(key, data, metadata=OURS)
            for info in listed:
                yield info

    await ground.metadata.transact(steps)
    assert {find.key for find in (await ground.collect(apply=False))[0]} == set(all_keys(2))
    finds, _ = await ground.collect(objects=Late(ground.objects, lambda *_: None))
    assert finds == []


async def test_segments_elsewhere_are_not_missing(ground: Ground) -> None:
    """Committed segments in another bucket are not looked for in this one."""
    described = await ground.store(2, runs(1, 10, 5))
    steps, _ = (await ground.map()).with_commit(replace(committed(described), bucket="old"))
    await ground.metadata.transact(steps)
    await ground.objects.delete(all_keys(2))
    finds, summary = await ground.collect()
    assert finds == []
    assert summary.elsewhere == 1


async def test_uploads_that_nobody_refers_to_are_aborted(ground: Ground) -> None:
    """Strays go, and so does what was left open beside a finished object, even in a bucket that others share."""
    for number in (1, 2):
        await ground.objects.create_upload(data_key(number), metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == dict.fromkeys([data_key(1), data_key(2)], (Kind.UPLOAD, Verdict.DELETED))
    assert all(find.upload_id for find in finds)
    assert [upload async for upload in ground.objects.list_uploads()] == []
    assert await ground.keys() == all_keys(1)


@pytest.mark.parametrize("young", [False, True])
async def test_uploads_stay_where_others_write(ground: Ground, *, young: bool) -> None:
    """An upload does not say whose it is: beside objects of another cluster it is left alone."""
    await ground.objects.create_upload(data_key(2), metadata=OURS)
    if not young:
        await ground.objects.put(data_key(3), b"x", metadata=keys.segment_metadata("other"))
    await ground.age()
    if young:
        await ground.objects.put(data_key(3), b"x", metadata=keys.segment_metadata("other"))
    finds, _ = await ground.collect()
    assert kinds(finds)[data_key(2)] == (Kind.FOREIGN, Verdict.KEEP)
    assert len([upload async for upload in ground.objects.list_uploads()]) == 1


async def test_trash_of_a_topic_without_owner_is_emptied(ground: Ground) -> None:
    """A decided deletion is carried out when nobody else will; with an owner it is the owner's."""
    await ground.store(2, runs(1, 0, 5))
    await ground.objects.create_upload(data_key(2), metadata=OURS)
    await ground.discard(2, decided_ms=ground.store_clock.wall_ms())
    await ground.age()
    await ground.metadata.create(paths.owner(TOPIC), b"", ephemeral=True)
    assert (await ground.collect())[0] == []
    await ground.metadata.delete(paths.owner(TOPIC))
    finds, _ = await ground.collect(apply=False)
    assert set(kinds(finds).values()) == {(Kind.TRASH, Verdict.DELETE)}
    assert len(await ground.keys()) == 6
    finds, _ = await ground.collect()
    assert set(kinds(finds).values()) == {(Kind.TRASH, Verdict.DELETED)}
    assert await ground.keys() == all_keys(1)
    assert await ground.metadata.children(paths.trash(TOPIC)) == []
    assert [upload async for upload in ground.objects.list_uploads()] == []


@pytest.mark.parametrize(("readable", "days"), [(None, 3), (True, 3), (False, 2)])
async def test_trash_of_a_topic_without_owner_stays_for_readers(
    ground: Ground, *, readable: bool | None, days: int
) -> None:
    """For as long as its owner would have left it; what nobody could read goes after the grace age."""
    ground.reader_grace_s = 2.5 * DAY_S
    await ground.store(2, runs(1, 0, 5))
    decided = Trash(
        segment_id=segment_id(2),
        upload_id="",
        reason="test",
        decided_ms=ground.store_clock.wall_ms(),
        readable=readable,
    )
    path = paths.trash_record(TOPIC, segment_id(2))
    await ground.metadata.create(path, deletion.encode_trash(decided))
    for day in (1, 2, 3):
        await ground.age(1)
        finds, _ = await ground.collect(grace_s=1.5 * DAY_S)
        assert bool(finds) == (day == days)
    assert await ground.keys() == all_keys(1)


async def test_trash_that_is_a_last_copy_is_an_alarm(ground: Ground) -> None:
    """A finished segment with entries that nothing else holds is not deleted, whoever decided that (P1, P5)."""
    await ground.store(2, runs(1, 10, 5))
    await ground.discard(2)
    await ground.age()
    for apply in (False, True):
        finds, _ = await ground.collect(apply=apply)
        assert set(kinds(finds).values()) == {(Kind.UNCOVERED, Verdict.ALARM)}
        assert "which no other segment holds" in finds[0].reason
    assert await ground.keys() == all_keys(1, 2)


async def test_trash_of_a_topic_whose_identity_is_in_doubt_stays(ground: Ground) -> None:
    """Neither its trash nor what nobody refers to is deleted while a refusal stands (P5)."""
    await ground.store(2, runs(1, 0, 5))
    await ground.store(3, runs(1, 0, 5))
    await ground.discard(2)
    await ground.age()
    refusal = Refusal(kind=RefusalKind.METADATA_WENT_BACK, found="x", evidence="y", since_ms=1)
    value = identity.encode(identity.TopicIdentityRecord(refusals=(refusal,)))
    await ground.metadata.create(paths.identity(TOPIC), value)
    finds, _ = await ground.collect()
    assert set(kinds(finds).values()) == {(Kind.TRASH, Verdict.KEEP), (Kind.REFUSED, Verdict.KEEP)}
    assert await ground.keys() == all_keys(1, 2, 3)
    await ground.metadata.delete(paths.identity(TOPIC))
    await ground.collect()
    assert await ground.keys() == all_keys(1)


async def test_trash_that_the_map_refers_to_stays(ground: Ground) -> None:
    """A record that should not be there deletes nothing, not even when the map takes the segment in at the end."""
    described = await ground.store(2, runs(1, 10, 5))
    for number in (1, 2):
        await ground.discard(number)
    await ground.age()

    def plan(operation: str, key: str, when: str) -> None:
        if (operation, key, when) == ("list_uploads", data_key(2), "before"):
            ground.tree.apply(steps, "")

    steps, _ = (await ground.map()).with_commit(committed(described))
    finds, _ = await ground.collect(objects=FaultyStore(ground.objects, plan))
    assert finds == []
    assert await ground.keys() == all_keys(1, 2)
    assert len(await ground.metadata.children(paths.trash(TOPIC))) == 2


async def test_trash_without_objects_leaves_only_its_record_to_delete(ground: Ground) -> None:
    """What an owner deleted before it could take the record away is found and finished."""
    await ground.discard(2)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == {data_key(2): (Kind.TRASH, Verdict.DELETED)}
    assert await ground.metadata.children(paths.trash(TOPIC)) == []


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (paths.attempt(TOPIC), b"\xff", CorruptData),
        (f"{paths.trash(TOPIC)}/{segment_id(7)}", b"\xff", CorruptData),
        (f"{paths.ledgers(TOPIC)}/2", b"\xff", CorruptData),
        (f"{paths.topic(TOPIC)}/future", b"", Conflict),
        (f"{paths.history(TOPIC)}/future", b"", Conflict),
        (paths.history_attempt(TOPIC), b"\xff", CorruptData),
        (paths.history_range_node(TOPIC, 0), b"\xff", CorruptData),
        (f"{paths.TOPICS}/t/n/persistent/%zz", b"", Conflict),
        (paths.REBUILD, b"", Conflict),
    ],
)
async def test_metadata_that_may_hide_references_stops_everything(
    ground: Ground, path: str, value: bytes, error: type[Exception]
) -> None:
    """A node that cannot be read, a topic that is none, a record of a newer version, a rebuild: nothing is deleted."""
    await ground.objects.put(data_key(2), b"x", metadata=OURS)
    await ground.age()
    await ground.metadata.create(path, value)
    with pytest.raises(error):
        await ground.collect()
    assert data_key(2) in await ground.keys()
    assert ground.metrics.registry.get_sample_value("offloaderd_gc_runs_total", {"outcome": "failed"}) == 1
