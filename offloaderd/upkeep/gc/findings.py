"""How a collection goes, and its finds: one for each object or upload that nobody refers to, or that is missing."""

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
    """How one collection goes; `now_ms` is the service's time, `also` what goes though it would raise an alarm.

    What has left a topic stays for its readers for `reader_grace_s` as well, if that is longer than the grace age.
    `source` is where entries can be read that are not offloaded yet.
    """

    sites: Sequence[Site]
    grace_s: float
    apply: bool
    now_ms: int
    also: AbstractSet[UUID] = frozenset()
    source: LedgerSource | None = None
    reader_grace_s: float = 0.0

    def age_s(self, stored_ms: int) -> float:
        """Return how old something is by the store's clock."""
        return max(0, self.now_ms - stored_ms) / 1000


class Kind(StrEnum):
    """What was found."""

    LEFTOVER = "leftover"
    """Part of a segment that was never finished."""
    SUPERSEDED = "superseded"
    """A finished segment that is in no map, all of whose entries are in other segments, or were deleted since."""
    NAMED = "named"
    """What would be an alarm, and somebody has named to be deleted."""
    UPLOAD = "upload"
    """An upload that was neither completed nor aborted."""
    TRASH = "trash"
    """Deletion was decided long ago, and nobody works on the topic who would carry it out."""
    YOUNG = "young"
    """Not older than the grace age: it may be on its way."""
    FOREIGN = "foreign"
    """Of another cluster, or not written by offloaderd."""
    REFUSED = "refused"
    """Of a topic whose metadata, bucket or source may be of another history: nothing of it is deleted."""
    CHANGED = "changed"
    """Referred to, stored again or gone by the time of its deletion."""
    UNCOVERED = "uncovered"
    """A finished segment that is in no map and holds entries that no other segment holds."""
    UNKNOWN_TOPIC = "unknown_topic"
    """A finished segment of a topic of which the metadata knows nothing; or anything, if it knows no topic at all."""
    UNREADABLE = "unreadable"
    """A segment with all its objects and a manifest that cannot be read."""
    MISSING = "missing"
    """An object of a committed segment that is not in the bucket."""
    WRONG_SIZE = "wrong_size"
    """A data object of a committed segment whose length is not the recorded one."""


RUBBISH = frozenset({Kind.LEFTOVER, Kind.SUPERSEDED, Kind.NAMED, Kind.UPLOAD, Kind.TRASH})
"""What is deleted; nothing else ever is."""
ALARMS = frozenset({Kind.UNCOVERED, Kind.UNKNOWN_TOPIC, Kind.UNREADABLE, Kind.MISSING, Kind.WRONG_SIZE})
"""What an operator has to look at."""


class Verdict(StrEnum):
    """What became of a find."""

    DELETE = "delete"
    """It would be deleted: this was a dry run."""
    DELETED = "deleted"
    FAILED = "failed"
    """Its deletion failed; the next collection tries again."""
    KEEP = "keep"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """One object or upload, and why it is judged so. `upload_id` is empty for an object."""

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
    """The sum of one collection."""

    applied: bool
    grace_s: float
    topics: int = 0
    segments: int = 0
    objects: int = 0
    object_bytes: int = 0
    others: int = 0
    elsewhere: int = 0
    """Committed segments in another bucket or under another prefix, which were not looked at."""
    seconds: float = 0.0
    finds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    rubbish_bytes: int = 0
    deleted_bytes: int = 0

    def count(self, find: Find) -> None:
        """Take a find in."""
        self.finds[find.kind.value] += 1
        self.verdicts[find.verdict.value] += 1
        if find.kind in RUBBISH:
            self.rubbish_bytes += find.size_bytes
        if find.verdict is Verdict.DELETED:
            self.deleted_bytes += find.size_bytes

    @property
    def alarms(self) -> int:
        """How many finds an operator has to look at."""
        return self.verdicts[Verdict.ALARM]
