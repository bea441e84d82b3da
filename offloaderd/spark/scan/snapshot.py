"""The stores of a query, and its committed segments at one moment: from ZooKeeper, or from the bucket alone.

Known holes are part of a snapshot: lost ranges, history that is not offloaded yet, and, of a bucket without its
ZooKeeper, contradictions between manifests.

A driver's stores are opened by the first call, and stay open for the life of a reader or an export: a session of
ZooKeeper for each call would be three for each step of a stream. After an error they are closed, since a connection may
be broken, and the next call opens them again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from offloaderd.core.aio import each
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidInput, NotFound
from offloaderd.core.model import START, Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import metadata_store
from offloaderd.daemon.stores import sites as sites_of
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.history import HistoryPlan
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import opening
from offloaderd.objects.port import ObjectReader, SegmentStore
from offloaderd.spark.scan.options import SourceOptions
from offloaderd.spark.scan.share import Condition, Hole, LiveSegment, Metadata, Segment
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.stored import Site

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stores:
    """The bucket, and the metadata; without these the map is made from the manifests in the bucket."""

    objects: SegmentStore
    metadata: MetadataStore | None


@asynccontextmanager
async def known_to(settings: Settings, metadata: Metadata, objects: SegmentStore) -> AsyncIterator[Stores]:
    """Yield a bucket with its metadata, opened if the query reads them. Raises as opening the metadata does."""
    if metadata is Metadata.BUCKET:
        yield Stores(objects, None)
        return
    async with metadata_store(settings) as store:
        yield Stores(objects, store)


@asynccontextmanager
async def opened(options: SourceOptions) -> AsyncIterator[Stores]:
    """Yield the stores of a query. Raises as `known_to`."""
    async with (
        opening.bucket_store(options.settings.objects, SystemClock()) as objects,
        known_to(options.settings, options.metadata, objects) as found,
    ):
        yield found


class Held(AbstractContextManager["Held[S]"], Generic[S]):
    """Runs work on stores, in a loop of its own; they stay open between two calls. One thread at a time."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        """`opening` opens the stores."""
        self._opening = opening
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._stores: S | None = None

    def __exit__(self, *_: object) -> None:
        """Close them."""
        self.close()

    def run(self, work: Callable[[S], Awaitable[T]]) -> T:
        """Return the result of work on the stores; blocks. Raises as the work and the opening do."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._with(work))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the stores; the next call opens them again."""
        runner, self._runner, self._stores = self._runner, None, None
        if runner is not None:
            with runner:
                runner.run(self._stack.aclose())

    async def _with(self, work: Callable[[S], Awaitable[T]]) -> T:
        if self._stores is None:
            self._stores = await self._stack.enter_async_context(self._opening())
        return await work(self._stores)


class HeldStores(Held[Stores]):
    """Runs work on the stores of a query."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(lambda: opened(options))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One topic: its map, the holes in it by position, and the position from which consumers get nothing yet.

    `rebuilt`: the map was made from the bucket, which has no record of what retention has deleted. `live`: what is in
    no segment and a daemon has, if the query asks for it; it ends with the newest entry. `beside`: who reads it is
    behind all history, and does not wait for what is not offloaded of that.
    """

    map: TopicMap
    holes: tuple[Hole, ...] = ()
    held: Position | None = None
    rebuilt: bool = False
    live: tuple[LiveSegment, ...] = ()
    beside: bool = False

    @property
    def topic(self) -> TopicName:
        """The topic's name."""
        return self.map.topic

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, also live ones, in order."""
        return sorted((*self.map.segments, *self.live), key=lambda one: one.begin) if self.live else self.map.segments

    @property
    def newest(self) -> Position | None:
        """The newest entry, None if there has been none; retention may have deleted it."""
        known = (self.map.offloaded, *(one.end for one in self.live))
        return max((one for one in known if one is not None), default=None)

    @property
    def unfinished(self) -> HistoryPlan | None:
        """The plan of history that is waited for: it is not offloaded yet, and no live segment has it."""
        plan = self.map.unfinished
        has_it = self.beside or (plan is not None and any(one.begin < plan.live_begin for one in self.live))
        return None if has_it else plan

    @property
    def end(self) -> Position | None:
        """The last entry before which all can be read: the newest, or the last before unfinished history.

        It is not behind what consumers get; None when they get nothing.
        """
        plan = self.unfinished
        known = (self.map.history_end, self.map.floor) if plan is not None else (self.newest,)
        end = max((one for one in known if one is not None), default=None)
        if self.held is None or end is None:
            return end
        return min(end, before) if (before := self.before(self.held)) is not None else None

    def before(self, begin: Position) -> Position | None:
        """Return the position before one: in its ledger, at the end of an earlier one, or the floor."""
        if begin.entry_id:
            return Position(begin.ledger_id, begin.entry_id - 1)
        slices = (part for segment in self.segments for part in segment.slices)
        return max((part.range.end for part in slices if part.ledger_id < begin.ledger_id), default=self.map.floor)


async def take(options: SourceOptions, stores: Stores) -> list[Snapshot]:
    """Return a snapshot of every topic that the options include. Raises NotFound for none, and as the stores do."""
    found = await of(options.settings, stores, options.topic, lenient=Condition.DAMAGE in options.skipped)
    return [one for one in found if not options.leaves_out(one.topic)]


async def of(settings: Settings, stores: Stores, pattern: TopicPattern, *, lenient: bool) -> list[Snapshot]:
    """Return a snapshot of every topic of a pattern. Raises NotFound, and as the stores do."""
    if stores.metadata is None:
        return await from_buckets(stores.objects, sites_of(settings), pattern, lenient=lenient)
    return await from_metadata(stores.metadata, pattern)


async def from_metadata(store: MetadataStore, pattern: TopicPattern) -> list[Snapshot]:
    """Read the maps of all topics that match, each as it was at one moment. Raises NotFound."""
    topics = await known_topics(store, pattern)

    async def load(topic: TopicName) -> Snapshot:
        topic_map = await catalog.load(store, topic)
        return Snapshot(topic_map, holes_of(topic_map))

    found = await each(topics, load, in_flight_max=4)
    empty = [one for one in found if not one.map.segments]
    nodes = await each(empty, lambda one: node(store, paths.topic(one.topic)))
    gone = {one.topic for one, there in zip(empty, nodes, strict=True) if there is None}
    if len(gone) == len(found):
        names = ", ".join(map(str, sorted(gone)))
        raise NotFound(
            f"{names}: deleted while the query was planned", hint="`offloadctl topics list` shows the others"
        )
    return [one for one in found if one.topic not in gone]


async def check_topics(options: SourceOptions) -> None:
    """Raise NotFound if the metadata has no topic of a query; of a bucket alone only reading it shows that."""
    if options.metadata is Metadata.ZOOKEEPER:
        async with metadata_store(options.settings) as store:
            await known_topics(store, options.topic)


async def known_topics(store: MetadataStore, pattern: TopicPattern) -> list[TopicName]:
    """Return the topics in the metadata that match, in order. Raises NotFound for none."""
    folders = [paths.TOPICS]
    for scope in (pattern.scope.tenant, pattern.scope.namespace, None, None):
        names = await each(folders, store.children)
        folders = [
            f"{folder}/{name}"
            for folder, below in zip(folders, names, strict=True)
            for name in below
            if scope is None or paths.name_of(name) == scope
        ]
    found = []
    for folder in folders:
        try:
            topic = paths.parse_topic(folder)
        except InvalidInput:
            continue  # no topic has this name
        if pattern.matches(topic):
            found.append(topic)
    if not found:
        raise NotFound(
            f"no topic matches {pattern}",
            hint="`offloadctl topics list` shows what is known; metadata.root and daemon.cluster say where to look",
        )
    return sorted(found)


async def from_buckets(
    objects: ObjectReader, sites: Sequence[Site], pattern: TopicPattern, *, lenient: bool = False
) -> list[Snapshot]:
    """Make the maps from all manifests of all sites.

    Raises NotFound for no topic, and for problems that block a rebuild; if `lenient`, these are holes instead.
    """
    found = await rebuild.read_buckets(objects, sites, lambda _: None)
    topics = sorted({one.topic for one in found.known if pattern.matches(one.topic)})
    if not topics:
        raise NotFound(
            f"no segment of {pattern} in {', '.join(f'bucket {one.bucket!r} below {one.prefix!r}' for one in sites)}",
            hint="objects.bucket, objects.prefix and daemon.cluster say what is looked for",
        )
    await rebuild.read_brokers(objects, sites, found)
    plan = rebuild.make_plan(found, topics=topics)
    blocking = [one for one in plan.problems if one.blocks]
    snapshots = []
    for one in plan.topics:
        problems = [*blocking, *(problem for problem in one.problems if problem.blocks)]
        if problems and not lenient:
            texts = "; ".join(problem.text for problem in problems[:5])
            hint = "repair it (`offloaderd verify` shows all), or read what there is with skip=damage"
            raise NotFound(f"the bucket does not hold all of {one.topic}: {texts}", hint=hint)
        end = one.map.segments[-1].end if one.map.segments else START
        unplaced = tuple(
            Hole(after=end, before=None, reason=problem.text, condition=Condition.DAMAGE) for problem in problems
        )
        snapshots.append(Snapshot(one.map, (*holes_of(one.map), *unplaced), rebuilt=True))
    return snapshots


def holes_of(topic_map: TopicMap) -> tuple[Hole, ...]:
    """Return the holes that a map records; all other entries follow without a gap."""
    holes = [
        Hole(
            after=loss.after,
            before=loss.before,
            reason=f"entries {loss} were deleted before they were offloaded"
            if loss.certain
            else f"entries {loss} may have been there: ledgers were deleted before they were read",
            entries=loss.entries or None,
        )
        for loss in topic_map.losses
    ]
    plan = topic_map.unfinished
    if plan is not None:
        after = topic_map.history_end or topic_map.floor or START
        reason = f"history after {after} and before {plan.live_begin} is not offloaded yet"
        holes.append(
            Hole(after=after, before=plan.live_begin, reason=reason, awaited=True, condition=Condition.UNFINISHED)
        )
    return tuple(sorted(holes, key=lambda hole: hole.after))


def holes_within(snapshot: Snapshot, first: Position | None, last: Position | None) -> list[Hole]:
    """Return the holes in a range of positions, both inclusive.

    A range without a begin starts at the oldest entry, and before history that is not offloaded yet.
    """
    segments = snapshot.segments
    oldest = segments[0].begin if segments else None

    def concerned(hole: Hole) -> bool:
        if last is not None and last <= hole.after:
            return False
        if hole.before is None or (first is None and (hole.awaited or oldest is None)):
            return True
        return hole.before > (first or oldest or hole.after)

    return [hole for hole in snapshot.holes if concerned(hole)]
