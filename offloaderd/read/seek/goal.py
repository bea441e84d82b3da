"""Goal, result and cost of a seek."""

from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.format.manifest import BlockInfo, Past
from offloaderd.format.pulsar.entry_time import EntryTime, Survey, time_of
from offloaderd.metadata.committed import CommittedSegment


class Unseekable(InvalidInput):
    """Nothing was found, and many entries have no time or index; the hint names another kind of seek."""


class Answered(StrEnum):
    """The reads of a seek, as metrics name them; each includes those before it."""

    MANIFEST = "manifest"
    """Tables of segments alone, and the buffer."""
    BLOCK = "block"
    """One block, or one entry of the source."""
    SCAN = "scan"
    """Several blocks or entries."""


def key_of(goal: Goal, payload: bytes) -> int | None:
    """Return the time or index of an entry, by the kind of seek."""
    return value_of(goal, time_of(payload))


def value_of(goal: Goal, found: EntryTime) -> int | None:
    """Return an entry's time or index, by the kind of seek."""
    return found.time_ms if goal.kind is SeekKind.TIME else found.message_index


def greatest_of(goal: Goal, survey: Survey) -> int | None:
    """Return the greatest value of a survey."""
    return survey.time_max if goal.kind is SeekKind.TIME else survey.index_max


def greatest_before(goal: Goal, past: Past) -> int | None:
    """Return the greatest known value before a segment."""
    return past.time_max if goal.kind is SeekKind.TIME else past.index_max


def first_of(goal: Goal, block: BlockInfo) -> int | None:
    """Return the value of a block's first entry in the manifest."""
    return block.first_time if goal.kind is SeekKind.TIME else block.first_index


@dataclass(slots=True)
class Cost:
    """The reads of a seek: ranges of data objects and their bytes, tables that were not cached, reads of the source."""

    gets: int = 0
    get_bytes: int = 0
    blocks: int = 0
    tables: int = 0
    source_reads: int = 0
    source_bytes: int = 0
    at: CommittedSegment | None = None
    """The segment that was read last; None for the source."""
    skipped: Position | None = None
    """Where entries without a time or index were skipped."""

    @property
    def answered(self) -> Answered:
        """The outcome, for metrics."""
        reads = self.blocks + self.source_reads
        return Answered.MANIFEST if not reads else Answered.BLOCK if reads == 1 else Answered.SCAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A found entry. `sequence` is None if not counted."""

    position: Position
    time: EntryTime
    tier: Tier
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """The answer to a seek: the entry, or None when there is none yet.

    Then `behind` is the position of the next entry, behind the newest one, like a cursor of Pulsar; None for a topic
    without entries.
    """

    hit: Hit | None
    behind: Position | None
    cost: Cost

    @property
    def begin(self) -> Position | None:
        """The position to read from: the entry, or the next one."""
        return self.hit.position if self.hit is not None else self.behind
