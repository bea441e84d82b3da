"""Planning a topic from its manifests: the map as commits had made it, and every contradiction told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod, Position
from offloaderd.metadata import paths, pieces
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.rebuild_plan import Known, plan_topic
from tests.unit.upkeep.site import BUCKET, PREFIX, TOPIC, segment_id

Slice = tuple[int, int, int]


def known(
    number: int,
    *slices: Slice,
    ends: dict[int, LedgerEnd] | None = None,
    losses: tuple[Loss, ...] = (),
    closed: dict[int, int] | None = None,
) -> Known:
    """Return a segment of slices (ledger, first, last)."""
    segment = CommittedSegment(
        segment_id=segment_id(number),
        slices=tuple(LedgerSlice(ledger, first, last, 10 * (last - first + 1)) for ledger, first, last in slices),
        object_bytes=1000 + number,
        assigned_ms=number,
        offloaded_ms=number + 1,
        bucket=BUCKET,
        prefix=PREFIX,
    )
    ended = tuple((ends or {}).items())
    return Known(topic=TOPIC, segment=segment, epoch=number, losses=losses, ends=ended, closed=closed or {})


def failure_tracker(*found: Known, prefer: tuple[int, ...] = ()) -> list[Kind]:
    """Plan and return what is wrong."""
    plan = plan_topic(TOPIC, found, prefer=[segment_id(number) for number in prefer])
    assert all(problem.topic == TOPIC and problem.text for problem in plan.problems)
    return [problem.kind for problem in plan.problems]


HISTORY = (
    known(1, (3, 0, 9)),
    known(2, (3, 10, 19), (5, 0, 4), ends={3: LedgerEnd(20, 5)}),
    known(3, (5, 5, 7), ends={5: LedgerEnd(8, None)}),
    known(
        4,
        (9, 0, 2),
        ends={5: LedgerEnd(8, 6)},
        losses=(Loss(Position(5, 7), Position(9, 0), 12, 77),),
    ),
)


def test_the_map_is_what_commits_have_made() -> None:
    """Contexts, ends and losses are those of a topic to which the same segments were committed one by one."""
    live = TopicMap(TOPIC)
    for one in HISTORY:
        for loss in one.losses:
            _, live = live.with_loss(loss)
        _, live = live.with_commit(one.segment, dict(one.ends))
    plan = plan_topic(TOPIC, reversed(HISTORY))
    assert plan.problems == ()
    assert {ledger: node.value for ledger, node in plan.map.contexts.items()} == {
        ledger: node.value for ledger, node in live.with_ends({5: LedgerEnd(8, 6)})[1].contexts.items()
    }
    assert plan.map.segments == live.segments
    assert plan.map.losses == live.losses
    assert plan.map.ends[5] == LedgerEnd(8, 6)
    assert plan.epoch == 4


def test_the_successor_of_a_ledger_is_kept_although_a_later_manifest_does_not_know_it() -> None:
    """Ledgers that were rewritten whole: their manifests say that each has ended, the replaced ones what follows."""
    streamed = (known(1, (3, 0, 9)), known(2, (5, 0, 4), ends={3: LedgerEnd(10, 5)}))
    wholes = [
        replace(one, segment=replace(one.segment, method=OffloadMethod.LEDGER_BASED))
        for one in (known(3, (3, 0, 9), closed={3: 10}), known(4, (5, 0, 4), closed={5: 5}))
    ]
    plan = plan_topic(TOPIC, [*streamed, *wholes])
    assert plan.map.segments == tuple(one.segment for one in wholes)
    assert plan.map.ends == {3: LedgerEnd(10, 5), 5: LedgerEnd(5, None)}


def test_a_ledger_that_began_before_the_bucket_does() -> None:
    """After a retention the first segment begins inside a ledger; that is said, and is no obstacle."""
    assert failure_tracker(*HISTORY[1:]) == [Kind.FRONT]
    assert failure_tracker(known(4, (9, 0, 2), ends={5: LedgerEnd(8, 9)})) == [Kind.FRONT]
    assert failure_tracker(HISTORY[0]) == []


@pytest.mark.parametrize(
    "missing",
    [
        (known(1, (3, 0, 9)), known(2, (3, 11, 19))),
        (known(1, (3, 0, 9)), known(2, (4, 1, 5), ends={3: LedgerEnd(10, 4)})),
        (known(1, (3, 0, 9)), known(2, (4, 0, 5), ends={3: LedgerEnd(11, 4)})),
        (known(1, (3, 0, 9), closed={3: 11}), known(2, (4, 0, 5))),
        (known(1, (3, 0, 9), ends={3: LedgerEnd(10, 4)}), known(2, (5, 0, 5), ends={4: LedgerEnd(1, 5)})),
    ],
)
def test_entries_that_are_certainly_missing_are_a_gap(missing: tuple[Known, Known]) -> None:
    """Inside a ledger, at the end of one, at the beginning of one, or a whole ledger between."""
    assert failure_tracker(*missing) == [Kind.GAP]
    assert plan_topic(TOPIC, missing).blocked


def test_a_gap_that_the_operator_calls_lost_is_recorded() -> None:
    """The loss has the entries that are known to be missing, and the map both sides; it takes in narrower losses."""
    narrow = Loss(Position(3, 9), Position(4, 0), 10)
    found = (known(1, (3, 0, 9), closed={3: 20}), known(2, (5, 0, 3), losses=(narrow,), ends={4: LedgerEnd(4, 5)}))
    plan = plan_topic(TOPIC, found, lost=[Position(3, 9)])
    assert not plan.problems
    assert [one.segment_id for one in plan.map.segments] == [segment_id(1), segment_id(2)]
    assert plan.map.losses == (Loss(Position(3, 9), Position(5, 0), 4, 3),)


def test_nothing_is_lost_where_nothing_is_missing() -> None:
    """A position without a gap behind it is a mistake of the operator; behind the last segment nothing is decided."""
    found = (known(1, (3, 0, 9), ends={3: LedgerEnd(10, 5)}), known(2, (5, 0, 3)))
    with pytest.raises(InvalidInput, match="nothing is known to be missing behind 3:9"):
        plan_topic(TOPIC, found, lost=[Position(3, 9)])
    assert not plan_topic(TOPIC, found, lost=[Position(5, 3)]).map.losses


def test_a_gap_inside_a_ledger_cannot_be_called_lost() -> None:
    """No map has a hole in a ledger: the topic stays blocked."""
    plan = plan_topic(TOPIC, (known(1, (3, 0, 9)), known(2, (3, 11, 19))), lost=[Position(3, 9)])
    assert plan.blocked


def test_a_recorded_loss_is_no_gap() -> None:
    """What was known to be lost need not be in the bucket, and a loss elsewhere excuses nothing."""
    first = known(1, (3, 0, 9), closed={3: 20})
    lost = Loss(Position(3, 9), Position(5, 0), 10)
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(lost,))) == []
    elsewhere = Loss(Position(1, 0), Position(3, 0), 10)
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(elsewhere,))) == [Kind.GAP]
    history, live = Loss(Position(3, 9), Position(4, 0), 0), Loss(Position(3, 30), Position(5, 0), 0)
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(history, live))) == [], "they meet within one another"
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(live,))) == [Kind.GAP]
    short = Loss(Position(3, 9), Position(4, 0), 10)
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(short,))) == [Kind.DOUBT]
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(short,), ends={4: LedgerEnd(1, 5)})) == [Kind.GAP]
    assert failure_tracker(first, known(2, (5, 1, 3), losses=(lost,))) == [Kind.GAP]


def test_a_loss_behind_entries_that_nobody_holds_is_a_gap() -> None:
    """Losses begin behind what was offloaded: that segment is missing."""
    behind = Loss(Position(4, 3), Position(5, 0), 0)
    first = known(1, (3, 0, 9), ends={3: LedgerEnd(10, 4)})
    assert failure_tracker(first, known(2, (5, 0, 3), losses=(behind,))) == [Kind.GAP]


def test_doubt_is_said_and_blocks_nothing() -> None:
    """Nobody knows of a ledger between, nor that there was none."""
    unsure = (known(1, (3, 0, 9), ends={3: LedgerEnd(10, None)}), known(2, (5, 0, 5)))
    assert failure_tracker(*unsure) == [Kind.DOUBT]
    assert not plan_topic(TOPIC, unsure).blocked
    over_empty = known(2, (5, 0, 5), ends={3: LedgerEnd(10, 4), 4: LedgerEnd(0, 5)})
    assert failure_tracker(unsure[0], over_empty) == []


@pytest.mark.parametrize(
    ("other", "lost"),
    [
        (known(9, (3, 0, 9)), [Kind.OVERLAP]),
        (known(9, (3, 5, 9)), [Kind.OVERLAP]),
        (known(9, (3, 10, 12)), [Kind.OVERLAP]),
        (known(9, (3, 0, 19), (5, 0, 4)), [Kind.OVERLAP, Kind.OVERLAP]),
    ],
)
def test_overlaps_are_for_an_operator_to_decide(other: Known, lost: list[Kind]) -> None:
    """Two segments for one range block the topic, until one is preferred."""
    assert failure_tracker(HISTORY[0], HISTORY[1], other) == lost
    assert plan_topic(TOPIC, [HISTORY[0], HISTORY[1], other]).blocked


def test_a_preferred_segment_wins_over_all_that_overlap_it() -> None:
    """It takes the place of one or of several; a hole that it leaves is a gap."""
    same, both, part = known(9, (3, 0, 9)), known(9, (3, 0, 19), (5, 0, 4)), known(9, (3, 10, 12))
    for chosen in (same, both):
        plan = plan_topic(TOPIC, [*HISTORY, chosen], prefer=[segment_id(9)])
        assert not plan.blocked
        assert plan.map.segments[0].segment_id == segment_id(9)
    assert failure_tracker(HISTORY[0], HISTORY[1], part, HISTORY[2], prefer=(9,)) == [Kind.GAP]
    assert failure_tracker(HISTORY[0], same, HISTORY[1], prefer=(1, 9)) == [Kind.OVERLAP]
    assert failure_tracker(HISTORY[0], same, HISTORY[1], prefer=(1,)) == []


@pytest.mark.parametrize(
    "second",
    [
        known(2, (5, 0, 3), ends={3: LedgerEnd(11, 5)}),
        known(2, (5, 0, 3), ends={3: LedgerEnd(10, 5), 5: LedgerEnd(3, None)}),
        known(2, (5, 0, 3), ends={3: LedgerEnd(10, 4)}),
    ],
)
def test_different_words_on_one_ledger_are_a_contradiction(second: Known) -> None:
    """Two numbers of entries, two next ledgers, or an end before what a segment holds."""
    first = known(1, (3, 0, 9), ends={3: LedgerEnd(10, 5)})
    assert Kind.CONTRADICTION in failure_tracker(first, second)


DROPPED = (known(1, (3, 0, 9), ends={3: LedgerEnd(10, 4)}), known(2, (6, 0, 3), ends={3: LedgerEnd(10, 6)}))
"""A ledger that followed when the first segment was sealed, and that its broker has dropped from the list since."""


def test_an_empty_ledger_that_a_broker_has_dropped_is_no_contradiction() -> None:
    """Whoever wrote the next entries found it dropped; others may have named the ledgers between meanwhile."""
    between = known(3, (3, 5, 9), ends={3: LedgerEnd(10, 5)})
    for found in (DROPPED, DROPPED[::-1]):
        plan = plan_topic(TOPIC, found)
        assert (plan.problems, dict(plan.map.ends)[3]) == ((), LedgerEnd(10, 6))
    assert failure_tracker(*DROPPED, between, prefer=(1,)) == []


@pytest.mark.parametrize(
    "more",
    [
        known(3, (4, 0, 0)),
        known(3, (6, 4, 5), ends={4: LedgerEnd(1, 6)}),
    ],
)
def test_a_ledger_that_had_entries_was_not_dropped(more: Known) -> None:
    """A segment has some of them, or a manifest counts them."""
    assert Kind.CONTRADICTION in failure_tracker(*DROPPED, more)


def test_losses_are_taken_once_and_the_wider_one_counts() -> None:
    """A range that grew was recorded twice; the map has the last of them."""
    narrow, wide = Loss(Position(3, 9), Position(5, 0), 1, 7), Loss(Position(3, 9), Position(7, 0), 4, 9)
    plan = plan_topic(
        TOPIC, [known(1, (3, 0, 9)), known(2, (7, 0, 0), losses=(wide, narrow)), known(3, (7, 1, 1), losses=(wide,))]
    )
    assert plan.map.losses == (wide,)
    assert not plan.blocked


def test_a_ledger_of_very_many_segments_comes_back_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its context would not go into one node; it is the same ledger."""
    monkeypatch.setattr(pieces, "ROOM_BYTES", 2000)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    plan = plan_topic(TOPIC, [known(number + 1, (3, number, number)) for number in range(60)])
    assert plan.problems == ()
    stored = plan.map.contexts[3]
    assert stored.pieces
    assert max(len(stored.value), *(len(one.value) for one in stored.pieces.values())) < 1500
    path = paths.ledger(TOPIC, 3)
    assert [one.begin_entry_id for one in pieces.joined(stored, path).segments] == [*range(60)]


def brokers(number: int, ledger_id: int, entries: int) -> Known:
    """Return a ledger that a broker has offloaded."""
    one = known(number, (ledger_id, 0, entries - 1), closed={ledger_id: entries})
    return replace(one, segment=replace(one.segment, method=OffloadMethod.LEDGER_BASED, prefix="", driver="azureblob"))


def test_brokers_ledgers_in_a_loss() -> None:
    """What is left of it has the entries that were not found; one that was only possible stays so where all may be."""
    one, other = known(1, (3, 0, 9), closed={3: 10}), known(2, (9, 0, 3))
    found = [brokers(5, 5, 4), brokers(7, 7, 6)]

    def left(loss: Loss, *ends: tuple[int, LedgerEnd]) -> list[tuple[Position, Position, int]]:
        last = replace(other, losses=(loss,), ends=ends)
        plan = plan_topic(TOPIC, [one, last], brokers=found)
        assert [one.begin.ledger_id for one in plan.map.segments] == [3, 5, 7, 9]
        return [(one.after, one.before, one.entries) for one in plan.map.losses]

    behind, inside, before = (
        (Position(3, 9), Position(5, 0)),
        (Position(5, 3), Position(7, 0)),
        (Position(7, 5), Position(9, 0)),
    )
    assert left(Loss(Position(3, 9), Position(9, 0), 10)) == []
    assert left(Loss(Position(3, 9), Position(9, 0), 10), (3, LedgerEnd(10, 9))) == []
    assert left(Loss(Position(3, 9), Position(9, 0), 9)) == [(*behind, 0), (*inside, 0), (*before, 0)]
    assert left(Loss(Position(3, 9), Position(9, 0), 13)) == [(*behind, 3), (*inside, 0), (*before, 0)]
    assert left(Loss(Position(3, 9), Position(9, 0), 0)) == [(*behind, 0), (*inside, 0), (*before, 0)]
    joined = (3, LedgerEnd(10, 5)), (5, LedgerEnd(4, 6)), (6, LedgerEnd(3, 7)), (7, LedgerEnd(6, 9))
    assert left(Loss(Position(3, 9), Position(9, 0), 13), *joined) == [(*inside, 3)]
    assert left(Loss(Position(3, 9), Position(9, 0), 0), *joined) == [(*inside, 3)]


def test_a_brokers_ledger_that_begins_before_a_loss() -> None:
    """Where our part of it is left out, the whole one counts for the entries that were lost of it."""
    loss = Loss(Position(4, 2), Position(9, 0), 5)
    row = known(1, (3, 0, 9), closed={3: 10}, ends={3: LedgerEnd(10, 4)}), known(2, (9, 0, 3), losses=(loss,))
    assert not plan_topic(TOPIC, row, brokers=[brokers(4, 4, 8)]).map.losses
    (left,) = plan_topic(TOPIC, row, brokers=[brokers(4, 4, 7)]).map.losses
    assert (left.after, left.before, left.entries) == (Position(4, 6), Position(9, 0), 1)


def test_only_a_loss_is_filled_before_the_first_segment() -> None:
    """What a broker's ledger before it holds was deleted by retention, whose leftovers may be in the bucket."""
    first = known(1, (9, 0, 3), losses=(Loss(Position(5, 3), Position(9, 0), 6),))
    plan = plan_topic(TOPIC, [first], brokers=[brokers(2, 2, 5), brokers(5, 5, 4), brokers(7, 7, 6)])
    assert [one.begin.ledger_id for one in plan.map.segments] == [7, 9]
    assert not plan.map.losses
    (only,) = plan_topic(TOPIC, [known(1, (9, 2, 5))], brokers=[brokers(9, 9, 6)]).map.segments
    assert only.begin == Position(9, 2)
