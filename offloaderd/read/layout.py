"""The layout of a topic: which of its entries each tier, place and table has, on one scale. Pure.

The scale numbers the entries from the oldest one that any tier has. Entries that no tier lists, such as lost ones, have
numbers as far as their count is known.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from offloaderd.core.model import Position
from offloaderd.read.plan import TopicView

UNNAMED = "the settings do not name this bucket: `offloadctl doctor` says what to do"
EXTENTS_MAX = 1000
"""Extents of one holder in an answer; neighbours are one, so that there are few."""


class HolderKind(StrEnum):
    """What holds entries of a topic."""

    BUFFER = "buffer"
    SOURCE = "source"
    PLACE = "place"
    TABLE = "table"
    LOST = "lost"
    """None: they were deleted at the source before they were offloaded."""
    UNREADABLE = "unreadable"
    """None that a daemon without metadata can read."""


MISSING = frozenset({HolderKind.LOST, HolderKind.UNREADABLE})


class Extent(NamedTuple):
    """Consecutive entries, `begin` to `end` inclusive, with the number of the first on the scale.

    Of missing entries `begin` and `end` are the neighbours, exclusive, None where there is none; how many entries there
    are may be unknown (0).
    """

    begin: Position | None
    end: Position | None
    offset: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A tier, place or table with its extents, ascending. `problem`: why they are not known, or not all of them.

    `name` is the daemon of a buffer, the kind of a source, BUCKET/PREFIX of a place, DECLARATION/TABLE of a table.
    `lag_s` is that of a table.
    """

    kind: HolderKind
    name: str
    extents: tuple[Extent, ...] = ()
    problem: str = ""
    lag_s: float | None = None

    @property
    def entries(self) -> int:
        """Number of entries."""
        return sum(one.entries for one in self.extents)


class Scale:
    """The numbers of a topic's entries."""

    def __init__(self, view: TopicView) -> None:
        sizes: dict[int, int] = {}

        def reaches(last: Position) -> None:
            sizes[last.ledger_id] = max(sizes.get(last.ledger_id, 0), last.entry_id + 1)

        for ledger in view.source:
            reaches(Position(ledger.ledger_id, ledger.last_entry_id))
        for segment in view.segments:
            for part in segment.slices:
                reaches(part.range.end)
        for one in view.hot or ():
            reaches(one)
        for ledger_id, end in view.complete.items():
            reaches(Position(ledger_id, end.entries - 1))
        self._ledgers = sorted(sizes)
        self._starts = list(accumulate((sizes[one] for one in self._ledgers), initial=0))
        for loss in view.losses:
            at = self._at(loss.after.ledger_id)
            lacking = loss.entries - (self.number(loss.before) - self.number(loss.after) - 1)
            if at >= 0 and lacking > 0:
                self._starts[at + 1 :] = [one + lacking for one in self._starts[at + 1 :]]
        self.first = view.oldest()
        self.origin = self.number(self.first) if self.first is not None else 0
        self.entries = max(0, self._starts[-1] - self.origin)

    def _at(self, ledger_id: int) -> int:
        return bisect_right(self._ledgers, ledger_id) - 1

    def number(self, position: Position) -> int:
        """Return the number of a position, counted from the first entry of the oldest ledger that is known."""
        at = self._at(position.ledger_id)
        if at < 0:
            return -1
        if self._ledgers[at] != position.ledger_id:
            return self._starts[at + 1]  # of a ledger without known entries: where the next one begins
        return self._starts[at] + position.entry_id

    def extent(self, begin: Position, end: Position) -> Extent:
        """Return the entries from `begin` to `end`, without those before the oldest."""
        offset = max(self.number(begin), self.origin)
        return Extent(begin, end, offset - self.origin, max(0, self.number(end) - offset + 1))

    def between(self, after: Position, before: Position | None) -> Extent:
        """Return the entries between two positions, both exclusive; None: up to the end of the scale."""
        offset = max(self.number(after) + 1, self.origin)
        until = self.number(before) if before is not None else self._starts[-1]
        return Extent(after if after.ledger_id >= 0 else None, before, offset - self.origin, max(0, until - offset))

    def through(self, last: Position) -> tuple[Extent, ...]:
        """Return the entries up to `last`, which need not be an entry."""
        if self.first is None or last < self.first:
            return ()
        return (self.extent(self.first, last),)


def holders(view: TopicView, scale: Scale, *, source: str, buckets: Container[str]) -> Iterator[Holder]:
    """Yield the holders that a view knows, the buffer aside: the source if it has a name, places, missing entries.

    `buckets` are those that the settings name: places in others may be out of reach.
    """
    if source:
        listed = [Position(one.ledger_id, one.last_entry_id) for one in view.source if one.last_entry_id >= 0]
        problem = str(view.refused) if view.refused is not None else view.source_away
        ledgers = (scale.extent(Position(last.ledger_id, 0), last) for last in listed)
        yield holder(HolderKind.SOURCE, source, ledgers, problem)
    places: dict[tuple[str, str], list[Extent]] = {}
    for segment in view.segments:
        extent = scale.extent(segment.begin, segment.end)
        for copy in segment.each_place:
            places.setdefault(copy.place, []).append(extent)
    for place, extents in places.items():
        yield holder(HolderKind.PLACE, "/".join(place), extents, UNNAMED if place[0] not in buckets else "")
    if view.losses:
        lost = (scale.between(one.after, one.before) for one in view.losses)
        doubt = "" if all(one.certain for one in view.losses) else "; where their number is unknown, perhaps none"
        yield holder(HolderKind.LOST, "", lost, f"deleted at the source before they were offloaded{doubt}")
    if view.gaps:
        unreadable = (scale.between(one.after, one.before) for one in view.gaps)
        yield holder(HolderKind.UNREADABLE, "", unreadable, view.gaps[0].why)


def holder(kind: HolderKind, name: str, extents: Iterable[Extent], problem: str = "") -> Holder:
    """Return a holder of ascending extents: those that follow each other are one, and at most EXTENTS_MAX are kept."""
    found: list[Extent] = []
    for one in extents:
        if found and found[-1].offset + found[-1].entries == one.offset and kind not in MISSING:
            found[-1] = Extent(found[-1].begin, one.end, found[-1].offset, found[-1].entries + one.entries)
        else:
            found.append(one)
    left_out = f"{len(found) - EXTENTS_MAX} more ranges are left out" if len(found) > EXTENTS_MAX else ""
    said = "; ".join(filter(None, (problem, left_out)))
    return Holder(kind=kind, name=name, extents=tuple(found[:EXTENTS_MAX]), problem=said)
