"""Exact offsets: where steps end, and what becomes of entries that were deleted before a stream got to them."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from offloaderd.core.errors import EntriesDeleted, InvalidInput, NotFound
from offloaderd.core.model import HistoryOrder, Loss, Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.spark.scan.options import Mode
from offloaderd.spark.scan.query import NOTHING, EntryQuery, following, position
from offloaderd.spark.scan.snapshot import Snapshot, Stores, holes_of, holes_within
from offloaderd.spark.stream import (
    advance,
    begin,
    check_step,
    clipped,
    deleted_topics,
    furthest,
    in_history,
    plan_step,
)
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import CountingStore, options, read_share, snapshot

NAME = str(TOPIC)
OTHER = str(TopicName.parse("returns"))


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


HISTORY = HistoryPlan(
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


def test_history_that_is_to_come() -> None:
    """While history is not all offloaded, it ends what can be read in order: live segments behind it wait."""
    segments = (segment(1, (1, 0, 9)), segment(3, (3, 0, 8)))
    topic_map = replace(FOUND.map, segments=segments, history=HISTORY)
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


def bounded(first: str | None = None, last: str | None = None) -> EntryQuery:
    """Return a range of positions."""
    return EntryQuery(
        first=Position.parse(first) if first else None,
        last=Position.parse(last) if last else None,
    )


def test_where_a_topic_begins() -> None:
    """Behind what was deleted, or the last entry that is there before the range."""
    assert begin(FOUND, EntryQuery()) == NOTHING
    assert begin(cut(FOUND), EntryQuery()) == Position(1, 9)
    for first, behind in (("1:7", "1:6"), ("3:0", "1:19"), ("2:5", "1:19"), ("3:5", "3:4"), ("9:9", "3:8")):
        assert begin(FOUND, bounded(first)) == Position.parse(behind)
    assert begin(FOUND, bounded("1:0")) == NOTHING
    assert begin(cut(FOUND), bounded("1:5")) == Position(1, 9)
    assert following(NOTHING) is None
    assert following(Position(1, 9)) == Position(1, 10)
    assert position({}, NAME) == NOTHING


def test_the_range_of_a_step() -> None:
    """What lies outside of the wanted range is not read, whatever the offsets say."""
    assert clipped(EntryQuery(), NOTHING, Position(3, 8)) == (None, Position(3, 8))
    assert clipped(bounded("1:5", "3:2"), NOTHING, Position(3, 8)) == (Position(1, 5), Position(3, 2))
    assert clipped(bounded("1:5"), Position(1, 8), Position(3, 8)) == (Position(1, 9), Position(3, 8))
    assert clipped(bounded("9:0"), Position(3, 8), Position(3, 9)) is None
    assert clipped(bounded(None, "1:4"), Position(1, 4), Position(3, 9)) is None


def cut(found: Snapshot) -> Snapshot:
    """Return the snapshot without its first segment, which retention has deleted."""
    floor = Floor(position=Position(1, 9), end=None, deleted_ms=1, segments=1, object_bytes=100, reason="age")
    return Snapshot(replace(found.map, segments=found.map.segments[1:], base=floor))


def test_deleted_under_a_stream() -> None:
    """What retention deleted before the stream got to it ends the step, or is a hole of it; else nothing changes."""
    found = cut(FOUND)
    assert check_step(found, "1:9", "3:8", skips=False) is found
    with pytest.raises(EntriesDeleted, match="up to 1:9 were deleted"):
        check_step(found, "1:4", "3:8", skips=False)
    with pytest.raises(EntriesDeleted):
        check_step(found, str(NOTHING), "3:8", skips=False)
    skipped = check_step(found, "1:4", "3:8", skips=True)
    assert [(hole.after, hole.before, hole.entries) for hole in skipped.holes] == [(Position(1, 4), Position(1, 10), 5)]
    assert check_step(found, "1:4", "1:7", skips=True).holes[0].entries == 3, "of this step; the next tells of the rest"
    assert check_step(found, "0:4", "3:8", skips=True).holes[0].entries is None, "where ledger 0 ended, nobody knows"
    with pytest.raises(InvalidInput, match="read up to 7:0"):
        check_step(found, "3:8", "7:0", skips=True)


def lived(*made: tuple[int, int]) -> Snapshot:
    """Return a topic of ledgers of ten entries, each with the time when it was made."""
    segments = [segment(ledger, (ledger, 0, 9)) for ledger, _ in made]
    topic_map = replace(
        snapshot(segments).map, created=dict(made), contexts={one: StoredContext(b"", 0) for one, _ in made}
    )
    return Snapshot(topic_map)


def test_a_topic_that_was_made_again_is_noticed() -> None:
    """Under lower ids, with nothing in it, under the same ids, and under higher ones; but not by a rebuild."""
    first = lived((7, 70), (8, 80))
    offset = furthest([first], EntryQuery())
    assert offset == {NAME: "8:9@80"}
    at = offset[NAME]
    assert in_history(lived((7, 70), (8, 80), (9, 90)), at) == Position(8, 9)
    assert in_history(lived((7, 70), (8, 80)), "8:3") == Position(8, 3), "an offset of an earlier release"
    for again, said in (
        (lived((1, 90)), r"read up to 8:9, and ends at 1:9 now"),
        (lived(), "ends at nothing now"),
        (lived((8, 99), (9, 100)), "ledger 8 is another one now"),
    ):
        with pytest.raises(InvalidInput, match=said) as told:
            advance([again], offset, EntryQuery())
        assert "without=TOPIC" in (told.value.hint or "")
    later = lived((20, 200))
    step = advance([later], offset, EntryQuery())
    with pytest.raises(EntriesDeleted, match="ledger 8 is not known any more, and 20:0 is the oldest"):
        check_step(later, at, step.offset[NAME], skips=False)
    (hole,) = check_step(later, at, step.offset[NAME], skips=True).holes
    assert (hole.after, hole.before) == (Position(8, 9), Position(20, 0))
    with pytest.raises(EntriesDeleted, match="retention has deleted it, or the topic was made again"):
        check_step(replace(later, rebuilt=True), at, step.offset[NAME], skips=False)
    assert check_step(replace(later, rebuilt=True), at, step.offset[NAME], skips=True).rebuilt
    lost = replace(later.map, losses=(Loss(Position(8, 2), Position(20, 0), 5),))
    assert not check_step(Snapshot(lost), at, "20:9", skips=False).holes, "a loss is on record, and told by itself"


def test_a_topic_that_was_deleted_in_a_step() -> None:
    """It ends the step, by its name, is told in a row, or is left out; of others nothing changes."""
    start, end = {NAME: "1:9", OTHER: "4:1"}, {NAME: "3:8", OTHER: "5:0"}
    with pytest.raises(NotFound, match=rf"{OTHER}: .* deleted before it was read up to 5:0") as told:
        deleted_topics([FOUND], start, end, options())
    assert "without=TOPIC" in (told.value.hint or "")
    assert deleted_topics([FOUND], end, end, options()) == [], "all of it was read"
    (found,) = deleted_topics([FOUND], start, end, options(mode=Mode.SKIP))
    assert (str(found.topic), found.holes[0].after, found.holes[0].entries) == (OTHER, Position(4, 1), None)
    (found,) = deleted_topics([FOUND], start, {**end, OTHER: "4:9"}, options(mode=Mode.SKIP))
    assert found.holes[0].entries == 8
    assert deleted_topics([FOUND], start, end, options(without=(TopicPattern.parse(OTHER),))) == []


async def test_a_step_without_a_deleted_topic_has_the_others() -> None:
    """A batch that a checkpoint repeats: what is there is read as before, the rest is told in a row of its own."""
    store = CountingStore()
    stores = Stores(store, None)
    start, end = {NAME: "1:9", OTHER: "4:1"}, {NAME: "3:8", OTHER: "5:0"}
    (share,) = await plan_step(options(mode=Mode.SKIP), stores, start, end, [FOUND])
    assert [str(one.topic) for one in share] == [OTHER, NAME, NAME]
    (row, *_) = await read_share(store, share[:1], options(mode=Mode.SKIP))
    assert row["skipped"] is None
    assert row["reason"].endswith("how many entries it stands for is not known")
    (share,) = await plan_step(options(without=(TopicPattern.parse(OTHER),)), stores, start, end, [FOUND])
    assert [str(one.topic) for one in share] == [NAME, NAME]
