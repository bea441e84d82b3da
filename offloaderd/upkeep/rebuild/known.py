"""What a rebuild knows of a segment, and what it has to say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from offloaderd.core.model import LedgerEnd, Loss, TopicName
from offloaderd.metadata.committed import CommittedSegment


class Failure(StrEnum):
    """What is wrong with what was found in the bucket."""

    UNREADABLE = "unreadable"
    """A manifest that cannot be read: which entries its segment holds is unknown."""
    INCOMPLETE = "incomplete"
    """A segment with a manifest whose data or index is missing, or not as long as the manifest says."""
    OVERLAP = "overlap"
    """Two segments that hold the same entries."""
    GAP = "gap"
    """Entries between two segments that were certainly there, and are in neither."""
    CONTRADICTION = "contradiction"
    """Manifests that say different things of one ledger."""
    DOUBT = "doubt"
    """Two segments of which nobody can tell whether there was anything between them."""
    FRONT = "front"
    """What lay before the first segment is not in the bucket: deleted by retention, or lost."""
    ORPHAN = "orphan"
    """Objects of a segment that was never finished, or whose manifest is lost."""
    SUPERSEDED = "superseded"
    """Slices of streaming segments that lie in objects of whole ledgers as well."""
    FOREIGN = "foreign"
    """A segment of another cluster."""


BLOCKING = frozenset({Failure.UNREADABLE, Failure.INCOMPLETE, Failure.OVERLAP, Failure.GAP, Failure.CONTRADICTION})
"""With any of these nothing of the topic is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that an operator should know, or has to decide. Without a topic it concerns all of them."""

    kind: Failure
    text: str
    topic: TopicName | None = None
    segments: tuple[UUID, ...] = ()
    what_to_do: str = ""

    @property
    def blocks(self) -> bool:
        """Whether nothing may be written before it is decided."""
        return self.kind in BLOCKING


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a manifest says, without its blocks. `closed` has the entries of those of its ledgers that were closed.

    `replaces` are the segments that it was made of.
    """

    topic: TopicName
    segment: CommittedSegment
    epoch: int
    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    closed: Mapping[int, int] = field(default_factory=dict)
    replaces: frozenset[UUID] = frozenset()
