"""The description that a task gets of its share and its stores; nothing here takes long to import."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Transactions
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice, Sliced
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.spark.value_schema import Schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from offloaderd.client import Trust
    from offloaderd.daemon.settings import Settings


class Condition(StrEnum):
    """Why entries or values of a query cannot be given; a query ends by the first, unless it skips that condition."""

    LOSSES = "losses"
    """Recorded losses: deleted before they were offloaded, or maybe so."""
    RETENTION = "retention"
    """They were offloaded and deleted again."""
    DAMAGE = "damage"
    """They are missing or damaged in the bucket."""
    MALFORMED = "malformed"
    """A message's value does not fit the schema."""
    UNFINISHED = "unfinished"
    """They are still to come: history that is being offloaded, a transaction whose outcome is unknown."""


EVERYTHING = frozenset(Condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Entries that no segment has, after one position and before another (None: the end is unknown).

    `entries` is their number, None if that is unknown. `awaited`: a range without a begin begins before the hole.
    A query skips the hole by `condition`.
    """

    after: Position
    before: Position | None
    reason: str
    entries: int | None = None
    awaited: bool = False
    condition: Condition = Condition.LOSSES


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSegment(Sliced):
    """Entries that no segment had at the planning: a daemon reads them, from wherever they are by then.

    `slices` are all of them, as the daemon knew them at the planning; their `payload_bytes`, and `object_bytes`, are
    estimates.
    """

    slices: tuple[LedgerSlice, ...]
    object_bytes: int


Segment = CommittedSegment | LiveSegment


@dataclass(frozen=True, slots=True)
class Piece:
    """The entries of a segment from `first` to `last`, both inclusive and both in it: about `object_bytes` of it.

    A task reads these positions from the segment, which had them at the planning, or from the one that has them by
    then. `before` are earlier segments, which may have the first chunks of a message, `after` later ones, which may
    have the outcome of a transaction; `reaches_end`: there is none behind them. `gap`: the first position behind
    history that is not offloaded yet, if that precedes the segments `before`.
    """

    topic: TopicName
    segment: Segment
    first: Position
    last: Position
    object_bytes: int
    before: tuple[Segment, ...] = ()
    after: tuple[Segment, ...] = ()
    reaches_end: bool = False
    gap: Position | None = None

    def cut(self, object_bytes: int) -> tuple[Piece, Piece | None]:
        """Return about so many bytes of it, at least one entry, and the rest, None for none."""
        parts = parts_of(self.segment, self.first, self.last)
        entries = sum(one.entries for one in parts)
        taken = max(1, entries * object_bytes // max(1, self.object_bytes))
        if taken >= entries:
            return self, None
        size = self.object_bytes * taken // entries
        head = replace(self, last=_entry(parts, taken - 1), object_bytes=size)
        return head, replace(self, first=_entry(parts, taken), object_bytes=self.object_bytes - size)


class Part(NamedTuple):
    """Entries of one ledger, from the first to the last, both inclusive."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last_entry_id - self.first_entry_id + 1

    def __str__(self) -> str:
        """Return it as error texts have it."""
        return f"{self.ledger_id}:{self.first_entry_id}..{self.ledger_id}:{self.last_entry_id}"


def parts_of(segment: Segment, first: Position | None, last: Position | None) -> list[Part]:
    """Return a segment's entries from one position to another, both inclusive, by ledger; None for no bound."""
    found = []
    for one in segment.slices:
        low, high = clipped(one.ledger_id, one.first_entry_id, one.last_entry_id, first, last)
        if low <= high:
            found.append(Part(one.ledger_id, low, high))
    return found


def clipped(ledger_id: int, low: int, high: int, first: Position | None, last: Position | None) -> tuple[int, int]:
    """Return the entry ids of low..high of a ledger that are between two positions, reversed for none."""
    if first is not None and ledger_id <= first.ledger_id:
        low = max(low, first.entry_id) if ledger_id == first.ledger_id else high + 1
    if last is not None and ledger_id >= last.ledger_id:
        high = min(high, last.entry_id) if ledger_id == last.ledger_id else low - 1
    return low, high


def _entry(parts: Iterable[Part], number: int) -> Position:
    """Return the position of the entry with a number, counted from 0 over all parts."""
    for one in parts:
        if number < one.entries:
            return Position(one.ledger_id, one.first_entry_id + number)
        number -= one.entries
    raise IndexError(number)


@dataclass(frozen=True, slots=True)
class Missing:
    """A hole of a topic that a query skips, and that gets a row of its own."""

    topic: TopicName
    hole: Hole


Share = tuple[Piece | Missing, ...]


class Daemon(NamedTuple):
    """The daemon that has what is not committed: `host:port` of one or several, and the credentials."""

    addresses: tuple[str, ...]
    trust: Trust


class Metadata(StrEnum):
    """Where a query reads the map of committed segments."""

    ZOOKEEPER = "zookeeper"
    BUCKET = "bucket"
    """From every manifest in the bucket, without ZooKeeper."""


def packed(settings: Settings, metadata: Metadata) -> bytes:
    """Return the settings that a task needs to read the map, in a form that costs nothing until it is unpacked."""
    needed = type(settings)(daemon=settings.daemon, metadata=settings.metadata, objects=settings.objects)
    return pickle.dumps((needed, metadata))


def unpacked(origin: bytes) -> tuple[Settings, Metadata]:
    """Return the settings in `packed`."""
    found: tuple[Settings, Metadata] = pickle.loads(origin)  # noqa: S301 - made by the driver of this query
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How to read shares: the bucket or directory, and the rows to make.

    `skip`: the conditions that do not end the query. `step`: entries that are skipped now are not read later.
    `origin`: packed settings, by which a task finds the entries of a segment that was deleted. `daemon`: a pickled
    Daemon, which costs nothing until it is needed; empty for none.
    """

    objects: ObjectsSettings
    schema: StructType
    messages: bool
    skip: frozenset[Condition] = frozenset()
    values: Schema | None = None
    transactions: Transactions = Transactions.COMMITTED
    step: bool = False
    origin: bytes = field(default=b"", repr=False)
    daemon: bytes = field(default=b"", repr=False)


class Unread(OffloaderError):
    """Entries of a query cannot be given, and it does not skip them; the message begins with the condition."""

    def __init__(self, condition: Condition, message: str, *, hint: str) -> None:
        super().__init__(f"[OFFLOAD_{condition.upper()}] {message}", hint=hint)
        self.condition = condition


class BrokenSegment(Unread):
    """Entries of a segment cannot be read; the message names it, its object and its entries."""


def broken(
    topic: TopicName,
    segment: Segment,
    where: object,
    error: OffloaderError,
    condition: Condition = Condition.DAMAGE,
) -> BrokenSegment:
    """Return the error for entries of a segment that cannot be read."""
    what, shown = f"the live end of {topic}", error.hint
    if isinstance(segment, CommittedSegment):
        what = f"segment {segment.segment_id} of {topic}"
        shown = "`offloaderd verify` shows all that is damaged" if condition is Condition.DAMAGE else error.hint
    return BrokenSegment(
        condition,
        f"{what}, entries {where}, cannot be read: {error.message}",
        hint="; ".join(filter(None, (f"skip={condition} leaves them out and counts them", shown))),
    )
