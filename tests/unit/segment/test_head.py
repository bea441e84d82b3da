"""The head of a topic in the bucket tells of metadata that went back, and of another deployment."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import Conflict, IdentityRefused, OutcomeUnknown, Transient
from offloaderd.core.model import HistoryOrder, Position, RefusalKind
from offloaderd.format import head as head_format
from offloaderd.format.head import HeadSegment, PlaceMarker
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.records.identity import Acceptance
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.removal import without_oldest
from offloaderd.objects import keys, marker
from offloaderd.objects.port import md5, pieces_of
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.segment.claim.head import head_of as head_of_job
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import FaultyStore
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.rebuild import make_plan, read_buckets, write
from offloaderd.upkeep.stored import Site
from tests.unit.rigs.lives import until_recorded
from tests.unit.rigs.owned import Owned, offload_more, offloaded_topic
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
    from collections.abc import Callable, Mapping

    from offloaderd.fleet.engine import Engine
    from offloaderd.format.head import TopicHead
    from offloaderd.objects.port import Bytes, ObjectInfo, Pieces

KEY = keys.head("seg/", "test", TOPIC.managed_ledger)


async def head_of(rig: Rig) -> TopicHead:
    """Return the head as it lies in the bucket."""
    return head_format.decode_head(await rig.store.get(KEY), key=KEY)


async def put(rig: Rig, head: TopicHead) -> None:
    """Put another head in its place."""
    await rig.store.put(KEY, head_format.encode_head(head))


def _refused(engine: Engine) -> list[str]:
    return [one.kind for status in engine.statuses() for one in status.refusals]


def _stalls(engine: Engine) -> bool:
    return any(one.state == "stalled" for one in engine.statuses())


def _others_are(rig: Rig, count: int) -> bool:
    return bool(rig.metrics.identity_places_refused._value.get() == count)


async def _segments(rig: Rig) -> int:
    return len((await catalog.load(rig.tree.connect(), TOPIC)).segments)


async def test_each_commit_puts_the_head_of_what_it_commits() -> None:
    """After a commit the bucket alone says how far the topic is, and under which epoch."""
    rig = await offloaded_topic(10, 10)
    newest = (await catalog.load(rig.tree.connect(), TOPIC)).segments[-1]
    head = await head_of(rig)
    assert head.newest is not None
    assert (head.newest.segment_id, head.newest.end, head.epoch) == (newest.segment_id, newest.end, 1)
    assert (head.managed_ledger, head.cluster) == (TOPIC.managed_ledger, "test")


async def test_a_map_that_is_segments_behind_the_head_is_refused() -> None:
    """Nothing is offloaded, deleted or granted by it; what it has stays readable, and all objects stay."""
    rig = await offloaded_topic(10)
    backup = rig.tree.backup()
    await offload_more(rig, [10, 10], seed=5)
    before = sorted([info.key async for info in rig.store.list()])
    rig.tree = backup
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
        await until(lambda: "offloadctl identity" in engine.statuses()[0].stalled_reason)
        await until(lambda: "offloaderd rebuild" in engine.statuses()[0].stalled_reason)
        assert "metadata-went-back" in await identity.deletion_refused(rig.tree.connect(), TOPIC)
    assert len(await rig.committed()) == 10
    assert sorted([info.key async for info in rig.store.list()]) == before


async def test_no_manifest_is_put_before_the_head_was_read() -> None:
    """A rebuild would take it in beside the segments that the metadata have forgotten."""
    rig = await offloaded_topic(10)
    backup = rig.tree.backup()
    await offload_more(rig, [10, 10], seed=5)
    before = sorted([info.key async for info in rig.store.list() if info.key.endswith("-manifest")])
    rig.tree = backup
    away = True

    def plan(operation: str, key: str, _: str) -> Exception | None:
        return Transient("slow") if away and (operation, key) == ("get", KEY) else None

    rig.objects = FaultyStore(rig.store, plan)
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        topic.requests.seal_to(Position(1, 9))
        await until(lambda: topic.progress is not None and topic.progress.attempt.seal is not None)
        for _ in range(300):
            await turn()
        away = False
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
    assert sorted([info.key async for info in rig.store.list() if info.key.endswith("-manifest")]) == before


async def test_the_refusal_ends_with_the_newer_metadata() -> None:
    """Once the map has what the head says, offloading goes on and the refusal is gone."""
    rig = await offloaded_topic(10)
    backup = rig.tree.backup()
    await offload_more(rig, [10], seed=5)
    newer, rig.tree = rig.tree, backup
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
    record = await backup.connect().get(paths.identity(TOPIC))
    await newer.connect().create(paths.identity(TOPIC), record.value)
    rig.tree = newer
    await offload_more(rig, [10], seed=7)
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""
    assert len(await rig.committed()) == 30


async def test_another_deployment_with_the_same_names_is_refused() -> None:
    """Who finds the head of another deployment commits nothing, and says whose it is."""
    rig = await offloaded_topic(10)
    theirs = str(UUID(int=9))
    await put(rig, replace(await head_of(rig), deployment_id=theirs))
    rig.deployment_id = str(UUID(int=8))
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.OTHER_DEPLOYMENT])
        await until(lambda: theirs in engine.statuses()[0].stalled_reason)
    assert await _segments(rig) == 1


async def test_an_epoch_that_fell_is_refused_for_as_long_as_the_head_says_so() -> None:
    """However often the topic is claimed meanwhile."""
    rig = await offloaded_topic(10)
    await put(rig, replace(await head_of(rig), epoch=3))
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
    for name in ("three", "four"):
        async with rig.engine(name) as engine:
            await until(partial(_stalls, engine))
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC)


async def test_a_topic_without_a_head_goes_on_as_before() -> None:
    """Versions before put none: it is adopted at the next commit, and nothing is refused."""
    rig = await offloaded_topic(10)
    await rig.store.delete([KEY])
    await offload_more(rig, [10], seed=5)
    assert (await head_of(rig)).newest is not None
    assert await _segments(rig) == 2
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""


class Recorded(MemoryStore):
    """Remembers the heads that were put, to carry the requests out late. It may give other ETags than MD5."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.clock, part_bytes_min=1)
        self.heads: list[tuple[bytes, str | None]] = []
        self.opaque = self.useless = False

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """Remember a head, and store."""
        if key == KEY:
            self.heads.append((b"".join(pieces_of(data)), if_etag))
            if self.useless and if_etag is not None:
                raise Conflict("other ETags are compared than told")
        return await super().put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as)

    def _store(self, key: str, data: bytes, etag: str, metadata: dict[str, str]) -> ObjectInfo:
        return super()._store(key, data, f"key-{etag}" if self.opaque else etag, metadata)


async def recorded_topic(*segments: int) -> tuple[Rig, Recorded]:
    """Return a topic in a bucket that remembers its heads."""
    rig = Rig()
    rig.ledgers, rig.objects = memory_ledgers(rig.clock), (store := Recorded(rig))
    await offload_more(rig, segments)
    return rig, store


async def test_a_head_that_is_carried_out_late_replaces_no_newer_one() -> None:
    """Whether its sender has put newer ones since, or another owner has: old metadata would not show any more (P1)."""
    rig, store = await recorded_topic(10, 10)
    await offload_more(rig, [10], seed=5)
    newest = await head_of(rig)
    for data, if_etag in list(store.heads):
        with pytest.raises(Conflict):
            await store.put(KEY, data, if_etag=if_etag)
    assert await head_of(rig) == newest


async def test_a_head_that_came_in_between_is_compared_too() -> None:
    """A deposed owner's, which was late: it goes with the map, and the next commit replaces it."""
    rig, store = await recorded_topic(10)
    old, _ = store.heads[0]
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await topic.identity.checked.wait()
        await put(rig, replace(head_format.decode_head(old, key=KEY), put_ms=1))
        assert rig.ledgers is not None
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until_offloaded(topic, last)
        assert (await head_of(rig)).epoch == 2
        assert store.heads[-1][1] == md5(store.heads[-3][0])
        await put(rig, replace(await head_of(rig), epoch=7))
        await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
    assert await _segments(rig) == 2


async def test_a_head_whose_answer_was_lost_is_found() -> None:
    """The second try meets the first one's head, and goes on."""
    rig, store = await recorded_topic(10)
    lost = iter([OutcomeUnknown("no answer")])

    def plan(operation: str, key: str, when: str) -> Exception | None:
        return next(lost, None) if (operation, key, when) == ("put", KEY, "after") else None

    rig.objects = FaultyStore(store, plan)
    await offload_more(rig, [10], seed=5)
    assert [etag for _, etag in store.heads[1:]] == [md5(store.heads[0][0])] * 2
    await offload_more(rig, [10], seed=6)
    assert await _segments(rig) == 3


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_head_keeps_what_another_is_about_to_commit(given_up: bool) -> None:
    """An owner and a job put it in turn, before their commits: neither takes back what the other has said."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    plan = HistoryPlan(
        boundary=1, first=0, last=Position(0, 9), order=HistoryOrder.ALONGSIDE, worker=Worker.JOB, planned_ms=1,
        epoch=1, daemon_id="one", entries=10, payload_bytes=1,
    )  # fmt: skip
    known = replace(owned.offloader.map, history=plan)
    job, context, before = head_of_job(owned.context, owned.offloader.claim), owned.context, await head_of(rig)
    await job.check(known)
    live, old = (
        context.attempt(begin, context.layout, context.places.home, epoch=1) for begin in (Position(2, 0), plan.last)
    )
    store = rig.tree.connect()
    if not given_up:
        await store.create(paths.attempt(TOPIC), attempt_record.encode(live))
        await store.create(paths.history_attempt(TOPIC), attempt_record.encode(old))
    assert before.newest is not None
    told = replace(
        before,
        epoch=7,
        newest=replace(before.newest, segment_id=live.segment_id, end=Position(2, 9)),
        history=replace(before.newest, segment_id=old.segment_id, end=Position(0, 99)),
    )
    await put(rig, told)
    await job.before_commit(known, known, known.segments[0])
    after = await head_of(rig)
    ours = (known.segments[1].segment_id, known.segments[0].segment_id)
    theirs = (live.segment_id, old.segment_id)
    assert after.newest is not None
    assert after.history is not None
    assert (after.newest.segment_id, after.history.segment_id) == (ours if given_up else theirs)
    assert after.epoch == 7


async def test_a_job_keeps_the_highest_epoch_of_all_heads() -> None:
    """A place that the topic has left has a head of an earlier owner, which is read as well."""
    rig = Rig(places=(("b", "seg/"), ("b", "old/")))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    await offload_more(rig, [10, 10])
    owned, before = await Owned.claim(rig), await head_of(rig)
    old = keys.head("old/", "test", TOPIC.managed_ledger)
    await put(rig, replace(before, epoch=7))
    await rig.store.put(old, head_format.encode_head(replace(before, epoch=3)))
    known = owned.offloader.map
    await head_of_job(owned.context, owned.offloader.claim).before_commit(known, known, known.segments[0])
    assert (await head_of(rig)).epoch == 7


@pytest.mark.parametrize("how", ["opaque", "useless"])
async def test_a_head_is_put_whatever_the_stores_etags_are(how: str) -> None:
    """They may be of no bytes, as with a KMS; and where a condition fails for nothing, none is asked for."""
    rig, store = await recorded_topic(10)
    setattr(store, how, True)
    await offload_more(rig, [10, 10], seed=5)
    newest = (await head_of(rig)).newest
    assert newest is not None
    assert newest.end == (await catalog.load(rig.tree.connect(), TOPIC)).offloaded
    assert store.heads[-1][1] == (None if how == "useless" else f"key-{md5(store.heads[-2][0])}")


async def test_an_older_head_is_in_order() -> None:
    """A late put of a deposed owner raises no false alarm, nor does retention that has deleted the newest head's."""
    rig = await offloaded_topic(10)
    old = await head_of(rig)
    await offload_more(rig, [10], seed=5)
    await put(rig, old)
    store = rig.tree.connect()
    known = await catalog.load(store, TOPIC)
    steps, _ = without_oldest(known, known.segments[0], reason="age", now_ms=1)
    await store.transact(steps)
    await offload_more(rig, [10], seed=7)
    assert await _segments(rig) == 2


async def test_a_head_of_what_retention_has_deleted_is_in_order() -> None:
    """Also where its manifest is there again: a put of it that had no answer was carried out after the deletion."""
    rig = await offloaded_topic(10)
    await offload_more(rig, [10], seed=5)
    store, head = rig.tree.connect(), await head_of(rig)
    known = await catalog.load(store, TOPIC)
    oldest = known.segments[0]
    steps, _ = without_oldest(known, oldest, reason="age", now_ms=1)
    await store.transact(steps)
    await store.delete(paths.trash_record(TOPIC, oldest.segment_id), 0)
    described = HeadSegment(
        segment_id=oldest.segment_id, begin=oldest.begin, end=oldest.end, bucket=oldest.bucket, prefix=oldest.prefix
    )
    await put(rig, replace(head, history=described))
    assert (await rig.store.head(oldest.keys.manifest)).size_bytes
    await offload_more(rig, [10], seed=7)
    assert await _segments(rig) == 2


async def test_a_head_of_what_retention_deletes_while_it_is_compared_is_in_order() -> None:
    """Who compares it has a map from before its commit, and its manifest is still there or there again."""
    rig = await offloaded_topic(10)
    store = rig.tree.connect()
    before = await catalog.load(store, TOPIC)
    await offload_more(rig, [10], seed=5)
    deleted: list[UUID] = []

    class Deleted(FaultyStore):
        """Retention deletes all segments when the newest one's manifest is asked for."""

        async def head(self, key: str) -> ObjectInfo:
            found: ObjectInfo = await super().head(key)
            known = await catalog.load(store, TOPIC)
            while known.segments:
                oldest = known.segments[0]
                steps, _ = without_oldest(known, oldest, reason="age", now_ms=1)
                await store.transact(steps)
                await store.delete(paths.trash_record(TOPIC, oldest.segment_id), 0)
                known = await catalog.load(store, TOPIC)
                deleted.append(oldest.segment_id)
            return found

    rig.objects = Deleted(rig.store, lambda *_: None)
    owned = await Owned.claim(rig)
    await head_of_job(owned.context, owned.offloader.claim).check(before)
    assert len(deleted) == 2


async def test_a_head_of_what_was_given_up_is_in_order() -> None:
    """The owner died between head and commit, and the next one gave the attempt up: its objects are gone."""
    rig = await offloaded_topic(10)
    head = await head_of(rig)
    assert head.newest is not None
    ahead = replace(head.newest, segment_id=UUID(int=5), end=head.newest.end._replace(entry_id=99))
    await put(rig, replace(head, newest=ahead))
    await offload_more(rig, [10], seed=5)
    assert await _segments(rig) == 2


@pytest.mark.parametrize(
    "where",
    [
        lambda one: paths.attempt(TOPIC),
        lambda one: paths.history_attempt(TOPIC),
        lambda one: paths.rollback_attempt(TOPIC),
        lambda one: paths.history_job_attempt(TOPIC, one),
        lambda one: paths.trash_record(TOPIC, one),
    ],
    ids=["live", "history", "rollback", "job", "trash"],
)
async def test_a_head_of_what_is_being_committed_or_thrown_away_is_in_order(where: Callable[[UUID], str]) -> None:
    """Whoever writes it put the head before its commit; without a record of it the map has lost a commit."""
    rig = await offloaded_topic(10)
    owned = await Owned.claim(rig)
    context, head = owned.context, await head_of(rig)
    attempt = context.attempt(Position(1, 0), context.layout, context.places.home, epoch=1)
    assert head.newest is not None
    await put(rig, replace(head, newest=replace(head.newest, segment_id=attempt.segment_id, end=Position(1, 9))))
    await rig.store.put(attempt.keys.manifest, b"it is there")
    keeper = head_of_job(context, owned.offloader.claim)
    with pytest.raises(IdentityRefused, match="up to 1:9"):
        await keeper.check(owned.offloader.map)
    store, path = rig.tree.connect(), where(attempt.segment_id)
    with suppress(Conflict):
        await store.create(path.rpartition("/")[0], b"")
    await store.create(path, attempt_record.encode(attempt))
    await keeper.check(owned.offloader.map)


async def test_a_head_that_is_damaged_on_its_way_is_read_again() -> None:
    """It still says whose the topic is, so nothing is committed (P4)."""
    rig = await offloaded_topic(10)
    await put(rig, replace(await head_of(rig), deployment_id=str(UUID(int=9))))
    rig.deployment_id = str(UUID(int=8))
    reads: list[bytes] = []
    sound = rig.store.get

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        data = await sound(key, first, length)
        if key == KEY:
            reads.append(data)
            return data[:-1] + bytes([data[-1] ^ len(reads)]) if len(reads) <= 2 else data
        return data

    rig.store.get = get  # type: ignore[method-assign]
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.OTHER_DEPLOYMENT])
    assert await _segments(rig) == 1


async def test_a_head_that_stays_unreadable_is_refused_until_an_operator_does_without_it() -> None:
    """It may have said that the metadata went back, or whose the topic is; once accepted, the next commit mends it."""
    rig = await offloaded_topic(10)
    await rig.store.put(KEY, b"\0" * 40)
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.HEAD_UNREADABLE])
        await until(partial(_stalls, engine))
    assert await _segments(rig) == 1
    store = rig.tree.connect()
    record, version = await identity.load(store, TOPIC)
    said = Acceptance(kind=RefusalKind.HEAD_UNREADABLE, evidence=record.refusals[0].evidence, by="ann", at_ms=1)
    await store.replace(paths.identity(TOPIC), identity_record.encode(record.accepting(said)), version or 0)
    await offload_more(rig, [10], seed=5)
    assert (await head_of(rig)).newest is not None
    assert await _segments(rig) == 2
    assert await identity.deletion_refused(store, TOPIC) == ""


async def test_a_rebuild_is_the_way_out_of_metadata_that_went_back() -> None:
    """It takes up what was committed since the backup, and an epoch above that of the head: nothing is refused then."""
    rig = await offloaded_topic(10)
    backup = rig.tree.backup()
    rig.deployment_id = str(UUID(int=8))
    await offload_more(rig, [10], seed=5)
    await put(rig, replace(await head_of(rig), epoch=7))
    rig.tree = backup
    async with rig.engine("two") as engine:
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
    rig.tree = MemoryTree()
    site = Site(cluster="test", bucket="b", prefix="seg/")
    plan = make_plan(await read_buckets(rig.store, [site], lambda _: None))
    written = await write(rig.tree.connect(), plan, topics=(), enable=True, now_ms=1, progress=lambda _: None)
    assert written == [TOPIC]
    kept = await identity.deployment(rig.tree.connect())
    assert kept is not None
    assert str(kept.deployment_id) == rig.deployment_id
    await offload_more(rig, [10], seed=7)
    assert len(await rig.committed()) == 30
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""


async def test_a_daemon_marks_its_places_and_says_who_else_is_there() -> None:
    """The first one to start puts the marker; one of another deployment finds it, and tells whose it is."""
    rig = await offloaded_topic(10)
    for deployment_id, refused in ((UUID(int=8), 0), (UUID(int=9), 1)):
        rig.deployment_id = str(deployment_id)
        with capture_logs() as logs:
            async with rig.engine(f"of {deployment_id}"):
                while await marker.read(rig.store.at("b"), "seg/", "test") is None:
                    await turn()
                await until(partial(_others_are, rig, refused))
        told = [one["found"] for one in logs if one["event"] == "place.foreign"]
        assert [str(UUID(int=8)) in one for one in told] == [True] * refused


async def test_a_place_that_another_one_marks_in_the_same_moment_is_theirs() -> None:
    """Both found no marker; the one that is later sees the other's, and puts a guest's beside it."""
    rig = Rig()
    theirs, ours = (
        PlaceMarker(cluster="test", deployment_id=str(UUID(int=one)), daemon_id="d", since_ms=1) for one in (8, 9)
    )

    class Late(MemoryStore):
        """Another's request is carried out before its own."""

        async def put(
            self,
            key: str,
            data: Bytes | Pieces,
            *,
            metadata: Mapping[str, str] | None = None,
            if_etag: str | None = None,
            stored_as: StoredAs = PLAIN,
        ) -> ObjectInfo:
            if not self._objects:
                await super().put(key, head_format.encode_marker(theirs))
            return await super().put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as)

    store = Late(rig.clock)
    assert (await marker.ensure(store, "seg/", ours)).marker == theirs
    assert set(await marker.provisional_deployments(store, "seg/", "test")) == {ours.deployment_id}


async def test_what_is_written_says_of_which_deployment_it_is() -> None:
    """Every object of a segment, and the head."""
    rig = await offloaded_topic(10)
    rig.deployment_id = str(UUID(int=8))
    await rig.store.delete([KEY])
    await offload_more(rig, [10], seed=5)
    newest = (await catalog.load(rig.tree.connect(), TOPIC)).segments[-1]
    for key in (*newest.keys.all, KEY):
        assert (await rig.store.head(key)).metadata[keys.DEPLOYMENT_KEY] == rig.deployment_id


async def test_nothing_is_recorded_as_lost_before_the_head_was_read() -> None:
    """What old metadata do not know, and the source has no more, is in the bucket."""
    rig = await offloaded_topic(10)
    backup = rig.tree.backup()
    await offload_more(rig, [10, 10], seed=5)
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(5))
    for ledger_id in (0, 1):
        await rig.ledgers.delete(TOPIC, ledger_id)
    rig.tree, away = backup, True

    def plan(operation: str, key: str, _: str) -> Exception | None:
        return Transient("slow") if away and (operation, key) == ("get", KEY) else None

    rig.objects = FaultyStore(rig.store, plan)
    async with rig.engine("two") as engine:
        tailer = (await offloader_of(engine)).tailer
        assert tailer is not None
        await until(lambda: tailer.refreshed_s is not None)
        for _ in range(300):
            await turn()
        assert (await catalog.load(backup.connect(), TOPIC)).losses == ()
        away = False
        await until(lambda: _refused(engine) == [RefusalKind.METADATA_WENT_BACK])
        await until(partial(_stalls, engine))
    assert (await catalog.load(backup.connect(), TOPIC)).losses == ()


async def test_a_finished_segment_is_not_read_for_a_topic_that_is_refused() -> None:
    """A refused topic is tried again and again, and all of such a segment is read before it is committed."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=250)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        last = await rig.ledgers.append(TOPIC, payloads(700))
        await until_recorded(rig, lambda attempt: len(attempt.parts) >= 2)
        rig_before = rig.tree.backup()
        await topic.request_roll()
        await until_offloaded(topic, last)
    await offload_more(rig, [10], seed=5)
    rig.tree, read = rig_before, []

    def plan(operation: str, key: str, _: str) -> Exception | None:
        read.append((operation, key))
        return None

    rig.objects = FaultyStore(rig.store, plan)
    async with rig.engine("two") as engine:
        await until(partial(_stalls, engine))
    assert [key for operation, key in read if operation.startswith("get") and key != KEY] == []
