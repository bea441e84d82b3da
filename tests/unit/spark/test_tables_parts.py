"""The two parts of a table: their positions in commits, their steps, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.spark.export import delta as export_delta
from offloaderd.spark.export.commit import Commit, Move, decode_move
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.tables.parts import Part, Parts, Turns, names_of
from tests.unit.metadata.segments import made
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import snapshot
from tests.unit.spark.local_files import LocalFiles
from tests.unit.spark.test_export_delta import DAY, SOURCE, Table
from tests.unit.spark.test_source_offsets import HISTORY

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.spark.scan.snapshot import Snapshot

NAME = str(TOPIC)
FOUND = snapshot([made(1, (1, 0, 9)), made(2, (1, 10, 19), (3, 0, 4)), made(3, (3, 5, 8))])
QUERY = EntryQuery()
NONE = Parts({}, {}, {})
BEGUN = NONE.begun([FOUND], QUERY, None, first=True)


def step(parts: Parts, part: Part, found: Snapshot = FOUND, **given: object) -> Parts | None:
    """Return the parts as a commit has them after a step of one, None if that has nothing new."""
    made_step = parts.step(part, [found], QUERY, **given)  # type: ignore[arg-type]
    return Parts.of(parts.after(part, made_step.offset).positions) if made_step is not None else None


def test_no_topic_has_the_names_of_positions() -> None:
    """Else a partition would have those of another one."""
    name, *others = names_of([NAME])
    assert TopicName.parse(name) == TOPIC
    for one in others:
        with pytest.raises(InvalidInput):
            TopicName.parse(one)


def test_positions_from_the_first_step_to_the_last() -> None:
    """The newest segment is live. Once the history is at the boundary, the topic has the live position alone."""
    assert BEGUN.boundaries == {NAME: "3:4"}
    assert Parts.of(BEGUN.positions) == BEGUN
    live = step(BEGUN, Part.LIVE)
    assert live is not None
    assert sorted(live.positions.values()) == ["-1:-1", "3:4", "3:8"]
    assert step(live, Part.LIVE) is None
    half = step(live, Part.HISTORY, room=1)
    assert half is not None
    assert (half.history, half.live, half.boundaries) == ({NAME: "1:0"}, {NAME: "3:8"}, {NAME: "3:4"})
    whole = step(half, Part.HISTORY)
    assert whole is not None
    assert whole.positions == {NAME: "3:8"}
    assert step(whole, Part.HISTORY) is None


def test_what_a_format_cannot_forget_is_ignored() -> None:
    """A boundary that the topic's position has reached is none, and neither is a live position then."""
    left = {NAME: "3:8", f"live:{NAME}": "3:6", f"begin:{NAME}": "3:4"}
    assert Parts.of(left) == Parts({NAME: "3:8"}, {NAME: "3:8"}, {})
    assert Parts.of({**left, NAME: "3:4"}).boundaries == {}
    assert Parts.of({**left, NAME: "3:3"}).boundaries == {NAME: "3:4"}


def test_what_has_no_history() -> None:
    """A topic with one segment, without any, and a partition that comes later have one position, as ever."""
    for found in (snapshot([made(1, (1, 0, 9))]), snapshot([])):
        assert NONE.begun([found], QUERY, None, first=True) == NONE
    assert NONE.begun([FOUND], QUERY, None, first=False) == NONE
    other = TopicName("public", "default", "later")
    later = replace(FOUND, map=replace(FOUND.map, topic=other))
    found_step = BEGUN.step(Part.LIVE, [FOUND, later], QUERY)
    assert found_step is not None
    assert found_step.offset == {NAME: "3:8", str(other): "3:8"}
    assert Parts.of(BEGUN.after(Part.LIVE, found_step.offset).positions).boundaries == {NAME: "3:4"}


def test_a_step_that_is_repeated() -> None:
    """It is of the part that its dead letters are ahead in, and ends where they do, however much came meanwhile."""
    for part in Part:
        dead = step(BEGUN, part, room=1)
        assert dead is not None
        assert BEGUN.is_behind(dead)
        grown = snapshot([*FOUND.map.segments, made(4, (5, 0, 9))])
        assert [NONE.begun([grown], QUERY, dead, first=first) for first in (False, True)] == [BEGUN] * 2
        assert step(BEGUN, part, upto=dead) == dead
        assert [one for one in Part if step(BEGUN, one, upto=dead) is not None] == [part]
        assert not dead.is_behind(BEGUN)
        assert not dead.is_behind(dead)
    assert step(BEGUN, Part.HISTORY, upto=NONE) is None, "it has nothing of the topic"


def test_dead_letters_of_before_both_parts_were_one() -> None:
    """They are not ahead of a table that has forgotten its boundary; those of after it are ahead of one rolled back."""
    earlier = Parts.of({NAME: "1:9", f"live:{NAME}": "3:6", f"begin:{NAME}": "3:4"})
    later = Parts.of({NAME: "3:8"})
    assert not later.is_behind(earlier)
    assert later.begun([FOUND], QUERY, earlier, first=False) == later, "which are ahead in another topic"
    assert earlier.is_behind(later)
    live = step(earlier, Part.LIVE, upto=later)
    assert live is not None
    history = step(live, Part.HISTORY, upto=later)
    assert history is not None
    assert history == later


def test_history_that_is_gone_up_to_the_boundary() -> None:
    """The step that is left has no entry, and ends at the boundary; one that a transaction holds up does not."""
    gone = replace(FOUND, map=replace(FOUND.map, segments=FOUND.map.segments[2:]))
    ended = step(BEGUN, Part.HISTORY, gone)
    assert ended is not None
    assert ended.boundaries == {}
    assert step(Parts.of({NAME: "1:2"}), Part.LIVE, gone, upto=Parts.of({NAME: "3:4"})) == Parts.of({NAME: "3:4"})
    held = replace(FOUND, held=Position(3, 0))
    waits = step(BEGUN, Part.HISTORY, held)
    assert waits is not None
    assert waits.history == {NAME: "1:19"}
    assert step(waits, Part.HISTORY, held) is None


def waiting(*segments: CommittedSegment) -> list[Snapshot]:
    """Return a topic whose history before ledger 3 is not all offloaded yet."""
    return [replace(FOUND, map=replace(FOUND.map, segments=segments, history=HISTORY))]


def test_what_is_new_does_not_wait_for_history_that_is_not_offloaded() -> None:
    """It begins with the second segment behind that at least, with whichever step; the history ends where it does."""
    old, first, second = made(1, (1, 0, 9)), made(2, (3, 0, 4)), made(3, (3, 5, 8))
    for first_step in (False, True):
        assert NONE.begun(waiting(old, first), QUERY, None, first=first_step) == NONE
        assert NONE.begun(waiting(old), QUERY, None, first=first_step) == NONE
    found = waiting(old, first, second)
    parts = Parts.of({NAME: "1:2"}).begun(found, QUERY, None, first=False)
    assert (parts.history, parts.live, parts.boundaries) == ({NAME: "1:2"}, {NAME: "3:4"}, {NAME: "3:4"})
    grown = waiting(old, first, second, made(4, (5, 0, 9)))
    assert parts.begun(grown, QUERY, None, first=False) == parts, "a boundary stays where it is"
    assert NONE.begun(grown, QUERY, Parts.of({"another": "1:1"}), first=True) == NONE, "the repeated step has none"
    assert step(parts, Part.LIVE, found[0]) is None
    (beside,) = parts.seen(found, [replace(found[0], beside=True)])
    live = step(parts, Part.LIVE, beside)
    assert live is not None
    assert live.live == {NAME: "3:8"}
    history = step(live, Part.HISTORY, found[0])
    assert history is not None
    assert history.history == {NAME: "1:9"}
    assert step(history, Part.HISTORY, found[0]) is None
    assert step(
        history, Part.HISTORY, replace(FOUND, map=replace(FOUND.map, segments=(old, first, second)))
    ) == Parts.of({NAME: "3:8"})


def test_a_topic_without_a_boundary_waits_for_its_history() -> None:
    """Else it would go on behind what is missing."""
    found = waiting(made(1, (1, 0, 9)), made(2, (3, 0, 4)))
    (seen,) = Parts.of({NAME: "1:2"}).seen(found, [replace(found[0], beside=True)])
    assert seen.end == Position(1, 9)
    assert replace(seen, beside=True).end == Position(3, 4)


def test_a_change_back_to_one_position_can_be_undone() -> None:
    """A table of Iceberg that is rolled back to before it has all three once more."""
    before = Commit(number=1, source={}, positions={NAME: "1:9", f"live:{NAME}": "3:8", f"begin:{NAME}": "3:4"})
    after = before.following("x", {NAME: "3:8"}, 1)
    move = decode_move(after.encode_move(before), "x")
    assert isinstance(move, Move)
    assert move.undone(after.positions) == before.positions


def test_positions_in_delta_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three are kept and found; of what stays there when they become one, nothing is seen."""
    monkeypatch.setattr(export_delta, "SparkFiles", LocalFiles)
    table = Table(tmp_path / "table")
    for number, positions in enumerate((BEGUN.positions, {NAME: "3:8"})):
        target = table.target(topics=names_of([NAME]))
        last = target.recover(SOURCE)
        staging = target.staging(last)
        table.write(staging, [{"id": number, "_time": DAY}])
        target.commit(last, staging, positions, 1)
        found = table.target(topics=names_of([NAME])).last(SOURCE)
        assert Parts.of(found.positions).positions == positions


def test_turns() -> None:
    """The live part has one at each interval, or after a step of the history if it has more; no part waits for ever."""
    turns, now_s = Turns(60.0), 1000.0

    def took(seconds: float, *parts: Part, more: bool = False) -> Part:
        nonlocal now_s
        found = turns.begin(parts, now_s)
        now_s += seconds
        turns.end(more=more)
        return found

    assert took(10, *Part) is Part.LIVE
    assert [took(20, *Part) for _ in range(4)] == [Part.HISTORY] * 3 + [Part.LIVE], "60 s from the begin of the last"
    assert [took(600, *Part) for _ in range(4)] == [Part.HISTORY, Part.LIVE] * 2, "however long a step takes"
    assert took(1, Part.LIVE, more=True) is Part.LIVE
    assert [took(1, *Part, more=True) for _ in range(4)] == [Part.HISTORY, Part.LIVE] * 2
    assert [took(1, Part.HISTORY), took(1, Part.LIVE), took(1, Part.LIVE)] == [Part.HISTORY, Part.LIVE, Part.LIVE]


def test_what_is_new_waits_for_two_intervals_at_most() -> None:
    """While the history has years of steps of an interval each, and a live step takes all that there is."""
    turns, now_s, oldest_s, worst_s = Turns(60.0), 0.0, 0.0, 0.0
    for _ in range(1000):
        part = turns.begin([*Part] if now_s > oldest_s else [Part.HISTORY], now_s)
        if part is Part.LIVE:
            worst_s, oldest_s = max(worst_s, now_s - oldest_s), now_s
        now_s += 60.0 if part is Part.HISTORY else 5.0
        turns.end(more=False)
    assert 60.0 < worst_s <= 120.0


def test_a_step_that_fails_is_repeated() -> None:
    """A table stops before what it cannot have, and does not seem sound in between."""
    turns = Turns(60.0)
    for now_s in (0.0, 1.0):
        turns.begin([*Part], now_s)
        turns.end(more=False)
    assert [turns.begin([*Part], now_s) for now_s in (2.0, 100.0, 200.0)] == [Part.HISTORY] * 3
    turns.end(more=False)
    assert turns.begin([*Part], 201.0) is Part.LIVE
    assert turns.begin([Part.HISTORY], 202.0) is Part.HISTORY, "it has nothing new any more"
