"""The checker of histories finds what it is there to find, and nothing in a history that is sound."""

from __future__ import annotations

from offloaderd.core.model import Position
from tests.real.history import History, Problem, Read


def sound() -> History:
    """Ten entries in two ledgers: acknowledged, reported durable and read."""
    history = History()
    for ledger in (1, 2):
        offer = history.offer([b"%d/%d" % (ledger, entry) for entry in range(5)])
        history.ack(offer, Position(ledger, 4))
    history.durable(Position(2, 4))
    read(history)
    return history


def entries(history: History) -> list[tuple[Position, bytes]]:
    """Return what the ledgers hold."""
    return [
        (Position(ledger, entry), payload)
        for ledger, offer in enumerate(history.offers, 1)
        for entry, payload in enumerate(offer.payloads)
    ]


def read(history: History) -> Read:
    """Add a read of everything."""
    made = history.begin_read()
    made.entries, made.whole = entries(history), True
    return made


def words(history: History, stored: dict[Position, bytes] | None = None) -> set[str]:
    """Return the words of all problems."""
    return {problem.word for problem in history.problems(stored)}


def test_a_sound_history_has_no_problem() -> None:
    """What was acknowledged is read and stored, in order, once."""
    history = sound()
    assert history.problems(dict(entries(history))) == []
    assert (history.offered, history.acked) == (10, 10)


def test_an_offer_without_an_answer_may_be_there_or_not() -> None:
    """Nobody knows what became of it, so either is sound."""
    history = sound()
    history.offer([b"3/0"])
    read(history).entries.pop()
    read(history)
    assert history.problems() == []


def test_a_read_that_was_cut_off_misses_nothing() -> None:
    """Only a read that came to its end can lack entries."""
    history = sound()
    cut = history.begin_read()
    cut.entries = entries(history)[:3]
    assert history.problems() == []


def test_a_lost_entry_is_found() -> None:
    """Acknowledged, and not in the last read."""
    history = sound()
    read(history).entries.pop()
    assert history.problems() == [Problem("lost", "read 1: entry 9")]


def test_a_stale_read_is_found() -> None:
    """Acknowledged before the read, not in it, and in a later one."""
    history = sound()
    del read(history).entries[5:]
    read(history)
    assert words(history) == {"stale"}


def test_a_duplicate_is_found() -> None:
    """The same entry at two positions of one read."""
    history = sound()
    read(history).entries.append((Position(2, 5), b"2/4"))
    assert words(history) == {"duplicated"}


def test_two_entries_in_the_wrong_order_are_found() -> None:
    """An entry behind one that was offered later."""
    history = sound()
    swapped = read(history).entries
    swapped[0], swapped[1] = (swapped[0][0], swapped[1][1]), (swapped[1][0], swapped[0][1])
    assert words(history) == {"reordered", "changed"}


def test_a_phantom_is_found() -> None:
    """An entry that nobody offered, and one that was refused."""
    history = sound()
    read(history).entries.append((Position(2, 5), b"never"))
    assert words(history) == {"phantom"}
    history = sound()
    history.refuse(history.offer([b"3/0"]))
    read(history)
    assert words(history) == {"phantom"}


def test_a_changed_entry_is_found() -> None:
    """One position, two contents: in two reads, and in the bucket."""
    history = sound()
    stored = dict(entries(history))
    stored[Position(1, 3)], stored[Position(1, 4)] = stored[Position(1, 4)], stored[Position(1, 3)]
    assert words(history, stored) == {"changed", "reordered"}


def test_an_acknowledged_position_holds_what_was_acknowledged() -> None:
    """The writer was told a position; another entry lies there."""
    history = sound()
    history.offers[0].last = Position(1, 3)
    assert words(history) == {"changed"}


def test_a_gap_is_found() -> None:
    """Positions of a read that do not follow each other."""
    history = sound()
    history.offers[0].last = None
    read(history).entries[4] = (Position(1, 5), b"1/4")
    assert words(history) == {"gap"}


def test_a_durable_entry_that_is_not_in_the_bucket_is_found() -> None:
    """Whatever lies at or before the greatest position that was reported durable has to be stored."""
    history = sound()
    for gone in (Position(1, 2), Position(2, 4)):
        stored = dict(entries(history))
        del stored[gone]
        assert words(history, stored) == {"lost"}


def test_a_durable_position_that_falls_is_found() -> None:
    """What was durable once is durable for ever."""
    history = sound()
    history.durable(Position(1, 4))
    assert words(history) == {"stale"}


def test_what_retention_deleted_is_not_lost() -> None:
    """A read may begin right behind the floor, and the bucket hold nothing up to it."""
    history = sound()
    later = read(history)
    later.entries = later.entries[5:]
    stored = dict(later.entries)
    assert history.problems(stored, Position(1, 4)) == []
    assert words(history, stored) == {"lost"}
    later.entries = later.entries[1:]
    assert {problem.word for problem in history.problems(stored, Position(1, 4))} == {"lost"}
    later.entries = entries(history)[5:]
    del stored[Position(2, 0)]
    assert {problem.word for problem in history.problems(stored, Position(1, 4))} == {"lost"}
