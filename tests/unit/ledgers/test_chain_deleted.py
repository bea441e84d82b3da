"""A topic that is deleted, and empty ledgers that a broker drops: no loss of what was never there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.core.model import START, LedgerEnd, LedgerInfo, Loss, Position
from offloaderd.ledgers.chain import LedgerChain, Run

MADE_MS = 1_000


def look(*ledgers: tuple[int, int], made_ms: int = MADE_MS, version: int = 1) -> list[LedgerInfo]:
    """Make a list of ledgers with so many entries, of which the last is open, as it was after so many changes."""
    last = ledgers[-1][0]
    return [
        LedgerInfo(
            ledger_id=number,
            closed=number != last,
            entries=entries,
            size_bytes=entries,
            listing=(made_ms, version) if number == last else None,
        )
        for number, entries in ledgers
    ]


def chain(resume: Position, *looks: list[LedgerInfo]) -> LedgerChain:
    """Make a chain that has seen some lists."""
    made = LedgerChain(resume, end=None)
    for one in looks:
        made.update(one)
    return made


@pytest.mark.parametrize("seen_gone", [True, False])
def test_a_topic_that_was_offloaded_and_deleted_lost_nothing(seen_gone: bool) -> None:
    """Whether or not anybody looked between its deletion and its new begin: the new list was made later."""
    seen = chain(Position(4, 9), look((3, 5), (4, 10)))
    if seen_gone:
        seen.deleted()
        seen.update([])
        assert seen.next_after(Position(4, 9)) is None
    seen.update(look((7, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(4, 9)) == Run(7, 0, 1)


def test_a_recorded_successor_that_no_list_had_is_a_doubt_when_its_topic_is_deleted() -> None:
    """An earlier owner saw ledger 5 behind ledger 4, and did not say what was in it: the record of that stands."""
    seen = LedgerChain(Position(4, 9), end=LedgerEnd(10, next_ledger_id=5))
    seen.deleted()
    seen.update(look((7, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(7, 0), 0)
    assert seen.end_of(4) == LedgerEnd(10, next_ledger_id=5)


def test_a_topic_that_was_deleted_before_all_was_offloaded_lost_the_rest() -> None:
    """What was known to be confirmed, that of the open ledger as well, is counted."""
    seen = chain(Position(3, 1), look((3, 5), (4, 10)))
    seen.deleted()
    seen.update(look((7, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(3, 1)) == Loss(Position(3, 1), Position(7, 0), 13)


def test_a_list_of_the_same_topic_that_lacks_an_open_ledger_is_a_doubt() -> None:
    """Nobody saw how it ended, and it may have got entries meanwhile."""
    seen = chain(Position(4, 9), look((4, 10)), look((7, 2), version=3))
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(7, 0), 0)


def test_a_list_that_went_back_is_no_deletion() -> None:
    """It was made when the one before was, and changed less often since: it is from a backup."""
    seen = chain(Position(4, 9), look((4, 10), version=5), look((7, 2), version=3))
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(7, 0), 0)


def test_a_ledger_that_comes_back_is_checked_anew() -> None:
    """A deletion that was none, of a list that was away for a moment, excuses nothing later."""
    seen = chain(Position(4, 9), look((4, 10)))
    seen.deleted()
    seen.update(look((4, 10), version=1))
    seen.update([replace(one, previous=4) for one in look((7, 2), version=4)])
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(7, 0), 0)


def test_an_empty_ledger_that_its_broker_dropped_is_no_loss() -> None:
    """The list changed once: what had got entries would have been listed as closed by a change of its own."""
    dropped = chain(START, look((3, 0), version=1), look((4, 0), version=2), look((5, 2), version=3))
    assert dropped.next_after(START) == Run(5, 0, 1)
    missed = chain(START, look((3, 0), version=1), look((5, 2), version=4))
    assert missed.next_after(START) == Loss(START, Position(5, 0), 0)
    seen = chain(START, look((3, 2), version=1), look((5, 2), version=2))
    assert seen.next_after(START) == Loss(START, Position(5, 0), 2)


def test_what_was_hidden_when_its_topic_was_deleted_is_a_doubt() -> None:
    """Stored beyond what was known to be confirmed: nobody can tell any more, and a reader has to hear of it."""
    seen = chain(Position(4, 9), look((3, 5), (4, 10)))
    seen.doubt()
    seen.deleted()
    seen.deleted()
    seen.update(look((7, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(7, 0), 0)
    seen = chain(Position(4, 9), look((4, 10)))
    seen.doubt()
    seen.update(look((4, 10)))  # all that was hidden is confirmed
    seen.deleted()
    seen.update(look((7, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(4, 9)) == Run(7, 0, 1)


def test_an_earlier_doubt_does_not_go_with_the_topic() -> None:
    """A ledger that went while it was open stays a possible loss, also when its topic is deleted afterwards."""
    seen = chain(Position(4, 9), look((4, 10)))
    seen.update([replace(one, previous=4) for one in look((7, 0), version=3)])
    seen.deleted()
    seen.update(look((9, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(9, 0), 0)


def test_what_an_earlier_owner_began_and_nobody_saw_again_is_a_doubt() -> None:
    """Of the ledger behind the resume only the entry is known with which an earlier owner went on."""
    seen = LedgerChain(Position(4, 9), end=LedgerEnd(10, 5), begin=Position(5, 0))
    seen.deleted()
    seen.update(look((7, 2), made_ms=MADE_MS + 50))
    assert seen.next_after(Position(4, 9)) == Loss(Position(4, 9), Position(7, 0), 1)
    assert seen.next_after(Position(5, 0)) == Loss(Position(5, 0), Position(7, 0), 0)
