"""Explaining a position: where an entry is to the byte, and why there is none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import BucketMissing, Transient
from offloaderd.core.model import HistoryOrder, LedgerEnd, Loss, Position
from offloaderd.metadata import paths
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.records.verified import SegmentVerified, Verified
from offloaderd.objects.retrying import RetryingReader
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep import explain
from offloaderd.upkeep.explain import Explainer, Explanation, Held, State
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.stored import Site
from tests.patience import PATIENCE_S
from tests.unit.read.build import FastClock
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC as MIRRORED_TOPIC
from tests.unit.upkeep.site import BUCKET, CLUSTER, PREFIX, TOPIC, Ground, data_key, manifest_key, runs, segment_id
from tests.unit.upkeep.test_mirrored import SITES, ReadableMap, damage, mirrored, segments_of

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.topic_map.map import TopicMap
    from tests.unit.rigs.rig import Rig

NOWHERE = Held(buffer=False, source=False, in_source=False, ended=None, newest=None)


@dataclass
class Tiers:
    """What the other tiers hold, as a test says."""

    now: Held = NOWHERE

    async def held(self, topic: TopicName, position: Position) -> Held:
        """Return it."""
        return self.now


@dataclass
class Maps:
    """What is committed."""

    ground: Ground

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return it."""
        return await self.ground.map(topic)


@pytest.fixture
async def ground() -> Ground:
    """Two segments over two ledgers, the first of which ended, and a loss."""
    site = Ground()
    await site.enable()
    await site.commit(await site.store(1, [*runs(1, 0, 4), *runs(1, 4, 6)]))
    await site.commit(await site.store(2, [*runs(1, 10, 5), *runs(3, 0, 4)], ends=((1, LedgerEnd(15, 3)),)))
    await site.metadata.transact((await site.map()).with_loss(Loss(Position(3, 3), Position(7, 0), 5, 99))[0])
    await site.commit(await site.store(3, runs(7, 0, 4)))
    return site


async def explained(ground: Ground, position: str, held: Held = NOWHERE, *, bucket: str = BUCKET) -> Explanation:
    """Explain a position."""
    retrying_reader = RetryingReader(ground.objects, clock=FastClock())
    site = Site(cluster=CLUSTER, bucket=bucket, prefix=PREFIX)
    explainer = Explainer(Maps(ground), Tiers(held).held, ground.metadata, retrying_reader, [site])
    async with asyncio.timeout(PATIENCE_S):
        return await explainer.explain(TOPIC, Position.parse(position))


@pytest.mark.parametrize("position", ["1:0", "1:3", "1:4", "1:9", "1:14", "3:0", "3:2", "7:3"])
async def test_the_bytes_that_are_named_are_the_entry(ground: Ground, position: str) -> None:
    """Whoever reads these bytes of that object, with whatever tool, has the payload; the head before it has its id."""
    found = await explained(ground, position)
    place = found.place
    assert (found.state, found.what_to_do) == (State.OFFLOADED, "")
    assert place is not None
    assert place.block is not None
    assert place.entry_offset is not None
    assert place.payload_bytes is not None
    head = await ground.objects.get(place.data_key, place.entry_offset, 12)
    assert int.from_bytes(head[:4], "big") == place.payload_bytes
    assert int.from_bytes(head[4:], "big") == Position.parse(position).entry_id
    payload = await ground.objects.get(place.data_key, place.entry_offset + 12, place.payload_bytes)
    assert payload == position.encode()
    assert place.block.offset < place.entry_offset < place.block.offset + place.block.length
    assert place.segment.holds(Position.parse(position))


async def test_what_is_known_of_segment_and_ledger(ground: Ground) -> None:
    """The scrub's last word, the ledger's end, the grant."""
    seen = SegmentVerified(verified_ms=5, level="full", flaws=1, flaw="x")
    await ground.metadata.create(paths.verified(TOPIC), verified_record.encode(Verified({segment_id(2): seen})))
    grant = Grant(ledger_id=1, revoked_ms=7, revoked_reason="why")
    await ground.metadata.create(paths.grant(TOPIC, 1), grant_record.encode(grant))
    found = await explained(ground, "1:12")
    assert found.verified == seen
    assert found.ledger_end == LedgerEnd(15, 3)
    assert found.grant == grant
    place = found.place
    assert place is not None
    assert (place.block_number, place.block_count) == (1, 2)
    assert (await explained(ground, "1:2")).verified is None
    assert (await explained(ground, "7:2")).grant is None


async def test_damage_is_told_and_no_bytes_are_named(ground: Ground) -> None:
    """Of a block that is not as it was written nothing is said but where it lies."""
    info, data = await ground.objects.head(data_key(1)), bytearray(await ground.objects.get(data_key(1)))
    data[140] ^= 1
    await ground.objects.put(data_key(1), bytes(data), metadata=info.metadata)
    found = await explained(ground, "1:2")
    place = found.place
    assert place is not None
    assert place.flaw is not None
    assert (place.flaw.kind, place.entry_offset, place.block_number) == (Kind.BLOCK, None, 1)
    assert "restore" in found.what_to_do
    assert "not readable" in found.text
    sound = (await explained(ground, "1:5")).place
    assert sound is not None
    assert sound.flaw is None


@pytest.mark.parametrize(("key", "kind"), [(data_key(1), Kind.MISSING), (manifest_key(1), Kind.MISSING)])
async def test_a_missing_object_is_told(ground: Ground, key: str, kind: Kind) -> None:
    """With its key."""
    await ground.objects.delete([key])
    place = (await explained(ground, "1:2")).place
    assert place is not None
    assert place.flaw is not None
    assert (place.flaw.kind, place.flaw.key) == (kind, key)


class Silent(MemoryStore):
    """A bucket that takes requests and never answers."""

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()
        return await super().get(key, first, length)


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "failing"])
async def test_a_bucket_that_does_not_answer_is_told_with_what_is_known(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """Neither a wait for the caller's deadline, nor damage."""
    if silent:
        monkeypatch.setattr(explain, "BUCKET_S", 0.01)

    async def failing(key: str, *_: object) -> bytes:
        raise Transient("503 Service Unavailable")

    monkeypatch.setattr(ground.objects, "get", Silent(FastClock()).get if silent else failing)
    found = await explained(ground, "1:4")
    assert found.place is not None
    assert found.place.flaw is not None
    assert (found.state, found.place.flaw.kind, found.place.flaw.is_problem) == (
        State.OFFLOADED,
        Kind.UNREACHABLE,
        False,
    )
    why = "the bucket did not answer within 0.01 s" if silent else "503 Service Unavailable"
    assert found.text == f"offloaded, and not readable from the bucket now: {data_key(1)}: {why}"
    assert found.what_to_do == "bring the bucket back, and ask again"


async def test_a_segment_in_another_bucket(ground: Ground) -> None:
    """It is not looked at, and said where it is."""
    place = (await explained(ground, "1:2", bucket="other")).place
    assert place is not None
    assert place.flaw is not None
    assert place.flaw.kind is Kind.ELSEWHERE


@pytest.mark.parametrize(
    ("position", "held", "state", "text", "advice"),
    [
        ("3:9", NOWHERE, State.LOST, "entries after 3:3 and before 7:0", "read on from 7:0"),
        ("5:0", NOWHERE, State.LOST, "were deleted from the source", "read on from 7:0"),
        ("1:15", NOWHERE, State.NO_ENTRY, "ledger 1 ended with 15 entries", "the next entry is 3:0"),
        ("7:4", NOWHERE, State.BEYOND, "the newest entry is 7:3", "not been written yet"),
        ("9:0", NOWHERE, State.BEYOND, "the newest entry is 7:3", "not been written yet"),
        (
            "7:5",
            Held(buffer=True, source=True, in_source=True, ended=None, newest=Position(7, 8)),
            State.NOT_OFFLOADED,
            "only in the buffer and source",
            "offloadctl offload",
        ),
        (
            "7:5",
            Held(buffer=False, source=True, in_source=True, ended=9, newest=Position(7, 8)),
            State.NOT_OFFLOADED,
            "only in the source",
            "offloadctl offload",
        ),
        (
            "7:12",
            Held(buffer=False, source=False, in_source=True, ended=9, newest=Position(8, 8)),
            State.NO_ENTRY,
            "ledger 7 ended with 9 entries",
            "",
        ),
        (
            "8:2",
            Held(buffer=False, source=False, in_source=True, ended=None, newest=Position(9, 8)),
            State.MISSING,
            "in no tier",
            "offloadctl verify",
        ),
        (
            "8:2",
            Held(buffer=False, source=False, in_source=False, ended=None, newest=Position(9, 8)),
            State.NO_ENTRY,
            "no tier knows a ledger 8",
            "offloadctl segments",
        ),
        (
            "7:9",
            Held(buffer=False, source=None, in_source=False, ended=None, newest=None, why="bookies are away"),
            State.UNKNOWN,
            "bookies are away",
            "bring the source back",
        ),
    ],
)
async def test_a_position_without_an_object_is_explained(
    ground: Ground, position: str, held: Held, state: State, text: str, advice: str
) -> None:
    """Lost, not there yet, not offloaded yet, no entry at all, or missing; each with what to do."""
    found = await explained(ground, position, held)
    assert found.state is state, found.text
    assert text in found.text
    assert advice in found.what_to_do
    assert found.place is None


async def test_an_uncertain_loss_is_told_as_such(ground: Ground) -> None:
    """Nobody knows whether there was anything."""
    await ground.metadata.transact((await ground.map()).with_loss(Loss(Position(7, 3), Position(9, 0), 0, 1))[0])
    found = await explained(ground, "8:0")
    assert found.state is State.MAYBE_LOST
    assert "it is unknown whether" in found.text


async def test_what_retention_deleted_is_told(ground: Ground) -> None:
    """Up to the floor, with the oldest that is left."""
    from offloaderd.metadata.topic_map import removal  # noqa: PLC0415

    topic_map = await ground.map()
    steps, _ = removal.without_oldest(topic_map, topic_map.segments[0], reason="age", now_ms=5)
    await ground.metadata.transact(steps)
    found = await explained(ground, "1:2")
    assert found.state is State.DELETED
    assert "like all up to 1:9" in found.text
    assert "the oldest stored entry is 1:10" in found.what_to_do
    assert (await explained(ground, "1:9")).state is State.DELETED, "the last of what was deleted"


async def test_an_entry_that_leaves_the_buffer_while_it_is_explained_is_offloaded(ground: Ground) -> None:
    """It is committed before it leaves, so the map is read after the other tiers."""

    async def held(topic: TopicName, position: Position) -> Held:
        await ground.commit(await ground.store(4, runs(7, 4, 4)))
        return NOWHERE

    site = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)
    reader = RetryingReader(ground.objects, clock=FastClock())
    explainer = Explainer(Maps(ground), held, ground.metadata, reader, [site])
    assert (await explainer.explain(TOPIC, Position(7, 5))).state is State.OFFLOADED


async def test_a_bucket_that_vanishes_is_no_damage(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known about its objects then: advice to restore one of them would be wrong."""
    get = ground.objects.get

    async def gone(key: str, first: int = 0, length: int | None = None) -> bytes:
        if key == data_key(1):
            raise BucketMissing("the bucket is gone")
        return await get(key, first, length)

    monkeypatch.setattr(ground.objects, "get", gone)
    with pytest.raises(BucketMissing):
        await explained(ground, "1:2")


async def test_a_topic_without_entries(ground: Ground) -> None:
    """Enabled, and nothing was written."""
    empty = Ground()
    await empty.enable()
    found = await explained(empty, "0:0")
    assert found.state is State.BEYOND
    assert "no entries yet" in found.text


async def test_history_that_is_still_to_come_is_not_missing() -> None:
    """It lies before what is offloaded; without the source nobody can say more, with it it is not offloaded yet."""
    site = Ground()
    await site.enable()
    plan = HistoryPlan(
        boundary=7,
        first=1,
        last=Position(3, 9),
        order=HistoryOrder.ALONGSIDE,
        worker=Worker.JOB,
        planned_ms=1,
        epoch=1,
        daemon_id="one",
        entries=20,
        payload_bytes=200,
    )
    await site.metadata.create(paths.history_plan(TOPIC), history_record.encode(plan))
    await site.commit(await site.store(3, runs(7, 0, 4)))
    away = Held(buffer=False, source=None, in_source=False, ended=None, newest=None, why="bookies are away")
    assert (await explained(site, "2:0", away)).state is State.UNKNOWN
    there = Held(buffer=False, source=True, in_source=True, ended=10, newest=Position(7, 8))
    assert (await explained(site, "2:0", there)).state is State.NOT_OFFLOADED


async def explained_copy(rig: Rig) -> Explanation:
    """Explain the first entry of a topic with a mirror."""
    owned, reader = await Owned.claim(rig), RetryingReader(rig.store, clock=rig.clock)
    explainer = Explainer(ReadableMap(owned), Tiers().held, rig.tree.connect(), reader, SITES)
    return await explainer.explain(MIRRORED_TOPIC, owned.offloader.map.segments[0].begin)


async def test_an_entry_is_explained_where_readers_get_it() -> None:
    """Its own place first; if that does not give it, the copy, with what is wrong in its own place."""
    rig = await mirrored(10)
    [segment] = await segments_of(rig)
    assert segment.copy is not None
    found = await explained_copy(rig)
    assert found.place is not None
    assert found.place.segment == segment
    assert "a copy is in bucket 'eu' under prefix 'topics/'" in found.text
    await damage(rig, segment)
    found = await explained_copy(rig)
    assert found.place is not None
    assert found.place.segment == segment.copy
    assert (found.place.flaw, found.place.data_key) == (None, segment.copy.keys.data)
    assert "not readable from the bucket now" in found.text
    assert "readers get it from the copy in bucket 'eu'" in found.text
    assert found.what_to_do
    await damage(rig, segment.copy)
    found = await explained_copy(rig)
    assert found.place is not None
    assert found.place.segment == segment
    assert found.place.flaw is not None
    assert "nor is the copy in bucket 'eu'" in found.text
