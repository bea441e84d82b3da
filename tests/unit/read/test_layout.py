"""Where the entries of a topic are, as numbers on one scale."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import START, Gap, LedgerEnd, Loss, Position
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.read import layout
from offloaderd.read.layout import Extent, Holder, Scale, holders
from offloaderd.read.plan import SourceLedger, TopicView


def segment(number: int, *slices: tuple[int, int, int], mirror: str = "") -> CommittedSegment:
    """Return a segment of (ledger, first, last) slices."""
    return CommittedSegment(
        segment_id=uuid.UUID(int=number),
        slices=tuple(LedgerSlice(ledger, first, last, 10) for ledger, first, last in slices),
        object_bytes=100,
        assigned_ms=1,
        offloaded_ms=2,
        bucket="b",
        prefix="p",
        mirror=(mirror, "") if mirror else None,
    )


VIEW = TopicView(
    segments=(
        segment(1, (3, 0, 4), mirror="other"),
        segment(2, (3, 5, 9), (5, 0, 2)),
        segment(3, (5, 3, 8), mirror="other"),
    ),
    source=(SourceLedger(5, 12, True), SourceLedger(8, 4, False)),
    hot=(Position(8, 1), Position(8, 4)),
    complete={3: LedgerEnd(10, 5)},
)


def found(view: TopicView, *, source: str = "bookkeeper") -> dict[str, Holder]:
    """Return the holders of a view by kind and name."""
    return {
        f"{one.kind} {one.name}".strip(): one
        for one in holders(view, Scale(view), source=source, buckets={"b", "other"})
    }


def test_tiers_and_places_are_on_one_scale() -> None:
    """Ten entries of ledger 3, thirteen of 5, five of 8; what follows each other is one extent, also over ledgers."""
    scale, of = Scale(VIEW), found(VIEW)
    assert (scale.first, scale.entries) == (Position(3, 0), 28)
    assert of["source bookkeeper"].extents == (Extent(Position(5, 0), Position(8, 4), 10, 18),)
    assert of["place b/p"].extents == (Extent(Position(3, 0), Position(5, 8), 0, 19),)
    assert of["place other/"].extents == (
        Extent(Position(3, 0), Position(3, 4), 0, 5),
        Extent(Position(5, 3), Position(5, 8), 13, 6),
    )
    assert of["place other/"].entries == 11
    assert scale.extent(*VIEW.hot) == Extent(Position(8, 1), Position(8, 4), 24, 4)  # type: ignore[misc]
    assert scale.through(Position(5, 1)) == (Extent(Position(3, 0), Position(5, 1), 0, 12),)
    assert scale.through(Position(2, 7)) == ()


def test_the_scale_begins_with_the_oldest_entry_that_is_left() -> None:
    """Of a ledger whose front retention has deleted only the rest counts."""
    view = replace(VIEW, segments=VIEW.segments[1:], source=(), complete={1: LedgerEnd(7, 3), **VIEW.complete})
    scale = Scale(view)
    assert (scale.first, scale.entries) == (Position(3, 5), 5 + 9 + 5)
    assert found(view)["place b/p"].extents == (Extent(Position(3, 5), Position(5, 8), 0, 14),)
    assert scale.through(Position(3, 5)) == (Extent(Position(3, 5), Position(3, 5), 0, 1),)


def test_lost_entries_take_their_place() -> None:
    """A loss of forty entries makes the scale longer; one that is only possible is shown, without a length."""
    losses = (Loss(Position(3, 9), Position(5, 0), 40), Loss(Position(5, 12), Position(8, 0), 0))
    view = replace(VIEW, segments=(segment(1, (3, 0, 9)), segment(3, (5, 0, 8))), losses=losses)
    scale, of = Scale(view), found(view)
    assert scale.entries == 68
    lost = of["lost"]
    assert lost.extents == (
        Extent(Position(3, 9), Position(5, 0), 10, 40),
        Extent(Position(5, 12), Position(8, 0), 63, 0),
    )
    assert lost.problem.endswith("before they were offloaded; where their number is unknown, perhaps none")
    assert of["place b/p"].extents == (
        Extent(Position(3, 0), Position(3, 9), 0, 10),
        Extent(Position(5, 0), Position(5, 8), 50, 9),
    )


def test_lost_entries_that_the_scale_has_are_not_counted_twice() -> None:
    """Entries 5 to 9 of ledger 3 are known by its end, and lost."""
    loss = Loss(Position(3, 4), Position(5, 0), 5)
    view = replace(VIEW, segments=(segment(1, (3, 0, 4)), segment(3, (5, 0, 8))), losses=(loss,))
    assert Scale(view).entries == 28
    assert Scale(replace(view, losses=(loss._replace(entries=0),))).entries == 28
    lost = found(view)["lost"]
    assert lost.extents == (Extent(Position(3, 4), Position(5, 0), 5, 5),)
    assert lost.problem == "deleted at the source before they were offloaded"


def test_what_a_reader_of_the_bucket_alone_lacks() -> None:
    """A gap has its reason; one at the begin or the end has no known length, and one neighbour alone."""
    ends = Gap(START, Position(3, 0), "damaged"), Gap(Position(5, 8), None, "damaged")
    gaps = (ends[0], Gap(Position(3, 4), Position(5, 3), "damaged"), ends[1])
    view = TopicView(segments=(segment(1, (3, 0, 4)), segment(3, (5, 3, 8))), gaps=gaps)
    unreadable = found(view, source="")["unreadable"]
    assert unreadable.extents == (
        Extent(None, Position(3, 0), 0, 0),
        Extent(Position(3, 4), Position(5, 3), 5, 3),
        Extent(Position(5, 8), None, 14, 0),
    )
    assert unreadable.problem == "damaged"
    assert "source bookkeeper" not in found(view, source="")


def test_a_source_that_does_not_answer_is_told_and_not_empty() -> None:
    """Its ledgers are unknown."""
    view = replace(VIEW, source=(), source_away="no answer within 4 s")
    assert found(view)["source bookkeeper"].problem == "no answer within 4 s"


def test_very_many_ranges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said how many are left out."""
    monkeypatch.setattr(layout, "EXTENTS_MAX", 1)
    other = found(VIEW)["place other/"]
    assert [one.entries for one in other.extents] == [5]
    assert other.problem == "1 more ranges are left out"


def test_a_topic_without_entries() -> None:
    """An open ledger alone."""
    view = TopicView(source=(SourceLedger(8, -1, False),))
    assert (Scale(view).first, Scale(view).entries) == (None, 0)
    assert found(view)["source bookkeeper"].extents == ()


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 30)),
    begin=st.integers(0, 5),
    held=st.integers(0, 6),
)
def test_each_entry_has_its_number_once(sizes: list[int], cuts: set[int], begin: int, held: int) -> None:
    """Of any ledgers, cut anywhere into segments, the extents of a place are the numbers of its entries."""
    everything = [(2 * at + 1, entry) for at, size in enumerate(sizes) for entry in range(size)]
    edges = sorted({0, len(everything)} | {one for one in cuts if one < len(everything)})
    segments = []
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        if number < begin and end < len(everything):
            continue
        slices: dict[int, list[int]] = {}
        for ledger_id, entry_id in everything[first:end]:
            slices.setdefault(ledger_id, []).append(entry_id)
        segments.append(segment(number, *((one, ids[0], ids[-1]) for one, ids in slices.items())))
    source = [SourceLedger(2 * at + 1, size - 1, True) for at, size in enumerate(sizes)][held:]
    view = TopicView(
        segments=segments, source=source, complete={2 * at + 1: LedgerEnd(size, None) for at, size in enumerate(sizes)}
    )
    scale = Scale(view)
    start = everything.index((view.oldest().ledger_id, view.oldest().entry_id))  # type: ignore[union-attr]
    assert scale.entries == len(everything) - start
    stored = [Position(*one) for one in everything if any(each.holds(Position(*one)) for each in segments)]
    covered = [
        number for one in found(view)["place b/p"].extents for number in range(one.offset, one.offset + one.entries)
    ]
    assert covered == [everything.index((one.ledger_id, one.entry_id)) - start for one in stored]
