"""What a seek looks for, what it finds, and what that cost."""

from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.format.pulsar.entry_time import EntryTime, Survey, time_of
from offloaderd.format.values import BlockInfo, Past
from offloaderd.metadata.committed import CommittedSegment


class Unseekable(InvalidInput):
    """Nothing was found, and many entries have no time or index to go by; the hint says what to do."""


class Answered(StrEnum):
    """What it took to answer, as metrics name it; each includes those before it."""

    MANIFEST = "manifest"
    """Tables of segments alone, and the buffer."""
    BLOCK = "block"
    """One block, or one entry of the source."""
    SCAN = "scan"
    """Several blocks or entries."""


def key_of(goal: Goal, payload: bytes) -> int | None:
    """Return the time or index of an entry that a seek goes by."""
    return value_of(goal, time_of(payload))


def value_of(goal: Goal, found: EntryTime) -> int | None:
    """Return what counts of an entry's time and index."""
    return found.time_ms if goal.kind is SeekKind.TIME else found.message_index


def greatest_of(goal: Goal, survey: Survey) -> int | None:
    """Return the greatest of many entries."""
    return survey.time_max if goal.kind is SeekKind.TIME else survey.index_max


def greatest_before(goal: Goal, past: Past) -> int | None:
    """Return the greatest of all entries before a segment that are known."""
    return past.time_max if goal.kind is SeekKind.TIME else past.index_max


def first_of(goal: Goal, block: BlockInfo) -> int | None:
    """Return that of a block's first entry, as far as the manifest says."""
    return block.first_time if goal.kind is SeekKind.TIME else block.first_index


@dataclass(slots=True)
class Cost:
    """What a seek took: data objects' ranges and their bytes, tables that were not cached, entries of the source."""

    gets: int = 0
    get_bytes: int = 0
    blocks: int = 0
    tables: int = 0
    source_reads: int = 0
    source_bytes: int = 0
    at: CommittedSegment | None = None
    """The segment that was asked last; None when it was the source."""
    skipped: Position | None = None
    """Where it was given up to look into each of entries that have no time or index."""

    @property
    def answered(self) -> Answered:
        """In one word."""
        looks = self.blocks + self.source_reads
        return Answered.MANIFEST if not looks else Answered.BLOCK if looks == 1 else Answered.SCAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """An entry that was found. `sequence` is None when nobody counted."""

    position: Position
    time: EntryTime
    tier: Tier
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """The answer to a seek: the entry, or None when nothing is there yet.

    Then `behind` is where the next entry may come: behind the newest one, as Pulsar leaves a cursor; None for a topic
    that has none at all.
    """

    hit: Hit | None
    behind: Position | None
    cost: Cost

    @property
    def begin(self) -> Position | None:
        """Where to read on from: the entry, or what may come."""
        return self.hit.position if self.hit is not None else self.behind
