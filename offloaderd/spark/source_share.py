"""What a task is given: plain descriptions of what to read and where, and nothing that takes long to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.errors import NotFound, OffloaderError
from offloaderd.format.transactions import Transactions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.model import Position, TopicName
    from offloaderd.objects.s3 import S3Options
    from offloaderd.spark.value_schema import ValueSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Entries that no segment has, after one position and before another (None: no end is known).

    `entries` is how many are known to have been there, None when nobody knows. `awaited`: they are still to come.
    """

    after: Position
    before: Position | None
    reason: str
    entries: int | None = None
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """The blocks of a segment that begin at `first_byte` or behind, and before `end_byte`. `leads`: it is the first.

    Of their entries those from `first` to `last`, both inclusive; None for no bound. `before` are segments in front of
    this one, in which the first chunks of a message may lie, `after` those behind it, in which the outcome of a
    transaction may lie; `reaches_end`: behind them there is no other.
    """

    topic: TopicName
    segment: CommittedSegment
    first_byte: int
    end_byte: int
    leads: bool
    first: Position | None = None
    last: Position | None = None
    before: tuple[CommittedSegment, ...] = ()
    after: tuple[CommittedSegment, ...] = ()
    reaches_end: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """A hole of a topic that a query passes over, told in a row of its own."""

    topic: TopicName
    hole: Hole


Share = tuple[Piece | Missing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How to read shares: the bucket, or the directory of a filesystem store, and what the rows are to be.

    `step`: what is left out now, nobody comes back for.
    """

    place: S3Options | str
    schema: StructType
    messages: bool
    skips: bool
    values: ValueSchema | None = None
    transactions: Transactions = Transactions.COMMITTED
    step: bool = False


class BrokenSegment(OffloaderError):
    """A segment of the query is damaged or gone; the message names it, its object and its entries."""


def broken(topic: TopicName, segment: CommittedSegment, where: str, error: OffloaderError) -> BrokenSegment:
    """Return the error for entries of a segment that cannot be read."""
    gone = "if it was deleted or rewritten meanwhile, run the query again; " if isinstance(error, NotFound) else ""
    return BrokenSegment(
        f"segment {segment.segment_id} of {topic}, entries {where}, cannot be read: {error.message}",
        hint=f"{gone}mode=skip leaves it out and counts it, `offloaderd verify` shows all that is damaged",
    )
