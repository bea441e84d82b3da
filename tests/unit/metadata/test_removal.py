"""How segments leave the map: marks, the floor, the trash record, all in one transaction that a reload agrees with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import Conflict, CorruptData
from offloaderd.core.model import LedgerEnd, Loss, Position, TopicName
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import OffloadContext
from offloaderd.metadata import paths
from offloaderd.metadata.port import Versioned
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records.deletion import Floor, Trash
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.metadata.segments import carry_out, contexts_of, made

if TYPE_CHECKING:
    from offloaderd.metadata.committed import CommittedSegment

TOPIC = TopicName("public", "default", "orders")


async def _stored() -> MemoryMetadata:
    store = MemoryTree().connect()
    for folder in paths.folders(TOPIC):
        await store.create(folder, b"")
    return store


async def _committed(store: MemoryMetadata, *segments: CommittedSegment, ends: dict[int, LedgerEnd]) -> TopicMap:
    current = TopicMap(TOPIC)
    for segment in segments:
        steps, current = current.with_commit(segment, ends)
        await store.transact(steps)
    return current


A, B, C = made(1, (3, 0, 9), (4, 0, 4)), made(2, (4, 5, 9)), made(3, (4, 10, 12), (6, 0, 3))
ENDS = {3: LedgerEnd(10, 4), 4: LedgerEnd(13, 6)}


async def test_the_oldest_segment_goes_with_floor_and_trash_in_one_transaction() -> None:
    """Contexts shrink or go, the floor stands at its end, the trash record says where its objects lie."""
    store = await _stored()
    before = await _committed(store, A, B, C, ends=ENDS)
    steps, after = removal.without_oldest(before, A, reason="all its ledgers are deleted", now_ms=77)
    await store.transact(steps)
    assert await catalog.load(store, TOPIC) == after
    assert after.segments == (B, C)
    assert after.floor == Position(4, 4)
    assert after.ends == {4: LedgerEnd(13, 6)}
    assert sorted(after.contexts) == [4, 6]
    assert after.base == Floor(
        position=Position(4, 4),
        end=None,
        deleted_ms=77,
        segments=1,
        object_bytes=1001,
        reason="all its ledgers are deleted",
    )
    path = paths.trash_record(TOPIC, A.segment_id)
    assert deletion.decode_trash((await store.get(path)).value, path=path) == Trash(
        segment_id=A.segment_id,
        upload_id="",
        reason="all its ledgers are deleted",
        decided_ms=77,
        bucket="bucket",
        prefix="p/",
        readable=True,
    )


async def test_what_is_offloaded_never_falls_and_goes_on_behind_the_floor() -> None:
    """With every segment gone the topic stands where it stood, and takes only what directly follows."""
    store = await _stored()
    current = await _committed(store, A, B, C, ends=ENDS)
    for segment in (A, B, C):
        steps, current = removal.without_oldest(current, segment, reason="r", now_ms=1)
        await store.transact(steps)
        assert current.offloaded == Position(6, 3)
        assert await catalog.load(store, TOPIC) == current
    assert not current.segments
    assert not current.contexts
    assert await store.children(paths.ledgers(TOPIC)) == []
    assert len(await store.children(paths.trash(TOPIC))) == 3
    for wrong in (made(8, (6, 5, 9)), made(8, (6, 3, 9)), made(8, (4, 13, 14))):
        with pytest.raises(Conflict):
            current.with_commit(wrong)
    steps, current = current.with_commit(made(8, (6, 4, 9)))
    await store.transact(steps)
    assert current.offloaded == Position(6, 9)
    assert await catalog.load(store, TOPIC) == current


async def test_how_the_last_ledger_ended_survives_its_context() -> None:
    """The floor keeps its ledger's end, and takes one that is known later; else a vanished ledger looks lost."""
    store = await _stored()
    current = await _committed(store, A, B, made(3, (4, 10, 12)), ends=ENDS)
    for segment in current.segments:
        steps, current = removal.without_oldest(current, segment, reason="r", now_ms=1)
        await store.transact(steps)
    assert current.ends == {4: LedgerEnd(13, 6)}
    steps, current = current.with_ends({4: LedgerEnd(13, 7)})
    await store.transact(steps)
    assert current.ends == {4: LedgerEnd(13, 7)}
    assert current.with_ends({4: LedgerEnd(13, 7), 3: LedgerEnd(10, 4), 9: LedgerEnd(1, None)})[0] == []
    assert await catalog.load(store, TOPIC) == current


async def test_losses_below_the_floor_go_and_those_at_it_stay() -> None:
    """A loss that directly follows the floor still tells where the stream went on."""
    store = await _stored()
    first, second = made(1, (5, 0, 9)), made(2, (8, 0, 9))
    current = TopicMap(TOPIC)
    steps, current = current.with_loss(Loss(Position(-1, -1), Position(5, 0), 4))
    await store.transact(steps)
    for segment, loss in ((first, Loss(Position(5, 9), Position(8, 0), 3)), (second, None)):
        steps, current = current.with_commit(segment)
        await store.transact(steps)
        if loss is not None:
            steps, current = current.with_loss(loss)
            await store.transact(steps)
    steps, current = removal.without_oldest(current, first, reason="r", now_ms=1)
    await store.transact(steps)
    assert current.losses == (Loss(Position(5, 9), Position(8, 0), 3),)
    steps, current = removal.without_oldest(current, second, reason="r", now_ms=1)
    await store.transact(steps)
    assert current.losses == ()
    assert await catalog.load(store, TOPIC) == current


async def test_marks_are_written_once_and_stay_with_later_segments() -> None:
    """Only ledgers of the map are marked; a segment that comes later leaves the mark, and decides for itself."""
    store = await _stored()
    current = await _committed(store, A, B, ends={})
    steps, current = removal.mark_deleted(current, [3, 4, 99], now_ms=5)
    await store.transact(steps)
    assert [step.path for step in steps] == [paths.ledger(TOPIC, 3), paths.ledger(TOPIC, 4)]
    assert current.deleted == {3: 5, 4: 5}
    assert removal.mark_deleted(current, [3, 4], now_ms=6) == ([], current)
    assert removal.is_marked(current, A)
    steps, current = current.with_commit(C)
    await store.transact(steps)
    assert current.deleted == {3: 5, 4: 5}
    assert not removal.is_marked(current, C)
    assert await catalog.load(store, TOPIC) == current


async def test_only_the_oldest_segment_can_go() -> None:
    """A hole in the middle of a topic is never made, nor is a segment removed that the map does not have."""
    current = await _committed(await _stored(), A, B, ends={})
    for wrong in (B, C):
        with pytest.raises(Conflict, match="not the oldest"):
            removal.without_oldest(current, wrong, reason="r", now_ms=1)


def test_a_floor_inside_the_map_is_corrupt() -> None:
    """A floor that stands in what the map still holds was not written by any removal."""
    _, current = TopicMap(TOPIC).with_commit(A)
    base = Floor(position=Position(3, 0), end=None, deleted_ms=0, segments=1, object_bytes=1, reason="r")
    with pytest.raises(CorruptData, match=r"an end before 3:0"):
        TopicMap.build(TOPIC, current.contexts, (), Versioned(deletion.encode_floor(base), 0))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sets(st.integers(0, 5)), st.integers(0, 6))
def test_any_removal_leaves_what_a_rebuild_gives(lengths: list[int], cuts: set[int], gone: int) -> None:
    """Whatever the segments and however many go, the map afterwards is what its nodes say."""
    entries = [Position(ledger, entry) for ledger, length in enumerate(lengths) for entry in range(length)]
    bounds = [0, *sorted({cut * len(entries) // 6 for cut in cuts} - {0}), len(entries)]
    current, nodes, floor = TopicMap(TOPIC), dict[str, Versioned](), paths.floor(TOPIC)
    ends = {ledger: LedgerEnd(length, ledger + 1) for ledger, length in enumerate(lengths)}

    for number, (low, high) in enumerate(pairwise(bounds), start=1):
        held = entries[low:high]
        if held:
            ledgers = sorted({one.ledger_id for one in held})
            ids = [[one.entry_id for one in held if one.ledger_id == ledger] for ledger in ledgers]
            slices = [(ledger, min(found), max(found)) for ledger, found in zip(ledgers, ids, strict=True)]
            steps, current = current.with_commit(made(number, *slices), ends)
            carry_out(nodes, steps)
    newest = current.offloaded
    for segment in current.segments[:gone]:
        steps, current = removal.without_oldest(current, segment, reason="r", now_ms=1)
        carry_out(nodes, steps)
        assert current.offloaded == newest
        assert TopicMap.build(TOPIC, contexts_of(TOPIC, nodes), (), nodes[floor]) == current
        assert current.floor == segment.end
        assert current.base is not None
        assert current.base.end in {None, ends[segment.end.ledger_id]}


async def test_what_the_source_has_deleted_is_noted_as_pulsar_notes_it() -> None:
    """A reload agrees, a second note writes nothing, and the note goes with the ledger's last segment."""
    store = await _stored()
    current = await _committed(store, A, B, C, ends=ENDS)
    steps, noted = removal.note_source_deleted(current, [3, 4, 99])
    await store.transact(steps)
    assert await catalog.load(store, TOPIC) == noted
    assert noted.source_deleted == {3, 4}
    message = OffloadContext.FromString((await store.get(paths.ledger(TOPIC, 3))).value)
    assert message.bookkeeperDeleted
    assert removal.note_source_deleted(noted, [3, 4]) == ([], noted)
    steps, marked = removal.mark_deleted(noted, [3], now_ms=5)
    await store.transact(steps)
    steps, after = removal.without_oldest(marked, A, reason="age", now_ms=6)
    await store.transact(steps)
    assert await catalog.load(store, TOPIC) == after
    assert after.source_deleted == {4}


async def test_when_a_ledger_was_made_may_be_noted_by_a_later_commit() -> None:
    """The first one did not know it; in the store it is the same."""
    store = await _stored()
    late = replace(B, slices=tuple(replace(one, created_ms=7) for one in B.slices))
    current = await _committed(store, A, late, ends=ENDS)
    assert current.created == {4: 7}
    assert await catalog.load(store, TOPIC) == current


async def test_when_a_ledger_was_made_is_kept_for_as_long_as_its_context() -> None:
    """A commit notes it, later ones leave it; a note replaces it; a reload agrees, and it goes with the ledger."""
    store = await _stored()
    born = replace(A, slices=tuple(replace(one, created_ms=100 + one.ledger_id) for one in A.slices))
    again = replace(B, slices=tuple(replace(one, created_ms=7) for one in B.slices))
    current = await _committed(store, born, again, C, ends=ENDS)
    assert current.created == {3: 103, 4: 104}
    assert await catalog.load(store, TOPIC) == current
    steps, noted = removal.note_created(current, {4: 104, 6: 106, 3: 33, 99: 1})
    await store.transact(steps)
    assert len(steps) == 2
    assert noted.created == {3: 33, 4: 104, 6: 106}
    assert await catalog.load(store, TOPIC) == noted
    assert removal.note_created(noted, noted.created) == ([], noted)
    steps, marked = removal.mark_deleted(noted, [3], now_ms=5)
    await store.transact(steps)
    steps, after = removal.without_oldest(marked, born, reason="age", now_ms=6)
    await store.transact(steps)
    assert after.created == {4: 104, 6: 106}
    assert await catalog.load(store, TOPIC) == after
