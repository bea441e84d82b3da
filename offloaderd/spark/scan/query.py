"""The entries of a query, the blocks that may have them, as no other is fetched, and positions in offsets. Pure.

There are two kinds of bounds. Options are exact: an entry outside of them is no row. Filters of a query only exclude
blocks, since Spark evaluates them again; so a bound from a filter may be too wide, never too narrow.

The text of an offset for a topic is `7:41@1760000000000`, the last entry that was read and the time its ledger was
created, or `7:41` if the time is unknown. It distinguishes a topic that was created anew from the one before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import datasource as spark

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, Position
from offloaderd.format.pulsar.entry_time import Survey, time_of
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.spark.scan.share import Part, Segment, clipped, parts_of

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)
TIMES = ("time", "broker_timestamp")
"""Columns with bounds in a block's survey: a broker's timestamp, if there is one, is the entry's time."""


class Extent(NamedTuple):
    """Entries of one ledger that are read together: a block, or those between two places of a broker's index.

    `at` is their offset in the object, an estimate under a broker's index; `number` counts the extents of a segment.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    at: int
    survey: Survey | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers from `low` to `high`, both inclusive, and, unless None, only those in `among`."""

    low: int | None = None
    high: int | None = None
    among: frozenset[int] | None = None

    def narrowed(self, low: int | None = None, high: int | None = None, among: Iterable[int] | None = None) -> "Span":
        """Return the numbers that are in both."""
        least = max((one for one in (self.low, low) if one is not None), default=None)
        most = min((one for one in (self.high, high) if one is not None), default=None)
        both = self.among
        if among is not None:
            both = frozenset(among) if both is None else both & frozenset(among)
        return Span(least, most, both)

    def meets(self, low: int, high: int) -> bool:
        """Return whether it has one of low..high."""
        if (self.low is not None and high < self.low) or (self.high is not None and low > self.high):
            return False
        return self.among is None or any(low <= one <= high for one in self.among)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuery:
    """The entries to read.

    Exact: positions `first` to `last`, both inclusive; times from `since_ms` on and before `until_ms` (an entry
    without a time is not in such a range). For blocks alone: the other spans, and `topics`, names in full.
    """

    first: Position | None = None
    last: Position | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    ledgers: Span = field(default_factory=Span)
    entries: Span = field(default_factory=Span)
    times: Span = field(default_factory=Span)
    topics: frozenset[str] | None = None

    def narrowed(self, filters: Iterable[spark.Filter]) -> "EntryQuery":
        """Return the query with filters; those that exclude no block are ignored."""
        found = self
        for one in filters:
            found = _narrowed(found, one)
        return found

    @property
    def time_span(self) -> Span:
        """The times to read, by options and filters."""
        return self.times.narrowed(self.since_ms, None if self.until_ms is None else self.until_ms - 1)

    def holds_topic(self, name: str) -> bool:
        """Return whether a topic may have rows."""
        return self.topics is None or name in self.topics

    def may_hold(self, extent: Extent) -> bool:
        """Return whether an extent may have entries of the query."""
        first, last = self.bounds(extent)
        if first > last or not self.ledgers.meets(extent.ledger_id, extent.ledger_id):
            return False
        if not self.entries.meets(first, last):
            return False
        times, survey = self.time_span, extent.survey
        if survey is None or times == Span():
            return True
        if survey.time_min is None or survey.time_max is None:
            return False
        return times.meets(survey.time_min, survey.time_max)

    def bounds(self, extent: Extent) -> tuple[int, int]:
        """Return the first and last entry id of an extent between the positions; reversed when there is none."""
        return clipped(extent.ledger_id, extent.first_entry_id, extent.last_entry_id, self.first, self.last)

    def of(self, segment: Segment) -> list[Part]:
        """Return the entries of a segment that may be in the query, by ledger and by the map alone."""
        parts = parts_of(segment, self.first, self.last)
        return [one for one in parts if self.may_hold(Extent(*one, 0))]

    def takes_all(self, segment: CommittedSegment) -> bool:
        """Return whether all of a segment is in the query, by the map alone."""
        if self.time_span != Span() or self.entries != Span():
            return False
        if self.first is not None and segment.begin < self.first:
            return False
        if self.last is not None and segment.end > self.last:
            return False
        return all(self.ledgers.meets(one.ledger_id, one.ledger_id) for one in segment.slices)

    def in_time(self, batch: EntryBatch) -> Sequence[bool] | None:
        """Return for each entry whether it is in the range of times; None when there is no range."""
        since, until = self.since_ms, self.until_ms
        if since is None and until is None:
            return None
        times = [time_of(payload).time_ms for payload in batch.payloads]
        return [
            time is not None and (since is None or time >= since) and (until is None or time < until) for time in times
        ]


def to_ms(moment: datetime, *, up: bool = False) -> int:
    """Return milliseconds since 1970, rounded down or up; a time without a zone is UTC."""
    passed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return -(-passed // MILLISECOND) if up else passed // MILLISECOND


def _narrowed(query: EntryQuery, one: spark.Filter) -> EntryQuery:
    column: tuple[str, ...] = getattr(one, "attribute", ())  # a negation has none, and excludes no block
    match ".".join(column):
        case "topic":
            names = _values(one)
            if names is None:
                return query
            texts = frozenset(map(str, names))
            return replace(query, topics=texts if query.topics is None else texts & query.topics)
        case "ledger_id":
            return replace(query, ledgers=_bounded(query.ledgers, one, int))
        case "entry_id":
            return replace(query, entries=_bounded(query.entries, one, int))
        case name if name in TIMES:
            return replace(query, times=_bounded(query.times, one, datetime))
        case _:
            return query


def _values(one: spark.Filter) -> Sequence[Any] | None:
    """Return the values that a filter accepts, None for another kind of filter."""
    match one:
        case spark.EqualTo(_, value):
            return [value]
        case spark.EqualNullSafe(_, value) if value is not None:
            return [value]
        case spark.In(_, values):
            return [value for value in values if value is not None]
        case _:
            return None


def _bounded(span: Span, one: spark.Filter, kind: type[int] | type[datetime]) -> Span:
    """Return the span within a filter's bounds. Times are rounded outwards; values of another type bound nothing."""
    values = _values(one)
    value = getattr(one, "value", None)
    if not all(isinstance(known, kind) for known in ([value] if values is None else values)):
        return span
    if values is not None:
        if kind is int:
            return span.narrowed(among=values)
        lows, highs = [to_ms(known) for known in values], [to_ms(known, up=True) for known in values]
        return span.narrowed(min(lows), max(highs)) if values else span.narrowed(among=())
    match one:
        case spark.GreaterThan(_, bound):
            return span.narrowed(low=bound + 1 if kind is int else to_ms(bound))
        case spark.GreaterThanOrEqual(_, bound):
            return span.narrowed(low=bound if kind is int else to_ms(bound))
        case spark.LessThan(_, bound):
            return span.narrowed(high=bound - 1 if kind is int else to_ms(bound, up=True))
        case spark.LessThanOrEqual(_, bound):
            return span.narrowed(high=bound if kind is int else to_ms(bound, up=True))
        case _:
            return span


NOTHING = Position(-1, -1)
"""Before the first entry of a topic."""

Offset = dict[str, str]
"""The texts of an offset, by the topic's full name."""


def position(offset: Mapping[str, str], name: str) -> Position:
    """Return the last position that was read of a topic. Raises InvalidInput."""
    return parsed(offset[name])[0] if name in offset else NOTHING


def parsed(text: str) -> tuple[Position, int | None]:
    """Read the text for a topic: a position, and the time its ledger was created (ms). Raises InvalidInput."""
    at, _, made = text.partition("@")
    if made and not (made.isascii() and made.isdecimal()):
        raise InvalidInput(f"not a position of an offset: {text!r}", hint="write LEDGER:ENTRY or LEDGER:ENTRY@TIME")
    return NOTHING if at == str(NOTHING) else Position.parse(at), int(made) if made else None


def following(at: Position) -> Position | None:
    """Return the next position; None for the oldest entry."""
    return None if at == NOTHING else at.next()
