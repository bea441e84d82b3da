"""What a seek looks for, what it finds, and what that cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from offloaderd.core.errors import InvalidInput
from offloaderd.format.pulsar.entry_time import EntryTime, time_of

if TYPE_CHECKING:
    from offloaderd.core.model import Position
    from offloaderd.format.pulsar.entry_time import Survey
    from offloaderd.format.values import BlockInfo, Past
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.read.plan import Tier

DISORDER_MS = 2_000
"""Where no manifest says between which times entries lie, no entry may be written this long, or longer, before another
one that has an earlier time: several times what clocks that are kept right differ by."""

GOAL_MAX = 2**64 - 1


class Unseekable(InvalidInput):
    """Nothing was found, and many entries have no time or index to go by; the hint says what to do."""


class SeekKind(StrEnum):
    """What entries are looked for by."""

    TIME = "time"
    """Milliseconds since 1970, see `format.entry_time`."""
    INDEX = "index"
    """Number of a message in the topic (PIP-70)."""
    SEQUENCE = "sequence"
    """Number of an entry in the topic (FORMAT.md, 4.4)."""


class Answered(StrEnum):
    """What it took to answer, as metrics name it; each includes those before it."""

    MANIFEST = "manifest"
    """Tables of segments alone, and the buffer."""
    BLOCK = "block"
    """One block, or one entry of the source."""
    SCAN = "scan"
    """Several blocks or entries."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The first entry, in the order of the log, whose time, message index or sequence number is at least `value`.

    An entry's message index is that of its last message, so the entry with message `value` is found.
    """

    kind: SeekKind
    value: int

    def checked(self) -> Goal:
        """Return itself if the number can be one; raises InvalidInput."""
        if not 0 <= self.value <= GOAL_MAX:
            raise InvalidInput(f"cannot seek {self.kind} {self.value}", hint="numbers are 0 to 2^64-1")
        return self

    @property
    def surely_before(self) -> int:
        """Behind an entry that is less than this, in what is not surveyed, and before it, nothing is the answer."""
        return self.value - DISORDER_MS if self.kind is SeekKind.TIME else self.value

    def key_of(self, payload: bytes) -> int | None:
        """Return an entry's time or index."""
        return self.of(time_of(payload))

    def of(self, found: EntryTime) -> int | None:
        """Return what counts of an entry's time and index."""
        return found.time_ms if self.kind is SeekKind.TIME else found.message_index

    def greatest(self, survey: Survey) -> int | None:
        """Return the greatest of many entries."""
        return survey.time_max if self.kind is SeekKind.TIME else survey.index_max

    def past(self, past: Past) -> int | None:
        """Return the greatest of all entries before a segment that are known."""
        return past.time_max if self.kind is SeekKind.TIME else past.index_max

    def first(self, block: BlockInfo) -> int | None:
        """Return that of a block's first entry, as far as the manifest says."""
        return block.first_time if self.kind is SeekKind.TIME else block.first_index


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
