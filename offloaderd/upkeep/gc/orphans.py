"""Whether what nobody refers to may go: whose it is, and whether it holds anything that is nowhere else.

A finished segment is deleted only if the map of its topic has all of its entries in other segments, or its topic's
retention has deleted them. So a map that was lost, wiped or brought back from an old backup never makes the collector
delete the last copy of an entry: it raises an alarm, and a rebuild puts the segment back.
"""

from collections.abc import Collection
from functools import partial
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import TopicName
from offloaderd.format.manifest import document as manifest
from offloaderd.format.values import SegmentManifest
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.last_copy import first_uncovered, same_content
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import ObjectInfo, ObjectReader
from offloaderd.objects.whole import read_apart
from offloaderd.upkeep.gc.findings import Kind
from offloaderd.upkeep.gc.references import References
from offloaderd.upkeep.stored import StoredSegment

WRITER = "offloaderd-"
"""How the software's version in the user metadata of our objects begins."""


class Judgement(NamedTuple):
    """What a segment is to the collector, and why."""

    kind: Kind
    reason: str
    topic: TopicName | None = None


class OrphanClassifier:
    """Judges segments that nobody refers to, as of one look at the metadata.

    `broken` are committed segments whose own objects are not as they should be, or lie where nobody has looked: they
    count as holding nothing.
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
        """Whether the metadata knows any topic. It does before the first byte is stored, so no age excuses that."""
        return bool(self._references.topics)

    async def classifier(self, stored: StoredSegment) -> Judgement:
        """Say what a segment with objects is. Raises NotFound when it has vanished."""
        store = self._objects.at(stored.bucket)
        for info in stored.objects.values():
            whose = foreign(await store.head(info.key), self._cluster, self._deployment_id)
            if whose:
                return Judgement(Kind.FOREIGN, whose)
        if not self._references.topics:
            return Judgement(
                Kind.UNKNOWN_TOPIC, "the metadata knows no topic at all; if it was lost, run offloaderd rebuild"
            )
        if ObjectKind.DATA not in stored.objects or stored.described_by is None:
            return Judgement(Kind.LEFTOVER, f"nobody refers to it, and it was never finished: {_lacks(stored)}")
        return await self._judge_readable(stored, stored.described_by)

    async def _judge_readable(self, stored: StoredSegment, info: ObjectInfo) -> Judgement:
        store, data = self._objects.at(stored.bucket), stored.objects[ObjectKind.DATA]
        try:
            decode = partial(manifest.decode, key=info.key, data_bytes=data.size_bytes)
            described = await read_apart(decode, lambda length: store.get(info.key, 0, length))
        except CorruptData as error:
            return Judgement(Kind.UNREADABLE, f"all its objects are there, and its manifest cannot be read: {error}")
        topic = TopicName.from_managed_ledger(described.managed_ledger)
        if described.segment_id != stored.segment_id or described.cluster != self._cluster:
            reason = f"its manifest is that of segment {described.segment_id} of cluster {described.cluster}"
            return Judgement(Kind.UNREADABLE, reason)
        if stored.objects[ObjectKind.DATA].size_bytes != described.data_bytes:
            return Judgement(Kind.LEFTOVER, "nobody refers to it, and its data is not as long as its manifest says")
        if topic not in self._references.topics:
            return Judgement(
                Kind.UNKNOWN_TOPIC, f"the metadata knows nothing of {topic}; if it was lost, run offloaderd rebuild"
            )
        if refused := await deletion_refused(self._metadata, topic):
            return Judgement(Kind.REFUSED, refused, topic)
        if topic not in self._maps:
            self._maps[topic] = await catalog.load(self._metadata, topic)
        hole = first_uncovered(described, self._maps[topic], self._broken)
        if hole is not None:
            reason = f"it is in no map and holds {hole}, which no other segment holds"
            return Judgement(Kind.UNCOVERED, reason, topic)
        other = await self._contradicts(described, self._maps[topic])
        if other is not None:
            reason = f"it is in no map, and segment {other} holds other entries under the same numbers"
            return Judgement(Kind.UNCOVERED, reason, topic)
        return Judgement(Kind.SUPERSEDED, "nobody refers to it; all of its entries are stored elsewhere", topic)

    async def _contradicts(self, described: SegmentManifest, topic_map: TopicMap) -> UUID | None:
        """Return a segment of the map that holds other entries than one with the same numbers, None for none.

        Numbers that were given twice, or by another cluster, say nothing of what is stored elsewhere.
        """
        for holder in topic_map.segments:
            apart = described.range.end < holder.begin or holder.end < described.range.begin
            if apart or holder.foreign:
                continue
            get = partial(self._objects.at(holder.bucket).get, holder.keys.manifest, 0)
            decode = partial(manifest.decode, key=holder.keys.manifest, data_bytes=holder.object_bytes)
            theirs = await read_apart(decode, get)
            if not same_content(described, theirs):
                return holder.segment_id
        return None


def foreign(info: ObjectInfo, cluster: str, deployment_id: str = "") -> str:
    """Say whose an object is, by its user metadata; empty if it is ours.

    Objects of versions that had no deployment say none: they are ours if they are of our cluster.
    """
    theirs = info.metadata.get(keys.CLUSTER_KEY)
    if theirs != cluster:
        return f"of cluster {theirs!r}" if theirs else "it does not say which cluster it is of"
    other = info.metadata.get(keys.DEPLOYMENT_KEY, "")
    if deployment_id and other and other != deployment_id:
        return f"of deployment {other} of a cluster of the same name"
    software = info.metadata.get(keys.SOFTWARE_VERSION_KEY, "")
    return "" if software.startswith(WRITER) else f"written by {software or 'an unknown program'!r}"


def _lacks(stored: StoredSegment) -> str:
    missing = [kind.value for kind in (ObjectKind.DATA, ObjectKind.INDEX, ObjectKind.MANIFEST)]
    return f"no {' and no '.join(kind for kind in missing if kind not in stored.objects)}"
