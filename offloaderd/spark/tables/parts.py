"""The two parts of a table that takes its history beside what is new.

A commit has three positions of such a topic, and a step serves one part of all topics:

    persistent://shop/eu/orders          12:41    the history: all up to here is in the table
    live:persistent://shop/eu/orders     90:7     the live part: so is all from the boundary up to here
    begin:persistent://shop/eu/orders    88:199   the boundary

No topic has such a name, as its own begins with its domain. A topic whose history is at the boundary has one position
again, that of the live part. The two others are left out then, and ignored where a format cannot forget them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from offloaderd.spark.scan.query import EntryQuery, Offset, parsed, position
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.stream import Step, advance, begin, reach, written

_LIVE, _BEGIN = "live:", "begin:"


class Part(StrEnum):
    """What a step serves."""

    LIVE = "live"
    """What is behind the boundary; all of a topic without one."""
    HISTORY = "history"


def names_of(topics: Iterable[str]) -> list[str]:
    """Return the names of all positions that a commit may have of topics."""
    return [prefix + topic for topic in topics for prefix in ("", _LIVE, _BEGIN)]


@dataclass(frozen=True, slots=True)
class Parts:
    """The positions of each topic in both parts, which are one without a boundary, and the boundaries."""

    history: Offset
    live: Offset
    boundaries: Offset

    @classmethod
    def of(cls, positions: Mapping[str, str]) -> Parts:
        """Return those of a commit."""
        history = {name: at for name, at in positions.items() if not name.startswith((_LIVE, _BEGIN))}
        boundaries = {
            name: positions[_BEGIN + name]
            for name in history
            if position(history, name) < position(positions, _BEGIN + name)
        }
        live = {name: positions[_LIVE + name] if name in boundaries else at for name, at in history.items()}
        return cls(history, live, boundaries)

    def begun(self, found: Sequence[Snapshot], query: EntryQuery, upto: Parts | None, *, first: bool) -> Parts:
        """Return them with the boundaries of topics that begin: what is new begins with the newest segment.

        All begin with the `first` step of a table, and a topic whose history is not offloaded yet when there are two
        segments behind that: a message in chunks may have begun before the first. `upto`: dead letters that are ahead,
        whose boundaries are taken.
        """
        history, live, boundaries = dict(self.history), dict(self.live), dict(self.boundaries)
        for snapshot in found:
            name, segments, plan = str(snapshot.topic), snapshot.map.segments, snapshot.unfinished
            at = snapshot.before(segments[-1].begin) if segments else None
            begins = at is not None and (first if plan is None else at >= plan.live_begin)
            text = written(snapshot, at) if at is not None and begins else None
            if upto is not None:
                text = upto.boundaries.get(name)
            start = self.history.get(name) or written(snapshot, begin(snapshot, query))
            if name not in boundaries and text is not None and parsed(text)[0] > parsed(start)[0]:
                history[name], live[name], boundaries[name] = start, text, text
        return Parts(history, live, boundaries)

    def seen(self, found: Sequence[Snapshot], beside: Iterable[Snapshot]) -> list[Snapshot]:
        """Return the snapshots for the live part: `beside` for each topic in which that is behind all history."""
        others = {one.topic: one for one in beside}
        return [
            others.get(one.topic, one)
            if one.unfinished is not None and position(self.live, str(one.topic)) >= one.unfinished.live_begin
            else one
            for one in found
        ]

    @property
    def positions(self) -> Offset:
        """The positions of a commit with them."""
        found = dict(self.live)
        for name, boundary in self.boundaries.items():
            if position(self.history, name) < position(self.boundaries, name):
                found |= {name: self.history[name], _LIVE + name: self.live[name], _BEGIN + name: boundary}
        return found

    def after(self, part: Part, offset: Offset) -> Parts:
        """Return them after a step of a part."""
        if part is Part.HISTORY:
            return replace(self, history={**self.history, **offset})
        return replace(self, live={**self.live, **offset})

    def is_behind(self, other: Parts) -> bool:
        """Return whether the other has more of a topic."""
        pairs = ((self.history, other.history), (self.live, other.live))
        return any(position(theirs, name) > position(mine, name) for mine, theirs in pairs for name in theirs)

    def step(
        self,
        part: Part,
        found: Sequence[Snapshot],
        query: EntryQuery,
        *,
        upto: Parts | None = None,
        room: int | None = None,
        turn: str = "",
    ) -> Step | None:
        """Return the next step of a part, not behind `upto`; None if there is nothing new.

        What was deleted at the end of its range belongs to it: nothing that comes later would tell of that. Raises as
        `advance`.
        """
        start, target = self.live, upto.live if upto is not None else None
        if part is Part.HISTORY:
            start = {name: self.history[name] for name in self.boundaries}
            target = self.boundaries
            if upto is not None:
                both, names = (upto.history, self.boundaries), upto.history.keys() & start.keys()
                target = {name: min(both, key=lambda one: position(one, name))[name] for name in names}
        step = advance(found, start, query, target=target, room=room, turn=turn)
        for snapshot in found:
            name = str(snapshot.topic)
            if target is None or name not in step.offset or name not in target:
                continue
            at, goal = position(step.offset, name), position(target, name)
            if at < goal and reach(snapshot, at, goal, 1)[0] == at:
                step.offset[name] = target[name]
        return step if step.offset != step.start else None


class Turns:
    """Whose turn it is: the live part has one at each interval, or if it lacks more, after each of the history."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: that of the table."""
        self._interval_s = interval_s
        self._due_s = -inf
        self._begun_s = 0.0
        self._last = Part.HISTORY
        self._open: Part | None = None

    def begin(self, parts: Collection[Part], now_s: float) -> Part:
        """Return one of the parts that have something new. It has the next turn as well if its step fails."""
        (part, *others) = parts
        if self._open is not None and self._open in parts:
            part = self._open
        elif others:
            part = Part.LIVE if self._last is Part.HISTORY and now_s >= self._due_s else Part.HISTORY
        self._open, self._begun_s = part, now_s
        return part

    def end(self, *, more: bool) -> None:
        """Note that the step was made; `more`: the live part has more."""
        if self._open is Part.LIVE:
            self._due_s = self._begun_s + (0.0 if more else self._interval_s)
        self._last, self._open = self._open or self._last, None
