"""Thousands of segments in one ledger wedge nothing: commits, deletions, merges and grants go on (P2, P8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, NewerRecord, NoSpace
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerEnd
from offloaderd.format.pb.storage.records_pb2 import GrantRecord
from offloaderd.metadata import paths, pieces, port
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records import codec
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records.grant import Grant, GrantedObject, GrantedSegment
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import merging, removal
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.settings import GrantSettings
from tests.unit.rigs import many_segments
from tests.unit.rigs.many_segments import LEDGER, as_one_node, as_rebuilt, begun, commit
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.port import Step

EARLIER_MAX = 1_000_000
"""What earlier releases took for the largest write; a commit of one more segment was refused for ever."""


def _most() -> int:
    """How many segments an earlier release got into one node."""
    return int((EARLIER_MAX - 300) / (len(as_one_node(8000).value) / 8000))


async def test_a_ledger_that_was_full_takes_more() -> None:
    """The context goes into pieces, and is the same for who loads it; all that is changed of it afterwards is small."""
    tree, clock, full = MemoryTree(), FakeClock(), _most()
    log, topic_map = await begun(tree.connect(), clock, as_one_node(full))
    assert len(topic_map.contexts[LEDGER].value) > EARLIER_MAX - 3000
    for number in range(full, full + 3):
        topic_map = await commit(log, topic_map, number)
    assert len(topic_map.segments) == full + 3
    assert len(topic_map.contexts[LEDGER].pieces) > 10
    ends = {LEDGER: LedgerEnd(topic_map.segments[-1].end.entry_id + 1, None)}
    topic_map = await log.note_ends(topic_map, ends)
    topic_map = await log.change(topic_map, lambda known: removal.mark_deleted(known, [LEDGER], now_ms=1))
    oldest = topic_map.segments[0]
    steps, topic_map = removal.without_oldest(topic_map, oldest, reason="r", now_ms=2)
    assert port.request_bytes(steps) < 4 * pieces.PIECE_BYTES
    await tree.connect().transact(steps)
    assert await catalog.load(tree.connect(), TOPIC) == topic_map


async def test_a_plan_of_merges_looks_at_each_segment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many become one; an owner or a job that plans it keeps nothing else waiting."""
    _, topic_map = await begun(MemoryTree().connect(), FakeClock(), as_rebuilt(3000))
    sizes, looks = {one.segment_id: one.payload_bytes for one in topic_map.segments}, 0

    def counted(segment: CommittedSegment) -> int:
        nonlocal looks
        looks += 1
        return sizes[segment.segment_id]

    monkeypatch.setattr(CommittedSegment, "payload_bytes", property(counted))
    goals = merging.runs(topic_map, topic_map.segments, payload_bytes=1 << 60, ledgers=5)
    assert [len(one.sources) for one in goals] == [merging.SOURCES_MAX] * (3000 // merging.SOURCES_MAX)
    assert looks <= 3 * 3000
    size_bytes = next(iter(sizes.values()))
    goals = merging.runs(topic_map, topic_map.segments, payload_bytes=7 * size_bytes, ledgers=5)
    assert {len(one.sources) for one in goals[:-1]} == {7}


async def test_a_merge_makes_room_for_what_it_puts_on_the_trash_list() -> None:
    """Its sources' records and a large context are more than a transaction holds: that goes into pieces first."""
    tree, clock = MemoryTree(), FakeClock()
    log, topic_map = await begun(tree.connect(), clock, as_one_node(8000))
    made = many_segments.merged(topic_map, 9000, 100, 100 + merging.SOURCES_MAX)
    steps, _ = merging.with_merged(topic_map, made, now_ms=1)
    assert port.request_bytes(steps) > port.REQUEST_BYTES_MAX
    await log.begin(many_segments.attempt(made))
    topic_map = await log.exchange(topic_map, made)
    assert len(topic_map.segments) == 8001 - merging.SOURCES_MAX
    assert await catalog.load(tree.connect(), TOPIC) == topic_map
    assert len(await tree.connect().children(paths.trash(TOPIC))) == merging.SOURCES_MAX


async def test_an_owner_commits_behind_segments_that_a_job_merges_in_the_same_ledger() -> None:
    """Each changes the context that the other knows: the owner looks again, and nothing of either is lost."""
    tree, clock = MemoryTree(), FakeClock()
    log, topic_map = await begun(tree.connect(), clock, as_one_node(10))
    record = TopicRecord(log, topic_map, None, clock=clock, metrics=Metrics())
    job = AttemptLog(
        tree.connect(), log.fence.claim, clock=clock, metrics=Metrics(), path=paths.rollback_attempt(TOPIC)
    )
    made = many_segments.merged(topic_map, 100, 2, 8)
    await tree.connect().create(paths.rollback(TOPIC), b"")
    await job.begin(many_segments.attempt(made))
    await job.exchange(topic_map, made)
    assert record.map == topic_map
    last = many_segments.segment(10)
    await log.begin(many_segments.attempt(last))
    await record.commit(last, {})
    assert len(record.map.segments) == 10 - 5 + 1
    assert await catalog.load(tree.connect(), TOPIC) == record.map
    foreign = many_segments.segment(99)
    await log.begin(many_segments.attempt(foreign))
    with pytest.raises(Conflict, match="gap"):
        await record.commit(foreign, {})


async def test_a_grant_of_very_many_segments_fits_and_still_says_what_was_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hashes in the place of what was found of each segment; of a copy that has changed nothing is deleted."""
    monkeypatch.setattr(grant_record, "SEGMENTS_BYTES_MAX", 500)
    rig = await offloaded_topic(15, 10, 8)
    owned = await Owned.claim(rig)
    options = GrantSettings(readback=False, interval_s=1)
    grants = Grants(owned.context, owned.ledgers, options, owned.book(deletion_lag_s=3600.0), daemon_id="one")
    known = await grants.run_once(owned.offloader, {})
    stored = await grant_records.load_all(owned.context.metadata, TOPIC)
    large, small = stored[1], stored[0]
    assert (large.segments, small.summary) == ((), None)
    assert large.summary is not None
    assert large.segment_count > 1
    assert large.in_force
    grants = Grants(owned.context, owned.ledgers, options, owned.book(deletion_lag_s=0.0), daemon_id="one")
    key = owned.offloader.map.segments[1].keys.manifest
    before = await rig.store.get(key)
    await rig.store.put(key, bytes(len(before)))
    for _ in range(2):
        known = await grants.run_once(owned.offloader, known)
    assert [one.ledger_id for one in await owned.ledgers.ledgers(TOPIC)][:1] == [1]
    await rig.store.put(key, before)
    await grants.run_once(owned.offloader, known)
    assert 1 not in {one.ledger_id for one in await owned.ledgers.ledgers(TOPIC)}


async def test_a_grant_that_finds_no_room_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and tried again; the ledgers behind it are granted meanwhile."""
    rig = await offloaded_topic(15, 10, 8)
    owned = await Owned.claim(rig)
    options = GrantSettings(readback=False, interval_s=1)
    grants = Grants(owned.context, None, options, owned.book(deletion_lag_s=0.0), daemon_id="one")
    transact = owned.context.metadata.transact

    async def refused(steps: Sequence[Step]) -> None:
        if any(step.path == paths.grant(TOPIC, 0) for step in steps):
            raise NoSpace("the quota is used up")
        await transact(steps)

    with monkeypatch.context() as patch:
        patch.setattr(owned.context.metadata, "transact", refused)
        await grants.run_once(owned.offloader, {})
    assert set(await grant_records.load_all(owned.context.metadata, TOPIC)) == {1, 2}
    await grants.run_once(owned.offloader, {})
    assert set(await grant_records.load_all(owned.context.metadata, TOPIC)) == {0, 1, 2}


def test_a_grant_of_twenty_thousand_segments_goes_into_a_node() -> None:
    """And is bound to each of them: their ids, their order, and size and ETag of every object."""
    granted = tuple(
        GrantedSegment(
            segment_id=one.segment_id,
            first_entry_id=one.begin.entry_id,
            last_entry_id=one.end.entry_id,
            objects=tuple(GrantedObject(key=key, size_bytes=7, crc32c=None, etag="e" * 34) for key in one.keys.all),
        )
        for one in map(many_segments.segment, range(20_000))
    )
    entries = granted[-1].last_entry_id + 1
    grant = grant_record.fitted(Grant(ledger_id=LEDGER, entries=entries, segments=granted, verified_ms=5))
    value = grant_record.encode(grant)
    assert len(value) < 200
    found = grant_record.decode(value, path="g")
    assert found == grant
    ids = [one.segment_id for one in granted]
    assert found.is_of(ids)
    assert found.finds(granted)
    assert not found.is_of([*ids[1:], ids[0]])
    changed = replace(granted[777], objects=(*granted[777].objects[:2], replace(granted[777].objects[2], etag="f")))
    assert not found.finds((*granted[:777], changed, *granted[778:]))
    with pytest.raises(NewerRecord):
        codec.parse(GrantRecord, value, "g")
