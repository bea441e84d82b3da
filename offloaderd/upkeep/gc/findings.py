"""Findings of a garbage collection: their kinds, and the classification of segments without a reference.

A finding is one object or upload without a reference, or missing. A finished segment is deleted only if the topic's map
has all of its entries in other segments, or retention has deleted them. So a map that was lost, wiped or restored from
an old backup never makes the collector delete the last copy of an entry. It raises an alarm, and a rebuild puts the
segment back.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import TopicName
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import SegmentManifest
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.copy import REMOVAL_S, CopyAttempt
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.last_copy import first_uncovered, same_content
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import ObjectInfo, ObjectReader
from offloaderd.objects.whole import read_apart
from offloaderd.upkeep.gc.references import References
from offloaderd.upkeep.stored import KINDS, Site, StoredSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one collection. `now_ms` is the first store's time, `clocks` has that of each bucket.

    `also` names segments to delete despite an alarm.

    Segments that have left a topic stay for `reader_grace_s` too, if that is longer than the grace age. Entries that
    are not offloaded yet can be read again from `source`.
    """

    sites: Sequence[Site]
    grace_s: float
    apply: bool
    now_ms: int
    clocks: Mapping[str, int] = field(default_factory=dict)
    also: AbstractSet[UUID] = frozenset()
    source: LedgerSource | None = None
    reader_grace_s: float = 0.0

    def age_s(self, stored_ms: int, bucket: str | None = None) -> float:
        """Return the age of something by the clock of the store that has it, by default of the first one."""
        now_ms = self.now_ms if bucket is None else self.clocks.get(bucket, self.now_ms)
        return max(0, now_ms - stored_ms) / 1000

    def broke_off(self, removal: CopyAttempt) -> bool:
        """Whether the removal of a copy began so long ago that whoever did it has died."""
        return self.age_s(removal.begun_ms) >= max(self.grace_s, REMOVAL_S)


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


WRITER = "offloaderd-"
"""Prefix of the software version in the user metadata of our objects."""


class Classification(NamedTuple):
    """Kind of a segment for the collector, and the reason for it."""

    kind: Kind
    reason: str
    topic: TopicName | None = None


class OrphanClassifier:
    """Classifies segments without a reference, by references that were read once.

    `broken` are committed segments whose objects are damaged or in places that were not listed: they count as empty.
    """

    def __init__(
        self,
        objects: ObjectReader,
        metadata: MetadataStore,
        references: References,
        *,
        cluster: str,
        deployment_id: str,
        broken: Collection[UUID],
    ) -> None:
        self._objects = objects
        self._metadata = metadata
        self._references = references
        self._cluster = cluster
        self._deployment_id = deployment_id
        self._broken = broken
        self._maps: dict[TopicName, TopicMap] = {}

    @property
    def knows_topics(self) -> bool:
        """Whether the metadata has any topic: it has one before the first byte, so no age excuses its absence."""
        return bool(self._references.topics)

    async def classify(self, stored: StoredSegment) -> Classification:
        """Classify a segment with objects. Raises NotFound when an object has vanished."""
        store = self._objects.at(stored.bucket)
        for info in stored.objects.values():
            whose = foreign(await store.head(info.key), self._cluster, self._deployment_id)
            if whose:
                return Classification(Kind.FOREIGN, whose)
        if not self._references.topics:
            return Classification(
                Kind.UNKNOWN_TOPIC, "the metadata knows no topic at all; if it was lost, run offloaderd rebuild"
            )
        if ObjectKind.DATA not in stored.objects or stored.described_by is None:
            lacks = " and no ".join(kind.value for kind in KINDS if kind not in stored.objects)
            return Classification(Kind.LEFTOVER, f"nobody refers to it, and it was never finished: no {lacks}")
        return await self._classify_readable(stored, stored.described_by)

    async def _classify_readable(self, stored: StoredSegment, info: ObjectInfo) -> Classification:
        store, data = self._objects.at(stored.bucket), stored.objects[ObjectKind.DATA]
        try:
            decode = partial(manifest_bytes.decode, key=info.key, data_bytes=data.size_bytes)
            described = await read_apart(decode, lambda length: store.get(info.key, 0, length))
        except CorruptData as error:
            return Classification(
                Kind.UNREADABLE, f"all its objects are there, and its manifest cannot be read: {error}"
            )
        topic = TopicName.from_managed_ledger(described.managed_ledger)
        if described.segment_id != stored.segment_id or described.cluster != self._cluster:
            reason = f"its manifest is that of segment {described.segment_id} of cluster {described.cluster}"
            return Classification(Kind.UNREADABLE, reason)
        if stored.objects[ObjectKind.DATA].size_bytes != described.data_bytes:
            return Classification(
                Kind.LEFTOVER, "nobody refers to it, and its data is not as long as its manifest says"
            )
        if topic not in self._references.topics:
            return Classification(
                Kind.UNKNOWN_TOPIC, f"the metadata knows nothing of {topic}; if it was lost, run offloaderd rebuild"
            )
        if refused := await deletion_refused(self._metadata, topic):
            return Classification(Kind.REFUSED, refused, topic)
        if topic not in self._maps:
            self._maps[topic] = await catalog.load(self._metadata, topic)
        hole = first_uncovered(described, self._maps[topic], self._broken)
        if hole is not None:
            reason = f"it is in no map and holds {hole}, which no other segment holds"
            return Classification(Kind.UNCOVERED, reason, topic)
        other = await self._contradicts(described, self._maps[topic])
        if other is not None:
            reason = f"it is in no map, and segment {other} holds other entries under the same numbers"
            return Classification(Kind.UNCOVERED, reason, topic)
        return Classification(Kind.SUPERSEDED, "nobody refers to it; all of its entries are stored elsewhere", topic)

    async def _contradicts(self, described: SegmentManifest, topic_map: TopicMap) -> UUID | None:
        """Return a segment of the map with other entries than this one under the same numbers, None if there is none.

        Numbers that were given twice, or by another cluster, prove nothing about stored copies.
        """
        for holder in topic_map.segments:
            apart = described.range.end < holder.begin or holder.end < described.range.begin
            if apart or holder.foreign:
                continue
            get = partial(self._objects.at(holder.bucket).get, holder.keys.manifest, 0)
            decode = partial(manifest_bytes.decode, key=holder.keys.manifest, data_bytes=holder.object_bytes)
            theirs = await read_apart(decode, get)
            if not same_content(described, theirs):
                return holder.segment_id
        return None


def foreign(info: ObjectInfo, cluster: str, deployment_id: str = "") -> str:
    """Return to whom an object belongs by its user metadata, empty if it is ours.

    Objects of versions without deployments name none: they are ours if the cluster is.
    """
    theirs = info.metadata.get(keys.CLUSTER_KEY)
    if theirs != cluster:
        return f"of cluster {theirs!r}" if theirs else "it does not say which cluster it is of"
    other = info.metadata.get(keys.DEPLOYMENT_KEY, "")
    if deployment_id and other and other != deployment_id:
        return f"of deployment {other} of a cluster of the same name"
    software = info.metadata.get(keys.SOFTWARE_VERSION_KEY, "")
    return "" if software.startswith(WRITER) else f"written by {software or 'an unknown program'!r}"
