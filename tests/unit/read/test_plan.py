"""What a read does next, as a pure function: ranges, runs, the end of ledgers, gaps."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offloaderd.core.errors import (
    CorruptData,
    EntriesDeleted,
    EntriesLost,
    EntriesMissing,
    IdentityRefused,
    InvalidInput,
    NotFound,
    OutOfRange,
)
from offloaderd.core.model import EntryBatch, LedgerEnd, Loss, Position, TopicName
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.read.plan import Hop, ReadEnd, Run, SourceLedger, Step, Stop, TopicView, checked_range, next_step
from offloaderd.read.stream import Stream
from offloaderd.read.transactions import Known, KnownOutcomes

BUCKET_FIRST, SOURCE_FIRST = ReadPriority.TIERED_STORAGE_FIRST, ReadPriority.BOOKKEEPER_FIRST


def segment(number: int, *slices: tuple[int, int, int]) -> CommittedSegment:
    """Return a segment of (ledger, first, last) slices."""
    return CommittedSegment(
        segment_id=uuid.UUID(int=number),
        slices=tuple(LedgerSlice(ledger, first, last, 10) for ledger, first, last in slices),
        object_bytes=100,
        assigned_ms=1,
        offloaded_ms=2,
        bucket="b",
        prefix="",
    )


A = segment(1, (3, 0, 4))
B = segment(2, (3, 5, 9), (5, 0, 2))
C = segment(3, (5, 3, 8))
VIEW = TopicView(
    segments=(A, B, C), source=(SourceLedger(3, 9, True), SourceLedger(5, 12, True), SourceLedger(8, 4, False))
)


def step(
    view: TopicView,
    cursor: Position,
    last: Position | None = None,
    priority: ReadPriority = BUCKET_FIRST,
    failed: dict[object, Position] | None = None,
) -> Step:
    """Ask for the next step."""
    return next_step(view, cursor, last, priority=priority, failed=failed or {})


def test_what_a_view_spans() -> None:
    """Oldest and newest entries come from whichever tier reaches furthest."""
    assert (VIEW.oldest(), VIEW.newest()) == (Position(3, 0), Position(8, 4))
    only = TopicView(segments=(B,), hot=(Position(5, 1), Position(9, 7)))
    assert (only.oldest(), only.newest()) == (Position(3, 5), Position(9, 7))
    empty = TopicView(source=(SourceLedger(1, -1, True), SourceLedger(2, -1, False)))
    assert (empty.oldest(), empty.newest(), empty.is_empty()) == (None, None, False)
    assert TopicView().is_empty()


@pytest.mark.parametrize(
    ("first", "last", "error", "hint"),
    [
        ((5, 1), (5, 0), InvalidInput, "before the last"),
        ((8, 0), (3, 9), InvalidInput, "before the last"),
        ((-1, 0), None, InvalidInput, "2\\^63"),
        ((3, -1), None, InvalidInput, "2\\^63"),
        (None, (3, -5), InvalidInput, "2\\^63"),
        ((8, 5), None, OutOfRange, "holds 3:0 to 8:4"),
        ((3, 0), (8, 5), OutOfRange, "holds 3:0 to 8:4"),
        ((9, 0), (9, 0), OutOfRange, "holds 3:0 to 8:4"),
        ((2, 7), None, NotFound, "oldest is 3:0"),
        (None, (2, 7), NotFound, "oldest is 3:0"),
    ],
)
def test_ranges_that_cannot_be_read(
    first: tuple[int, int] | None, last: tuple[int, int] | None, error: type[Exception], hint: str
) -> None:
    """Reversed, negative, beyond the end and too old ranges are refused, each with what to ask instead."""
    with pytest.raises(error, match=hint):
        checked_range(VIEW, first and Position(*first), last and Position(*last), follow=False)


def test_history_that_a_refused_source_may_have_is_no_begin() -> None:
    """Where all of a topic begins only the source can say while history is unfinished; a named range needs it not."""
    refused = IdentityRefused("of another cluster")
    offloaded = TopicView(segments=(A, B, C), refused=refused)
    assert checked_range(offloaded, None, None, follow=False) == (A.begin, C.end)
    unfinished = replace(offloaded, unfinished=(Position(2, 9), A.begin))
    with pytest.raises(IdentityRefused, match="another cluster"):
        checked_range(unfinished, None, None, follow=False)
    assert checked_range(unfinished, A.begin, C.end, follow=False) == (A.begin, C.end)


def test_ranges_are_completed() -> None:
    """A missing end is the oldest entry, or the newest now, or open when following."""
    assert checked_range(VIEW, None, None, follow=False) == (Position(3, 0), Position(8, 4))
    assert checked_range(VIEW, Position(8, 5), None, follow=True) == (Position(8, 5), None)
    assert checked_range(TopicView(), None, None, follow=False) == (None, None)
    with pytest.raises(OutOfRange, match="no entries"):
        checked_range(TopicView(), Position(0, 0), None, follow=False)


@pytest.mark.parametrize(
    ("cursor", "priority", "expected"),
    [
        ((3, 0), BUCKET_FIRST, Run(Tier.OBJECTS, 3, 0, 4, A)),
        ((3, 6), BUCKET_FIRST, Run(Tier.OBJECTS, 3, 6, 9, B)),
        ((5, 1), BUCKET_FIRST, Run(Tier.OBJECTS, 5, 1, 2, B)),
        ((3, 2), SOURCE_FIRST, Run(Tier.SOURCE, 3, 2, 9)),
        ((5, 9), BUCKET_FIRST, Run(Tier.SOURCE, 5, 9, 12)),
        ((3, 10), BUCKET_FIRST, Hop(Position(5, 0))),
        ((5, 13), SOURCE_FIRST, Hop(Position(8, 0))),
        ((8, 5), BUCKET_FIRST, Stop.WAIT),
    ],
)
def test_the_tier_follows_the_priority(cursor: tuple[int, int], priority: ReadPriority, expected: Step) -> None:
    """PIP-73 decides where both tiers hold an entry; where one does, it is that one."""
    assert step(VIEW, Position(*cursor), priority=priority) == expected


def test_a_run_ends_where_the_range_or_the_buffer_begins() -> None:
    """No run goes beyond the last entry asked for, nor into what the buffer holds."""
    assert step(VIEW, Position(3, 1), Position(3, 2)) == Run(Tier.OBJECTS, 3, 1, 2, A)
    assert step(VIEW, Position(3, 3), Position(3, 2)) is Stop.DONE
    hot = TopicView(segments=VIEW.segments, source=VIEW.source, hot=(Position(5, 5), Position(8, 4)))
    assert step(hot, Position(5, 3)) == Run(Tier.OBJECTS, 5, 3, 4, C)
    assert step(hot, Position(5, 0), priority=SOURCE_FIRST) == Run(Tier.SOURCE, 5, 0, 4)


def test_what_failed_gives_way_to_the_other_tier() -> None:
    """A failed tier is taken again only when nothing else is left and the cursor has moved on."""
    failed: dict[object, Position] = {A.segment_id: Position(3, 2)}
    assert step(VIEW, Position(3, 2), failed=failed) == Run(Tier.SOURCE, 3, 2, 4)
    alone = TopicView(segments=(A, B, C))
    assert step(alone, Position(3, 3), failed=failed) == Run(Tier.OBJECTS, 3, 3, 4, A)
    with pytest.raises(EntriesMissing):
        step(alone, Position(3, 2), failed=failed)


def test_a_ledger_is_left_only_when_its_end_is_known() -> None:
    """Without a source a manifest is asked; what it says, or the next segment, opens the way; else the read waits."""
    alone = TopicView(segments=(A, B, C))
    assert step(alone, Position(3, 10)) == ReadEnd(3, B)
    told = TopicView(segments=alone.segments, ends={(B.segment_id, 3): 9})
    assert step(told, Position(3, 10)) == Hop(Position(5, 0))
    untold = TopicView(segments=alone.segments, ends={(B.segment_id, 3): None, (C.segment_id, 5): None})
    assert step(untold, Position(3, 10)) == Hop(Position(5, 0))
    assert step(untold, Position(5, 9)) is Stop.WAIT


def test_an_open_ledger_is_not_left_for_a_later_one() -> None:
    """A source that lags behind the buffer does not end the ledger: more of its entries may come."""
    lagging = TopicView(source=(SourceLedger(5, 3, False),), hot=(Position(8, 0), Position(8, 2)))
    assert step(lagging, Position(5, 4)) is Stop.WAIT


def test_entries_that_exist_nowhere_are_an_error() -> None:
    """A gap is never skipped: not inside a ledger, not at its end, not a ledger that nobody knows."""
    gap = TopicView(segments=(A, C), source=(SourceLedger(8, 4, False),))
    with pytest.raises(EntriesMissing, match="5:0"):
        step(gap, Position(5, 0))
    short = TopicView(segments=(A, B), ends={(B.segment_id, 5): 7}, source=(SourceLedger(8, 4, False),))
    with pytest.raises(EntriesMissing, match="5:3 to 5:7"):
        step(short, Position(5, 3))
    unsure = TopicView(segments=(A, B), ends={(B.segment_id, 5): None}, source=(SourceLedger(8, 4, False),))
    with pytest.raises(EntriesMissing, match="it is unknown"):
        step(unsure, Position(5, 3))
    with pytest.raises(EntriesMissing, match="ledger 4"):
        step(VIEW, Position(4, 0))


def test_the_next_ledger_is_the_nearest_of_all_tiers() -> None:
    """A ledger that only one tier still knows is not jumped over, and an empty one is passed."""
    mixed = TopicView(
        segments=(A, segment(9, (3, 5, 9), (4, 0, 1))),
        source=(SourceLedger(3, 9, True), SourceLedger(6, -1, True), SourceLedger(8, 4, False)),
    )
    assert step(mixed, Position(3, 10)) == Hop(Position(4, 0))
    assert step(mixed, Position(6, 0)) == Hop(Position(8, 0))
    buffered = TopicView(segments=(A,), ends={(A.segment_id, 3): 4}, hot=(Position(4, 0), Position(4, 3)))
    assert step(buffered, Position(3, 5)) is Stop.WAIT  # the buffer is asked for what directly follows, see `Stream`


@pytest.mark.parametrize("cursor", [(5, 9), (6, 0), (6, 3), (7, 5)])
@pytest.mark.parametrize(("entries", "words"), [(4, "were deleted"), (0, "may have been there")])
def test_a_lost_range_is_an_error_that_says_where_to_go_on(cursor: tuple[int, int], entries: int, words: str) -> None:
    """Whoever comes to it, or begins in it, is told, whether or not the loss is certain."""
    loss = Loss(Position(5, 8), Position(8, 0), entries)
    view = TopicView(segments=(A, B, C), source=(SourceLedger(8, 4, False),), losses=(loss,))
    with pytest.raises(EntriesLost, match=words) as caught:
        step(view, Position(*cursor))
    assert caught.value.hint == "read on from 8:0"
    assert step(view, Position(5, 8)) == Run(Tier.OBJECTS, 5, 8, 8, C)
    assert step(view, Position(5, 9), Position(5, 8)) is Stop.DONE
    assert step(view, Position(8, 0)) == Run(Tier.SOURCE, 8, 0, 4)


def test_a_recorded_end_needs_no_manifest() -> None:
    """The ledger is over where the record says, and the next one follows."""
    view = TopicView(segments=(A, B, C), source=(SourceLedger(8, 4, False),), complete={5: LedgerEnd(9, 8)})
    assert step(view, Position(5, 9)) == Hop(Position(8, 0))


def test_what_retention_deleted_is_told_as_such() -> None:
    """At or below the floor a read says so, and where to begin instead; above it nothing changes."""
    view = TopicView(segments=(C,), source=(SourceLedger(8, 4, False),), floor=Position(5, 2))
    for position in (Position(3, 0), Position(5, 2)):
        with pytest.raises(EntriesDeleted, match=r"deleted by retention, like all up to 5:2 \(the oldest is 5:3\)"):
            checked_range(view, position, None, follow=True)
        with pytest.raises(EntriesDeleted):
            step(view, position)
    assert checked_range(view, None, None, follow=False) == (Position(5, 3), Position(8, 4))
    assert step(view, Position(5, 3)) == Run(Tier.OBJECTS, 5, 3, 8, C)
    with_source = TopicView(segments=(C,), source=(SourceLedger(5, 8, True),), floor=Position(5, 2))
    assert step(with_source, Position(5, 1)) == Run(Tier.SOURCE, 5, 1, 2)


@pytest.mark.parametrize("last", [None, Position(3, 10), Position(4, 0), Position(5, 8)])
def test_whoever_has_read_what_retention_deleted_goes_on_behind_it(last: Position | None) -> None:
    """Nothing of what is asked for is missing: what is kept was committed directly behind what was deleted."""
    first, cut = Position(3, 10), segment(1, (5, 0, 8))
    for refused in (None, IdentityRefused("of another cluster")):
        view = TopicView(segments=(cut,), floor=Position(3, 9), refused=refused)
        assert checked_range(view, first, last, follow=False) == (first, last or Position(5, 8))
        assert step(view, first, last) == Hop(Position(5, 0))
        assert step(view, Position(5, 0), Position(4, 0)) is Stop.DONE
    with pytest.raises(EntriesDeleted):
        checked_range(TopicView(segments=(cut,), floor=Position(3, 10)), first, last, follow=False)


def test_a_range_that_ends_before_its_own_begin_is_not_empty_in_silence() -> None:
    """Without a begin it begins with the oldest entry: what it asks for was before that, whether or not it existed."""
    view = TopicView(segments=(segment(1, (5, 0, 8)),), floor=Position(3, 9))
    with pytest.raises(EntriesMissing, match="4:0 is older than all stored entries"):
        checked_range(view, None, Position(4, 0), follow=False)


def test_what_was_behind_deleted_entries_is_not_made_up() -> None:
    """A loss, a history that is not offloaded, and a ledger that nobody knows are told, each as what it is."""
    first, floor, cut = Position(3, 10), Position(3, 9), segment(1, (5, 0, 8))
    lost = TopicView(segments=(cut,), floor=floor, losses=(Loss(floor, Position(5, 0), 4),))
    unfinished = TopicView(segments=(cut,), floor=floor, unfinished=(floor, Position(5, 0)))
    for view, error, words in ((lost, EntriesLost, "were deleted"), (unfinished, EntriesMissing, "unknown whether")):
        assert checked_range(view, first, None, follow=False)[0] == first
        with pytest.raises(error, match=words):
            step(view, first)
    listed = TopicView(source=(SourceLedger(5, 8, False),), floor=floor)
    with pytest.raises(EntriesMissing, match="unknown whether ledger 3 ended at entry 9"):
        step(listed, first)
    with pytest.raises(EntriesMissing, match="no tier knows ledger 4"):
        step(TopicView(segments=(cut,), floor=floor), Position(4, 0))
    assert step(TopicView(floor=floor), first) is Stop.WAIT


def test_a_listed_ledger_that_cannot_be_read_is_not_passed_over() -> None:
    """The list says which ledger was directly before, whether or not BookKeeper still has it; nothing else does."""
    sources = {before: (SourceLedger(3, 9, True), SourceLedger(8, 4, False, before)) for before in (None, 3, 5)}
    assert step(TopicView(source=sources[3]), Position(3, 10)) == Hop(Position(8, 0))
    assert step(TopicView(source=sources[None]), Position(3, 10)) == Hop(Position(8, 0))
    unread = TopicView(source=sources[5])
    with pytest.raises(EntriesMissing, match="unknown what was between ledgers 3 and 8"):
        step(unread, Position(3, 10))
    stored = replace(unread, segments=(A, B), ends={(B.segment_id, 3): 9, (B.segment_id, 5): 2})
    assert step(stored, Position(3, 10)) == Hop(Position(5, 0))
    assert step(stored, Position(5, 3)) == Hop(Position(8, 0)), "the list shows that it follows"
    dropped = TopicView(source=sources[3], complete={4: LedgerEnd(0, 8)})
    assert step(dropped, Position(4, 0)) == Hop(Position(8, 0)), "it was empty, and has left the middle of the list"
    with pytest.raises(EntriesLost):
        step(replace(unread, losses=(Loss(Position(3, 9), Position(8, 0), 0),)), Position(3, 10))


def test_a_segment_that_goes_on_in_another_ledger_shows_the_end_of_the_first() -> None:
    """Also where its manifest cannot be read, or was written before the ledger was closed."""
    assert step(TopicView(segments=(A, B), ends={(B.segment_id, 3): None}), Position(3, 10)) == Hop(Position(5, 0))


def test_a_topic_of_which_nothing_is_left_is_known() -> None:
    """With all deleted, a read below the floor says so, one without a range is empty, and one behind it goes on."""
    view = TopicView(floor=Position(5, 8), complete={5: LedgerEnd(9, 8)})
    assert not view.is_empty()
    assert checked_range(view, None, None, follow=False) == (None, None)
    with pytest.raises(EntriesDeleted, match="nothing is left"):
        checked_range(view, Position(5, 8), None, follow=False)
    assert step(view, Position(5, 9)) is Stop.WAIT
    later = TopicView(source=(SourceLedger(8, 4, False),), floor=Position(5, 8), complete={5: LedgerEnd(9, 8)})
    assert step(later, Position(5, 9)) == Hop(Position(8, 0))
    with pytest.raises(EntriesDeleted):
        step(later, Position(5, 7))


def test_a_ledger_that_the_source_has_dropped_is_left_only_for_what_is_known_to_follow() -> None:
    """The next one that the source lists, and the last one of the buffer, may come behind ledgers that were trimmed."""
    known = replace(
        TopicView(segments=(A,), source=(SourceLedger(9, 4, False),), hot=(Position(3, 2), Position(8, 1))),
        ends={(A.segment_id, 3): 4},
    )
    for complete in ({}, {3: LedgerEnd(5, None)}, {3: LedgerEnd(5, 6)}):
        with pytest.raises(EntriesMissing, match="between ledgers 3 and 9"):
            step(replace(known, complete=complete), Position(3, 5))
    assert step(replace(known, complete={3: LedgerEnd(5, 9)}), Position(3, 5)) == Hop(Position(9, 0))
    assert step(replace(known, source=()), Position(3, 5)) is Stop.WAIT


HISTORY = TopicView(
    segments=(segment(1, (3, 0, 9)), segment(2, (5, 0, 4)), segment(3, (12, 0, 5))),
    source=(SourceLedger(5, 9, True), SourceLedger(7, 9, True), SourceLedger(12, 5, False)),
    complete={3: LedgerEnd(10, 5)},
    unfinished=(Position(5, 4), Position(12, 0)),
)


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        ((3, 9), Run(Tier.OBJECTS, 3, 9, 9, HISTORY.segments[0])),
        ((3, 10), Hop(Position(5, 0))),
        ((5, 5), Run(Tier.SOURCE, 5, 5, 9)),
        ((5, 10), Hop(Position(7, 0))),
        ((7, 0), Run(Tier.SOURCE, 7, 0, 9)),
        ((7, 10), Hop(Position(12, 0))),
    ],
)
def test_history_that_is_not_offloaded_comes_from_the_source(cursor: tuple[int, int], expected: Step) -> None:
    """Segments behind the boundary do not follow what is offloaded before it."""
    assert step(HISTORY, Position(*cursor)) == expected


@pytest.mark.parametrize("listed", [(), (SourceLedger(12, 5, False),), (SourceLedger(13, 5, False),)])
@pytest.mark.parametrize("end", [None, LedgerEnd(5, None), LedgerEnd(5, 7), LedgerEnd(10, 7)])
def test_history_that_the_source_has_lost_is_not_skipped(
    listed: tuple[SourceLedger, ...], end: LedgerEnd | None
) -> None:
    """It was trimmed and its loss is not recorded yet: an error, whatever is known of the ledger before it."""
    complete = {3: LedgerEnd(10, 5)} if end is None else {5: end}
    view = replace(HISTORY, source=listed, complete=complete, ends={(HISTORY.segments[1].segment_id, 5): None})
    with pytest.raises(EntriesMissing):
        step(view, Position(5, 5))


def test_where_history_ends_is_left_for_the_boundary_if_that_is_known_to_follow() -> None:
    """All of it is offloaded and the source has trimmed it; only the plan does not say yet that it is done."""
    view = replace(
        HISTORY,
        source=(SourceLedger(12, 5, False),),
        complete={5: LedgerEnd(5, 12)},
        unfinished=(Position(5, 4), Position(12, 0)),
    )
    assert step(view, Position(5, 5)) == Hop(Position(12, 0))


def test_what_the_source_has_deleted_behind_a_gap_is_not_skipped() -> None:
    """Live segments behind a history that is not done are granted, and gone from the source, before it is."""
    left = SourceLedger(5, 9, True), SourceLedger(7, 9, True), SourceLedger(15, 5, False)
    assert step(replace(HISTORY, source=left), Position(7, 10)) == Hop(Position(12, 0))
    assert step(replace(HISTORY, source=left), Position(5, 10)) == Hop(Position(7, 0))


@pytest.mark.parametrize(("first", "count", "sound"), [(2, 2, True), (2, 3, False), (3, 1, False), (1, 3, False)])
def test_a_tier_that_gives_other_entries_than_the_next_ones_up_to_the_end_is_not_believed(
    first: int, count: int, *, sound: bool
) -> None:
    """Neither what comes later or was given already, nor what is behind the end of the run."""
    stream = cast("Stream", SimpleNamespace(_cursor=Position(3, 2)))
    batch, run = EntryBatch(3, first, [b"x"] * count), Run(Tier.SOURCE, 3, 2, 3)
    with nullcontext() if sound else pytest.raises(CorruptData, match="entries 3:2 to 3"):
        Stream._expect(stream, batch, run)


@pytest.mark.parametrize(("forgotten", "known"), [(None, True), (3, True), (4, False), (5, False)])
def test_outcomes_of_a_read_that_forgot_some_serve_only_reads_that_begin_behind_these(
    forgotten: int | None, *, known: bool
) -> None:
    """A message of a transaction whose outcome was forgotten would be held as open, or given although aborted."""
    log: Any = SimpleNamespace(forgotten=None if forgotten is None else Position(3, forgotten), copy=lambda: log)
    outcomes, topic = KnownOutcomes(), TopicName("public", "default", "orders")
    outcomes._topics[topic] = Known(Position(3, 0), Position(3, 9), log)
    assert (outcomes.find(topic, Position(3, 2), Position(3, 4)) is not None) is known
