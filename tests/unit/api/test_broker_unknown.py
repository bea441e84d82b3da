"""What a broker hears of ledgers that are not there: it may skip what was deleted, and nothing else."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import EntriesDeleted, EntriesMissing, MapUnknown, OffloaderError, TopicUnknown
from offloaderd.core.model import HistoryOrder, LedgerEnd, Loss, Position, RefusalKind
from offloaderd.metadata import identity, paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.port import Create, Replace
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.v1 import broker_pb2
from offloaderd.upkeep.grants.broker_request import is_gone, is_held, is_whole
from tests.unit.api.test_broker_service import Listing, Served, length_of, served
from tests.unit.api.test_manual import CALLER
from tests.unit.fleet.test_engine import appended
from tests.unit.read.build import sample
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads
from tests.unit.topic.test_triggers import ledger_rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def covered(segment_bytes_max: int = 100_000) -> AsyncIterator[tuple[Rig, Served, list[bytes]]]:
    """Serve a topic whose ledger 0 is covered, and which Pulsar's list has no more; with its entries."""
    rig = ledger_rig(replace(Rig().policy, segment_bytes_max=segment_bytes_max))
    everything = await appended(rig, payloads(15))
    listing = Listing({0, 1})
    async with served(rig, register=listing) as one:
        await one.ensure(0, 10, length_of(everything, 0))
        listing.ledger_ids = {1}
        yield rig, one, [payload for position, payload in everything if position.ledger_id == 0]


async def refused(one: Served, ledger_id: int) -> type[OffloaderError]:
    """Return the kind of error by which a ledger is neither opened nor read."""
    with pytest.raises(OffloaderError) as opening:
        await one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=one.named(ledger_id)), CALLER)
    with pytest.raises(OffloaderError) as reading:
        await one.read(ledger_id, 0, 9)
    assert opening.type is reading.type
    return opening.type


def unknown(rig: Rig, reason: str) -> float:
    """Return how often nobody could tell."""
    return sample(rig.metrics, "offloaderd_broker_unknown_total", {"reason": reason})


async def doubted(rig: Rig) -> None:
    """Put it on record that the topic's metadata may be another history's."""
    doubt = Refusal(kind=RefusalKind.METADATA_WENT_BACK, found="it is old", evidence="x", since_ms=1)
    store, path = rig.tree.connect(), paths.identity(TOPIC)
    node = await identity.load(store, TOPIC)
    value = identity_record.encode(node.record.refusing(doubt))
    await store.transact([Create(path, value) if node.version is None else Replace(path, value, node.version)])


async def test_a_map_that_is_empty_says_of_no_ledger_that_it_is_gone() -> None:
    """ZooKeeper lost it, or another root or cluster is configured; Pulsar's list calls the ledger offloaded."""
    rig = ledger_rig(Rig().policy)
    async with served(rig, register=Listing({7})) as one:
        assert await refused(one, 7) is TopicUnknown
        assert unknown(rig, "topic_unknown") == 2
        await enabled(one.engine)
        assert await refused(one, 7) is MapUnknown
        assert unknown(rig, "map_unknown") == 2
        with pytest.raises(MapUnknown) as error:
            await one.read(7, 0, 0)
        assert "rebuild" in error.value.hint


async def test_what_was_deleted_on_purpose_is_gone() -> None:
    """It is marked, and stays in the map as long as its segment has another ledger."""
    async with covered() as (rig, one, _):
        assert rig.ledgers is not None
        await rig.ledgers.delete(TOPIC, 0)
        assert await one.retention.mark_now(await one.engine.owned(TOPIC), [0]) == [0]
        assert await refused(one, 0) is EntriesDeleted
        assert sum(unknown(rig, reason) for reason in ("map_unknown", "topic_unknown", "entries_missing")) == 0


async def test_a_deletion_on_a_record_that_is_in_doubt_is_not_believed() -> None:
    """The metadata may be another history's, in which that ledger was deleted."""
    async with covered() as (rig, one, _):
        assert rig.ledgers is not None
        await rig.ledgers.delete(TOPIC, 0)
        await one.retention.mark_now(await one.engine.owned(TOPIC), [0])
        await doubted(rig)
        assert await refused(one, 0) is MapUnknown


async def test_an_object_that_is_missing_is_no_ledger_that_is_gone() -> None:
    """Nobody has it any more, neither the bucket nor BookKeeper, and it was not deleted by us."""
    async with covered() as (rig, one, _):
        segment = (await one.engine.topic_map(TOPIC)).segments[0]
        await rig.store.delete(list(segment.keys.all))
        assert rig.ledgers is not None
        await rig.ledgers.delete(TOPIC, 0)
        with pytest.raises(EntriesMissing) as error:
            await one.read(0, 0, 9)
        assert error.type is EntriesMissing
        assert unknown(rig, "entries_missing") == 1


async def test_a_ledger_is_read_whatever_its_neighbours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later segment that joins on to nothing keeps BookKeeper's copy, and no reader from what is here."""
    async with covered() as (_, one, entries):
        stored = await one.engine.topic_map(TOPIC)
        later = replace(
            stored.segments[-1],
            segment_id=UUID(int=1),
            slices=(LedgerSlice(9, 57, 60, 4),),
        )
        odd = replace(stored, segments=(*stored.segments, later))

        async def topic_map(topic: object) -> TopicMap:
            return odd

        monkeypatch.setattr(one.engine, "topic_map", topic_map)
        assert not is_whole(odd, 0)
        opened = await one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=one.named(0)), CALLER)
        assert opened.last_entry_id == 9
        assert await one.read(0, 0, 9) == entries
        assert await refused(one, 9) is MapUnknown


SEGMENT = CommittedSegment(
    segment_id=UUID(int=2),
    slices=(LedgerSlice(5, 3, 9, 70),),
    object_bytes=100,
    assigned_ms=1,
    offloaded_ms=2,
    bucket="b",
    prefix="",
)


@pytest.mark.parametrize(
    ("floor", "ends", "gone"),
    [
        (None, {}, ()),
        (Position(4, 9), {}, (1, 2, 3)),
        (Position(4, 9), {4: LedgerEnd(11, 5)}, (1, 2, 3)),
        (Position(4, 9), {4: LedgerEnd(10, 5)}, (1, 2, 3, 4)),
        (Position(5, 2), {4: LedgerEnd(10, 5), 5: LedgerEnd(10, None)}, (1, 2, 3, 4)),
    ],
)
def test_deleted_is_what_is_below_the_floor_as_a_whole(
    floor: Position | None, ends: dict[int, LedgerEnd], gone: tuple[int, ...]
) -> None:
    """Of a ledger that is cut by the floor some is left, or something may follow that was never offloaded."""
    base = Floor(position=floor, end=None, deleted_ms=1, segments=1, object_bytes=1, reason="age") if floor else None
    _, found = TopicMap(TOPIC).with_commit(SEGMENT, ends)
    found = replace(found, base=base, ends={**found.ends, **ends})
    assert tuple(one for one in range(1, 9) if is_gone(found, one)) == gone
    whole = {5} if floor is not None and floor.ledger_id == 5 else set[int]()
    assert {one for one in range(9) if is_held(found, one)} == whole
    assert is_gone(replace(found, deleted={5: 1}), 5)


def test_what_never_was_here_is_not_gone_however_high_the_floor_is() -> None:
    """A broker that calls such a ledger offloaded is wrong, or the map is; either way nobody may skip it."""
    base = Floor(position=Position(8, 9), end=None, deleted_ms=1, segments=1, object_bytes=1, reason="age")
    loss = Loss(after=Position(2, 9), before=Position(5, 0), entries=0)
    found = replace(TopicMap(TOPIC), base=base, losses=(loss,))
    assert [one for one in range(9) if is_gone(found, one)] == [0, 1, 2, 5, 6, 7]
    plan = HistoryPlan(
        boundary=4, first=0, last=Position(3, 9), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON,
        planned_ms=1, epoch=1, daemon_id="d", entries=1, payload_bytes=1,
    )  # fmt: skip
    assert [one for one in range(9) if is_gone(replace(found, losses=(), history=plan), one)] == [4, 5, 6, 7]


async def test_a_ledger_that_retention_has_cut_is_read_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its front was deleted here, and that alone is told; where the record is in doubt, not even that."""
    async with covered(segment_bytes_max=400) as (rig, one, entries):
        stored = await one.engine.topic_map(TOPIC)
        assert stored.segments[0].end == Position(0, 3)
        base = Floor(position=Position(0, 3), end=None, deleted_ms=1, segments=1, object_bytes=1, reason="age")
        trimmed = replace(stored, segments=stored.segments[1:], base=base)

        async def topic_map(topic: object) -> TopicMap:
            return trimmed

        monkeypatch.setattr(one.engine, "topic_map", topic_map)
        opened = await one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=one.named(0)), CALLER)
        assert opened.last_entry_id == 9
        assert await one.read(0, 4, 9) == entries[4:]
        for last in (3, 9):
            with pytest.raises(EntriesDeleted, match="position 0:0"):
                await one.read(0, 0, last)
            with pytest.raises(EntriesDeleted, match="position 0:0"):  # wherever Pulsar's list says that it lies
                await one.read_of(one.named(0, bucket="b"), 0, last)
        await doubted(rig)
        with pytest.raises(MapUnknown, match=r"position 0:0 .* in doubt"):
            await one.read(0, 0, 3)
        assert await one.read(0, 4, 9) == entries[4:]
        trimmed = replace(trimmed, base=replace(base, position=Position(0, 2)))
        assert await refused(one, 0) is MapUnknown
