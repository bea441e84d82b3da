"""A small site: a bucket and metadata in memory, and segments put there by hand, step by step as the daemon does it."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from offloaderd.core.errors import Conflict
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, TopicName
from offloaderd.format import manifest_bytes
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, Delete
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.deletion import Trash
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.testing import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding, Summary
from offloaderd.upkeep.stored import Site
from tests.unit.format import builders
from tests.unit.format.builders import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.model import LedgerEnd, Loss
    from offloaderd.format.manifest import SegmentManifest
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import SegmentStore

TOPIC = TopicName.parse("public/default/flights")
CLUSTER, BUCKET, PREFIX = "standalone", "b", "seg/"
OURS = keys.segment_metadata(CLUSTER)
"""What objects of this cluster are labelled with."""
GRACE_S = 86_400.0
DAY_S = 86_400.0


def segment_id(number: int) -> UUID:
    """Return an id that is easy to recognise."""
    return UUID(int=number)


def runs(ledger_id: int, first: int, count: int) -> list[Run]:
    """Return the entries of one block."""
    return [Run(ledger_id, first, [f"{ledger_id}:{entry}".encode() for entry in range(first, first + count)])]


@dataclass
class Ground:
    """Bucket and metadata, each with a clock of its own: the store's time is not ours."""

    clock: FakeClock = field(default_factory=FakeClock)
    store_clock: FakeClock = field(default_factory=FakeClock)
    tree: MemoryTree = field(default_factory=MemoryTree)

    def __post_init__(self) -> None:
        """Make the stores."""
        self.memory = MemoryStore(self.store_clock, part_bytes_min=1)
        self.objects: SegmentStore = self.memory
        self.metadata: MetadataStore = self.tree.connect()
        self.metrics = Metrics()
        self.source: LedgerSource | None = None
        self.reader_grace_s = 0.0

    def collector(self, *, objects: SegmentStore | None = None, metadata: MetadataStore | None = None) -> Collector:
        """Return a collector of this site."""
        site = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)
        return Collector(
            objects or self.objects,
            metadata or self.metadata,
            [site],
            clock=self.clock,
            metrics=self.metrics,
            source=self.source,
            reader_grace_s=self.reader_grace_s,
        )

    async def collect(
        self,
        *,
        apply: bool = True,
        grace_s: float = GRACE_S,
        objects: SegmentStore | None = None,
        metadata: MetadataStore | None = None,
        also: Sequence[int] = (),
    ) -> tuple[list[Finding], Summary]:
        """Run one collection."""
        finds: list[Finding] = []
        async with aclosing(
            self.collector(objects=objects, metadata=metadata).collect(
                grace_s=grace_s, apply=apply, also=frozenset(map(segment_id, also))
            )
        ) as found:
            async for one in found:
                if isinstance(one, Summary):
                    return finds, one
                finds.append(one)
        raise AssertionError("no summary")

    async def enable(self, topic: TopicName = TOPIC) -> None:
        """Make a topic known."""
        for folder in paths.folders(topic):
            try:
                await self.metadata.create(folder, b"")
            except Conflict:
                continue
        await self.metadata.create(paths.policy(topic), encode_policy(TopicPolicy()))

    async def begin(self, number: int, topic: TopicName = TOPIC, *, first: Run | None = None) -> None:
        """Record an attempt."""
        begin = builders.Run(1, 0, []) if first is None else first
        attempt = Attempt(
            segment_id=segment_id(number),
            begin=Position(begin.ledger_id, begin.first_entry_id),
            assigned_ms=1,
            epoch=1,
            status=AttemptStatus.ASSIGNED,
        )
        await self.metadata.create(paths.attempt(topic), attempt_record.encode(attempt))

    async def store(
        self,
        number: int,
        entries: Sequence[Run],
        *,
        topic: TopicName = TOPIC,
        cluster: str = CLUSTER,
        metadata: Mapping[str, str] | None = None,
        losses: tuple[Loss, ...] = (),
        ends: tuple[tuple[int, LedgerEnd], ...] = (),
        **changes: object,
    ) -> SegmentManifest:
        """Put a finished segment's three objects."""
        built = builders.build_segment(entries)
        described = replace(
            built.manifest,
            segment_id=segment_id(number),
            managed_ledger=topic.managed_ledger,
            cluster=cluster,
            losses=losses,
            ends=ends,
            ledgers=tuple(replace(part, closed=False, closed_ms=0) for part in built.manifest.ledgers),
            **changes,  # type: ignore[arg-type]
        )
        labels = keys.segment_metadata(cluster) if metadata is None else metadata
        await self.objects.put(data_key(number), built.data, metadata=labels)
        await self.objects.put(index_key(number), built.index, metadata=labels)
        await self.objects.put(manifest_key(number), manifest_bytes.encode(described), metadata=labels)
        return described

    async def commit(self, described: SegmentManifest, topic: TopicName = TOPIC, *, ended: bool = False) -> None:
        """Make a stored segment part of the map; `ended`: with the end of its attempt."""
        steps, _ = (await self.map(topic)).with_commit(committed(described), dict(described.ends))
        await self.metadata.transact([*steps, *([Delete(paths.attempt(topic))] if ended else [])])

    async def segment(self, number: int, entries: Sequence[Run], topic: TopicName = TOPIC) -> SegmentManifest:
        """Put and commit a segment."""
        described = await self.store(number, entries, topic=topic)
        await self.commit(described, topic)
        return described

    async def discard(self, number: int, topic: TopicName = TOPIC, *, decided_ms: int = 0) -> None:
        """Record the decision to delete a segment's objects."""
        trash = Trash(segment_id=segment_id(number), upload_id="", reason="test", decided_ms=decided_ms)
        step = Create(paths.trash_record(topic, segment_id(number)), deletion.encode_trash(trash))
        await self.metadata.transact([step])

    async def map(self, topic: TopicName = TOPIC) -> TopicMap:
        """Return the topic's map."""
        return await catalog.load(self.metadata, topic)

    async def keys(self) -> list[str]:
        """Return all keys of the bucket."""
        return [info.key async for info in self.memory.list()]

    async def age(self, days: float = 2) -> None:
        """Let everything that is stored grow old, by the store's clock."""
        await self.store_clock.advance(days * DAY_S)


def committed(described: SegmentManifest) -> CommittedSegment:
    """Return what a commit makes of a manifest."""
    return CommittedSegment.described(described, bucket=BUCKET, prefix=PREFIX)


def data_key(number: int) -> str:
    """Key of a segment's data."""
    return keys.SegmentKeys(PREFIX, segment_id(number)).data


def index_key(number: int) -> str:
    """Key of a segment's index."""
    return keys.SegmentKeys(PREFIX, segment_id(number)).index


def manifest_key(number: int) -> str:
    """Key of a segment's manifest."""
    return keys.SegmentKeys(PREFIX, segment_id(number)).manifest


def all_keys(*numbers: int) -> list[str]:
    """Return the keys of whole segments."""
    return [key for number in numbers for key in (data_key(number), index_key(number), manifest_key(number))]
