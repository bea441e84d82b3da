"""Verification as a Spark job: tasks verify the committed segments, the driver the joints between them.

The checks are those of `offloaderd verify --against-map`, over any number of machines. The report is a table with a row
for each flaw, and one for each segment without any. The driver has the source keep the ledgers of damaged segments.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import BucketMissing, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.spark.errors import brief, from_spark
from offloaderd.spark.scan.options import SourceOptions, parse
from offloaderd.spark.scan.snapshot import HeldStores, Snapshot, Stores
from offloaderd.spark.stream import take_snapshots
from offloaderd.upkeep.flaws import Flaw, Kind, Level, damage_by_segment, unreachable
from offloaderd.upkeep.grants.revoke_on_damage import DamagedLedger, JobKeeper
from offloaderd.upkeep.rebuild_plan import Known
from offloaderd.upkeep.verify.cluster import between, check_committed

TASKS_A_CORE = 8
"""Tasks for each core, so that one with large segments does not delay the others."""

SCHEMA = StructType(
    [
        *(StructField(name, StringType()) for name in ("topic", "segment_id", "begin", "end")),
        StructField("object_bytes", LongType()),
        StructField("problem", BooleanType()),
        *(StructField(name, StringType()) for name in ("kind", "key")),
        StructField("offset", LongType()),
        *(StructField(name, StringType()) for name in ("expected", "found", "entries", "what_to_do")),
    ]
)


@dataclass(frozen=True, slots=True)
class Inspected:
    """A segment with its flaws; `known` is from its manifest, None without one."""

    topic: TopicName
    segment: CommittedSegment
    flaws: tuple[Flaw, ...]
    known: Known | None
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The work of each task: stores, and level of verification. Spark calls it."""

    objects: ObjectsSettings
    cluster: str
    buckets: frozenset[str]
    level: Level

    @brief
    def __call__(self, segments: Iterable[tuple[TopicName, CommittedSegment]]) -> Iterator[Inspected]:
        """Verify some segments."""
        return iter(asyncio.run(self._all(list(segments))))

    async def _all(self, segments: Sequence[tuple[TopicName, CommittedSegment]]) -> list[Inspected]:
        clock = SystemClock()
        async with bucket_store(self.objects, clock) as objects:
            return [await self._one(RetryingReader(objects, clock=clock), *one) for one in segments]

    async def _one(self, reader: RetryingReader, topic: TopicName, segment: CommittedSegment) -> Inspected:
        try:
            flaws, known = await check_committed(
                reader, topic, segment, self.level, cluster=self.cluster, buckets=self.buckets
            )
        except BucketMissing:
            raise
        except OffloaderError as error:
            flaws, known = [unreachable(error, segment.keys, topic=topic, committed=segment)], None
        return Inspected(topic, segment, tuple(flaws), known, reader.read_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The report as a table, its totals, and the fate of the ledgers whose copies are damaged."""

    report: DataFrame
    topics: int
    segments: int
    entries: int
    object_bytes: int
    read_bytes: int
    problems: int
    unreachable: int
    ledgers: tuple[DamagedLedger, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: sound. 1: problems were found. 3: none, but something could not be read."""
        return 1 if self.problems else 3 if self.unreachable else 0


def verify(
    spark: SparkSession, options: Mapping[str, str], level: Level = Level.FULL, *, dry_run: bool = False
) -> Verified:
    """Verify all committed segments of the topics that `options`, those of the data source, name.

    The grants of ledgers whose copy is damaged are revoked, unless `dry_run`. Raises InvalidConfig, NotFound for no
    topic, and as the metadata does.
    """
    parsed = parse(options)
    snapshots = _snapshots(parsed)
    segments = [(one.topic, segment) for one in snapshots for segment in one.map.segments]
    settings = parsed.settings
    task = Inspection(settings.objects, settings.daemon.cluster, frozenset(settings.objects.all_places.buckets), level)
    found = _distributed(spark, segments, task)
    found = _without_deleted(found, parsed)
    with HeldStores(parsed) as held:
        ledgers = held.run(lambda stores: _revoke_grants(stores, snapshots, found, dry_run=dry_run))
    rows = [row for one in found for row in _rows(one)]
    between = [(topic, flaw) for topic, flaws in _between(snapshots, found).items() for flaw in flaws]
    rows += [_row(flaw, topic=str(topic), segment_id=flaw.segment_id) for topic, flaw in between]
    flaws = [flaw for one in found for flaw in one.flaws] + [flaw for _, flaw in between]
    return Verified(
        report=spark.createDataFrame(rows, SCHEMA),
        topics=len(snapshots),
        segments=len(found),
        entries=sum(one.segment.entries for one in found),
        object_bytes=sum(one.segment.object_bytes for one in found),
        read_bytes=sum(one.read_bytes for one in found),
        problems=sum(flaw.is_problem for flaw in flaws),
        unreachable=sum(flaw.kind is Kind.UNREACHABLE for flaw in flaws),
        ledgers=tuple(ledgers),
    )


def _snapshots(options: SourceOptions) -> list[Snapshot]:
    with HeldStores(options) as held:
        return held.run(lambda stores: take_snapshots(options, stores))


async def _revoke_grants(
    stores: Stores, snapshots: Sequence[Snapshot], found: Sequence[Inspected], *, dry_run: bool
) -> list[DamagedLedger]:
    """Revoke the grants of damaged segments' ledgers; a bucket without metadata has none."""
    damage = damage_by_segment(flaw for one in found for flaw in one.flaws)
    keeper = JobKeeper(stores.metadata, SystemClock(), job="a verification by Spark", dry_run=dry_run)
    ledgers: list[DamagedLedger] = []
    for snapshot in snapshots:
        if any(segment.segment_id in damage for segment in snapshot.map.segments):
            known = stores.metadata
            topic_map = snapshot.map if known is None else await catalog.load(known, snapshot.topic)
            ledgers += await keeper.keep(topic_map, damage)
    return ledgers


def _distributed(
    spark: SparkSession, segments: Sequence[tuple[TopicName, CommittedSegment]], task: Inspection
) -> list[Inspected]:
    """Verify all segments in tasks, the largest first."""
    if not segments:
        return []
    context = spark.sparkContext
    count = min(len(segments), context.defaultParallelism * TASKS_A_CORE)
    largest = sorted(segments, key=lambda one: one[1].object_bytes, reverse=True)
    dealt = [one for number in range(count) for one in largest[number::count]]
    with from_spark():
        found: list[Inspected] = context.parallelize(dealt, count).mapPartitions(task).collect()
    return sorted(found, key=lambda one: (one.topic, one.segment.begin))


def _without_deleted(found: Sequence[Inspected], options: SourceOptions) -> list[Inspected]:
    """Drop segments with flaws that were deleted, or rewritten, meanwhile."""
    if not any(flaw.kind is Kind.MISSING for one in found for flaw in one.flaws):
        return list(found)
    still = {segment.segment_id for one in _snapshots(options) for segment in one.map.segments}
    return [one for one in found if not one.flaws or one.segment.segment_id in still]


def _between(snapshots: Sequence[Snapshot], found: Sequence[Inspected]) -> Mapping[TopicName, list[Flaw]]:
    """Return the flaws between the segments of each topic whose manifests were all read."""
    known: dict[TopicName, list[Known]] = defaultdict(list)
    for inspected in found:
        if inspected.known is not None:
            known[inspected.topic].append(inspected.known)
    whole = (one for one in snapshots if len(known[one.topic]) == len(one.map.segments))
    return {one.topic: between(known[one.topic], one.map) for one in whole}


def _rows(one: Inspected) -> Iterator[dict[str, object]]:
    segment = one.segment
    about = {
        "topic": str(one.topic),
        "segment_id": segment.segment_id,
        "begin": str(segment.begin),
        "end": str(segment.end),
        "object_bytes": segment.object_bytes,
    }
    if not one.flaws:
        yield {**about, "segment_id": str(segment.segment_id), "problem": False}
    for flaw in one.flaws:
        yield _row(flaw, **about)


def _row(flaw: Flaw, *, segment_id: object, **about: object) -> dict[str, object]:
    return {
        **about,
        "segment_id": str(segment_id) if segment_id is not None else None,
        "problem": flaw.is_problem,
        "kind": flaw.kind.value,
        "key": flaw.key,
        "offset": flaw.offset,
        "expected": flaw.expected or None,
        "found": flaw.found,
        "entries": flaw.entries or None,
        "what_to_do": flaw.what_to_do or None,
    }
