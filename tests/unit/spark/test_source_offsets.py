"""Exact offsets: where steps end, and what becomes of entries that were deleted before a stream got to them."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from offloaderd.errors import InvalidInput
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records.floor import Floor
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.model import HistoryOrder, Position, TopicName
from offloaderd.read.errors import EntriesDeleted
from offloaderd.spark.source_offsets import NOTHING, advance, before, following, furthest, position, still_there
from offloaderd.spark.source_snapshot import Snapshot, holes_of, holes_within
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import snapshot

NAME = str(TOPIC)


def segment(number: int, *slices: tuple[int, int, int]) -> CommittedSegment:
    """Return a segment of 100 bytes with these ledgers, first and last entries."""
    return CommittedSegment(
        segment_id=uuid.UUID(int=number),
        slices=tuple(LedgerSlice(ledger, first, last, 10) for ledger, first, last in slices),
        object_bytes=100,
        assigned_ms=1,
        offloaded_ms=2,
        bucket="bucket",
        prefix="p/",
    )


FOUND = snapshot([segment(1, (1, 0, 9)), segment(2, (1, 10, 19), (3, 0, 4)), segment(3, (3, 5, 8))])


def test_steps_end_with_segments() -> None:
    """A step without a limit goes to the newest entry, one with a limit to the end of the segment that fills it."""
    assert advance([FOUND], {}, None, None) == ({NAME: "3:8"}, 300)
    assert advance([FOUND], {}, None, 1) == ({NAME: "1:9"}, 100)
    assert advance([FOUND], {NAME: "1:9"}, None, 101) == ({NAME: "3:8"}, 200)
    assert advance([FOUND], {NAME: "1:4"}, None, 100) == ({NAME: "1:9"}, 100), "what is left of a segment"
    assert advance([FOUND], {NAME: "3:8"}, None, 1) == ({NAME: "3:8"}, 0)
    assert advance([FOUND], {NAME: "1:9"}, {NAME: "1:12"}, None)[0] == {NAME: "1:12"}, "not beyond the target"
    assert advance([FOUND], {}, {}, None)[0] == {}, "a topic that came after the target waits"
    assert advance([snapshot([])], {}, None, None) == ({}, 0)
    assert furthest([FOUND, snapshot([])]) == {NAME: "3:8"}


def test_topics_share_the_room() -> None:
    """A topic with much to read leaves the others their part of a step."""
    other = Snapshot(replace(FOUND.map, topic=TopicName.parse("returns")))
    both, taken = advance([FOUND, other], {}, None, 2)
    assert both == {NAME: "1:9", str(other.topic): "1:9"}
    assert taken == 200


def test_history_that_is_to_come() -> None:
    """While history is not all offloaded, it ends what can be read in order: live segments behind it wait."""
    plan = HistoryPlan(
        boundary=3,
        first=1,
        last=Position(2, 99),
        order=HistoryOrder.ALONGSIDE,
        worker=Worker.JOB,
        planned_ms=1,
        epoch=1,
        daemon_id="d",
        entries=1000,
        payload_bytes=1000,
    )
    segments = (segment(1, (1, 0, 9)), segment(3, (3, 0, 8)))
    topic_map = replace(FOUND.map, segments=segments, history=plan)
    found = Snapshot(topic_map, holes_of(topic_map))
    assert found.end == Position(1, 9)
    (hole,) = holes_within(found, None, None)
    assert (hole.after, hole.before) == (Position(1, 9), Position(3, 0))
    assert not holes_within(found, Position(3, 0), None), "who begins behind it need not wait"
    assert not holes_within(found, None, Position(1, 9))
    nothing = Snapshot(replace(topic_map, segments=segments[1:]), ())
    assert nothing.end is None
    assert [one.after for one in holes_of(nothing.map)] == [NOTHING]
    assert holes_within(replace(nothing, holes=holes_of(nothing.map)), None, None)


def test_before_a_position() -> None:
    """What comes before the first entry of a ledger is the end of the one before it, or of what was deleted."""
    assert before(FOUND, Position(1, 7)) == Position(1, 6)
    assert before(FOUND, Position(3, 0)) == Position(1, 19)
    assert before(FOUND, Position(1, 0)) == NOTHING
    assert following(NOTHING) is None
    assert following(Position(1, 9)) == Position(1, 10)
    assert position({}, NAME) == NOTHING


def test_deleted_under_a_stream() -> None:
    """What retention deleted before the stream got to it ends the step, or is a hole of it; else nothing changes."""
    floor = Floor(position=Position(1, 9), end=None, deleted_ms=1, segments=1, object_bytes=100, reason="age")
    cut = Snapshot(replace(FOUND.map, segments=FOUND.map.segments[1:], base=floor))
    assert still_there(cut, Position(1, 9), Position(3, 8), skips=False) is cut
    with pytest.raises(EntriesDeleted, match="up to 1:9 were deleted"):
        still_there(cut, Position(1, 4), Position(3, 8), skips=False)
    with pytest.raises(EntriesDeleted):
        still_there(cut, NOTHING, Position(3, 8), skips=False)
    skipped = still_there(cut, Position(1, 4), Position(3, 8), skips=True)
    assert [(hole.after, hole.before) for hole in skipped.holes] == [(Position(1, 4), Position(1, 10))]
    with pytest.raises(InvalidInput, match="had got to 7:0"):
        still_there(cut, Position(3, 8), Position(7, 0), skips=True)
