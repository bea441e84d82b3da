"""Rules and findings of a garbage collection: one finding for each object or upload without a reference, or missing."""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from offloaderd.core.model import TopicName
from offloaderd.ledgers.port import LedgerSource
from offloaderd.upkeep.stored import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one collection. `now_ms` is the store's time; `also` names segments to delete despite an alarm.

    Segments that have left a topic stay for `reader_grace_s` too, if that is longer than the grace age. Entries that
    are not offloaded yet can be read again from `source`.
    """

    sites: Sequence[Site]
    grace_s: float
    apply: bool
    now_ms: int
    also: AbstractSet[UUID] = frozenset()
    source: LedgerSource | None = None
    reader_grace_s: float = 0.0

    def age_s(self, stored_ms: int) -> float:
        """Return the age of something by the store's clock."""
        return max(0, self.now_ms - stored_ms) / 1000


class Kind(StrEnum):
    """Kinds of findings."""

    LEFTOVER = "leftover"
    """Part of a segment that was never finished."""
    SUPERSEDED = "superseded"
    """A finished segment in no map, all of whose entries are in other segments, or were deleted since."""
    NAMED = "named"
    """An alarm that an operator has named to be deleted."""
    UPLOAD = "upload"
    """An upload that was neither completed nor aborted."""
    TRASH = "trash"
    """Its deletion was decided long ago, and no daemon owns the topic."""
    YOUNG = "young"
    """Not older than the grace age: a commit of it may be on its way."""
    FOREIGN = "foreign"
    """Of another cluster, or not written by offloaderd."""
    REFUSED = "refused"
    """Of a topic whose metadata, bucket or source may be of another history, so nothing of it is deleted."""
    CHANGED = "changed"
    """Referred to, stored again or deleted when its deletion began."""
    UNCOVERED = "uncovered"
    """A finished segment in no map, with entries that no other segment has."""
    UNKNOWN_TOPIC = "unknown_topic"
    """A finished segment of a topic that the metadata does not have; or any segment, if the metadata has no topic at
    all."""
    UNREADABLE = "unreadable"
    """A segment with all its objects and a manifest that cannot be read."""
    MISSING = "missing"
    """An object of a committed segment that is not in the bucket."""
    WRONG_SIZE = "wrong_size"
    """A data object of a committed segment whose length is not the recorded one."""


GARBAGE = frozenset({Kind.LEFTOVER, Kind.SUPERSEDED, Kind.NAMED, Kind.UPLOAD, Kind.TRASH})
"""Kinds that are deleted; no other kind ever is."""
ALARMS = frozenset({Kind.UNCOVERED, Kind.UNKNOWN_TOPIC, Kind.UNREADABLE, Kind.MISSING, Kind.WRONG_SIZE})
"""Kinds that an operator has to inspect."""


class Verdict(StrEnum):
    """Outcomes of a finding."""

    DELETE = "delete"
    """It would be deleted, but this was a dry run."""
    DELETED = "deleted"
    FAILED = "failed"
    """Its deletion failed; the next collection tries again."""
    KEEP = "keep"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One object or upload with its kind and the reason for it. `upload_id` is empty for an object."""

    key: str
    kind: Kind
    verdict: Verdict
    reason: str
    size_bytes: int = 0
    age_s: float = 0.0
    upload_id: str = ""
    topic: TopicName | None = None


@dataclass(slots=True)
class Summary:
    """Totals of one collection."""

    applied: bool
    grace_s: float
    topics: int = 0
    segments: int = 0
    objects: int = 0
    object_bytes: int = 0
    others: int = 0
    elsewhere: int = 0
    """Committed segments in another bucket or under another prefix, which were not listed."""
    seconds: float = 0.0
    finds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    rubbish_bytes: int = 0
    deleted_bytes: int = 0

    def count(self, find: Finding) -> None:
        """Add a finding to the totals."""
        self.finds[find.kind.value] += 1
        self.verdicts[find.verdict.value] += 1
        if find.kind in GARBAGE:
            self.rubbish_bytes += find.size_bytes
        if find.verdict is Verdict.DELETED:
            self.deleted_bytes += find.size_bytes

    @property
    def alarms(self) -> int:
        """Number of findings that an operator has to inspect."""
        return self.verdicts[Verdict.ALARM]
