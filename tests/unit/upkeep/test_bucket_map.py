"""The readable map of a bucket alone: what is beyond doubt is served, all else is a gap with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.core.errors import EntriesMissing
from offloaderd.core.model import START, Gap, LedgerEnd, Loss, Position
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.head import HeadSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.read.plan import Hop, Run, TopicView, next_step
from offloaderd.upkeep.bucket_map import extended, readable_map
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.rebuild_plan import Known, Problem, plan_topic
from tests.unit.upkeep.site import BUCKET, PREFIX, TOPIC, segment_id
from tests.unit.upkeep.test_rebuild_plan import DROPPED, HISTORY, brokers, known


def numbers(found: TopicMap) -> list[int]:
    """Return the segments of a map by their numbers."""
    return [one.segment_id.int for one in found.segments]


def ranges(found: TopicMap) -> list[tuple[Position, Position | None]]:
    """Return the ends of the gaps of a map."""
    return [(gap.after, gap.before) for gap in found.gaps]


def head(one: Known) -> HeadSegment:
    """Return a head's record of a segment."""
    segment = one.segment
    return HeadSegment(
        segment_id=segment.segment_id, begin=segment.begin, end=segment.end, bucket=BUCKET, prefix=PREFIX
    )


def test_a_sound_history_is_the_map_that_a_rebuild_writes() -> None:
    """Segments, ends and losses; the contexts are of no use to a reader."""
    plan, found = plan_topic(TOPIC, HISTORY), readable_map(TOPIC, reversed(HISTORY))
    assert found.segments == plan.map.segments
    assert found.losses == plan.map.losses
    assert dict(found.ends) == dict(plan.map.ends)
    assert not found.gaps


@pytest.mark.parametrize("missing", [1, 2])
def test_a_segment_that_is_missing_in_the_middle_leaves_a_gap(missing: int) -> None:
    """Those before and behind it are served, also within one ledger."""
    row = [known(1, (3, 0, 9)), known(2, (3, 10, 19)), known(3, (3, 20, 24)), known(4, (3, 25, 29))]
    found = readable_map(TOPIC, [*row[:missing], *row[missing + 1 :]])
    assert numbers(found) == [number for number in (1, 2, 3, 4) if number != missing + 1]
    assert ranges(found) == [(row[missing - 1].segment.end, row[missing + 1].segment.begin)]
    assert "no segment in the bucket holds them" in found.gaps[0].why


def test_the_reason_quotes_what_could_not_be_read() -> None:
    """So an operator knows which object to repair."""
    found = readable_map(TOPIC, [known(1, (3, 0, 9)), known(3, (3, 20, 24))], problems=[UNREAD])
    assert "manifest X is damaged" in found.gaps[0].why


def test_of_two_segments_the_one_that_joins_both_neighbours_was_committed() -> None:
    """The other was given up: no topic has a gap."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 15)), known(3, (3, 10, 19)), known(4, (3, 20, 29))
    found = readable_map(TOPIC, row)
    assert numbers(found) == [1, 3, 4]
    assert not found.gaps


def test_a_row_of_segments_may_win_over_a_longer_one() -> None:
    """What counts is that all of the row joins."""
    row = (
        known(1, (3, 0, 9)),
        known(2, (3, 10, 17)),
        known(3, (3, 10, 14)),
        known(4, (3, 15, 19)),
        known(5, (3, 20, 29)),
    )
    assert numbers(readable_map(TOPIC, row)) == [1, 3, 4, 5]


def test_a_segment_in_a_longer_one_was_given_up() -> None:
    """Also the second of two: what the longer one holds is beside neither of them."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 39)), known(3, (3, 12, 13)), known(4, (3, 20, 29))
    assert numbers(readable_map(TOPIC, row)) == [1, 2]


def test_behind_segments_about_which_nothing_is_proven_the_next_ones_are_settled_by_themselves() -> None:
    """By the neighbour behind them."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 19)), known(3, (3, 10, 19))
    behind = known(4, (3, 20, 25)), known(5, (3, 20, 29)), known(6, (3, 30, 39))
    assert numbers(readable_map(TOPIC, [*row, *behind])) == [1, 5, 6]


def test_of_more_rows_than_are_compared_none_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the only one that was compared."""
    monkeypatch.setattr("offloaderd.upkeep.bucket_map.ROWS_MAX", 2)
    row = known(2, (3, 10, 14)), known(3, (3, 15, 19)), known(4, (3, 15, 19)), known(5, (3, 10, 19))
    assert numbers(readable_map(TOPIC, [known(1, (3, 0, 9)), *row])) == [1]


def test_a_ledger_of_a_broker_that_the_head_names_was_committed() -> None:
    """It is in the topic without a gap that it fills."""
    row = known(1, (3, 0, 9), closed={3: 10}), known(2, (4, 0, 2), closed={4: 3})
    assert numbers(readable_map(TOPIC, row[:1], brokers=row[1:])) == [1]
    assert numbers(readable_map(TOPIC, row[:1], brokers=row[1:], heads=[head(row[1])])) == [1, 2]


def test_a_ledger_of_a_broker_takes_the_place_of_a_loss() -> None:
    """Its owner looked for it in another place; what is left of the loss is told as before."""
    loss = Loss(Position(3, 9), Position(9, 0), 8)
    row = known(1, (3, 0, 9), closed={3: 10}), known(2, (9, 0, 2), losses=(loss,))
    theirs = [brokers(number, number, 4) for number in (5, 7)]
    found = readable_map(TOPIC, row, brokers=theirs)
    assert (numbers(found), found.losses) == ([1, 5, 7, 2], ())
    found = readable_map(TOPIC, row, brokers=theirs[:1])
    assert numbers(found) == [1, 5, 2]
    assert sum(one.entries for one in found.losses) == 4


def test_what_the_head_names_was_committed() -> None:
    """At the end nothing else shows it."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 15)), known(3, (3, 10, 19))
    assert numbers(readable_map(TOPIC, row, heads=[head(row[1])])) == [1, 2]
    assert numbers(readable_map(TOPIC, row, heads=[head(row[2])])) == [1, 3]


@pytest.mark.parametrize("behind", [(), (known(4, (3, 20, 29)),)])
def test_of_segments_about_which_nothing_is_proven_none_is_served(behind: tuple[Known, ...]) -> None:
    """The gap names them."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 19)), known(3, (3, 10, 19)), *behind
    found = readable_map(TOPIC, row)
    assert numbers(found) == [1, *(4 for _ in behind)]
    assert ranges(found) == [(Position(3, 9), Position(3, 20) if behind else None)]
    assert str(segment_id(2)) in found.gaps[0].why
    assert str(segment_id(3)) in found.gaps[0].why


def test_of_first_segments_about_which_nothing_is_proven_none_is_served() -> None:
    """A topic does not begin behind them."""
    row = known(1, (3, 0, 9)), known(2, (3, 0, 9)), known(3, (3, 10, 19))
    found = readable_map(TOPIC, row)
    assert numbers(found) == [3]
    assert ranges(found) == [(START, Position(3, 10))]
    assert str(segment_id(1)) in found.gaps[0].why


UNREAD = Problem(kind=Kind.UNREADABLE, text="manifest X is damaged", topic=TOPIC)


def test_what_may_be_missing_is_a_gap_if_a_manifest_cannot_be_read() -> None:
    """Manifests of older versions do not name the ledgers between: what cannot be read may have been there."""
    row = known(1, (3, 0, 9)), known(2, (5, 0, 4))
    assert not readable_map(TOPIC, row).gaps
    found = readable_map(TOPIC, row, problems=[UNREAD])
    assert ranges(found) == [(Position(3, 9), Position(5, 0))]
    assert UNREAD.text in found.gaps[0].why


def test_what_was_before_the_first_segment_is_a_gap_if_a_manifest_cannot_be_read() -> None:
    """Unless it is what another gap lacks: else every topic that retention has shortened began with an error."""
    row = known(1, (3, 10, 19)), known(2, (3, 20, 29)), known(3, (3, 30, 39))
    assert not readable_map(TOPIC, row).gaps
    assert ranges(readable_map(TOPIC, row, problems=[UNREAD])) == [(START, Position(3, 10))]
    assert ranges(readable_map(TOPIC, [row[0], row[2]], problems=[UNREAD])) == [(Position(3, 19), Position(3, 30))]
    assert not readable_map(TOPIC, [known(1, (3, 0, 9))], problems=[UNREAD]).gaps


def test_segments_with_the_same_content_are_one() -> None:
    """A try that was given up and the next one hold the same bytes."""
    row = [known(1, (3, 0, 9)), known(2, (3, 10, 19)), known(3, (3, 10, 19)), known(4, (3, 20, 29))]
    row[1], row[2] = replace(row[1], content=b"same"), replace(row[2], content=b"same")
    assert numbers(readable_map(TOPIC, row)) == [1, 2, 4]
    row[2] = replace(row[2], content=b"other")
    assert numbers(readable_map(TOPIC, row)) == [1, 4]


def test_ledgers_about_which_manifests_contradict_each_other_are_not_served() -> None:
    """Two clusters may have counted their ledgers alike."""
    row = known(1, (2, 0, 4)), known(2, (3, 0, 9), closed={3: 10}), known(3, (3, 10, 19)), known(4, (5, 0, 4))
    found = readable_map(TOPIC, row)
    assert numbers(found) == [1, 4]
    assert "ledger 3 ended with 10 entries" in found.gaps[0].why


def test_an_empty_ledger_that_a_broker_has_dropped_leaves_no_gap() -> None:
    """Manifests name different ledgers as the next one, each as it was when it was written."""
    found = readable_map(TOPIC, DROPPED)
    assert (numbers(found), found.gaps, dict(found.ends)[3]) == ([1, 2], (), LedgerEnd(10, 6))


def test_a_head_that_is_ahead_of_all_segments_is_a_gap_at_the_end() -> None:
    """Something was committed there, and it cannot be read."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 19))
    found = readable_map(TOPIC, row[:1], heads=[head(row[1])])
    assert ranges(found) == [(Position(3, 9), None)]
    assert str(segment_id(2)) in found.gaps[0].why
    assert ranges(readable_map(TOPIC, [], heads=[head(row[1])])) == [(START, None)]
    assert not readable_map(TOPIC, row, heads=[head(row[0])]).gaps


def test_a_recorded_loss_is_no_gap() -> None:
    """It is reported as what it is."""
    loss = Loss(Position(3, 9), Position(5, 0), 7)
    found = readable_map(TOPIC, [known(1, (3, 0, 9)), known(2, (5, 0, 4), losses=(loss,), ends={3: LedgerEnd(17, 5)})])
    assert found.losses == (loss,)
    assert not found.gaps


def test_ledgers_of_brokers_fill_gaps() -> None:
    """As a rebuild takes them."""
    row = known(1, (3, 0, 9), closed={3: 10}), known(3, (5, 0, 4), ends={3: LedgerEnd(10, 4), 4: LedgerEnd(3, 5)})
    assert ranges(readable_map(TOPIC, row)) == [(Position(3, 9), Position(5, 0))]
    theirs = known(2, (4, 0, 2), closed={4: 3})
    found = readable_map(TOPIC, row, brokers=[theirs])
    assert numbers(found) == [1, 2, 3]
    assert not found.gaps


def test_the_next_segment_is_added_to_the_map() -> None:
    """The result is that of making the map anew."""
    found = readable_map(TOPIC, HISTORY[:1])
    for number, one in enumerate(HISTORY[1:], 2):
        following = extended(found, one)
        assert following is not None
        found = following
        anew = readable_map(TOPIC, HISTORY[:number])
        assert (found.segments, dict(found.ends), found.losses, found.gaps) == (
            anew.segments,
            dict(anew.ends),
            anew.losses,
            anew.gaps,
        )


@pytest.mark.parametrize(
    "wrong", [known(9, (3, 11, 12)), known(9, (3, 5, 12)), known(9, (3, 0, 9)), known(9, (4, 0, 1))]
)
def test_a_segment_that_does_not_directly_follow_is_not_added(wrong: Known) -> None:
    """Neither behind a gap, nor over what is there, nor where something may be between."""
    assert extended(readable_map(TOPIC, [known(1, (3, 0, 9))]), wrong) is None
    assert extended(readable_map(TOPIC, []), wrong) is None


def test_nothing_is_added_behind_a_gap_at_the_end() -> None:
    """What is missing there may be before it."""
    row = known(1, (3, 0, 9)), known(2, (3, 10, 19))
    found = replace(readable_map(TOPIC, row[:1]), gaps=(Gap(Position(3, 9), None, "lost"),))
    assert extended(found, row[1]) is None


VIEW = TopicView(
    segments=tuple(one.segment for one in (known(1, (3, 0, 9)), known(2, (5, 0, 4)), known(3, (5, 8, 9)))),
    gaps=(
        Gap(Position(3, 9), Position(5, 0), "a manifest is damaged"),
        Gap(Position(5, 4), Position(5, 8), "a manifest is damaged"),
        Gap(Position(5, 9), None, "a manifest is damaged"),
    ),
)


@pytest.mark.parametrize("cursor", [Position(3, 10), Position(4, 0), Position(5, 5), Position(5, 7), Position(5, 10)])
def test_a_read_stops_at_a_gap(cursor: Position) -> None:
    """It never goes on behind it by itself; the error says where to."""
    with pytest.raises(EntriesMissing, match="a manifest is damaged"):
        next_step(VIEW, cursor, None, priority=ReadPriority.TIERED_STORAGE_FIRST, failed={})


def test_what_is_beside_a_gap_is_read() -> None:
    """Up to it, and behind it."""
    for cursor, last in ((Position(3, 3), 9), (Position(5, 0), 4), (Position(5, 8), 9)):
        step = next_step(VIEW, cursor, None, priority=ReadPriority.TIERED_STORAGE_FIRST, failed={})
        assert isinstance(step, Run)
        assert step.last_entry_id == last
    without = replace(VIEW, gaps=())
    ends = {(VIEW.segments[0].segment_id, 3): 9}
    step = next_step(
        replace(without, ends=ends), Position(3, 10), None, priority=ReadPriority.TIERED_STORAGE_FIRST, failed={}
    )
    assert step == Hop(Position(5, 0))
