"""What follows a position is found, what vanished is told, and nothing is skipped in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import START, LedgerEnd, LedgerInfo, Loss, Position
from offloaderd.ledgers.chain import LedgerChain, Run


def ledger(
    ledger_id: int, entries: int, *, closed: bool = True, previous: int | None = None, replaces: bool = False
) -> LedgerInfo:
    """Make a ledger of which only the number of entries matters, and what the list has before it."""
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=closed,
        entries=entries,
        size_bytes=entries,
        previous=previous,
        replaces=replaces,
    )


def chain(
    resume: Position = START,
    *looks: list[LedgerInfo],
    end: LedgerEnd | None = None,
    begin: Position | None = None,
    losses: tuple[Loss, ...] = (),
) -> LedgerChain:
    """Make a chain that has seen some lists."""
    made = LedgerChain(resume, end=end, begin=begin, losses=losses)
    for look in looks:
        made.update(look)
    return made


def test_entries_are_followed_through_the_ledgers() -> None:
    """The rest of a ledger comes first, then the next one with entries; at the edge there is nothing."""
    seen = chain(START, [ledger(3, 5), ledger(4, 0), ledger(7, 2), ledger(9, 1, closed=False)])
    assert seen.next_after(START) == Run(3, 0, 4)
    assert seen.next_after(Position(3, 1)) == Run(3, 2, 4)
    assert seen.next_after(Position(3, 4)) == Run(7, 0, 1)
    assert seen.next_after(Position(7, 1)) == Run(9, 0, 0)
    assert seen.next_after(Position(9, 0)) is None


def test_an_open_ledger_is_never_left() -> None:
    """Even if the list has a later one: nobody can say yet where it ends."""
    seen = chain(START, [ledger(3, 5, closed=False), ledger(4, 5)])
    assert seen.next_after(Position(3, 4)) is None
    last = chain(START, [ledger(1, 1), ledger(2, 0, closed=False)])
    followed = chain(START, [ledger(1, 1), ledger(2, 0, closed=False), ledger(3, 1)])
    for empty in (last, followed):
        assert empty.next_after(Position(1, 0)) is None
        assert empty.end_of(1) == LedgerEnd(1, 2)
        assert empty.end_of(2) is None


def test_a_topic_begins_with_the_first_ledger_ever_seen() -> None:
    """What was deleted before is no loss; what was seen and vanished is one."""
    assert chain(START).next_after(START) is None
    seen = chain(START, [], [ledger(5, 3), ledger(6, 2)])
    assert seen.next_after(START) == Run(5, 0, 2)
    seen.update([ledger(6, 2)])
    assert seen.next_after(START) == Loss(START, Position(6, 0), 3)


def test_a_ledger_that_vanished_after_it_was_taken_whole_is_no_loss() -> None:
    """It was seen closed where we stand, and its successor is known."""
    seen = chain(START, [ledger(1, 3), ledger(2, 4)], [ledger(2, 4), ledger(3, 1, closed=False)])
    assert seen.next_after(Position(1, 2)) == Run(2, 0, 3)
    seen = chain(START, [ledger(1, 3, closed=False)], [ledger(1, 3), ledger(2, 0)], [ledger(3, 1)])
    assert seen.next_after(Position(1, 2)) == Loss(Position(1, 2), Position(3, 0), 0)


@pytest.mark.parametrize(
    ("looks", "entries"),
    [
        ([[ledger(1, 9), ledger(2, 4)], [ledger(2, 4)]], 6),
        ([[ledger(1, 3), ledger(2, 4), ledger(3, 1)], [ledger(3, 1)]], 4),
        ([[ledger(1, 9), ledger(2, 4), ledger(3, 1)], [ledger(3, 1)]], 10),
        ([[ledger(1, 5, closed=False)], [ledger(3, 1)]], 2),
        ([[ledger(1, 3, closed=False), ledger(3, 1)], [ledger(3, 1)]], 0),
        ([[ledger(3, 1)]], 0),
        ([[ledger(1, 3)], [ledger(3, 1)]], 0),
    ],
    ids=[
        "rest of a ledger",
        "a whole one",
        "both",
        "an open one",
        "open to the last",
        "never seen",
        "successor not known",
    ],
)
def test_what_vanished_is_told_with_what_is_known_of_it(looks: list[list[LedgerInfo]], entries: int) -> None:
    """Entries that were seen are certainly lost; 0 says that nobody knows."""
    here = Position(1, 2)
    before = Position(looks[-1][0].ledger_id, 0)
    seen = chain(here, *looks)
    loss = seen.next_after(here)
    assert loss == Loss(here, before, entries)
    seen.accept(loss)
    assert seen.next_after(here) == Run(before.ledger_id, 0, looks[-1][0].entries - 1)


def test_nothing_is_told_before_something_follows() -> None:
    """A topic that was deleted has no next entry; what comes after it is made again is behind a doubt."""
    seen = chain(Position(1, 2), [ledger(1, 5)], [])
    assert seen.next_after(Position(1, 2)) is None
    seen.update([ledger(8, 1, closed=False)])
    assert seen.next_after(Position(1, 2)) == Loss(Position(1, 2), Position(8, 0), 2)


def test_a_recorded_end_settles_the_doubt_after_a_restart() -> None:
    """The ledger is gone, but it is on record that all of it was taken and what came next."""
    here = Position(1, 2)
    assert chain(here, [ledger(4, 2)], end=LedgerEnd(3, 4)).next_after(here) == Run(4, 0, 1)
    doubt = Loss(here, Position(4, 0), 0)
    assert chain(here, [ledger(4, 2)], end=LedgerEnd(3, None)).next_after(here) == doubt
    assert chain(here, [ledger(4, 2)], end=LedgerEnd(3, 2)).next_after(here) == doubt


def test_the_list_says_what_follows_a_ledger_that_cannot_be_read_any_more() -> None:
    """An empty ledger between, seen open or recorded as the next one, was dropped from the list: nothing is lost."""
    here, after = Position(1, 2), [ledger(4, 2, previous=1)]
    assert chain(here, after, end=LedgerEnd(3, 2)).next_after(here) == Run(4, 0, 1)
    assert chain(here, after, end=LedgerEnd(3, None)).next_after(here) == Run(4, 0, 1)
    seen = chain(here, [ledger(1, 3), ledger(2, 0, closed=False, previous=1)], after)
    assert seen.next_after(here) == Run(4, 0, 1)
    assert seen.end_of(1) == LedgerEnd(3, 4)


@pytest.mark.parametrize("empty", [[], [ledger(2, 0, previous=1)]], ids=["directly behind", "behind an empty one"])
def test_a_listed_ledger_that_cannot_be_read_is_told(empty: list[LedgerInfo]) -> None:
    """What stands before it is still there, and so is what follows; it is not skipped in silence."""
    here = Position(1, 2)
    before, last = [ledger(1, 3), *empty], ledger(4, 2, previous=3)
    never_seen = chain(here, [*before, last])
    assert never_seen.next_after(here) == Loss(here, Position(4, 0), 0)
    third = ledger(3, 7, previous=before[-1].ledger_id)
    seen = chain(here, [*before, third, last], [*before, last])
    assert seen.next_after(here) == Loss(here, Position(4, 0), 7)


@pytest.mark.parametrize(
    ("between", "entries"),
    [
        ([ledger(2, 5, closed=False)], 5),
        ([ledger(2, 5)], 5),
        ([ledger(2, 0), ledger(3, 4), ledger(4, 0, closed=False)], 4),
        ([ledger(2, 5), ledger(3, 4)], 9),
        ([ledger(2, 0, closed=False)], 0),
    ],
    ids=["open", "closed", "between empty ones", "two", "nothing of it was ever seen"],
)
@pytest.mark.parametrize("previous", [1, None], ids=["by Pulsar's list", "by what is there"])
def test_a_ledger_with_entries_that_drops_out_of_the_middle_of_the_list_is_told(
    between: list[LedgerInfo], entries: int, previous: int | None
) -> None:
    """Nothing of it had been taken: what was seen of it is not bridged because the list does."""
    here = Position(1, 2)
    seen = chain(here, [ledger(1, 3), *between], [ledger(1, 3), ledger(9, 2, previous=previous)])
    expected = Loss(here, Position(9, 0), entries) if entries else Run(9, 0, 1)
    assert seen.next_after(here) == expected
    seen.update([ledger(1, 3), ledger(9, 2, previous=previous), ledger(10, 1, closed=False, previous=9)])
    assert seen.next_after(here) == expected


def test_what_dropped_out_and_is_listed_again_is_no_loss() -> None:
    """One list lacked it, the next one has it."""
    here, lists = Position(1, 2), [ledger(1, 3), ledger(2, 5), ledger(3, 1)]
    seen = chain(here, lists, [lists[0], ledger(3, 1, previous=1)], lists)
    assert seen.next_after(here) == Run(2, 0, 4)
    assert seen.next_after(Position(2, 4)) == Run(3, 0, 0)


def test_the_begin_of_an_unfinished_segment_is_not_bridged() -> None:
    """An earlier owner had begun with the ledger, so it had an entry."""
    here = Position(1, 2)
    seen = chain(here, [ledger(1, 3), ledger(4, 2, previous=1)], begin=Position(2, 0))
    assert seen.next_after(here) == Loss(here, Position(4, 0), 1)


def test_the_begin_of_an_unfinished_segment_is_remembered() -> None:
    """What an earlier owner had begun to upload was there, even if nothing of it is left."""
    begin = Position(2, 0)
    assert chain(START, [ledger(4, 2)], begin=begin).next_after(START) == Loss(START, Position(4, 0), 1)
    assert chain(START, [ledger(2, 2)], begin=begin).next_after(START) == Run(2, 0, 1)


def test_a_reported_loss_is_not_told_again_but_may_grow() -> None:
    """After a restart the stream goes on behind it; if that vanished too, only the new part is counted."""
    here = Position(1, 2)
    loss = Loss(here, Position(4, 0), 7)
    assert chain(here, [ledger(4, 2)], losses=(loss,)).next_after(here) == Run(4, 0, 1)
    wider = chain(here, [ledger(4, 2), ledger(5, 1)], [ledger(5, 1)], losses=(loss,)).next_after(here)
    assert wider == Loss(here, Position(5, 0), 2)


def test_memory_is_bounded_by_what_is_still_needed() -> None:
    """Ledgers before the offloaded position are forgotten; how the present one ended is not."""
    seen = chain(START, [ledger(one, 1) for one in range(100)], [ledger(98, 1), ledger(99, 1)])
    seen.forget_before(Position(97, 0))
    assert seen.end_of(96) is None
    assert seen.end_of(97) == LedgerEnd(1, 98)
    assert seen.end_of(99) == LedgerEnd(1, None)
    assert seen.next_after(Position(97, 0)) == Run(98, 0, 0)


EVENTS = st.lists(st.sampled_from(["write", "write", "roll", "trim", "look", "take", "restart"]), max_size=60)


class Topic:
    """The truth about a topic, and someone who follows it through a chain."""

    def __init__(self) -> None:
        self.now: dict[int, tuple[int, bool]] = {1: (0, False)}  # ledger: entries, closed
        self.first_seen: int | None = None
        self.written: set[Position] = set()
        self.taken: set[Position] = set()
        self.losses: list[Loss] = []
        self.here = START
        self.end: LedgerEnd | None = None
        self.seen = chain(START)

    def write(self) -> None:
        """Add an entry to the open ledger."""
        newest = max(self.now)
        entries, closed = self.now[newest]
        self.written.add(Position(newest, entries))
        self.now[newest] = (entries + 1, closed)

    def roll(self) -> None:
        """Close the open ledger and open another."""
        newest = max(self.now)
        self.now[newest] = (self.now[newest][0], True)
        self.now[newest + 1] = (0, False)

    def trim(self) -> None:
        """Delete the oldest ledger, unless it is the open one."""
        if len(self.now) > 1:
            del self.now[min(self.now)]

    def look(self) -> None:
        """Show the chain what there is."""
        self.seen.update([ledger(one, entries, closed=closed) for one, (entries, closed) in self.now.items()])
        self.first_seen = min(self.now) if self.first_seen is None else self.first_seen

    def take(self) -> None:
        """Take all that follows; looks again when it is not there."""
        while (step := self.seen.next_after(self.here)) is not None:
            if isinstance(step, Loss):
                self.losses.append(step)
                self.seen.accept(step)
            elif step.ledger_id not in self.now:
                self.look()
            else:
                entries = range(step.first_entry_id, step.last_entry_id + 1)
                run = {Position(step.ledger_id, entry) for entry in entries}
                assert not run & self.taken
                self.taken |= run
                self.here = max(run)
        end = self.seen.end_of(self.here.ledger_id)
        self.end = end if end is not None and end.entries == self.here.entry_id + 1 else None

    def restart(self) -> None:
        """Forget all but what is on record."""
        if self.here != START:
            self.seen = chain(self.here, end=self.end, losses=tuple(self.losses))


@given(EVENTS, st.booleans())
def test_every_entry_is_taken_or_told_of(events: list[str], attentive: bool) -> None:
    """Whatever the order of writes, roll-overs, deletions, looks and restarts.

    Who looks after every change, and never restarts, raises no false alarm.
    """
    topic = Topic()
    for event in events:
        if event != "restart" or not attentive:
            getattr(topic, event)()
        if attentive:
            topic.look()
    topic.look()
    topic.take()
    first = topic.first_seen or 0
    missed = {one for one in topic.written - topic.taken if one.ledger_id >= first}
    for position in missed:
        assert any(loss.after < position < loss.before for loss in topic.losses), f"{position} skipped in silence"
    for loss in topic.losses:
        covered = {one for one in missed if loss.after < one < loss.before}
        assert loss.entries <= len(covered)
        assert covered or not attentive


@pytest.mark.parametrize("between", [[], [ledger(1, 5)]])
def test_an_open_ledger_is_taken_for_empty_only_if_its_end_is_known(between: list[LedgerInfo]) -> None:
    """What nobody could tell when it was listed last is a doubt; one that was seen empty was dropped by its broker."""
    first, later = [ledger(1, 5), ledger(2, 0, closed=False)], [ledger(1, 5), ledger(3, 2, closed=False)]
    for doubts, follows in (
        ([True], Loss(Position(1, 4), Position(3, 0), 0)),
        ([False, True], Loss(Position(1, 4), Position(3, 0), 0)),
        ([True, False], Run(3, 0, 1)),
    ):
        seen = chain()
        for doubt in doubts:
            seen.update(first)
            if doubt:
                seen.doubt()
        seen.update(between or later)
        seen.update(later)
        assert seen.next_after(Position(1, 4)) == follows


def test_nothing_is_missing_before_a_ledger_that_replaces_others() -> None:
    """Neither those that were seen and not offloaded, nor those that nobody saw; the rest of one that was begun is."""
    first, second, third = (ledger(one, 5, replaces=True) for one in (3, 6, 9))
    assert chain(START, [first], [second]).next_after(START) == Run(6, 0, 4)
    done = chain(Position(3, 4), [second], [third], end=LedgerEnd(5, 6))
    assert done.next_after(Position(3, 4)) == Run(9, 0, 4)
    assert done.end_of(3) == LedgerEnd(5, 9)
    again = chain(Position(3, 4), [], [third], end=LedgerEnd(5, None))
    assert again.next_after(Position(3, 4)) == Run(9, 0, 4)
    begun = chain(Position(3, 1), [first], [third])
    assert begun.next_after(Position(3, 1)) == Loss(Position(3, 1), Position(9, 0), 3)
