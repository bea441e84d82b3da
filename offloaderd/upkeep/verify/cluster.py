"""Verification of many segments: of a cluster, with read access to the buckets alone (fsck), or of one topic's map.

    list -> tables of every segment (manifest, index, size) -> topic by topic: continuity, then headers or every byte

Without the map the segments of a topic have to be disjoint, and contiguous as far as their manifests show. With the map
every committed segment has to exist as it was committed, and other segments are only noted. Daemons may work meanwhile:
a segment that seems half written or half deleted is checked again at the end, and is a flaw only if it still is so.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from uuid import UUID

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, OffloaderError, Transient
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read.reader import Maps
from offloaderd.upkeep import stored
from offloaderd.upkeep.flaws import Flaw, Kind, Level, first_damage, of_places, unreachable
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.rebuild import known_of
from offloaderd.upkeep.rebuild_plan import Known, Problem, plan_topic, with_copies
from offloaderd.upkeep.stored import Counts, Site
from offloaderd.upkeep.verify.segment import Tables, Target, check_inside, check_tables, differences, load_manifest

SIDE_BY_SIDE = 4
"""Segments that are read in parallel; each holds one piece of a data object in memory."""
SETTLE_S = 3.0
"""Pause before missing objects are requested again."""
UNREACHABLE_MAX = 50
"""Segments that could not be read before the verification ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Scope of a verification: level, topics (empty: all), and the topic after which it begins."""

    level: Level = Level.FULL
    topics: tuple[TopicName, ...] = ()
    after: TopicName | None = None

    def wants(self, topic: TopicName) -> bool:
        """Whether a topic is in the scope."""
        return (not self.topics or topic in self.topics) and (self.after is None or topic > self.after)


@dataclass(slots=True, kw_only=True)
class Report:
    """Findings of one topic; without a topic those that belong to none."""

    topic: TopicName | None
    segments: int = 0
    entries: int = 0
    object_bytes: int = 0
    read_bytes: int = 0
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def problems(self) -> int:
        """Number of flaws that are problems."""
        return sum(flaw.is_problem for flaw in self.flaws)

    @property
    def unreachable(self) -> int:
        """Number of objects that could not be read."""
        return sum(flaw.kind is Kind.UNREACHABLE for flaw in self.flaws)


_Held = tuple[tuple[str, str], list[Flaw]]
"""A place of a segment, and the flaws there."""


@dataclass(slots=True)
class _Found:
    """A segment with a readable manifest in a place; `whole`: its three objects exist and agree."""

    known: Known
    target: Target
    whole: bool
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def segment_id(self) -> UUID:
        """The segment's id."""
        return self.target.keys.segment_id

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and prefix."""
        return self.target.bucket, self.target.keys.prefix


class Verifier:
    """One verification. With `metadata` the bucket is compared with the map."""

    def __init__(
        self,
        objects: ObjectReader,
        sites: Sequence[Site],
        reader: RetryingReader,
        *,
        clock: Clock,
        metadata: MetadataStore | None = None,
        progress: Callable[[str, int], None] = lambda _what, _count: None,
    ) -> None:
        self.counts = Counts()
        self._objects = objects
        self._sites = sites
        self._cluster = sites[0].cluster
        self._reader = reader
        self._clock = clock
        self._metadata = metadata
        self._progress = progress
        self._found: dict[TopicName, list[_Found]] = defaultdict(list)
        self._flaws: dict[TopicName | None, list[Flaw]] = defaultdict(list)
        self._again: list[Target] = []
        self._unreachable = 0
        self._turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def run(self, wish: Wish) -> AsyncGenerator[Report, None]:
        """Yield a report for each topic, in order, then one for flaws of no topic if there are any.

        Raises as the listing and the metadata, and Transient when too many segments cannot be read.
        """
        await self._look_at_tables()
        names = set(self._found) | {topic for topic in self._flaws if topic is not None} | set(wish.topics)
        if self._metadata is not None:
            names |= (await references.read(self._metadata)).topics
        for topic in sorted(name for name in names if wish.wants(name)):
            yield await self._topic(topic, wish.level)
        if self._flaws[None]:
            yield Report(topic=None, flaws=self._flaws[None])

    async def _look_at_tables(self) -> None:
        for site in self._sites:
            async for batch in stored.batches(self._objects, site, self.counts):
                # A late request left a draft alone; the collector takes it away.
                whole = [one for one in batch if not one.objects.keys() <= {ObjectKind.DRAFT}]
                targets = [Target(bucket=one.bucket, keys=one.keys, cluster=self._cluster) for one in whole]
                await self._batch(targets, last=False)
        if self._again:
            await self._clock.sleep(SETTLE_S)
            again, self._again = self._again, []
            await self._batch(again, last=True)

    async def _batch(self, targets: Sequence[Target], *, last: bool) -> None:
        """Check the tables of segments; incomplete ones are put off unless this is the `last` time."""
        for target, tables in zip(targets, await each(targets, self._tables), strict=True):
            lacking = sum(flaw.kind is Kind.MISSING for flaw in tables.flaws)
            if lacking and not last:
                self._again.append(target)
            elif lacking < len(stored.KINDS):  # else it was deleted meanwhile
                self._keep(target, tables)
        self._progress("segments seen", self.counts.segments)

    async def _tables(self, target: Target) -> Tables:
        try:
            return await check_tables(self._reader, target)
        except OffloaderError as error:
            return Tables(flaws=[self._failed(target, error)])

    def _failed(self, target: Target, error: OffloaderError) -> Flaw:
        """Return the flaw of a segment that could not be read. Raises Transient when there are too many."""
        self._unreachable += 1
        if self._unreachable >= UNREACHABLE_MAX or isinstance(error, BucketMissing):
            raise Transient(f"gave up after {self._unreachable} segments could not be reached: {error}") from error
        return unreachable(error, target.keys, topic=target.topic, committed=target.committed)

    def _keep(self, target: Target, tables: Tables) -> None:
        manifest = tables.manifest
        if manifest is None:
            self._flaws[None] += _unfinished(target, tables.flaws)
            return
        topic = TopicName.from_managed_ledger(manifest.managed_ledger)
        known = known_of(manifest, topic, bucket=target.bucket, prefix=target.keys.prefix)
        whole = not any(flaw.is_problem and flaw.kind is not Kind.LABELS for flaw in tables.flaws)
        self._found[topic].append(_Found(known, replace(target, topic=topic), whole, tables.flaws))

    async def _topic(self, topic: TopicName, level: Level) -> Report:
        before = self._reader.read_bytes
        found = self._found.pop(topic, [])
        report = Report(topic=topic, flaws=self._flaws.pop(topic, []))
        knowns, contradictions = with_copies([one.known for one in found])
        report.flaws += [joint(problem) for problem in contradictions]
        places: dict[UUID, list[_Held]] = defaultdict(list)
        for one in found:
            places[one.segment_id].append((one.place, one.flaws))
        boundary = None
        if self._metadata is not None:
            knowns, boundary = await self._compared(report, found, self._metadata, places)
        report.segments = len(knowns)
        report.entries = sum(one.segment.entries for one in knowns)
        report.object_bytes = sum(one.segment.object_bytes for one in knowns)
        report.flaws += [joint(problem) for problem in plan_topic(topic, knowns, boundary=boundary).problems]
        if level is not Level.METADATA:
            await each([one for one in found if one.whole], lambda one: self._inside(one, level))
        report.flaws += [flaw for held in places.values() for flaw in of_places(held)]
        report.read_bytes = self._reader.read_bytes - before
        return report

    async def _compared(
        self, report: Report, found: Sequence[_Found], metadata: MetadataStore, places: dict[UUID, list[_Held]]
    ) -> tuple[list[Known], Position | None]:
        """Compare with the map; return the segments in it, and the boundary of a history still to come."""
        assert report.topic is not None  # noqa: S101 - the caller's
        topic_map = await catalog.load(metadata, report.topic)
        there = {(one.segment_id, one.place): one for one in found}
        committed = {one.segment_id for one in topic_map.segments}
        wanted = {(one.segment_id, one.place): one for whole in topic_map.segments for one in whole.each_place}
        for key, segment in wanted.items():
            if key in there:
                target, described = there[key].target, there[key].known.segment
                flaws = differences(segment, described.slices, described.object_bytes, target.keys.manifest)
                there[key].flaws += [replace(flaw, topic=report.topic, segment_id=segment.segment_id) for flaw in flaws]
            else:
                lacking = await self._lacking(report.topic, segment, metadata)
                places[segment.segment_id] += [(segment.place, lacking)] if lacking else []
        for key in there.keys() - wanted.keys():
            segment_id, target = key[0], there[key].target
            said = f"segment {segment_id} is not in the map"
            if segment_id in committed:
                said = f"the map names no copy of segment {segment_id} here"
            report.flaws.append(
                Flaw(
                    kind=Kind.UNREFERENCED,
                    key=target.keys.data,
                    found=said,
                    topic=report.topic,
                    segment_id=segment_id,
                    entries=str(there[key].known.segment.range),
                )
            )
        sole = {one.segment_id: one.known for one in reversed(found) if one.segment_id in committed}
        plan = topic_map.unfinished
        knowns = informed(list(sole.values()), topic_map)
        return knowns, plan.live_begin if plan is not None else None

    async def _lacking(self, topic: TopicName, segment: CommittedSegment, metadata: MetadataStore) -> list[Flaw]:
        """Return the flaws of a committed segment that the listing did not show complete."""
        target = Target.of(segment, topic, self._cluster)
        if (segment.bucket, segment.prefix) not in {(site.bucket, site.prefix) for site in self._sites}:
            said = f"in bucket {segment.bucket!r} under prefix {segment.prefix!r}"
            where = Flaw(kind=Kind.ELSEWHERE, key=target.keys.data, found=said, entries=str(segment.range))
            return [replace(where, topic=topic, segment_id=segment.segment_id)]
        try:
            flaws = (await check_tables(self._reader, target)).flaws
        except OffloaderError as error:
            return [self._failed(target, error)]
        now = await catalog.load(metadata, topic) if flaws else None
        here = (segment.segment_id, segment.place)
        if now is not None and here not in {
            (one.segment_id, one.place) for it in now.segments for one in it.each_place
        }:
            return []  # deleted meanwhile
        self._flaws[None] = [flaw for flaw in self._flaws[None] if flaw.segment_id != segment.segment_id]
        return [replace(flaw, entries=str(segment.range)) for flaw in flaws]

    async def _inside(self, found: _Found, level: Level) -> None:
        target = found.target
        async with self._turns:
            try:
                flaws = await self._read(target, level)
                if any(flaw.kind is Kind.MISSING for flaw in flaws):
                    await self._clock.sleep(SETTLE_S)
                    tables = await check_tables(self._reader, target)
                    if sum(flaw.kind is Kind.MISSING for flaw in tables.flaws) >= len(stored.KINDS):
                        return  # deleted meanwhile
            except OffloaderError as error:
                flaws = [self._failed(target, error)]
        found.flaws += flaws

    async def _read(self, target: Target, level: Level) -> list[Flaw]:
        tables = Tables()
        tables.manifest = await load_manifest(self._reader, target, tables)
        found = [replace(flaw, topic=target.topic, segment_id=target.keys.segment_id) for flaw in tables.flaws]
        async with aclosing(check_inside(self._reader, target, tables, level)) as steps:
            async for _, flaws in steps:
                found += flaws
                self._progress("bytes read", self._reader.read_bytes)
        return found


def _unfinished(target: Target, flaws: Sequence[Flaw]) -> list[Flaw]:
    """Return the flaws of objects without a readable manifest: leftovers, or a segment that lost its manifest."""
    missing = {flaw.key for flaw in flaws if flaw.kind is Kind.MISSING}
    if target.keys.manifest not in missing or len(missing) == 1:
        return [replace(flaw, segment_id=target.keys.segment_id) for flaw in flaws]
    left = target.keys.data if target.keys.data not in missing else target.keys.index
    said = "alone: the segment was never finished, or the rest of it is lost"
    return [Flaw(kind=Kind.ORPHAN, key=left, found=said, segment_id=target.keys.segment_id)]


def informed(knowns: Sequence[Known], topic_map: TopicMap) -> list[Known]:
    """Return the segments of a map, in order, with the losses and ends that were recorded after their seal.

    Slices that have left a segment, since they are in an object of their own now, are not missing.
    """
    committed = {segment.segment_id: segment for segment in topic_map.segments}
    found = []
    for one in knowns:
        segment = committed.get(one.segment.segment_id)
        if segment is not None and segment.is_run_of(one.segment.slices):
            one = replace(one, segment=replace(one.segment, slices=segment.slices))  # noqa: PLW2901 - what it holds now
        found.append(one)
    found.sort(key=lambda one: one.segment.begin)
    if found:
        ends = {**dict(found[-1].ends), **topic_map.ends}
        found[-1] = replace(found[-1], losses=topic_map.losses, ends=tuple(sorted(ends.items())))
    return found


def between(knowns: Sequence[Known], topic_map: TopicMap) -> list[Flaw]:
    """Return the flaws between the segments of a map, all of whose manifests are known."""
    plan = topic_map.unfinished
    boundary = plan.live_begin if plan is not None else None
    problems = plan_topic(topic_map.topic, informed(knowns, topic_map), boundary=boundary).problems
    return [joint(one) for one in problems]


def joint(problem: Problem) -> Flaw:
    """Return a problem between segments as a flaw of the later one."""
    return Flaw(
        kind=problem.kind,
        key=", ".join(map(str, problem.segments)),
        found=problem.text,
        topic=problem.topic,
        segment_id=problem.segments[-1] if problem.segments else None,
        advice=JOINTS.get(problem.kind, problem.what_to_do),
    )


JOINTS = {
    Kind.OVERLAP: "one of them was never committed, or is being replaced: look again with --against-map, or ask "
    "offloadctl gc",
    Kind.GAP: "look for a segment that is gone from the bucket, and restore it; with --against-map it has a name",
    Kind.CONTRADICTION: "somebody copied objects by hand, or two clusters share a name: compare both manifests",
    Kind.SUPERSEDED: "nothing: the ledgers were rewritten as objects of their own",
}


CALLS_BYTES = 16 * 1024 * 1024
"""Memory for blocks of all calls that verify or explain; a larger block is read alone."""
IN_A_ROW_MAX = 3
"""Consecutive segments that could not be read before a bucket is given up: the store does not answer then."""


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """Result of one segment, which is `number` of `of`."""

    segment: CommittedSegment
    number: int
    of: int
    read_bytes: int = 0
    flaws: list[Flaw] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Between:
    """Flaws between segments, and the totals."""

    segments: int
    read_bytes: int
    flaws: list[Flaw]


class TopicVerifier:
    """Verifies topics in all sites of a cluster; `reader` makes the reader of one verification."""

    def __init__(
        self,
        maps: Maps,
        reader: Callable[[], RetryingReader],
        sites: Sequence[Site],
        damaged: Callable[[TopicName, CommittedSegment, str], None] = lambda *_: None,
    ) -> None:
        """`damaged` is called with segments that are not what was committed."""
        self._damaged = damaged
        self._maps = maps
        self._reader = reader
        self._cluster = sites[0].cluster
        self._buckets = {site.bucket for site in sites}

    async def run(self, topic: TopicName, level: Level) -> AsyncGenerator[SegmentReport | Between, None]:
        """Yield a report of each segment, oldest first, then the flaws between them.

        A segment that is deleted meanwhile is left out. One that cannot be read in a place is reported, and the end
        raises Transient; a bucket is given up after several in a row, and the verification once nothing else is left.
        Raises as the metadata store.
        """
        reader = self._reader()
        topic_map = await self._maps.topic_map(topic)
        knowns: list[Known] = []
        away: list[Flaw] = []
        in_a_row: Counter[str] = Counter()
        given_up = False
        for number, segment in enumerate(topic_map.segments, start=1):
            before = reader.read_bytes
            report = SegmentReport(segment=segment, number=number, of=len(topic_map.segments))
            report.flaws, known = await self._checked(reader, topic, segment, level, in_a_row)
            away += [flaw for flaw in report.flaws if flaw.kind is Kind.UNREACHABLE]
            if report.flaws:
                now = await self._maps.topic_map(topic)
                if segment.segment_id not in {one.segment_id for one in now.segments}:
                    continue
            if known is not None:
                knowns.append(known)
            if bad := first_damage(report.flaws):
                self._damaged(topic, segment, str(bad))
            report.read_bytes = reader.read_bytes - before
            yield report
            rest = topic_map.segments[number - 1 :]
            given_up = all(in_a_row[one.bucket] >= IN_A_ROW_MAX for it in rest for one in it.each_place)
            if given_up:
                break
        whole = len(knowns) == len(topic_map.segments)
        flaws = between(knowns, topic_map) if whole else []
        yield Between(segments=len(topic_map.segments), read_bytes=reader.read_bytes, flaws=flaws)
        if away:
            others = "the rest was not tried" if given_up else "the others were"
            count = len({flaw.segment_id for flaw in away})
            raise Transient(
                f"{count} of {len(topic_map.segments)} segments of {topic} could not be read, {others}; "
                f"the last: {away[-1]}",
                hint=away[-1].what_to_do,
            )

    async def _checked(
        self,
        reader: RetryingReader,
        topic: TopicName,
        segment: CommittedSegment,
        level: Level,
        in_a_row: Counter[str],
    ) -> tuple[list[Flaw], Known | None]:
        """Return the flaws of a segment and of its copy, and its manifest; one place does not hide those of the other.

        `in_a_row` counts by bucket what could not be read. Raises as `run`.
        """
        places, known = [], None
        for one in segment.each_place:
            if in_a_row[one.bucket] >= IN_A_ROW_MAX:
                why = Transient(f"not tried: bucket {one.bucket!r} did not answer for those before")
                places.append((one.place, [unreachable(why, one.keys, topic=topic, committed=one)]))
                continue
            try:
                flaws, found = await check_committed(
                    reader, topic, one, level, cluster=self._cluster, buckets=self._buckets
                )
                in_a_row[one.bucket] = 0
                known = known or found
            except Transient as error:
                flaws = [unreachable(error, one.keys, topic=topic, committed=one)]
                in_a_row[one.bucket] += 1
            places.append((one.place, flaws))
        return of_places(places), known


async def check_committed(
    reader: RetryingReader,
    topic: TopicName,
    segment: CommittedSegment,
    level: Level,
    *,
    cluster: str,
    buckets: Collection[str],
) -> tuple[list[Flaw], Known | None]:
    """Return the flaws of one committed segment, and its manifest. Raises as `run`."""
    target = Target.of(segment, topic, cluster)
    if segment.bucket not in buckets:
        said = f"in bucket {segment.bucket!r}"
        return [Flaw(kind=Kind.ELSEWHERE, key=target.keys.data, found=said, segment_id=segment.segment_id)], None
    tables = await check_tables(reader, target)
    flaws = list(tables.flaws)
    async with aclosing(check_inside(reader, target, tables, level)) as steps:
        async for _, found in steps:
            flaws += found
    if tables.manifest is None:
        return flaws, None
    return flaws, known_of(tables.manifest, topic, bucket=segment.bucket, prefix=segment.prefix)
