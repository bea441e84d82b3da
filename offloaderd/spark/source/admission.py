"""The range of the next step of a stream or an export: a number of bytes, over all topics in turn. Pure.

Positions are exact, so a step may end inside a segment. Where the room is too small for a part of every topic that is
worth a task, topics take turns: a step begins behind the topic that was served last.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil

from offloaderd.core.model import Position
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.spark.scan.positions import Offset, position
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.source.offsets import begin, furthest, in_history, written

PART_BYTES = 16 * 1024 * 1024
"""The least part of a topic, if there is room: with less the requests would cost more than the bytes."""


@dataclass(frozen=True, slots=True)
class Step:
    """The end of a step, the bytes of objects that it reads (estimated), and the topic that was served last.

    `start` is its begin, with topics that are new in it.
    """

    offset: Offset
    start: Offset = field(default_factory=dict)
    object_bytes: int = 0
    turn: str = ""


@dataclass(slots=True)
class _Lane:
    """One topic of a step that is being made: its position, and the last one that it may reach."""

    snapshot: Snapshot
    at: Position
    goal: Position


def advance(
    snapshots: Sequence[Snapshot],
    start: Mapping[str, str],
    query: EntryQuery,
    *,
    target: Mapping[str, str] | None = None,
    room: int | None = None,
    turn: str = "",
) -> Step:
    """Return a step of about `room` bytes that ends at the target, or at the last entry of the query, at most.

    It is larger than the room by less than an entry. `turn` is that of the step before. Raises InvalidInput for an
    offset of another history of its topic.
    """
    step = Step(dict(start), turn=turn)
    goals = furthest(snapshots, query)
    lanes = []
    for snapshot in sorted(snapshots, key=lambda one: str(one.topic)):
        name = str(snapshot.topic)
        at = in_history(snapshot, start[name]) if name in start else begin(snapshot, query)
        if name not in goals or (target is not None and name not in target):
            continue
        step.offset.setdefault(name, written(snapshot, at))
        goal = position(goals, name) if target is None else min(position(goals, name), position(target, name))
        if goal > at:
            lanes.append(_Lane(snapshot, at, goal))
    behind = next((number for number, one in enumerate(lanes) if str(one.snapshot.topic) > turn), 0)
    step = replace(step, start=dict(step.offset))
    return _served(step, lanes[behind:] + lanes[:behind], room)


def _served(step: Step, lanes: list[_Lane], room: int | None) -> Step:
    """Give each topic its part in turn, and the rest of the room to those that have more."""
    while lanes and (room is None or step.object_bytes < room):
        left = None if room is None else room - step.object_bytes
        part = None if left is None else max(left // len(lanes), min(left, PART_BYTES), 1)
        unfinished = []
        for lane in lanes:
            free = None if room is None or part is None else min(part, room - step.object_bytes)
            if free is not None and free <= 0:
                break
            at, taken = reach(lane.snapshot, lane.at, lane.goal, free)
            name = str(lane.snapshot.topic)
            step.offset[name] = written(lane.snapshot, at)
            step = replace(step, object_bytes=step.object_bytes + taken, turn=name)
            if part is not None and at > lane.at:
                lane.at = at
                unfinished.append(lane)
        lanes = unfinished
    return step


def reach(snapshot: Snapshot, start: Position, goal: Position, room: int | None) -> tuple[Position, int]:
    """Return the last entry of a step behind `start` and up to `goal`, and its estimated bytes of objects.

    It has at least one entry, if there are any.
    """
    at, taken = start, 0.0
    segments = snapshot.map.segments
    for segment in islice(segments, bisect_right(segments, start, key=lambda one: one.end), None):
        for first, last, entry_bytes in _runs(segment, start, goal):
            fit = last.entry_id - first.entry_id + 1
            if room is not None and entry_bytes > 0:
                fit = min(fit, max(int((room - taken) // entry_bytes), 0 if taken else 1))
            if fit:
                at, taken = Position(first.ledger_id, first.entry_id + fit - 1), taken + fit * entry_bytes
            if at != last or (room is not None and taken >= room):
                return at, ceil(taken)
        if segment.end >= goal:
            break
    return at, ceil(taken)


def _runs(segment: CommittedSegment, start: Position, goal: Position) -> Iterator[tuple[Position, Position, float]]:
    """Yield the first and last entry of each ledger behind `start` and up to `goal`, and the bytes of one of them."""
    weight = sum(one.payload_bytes + one.entries for one in segment.slices)
    for one in segment.slices:
        first, last = one.range.begin, min(one.range.end, goal)
        if start.ledger_id == one.ledger_id:
            first = max(first, Position(one.ledger_id, start.entry_id + 1))
        if start < first <= last:
            yield first, last, segment.object_bytes * (one.payload_bytes + one.entries) / weight / one.entries
