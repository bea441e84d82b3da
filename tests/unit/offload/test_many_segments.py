"""Thousands of segments in one ledger wedge nothing: commits, deletions, merges and grants go on (P2, P8)."""

from __future__ import annotations

import pytest

from offloaderd.errors import Conflict
from offloaderd.metadata import catalog, merging, paths, pieces, removal, rules
from offloaderd.metadata.memory import MemoryTree
from offloaderd.metrics import Metrics
from offloaderd.model import LedgerEnd
from offloaderd.offload.commit import AttemptLog
from offloaderd.offload.record import TopicRecord
from offloaderd.testing.clock import FakeClock
from tests.unit.offload import many_segments
from tests.unit.offload.many_segments import LEDGER, as_one_node, begun, commit
from tests.unit.offload.rig import TOPIC

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
    assert rules.request_bytes(steps) < 4 * pieces.PIECE_BYTES
    await tree.connect().transact(steps)
    assert await catalog.load(tree.connect(), TOPIC) == topic_map


async def test_a_merge_makes_room_for_what_it_puts_on_the_trash_list() -> None:
    """Its sources' records and a large context are more than a transaction holds: that goes into pieces first."""
    tree, clock = MemoryTree(), FakeClock()
    log, topic_map = await begun(tree.connect(), clock, as_one_node(8000))
    made = many_segments.merged(topic_map, 9000, 100, 100 + merging.SOURCES_MAX)
    steps, _ = merging.with_merged(topic_map, made, now_ms=1)
    assert rules.request_bytes(steps) > rules.REQUEST_BYTES_MAX
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
