"""The maps of all topics in the places of a daemon that has the bucket and nothing else; kept fresh while it runs.

All manifests are listed at the start and at an interval, and read once each. Between two listings the head of a topic,
a small object that every commit puts, shows what was committed since: it is read when the topic is read, at most every
`head_s`. A newer segment that directly follows the map is added to it; one that does not is a reason to list again at
once. What cannot be read leaves a gap in its own topic alone (`bucket_map.py`).

A failed listing changes nothing: the maps stay as they were, and `listed_ms` tells how old they are.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

import structlog

from offloaderd.core.aio import each, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Archived, Denied, NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.retry import USUAL, Backoff, retried
from offloaderd.format.head import HeadSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.port import ObjectInfo, ObjectReader
from offloaderd.upkeep import rebuild, stored
from offloaderd.upkeep.bucket_map import extended, readable_map, settled
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.rebuild_plan import Known, Problem, has_front, with_copies
from offloaderd.upkeep.stored import Counts, Site, StoredSegment

log = structlog.get_logger(__name__)

LISTING_PAUSE_S = 10.0
"""Shortest pause between two listings, whatever the heads show."""
ANSWERS_S = 2.0
"""How long a head, and the segment that it names, may take before a read goes on with the map as it is."""
HEADS_MAX = 16
"""Segments that a topic's heads have named, the newest ones, which are kept to settle overlaps."""
PROBLEMS_MAX = 100
"""Problems that are kept for the status."""


@dataclass(slots=True, eq=False)
class _Topic:
    """What is known of one topic. `looked_s`: when its head was last read.

    `found` are its segments by the last listing, mirrors joined, `appended` those that heads have named since. `heads`
    are the segments that heads have named by then, `seen` what they named when they were last read. `brokers`: None
    until ledgers of brokers were searched. `stale`: the next listing is to make the map anew, whatever it shows.
    """

    map: TopicMap
    found: list[Known] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    appended: list[Known] = field(default_factory=list)
    heads: deque[HeadSegment] = field(default_factory=lambda: deque(maxlen=HEADS_MAX))
    seen: Sequence[HeadSegment] = ()
    brokers: tuple[Known, ...] | None = None
    stale: bool = False
    looked_s: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def make(self) -> None:
        """Make the map of all that is known."""
        self.map = readable_map(
            self.map.topic,
            [*self.found, *self.appended],
            heads=tuple(self.heads),
            brokers=self.brokers or (),
            problems=self.problems,
        )

    def append(self, known: Known, named: HeadSegment) -> bool:
        """Add the segment that directly follows the map; return whether it does."""
        following = extended(self.map, known)
        if following is None:
            return False
        self.map = following
        self.appended.append(known)
        self.heads.append(named)
        return True


@dataclass(slots=True)
class _Listing:
    """One listing of all places: segments and problems by topic, problems of none under None."""

    known: dict[TopicName, list[Known]]
    problems: dict[TopicName | None, list[Problem]]
    appended_before: dict[TopicName, set[UUID]]
    """Segments that heads had named before the listing: of these, it has all that are there."""
    unsettled: bool = False
    """Whether it left segments out that only the next listing can place."""


class Totals(NamedTuple):
    """Numbers of topics, of their readable segments and of their gaps."""

    topics: int
    segments: int
    gaps: int


class BucketTopics:
    """All topics of the places of a cluster. `run` keeps them fresh; maps are there after the first listing.

    `listing_s` is the interval of listings, `head_s` the greatest age of a map that is read, while the store answers.
    """

    def __init__(
        self,
        objects: ObjectReader,
        sites: Sequence[Site],
        *,
        listing_s: float,
        head_s: float,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._objects = objects
        self._sites = {(site.bucket, site.prefix): site for site in sites}
        self._listing_s, self._head_s = listing_s, head_s
        self._clock = clock
        self._metrics = metrics
        self._manifests: dict[tuple[str, str], tuple[ObjectInfo, Known | Problem]] = {}
        self._topics: dict[TopicName, _Topic] = {}
        self._due = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once the bucket was listed."""
        self.listed_ms = 0
        """When the last complete listing began (wall time); 0 before the first."""
        self.failure: OffloaderError | None = None
        """Why the last listing failed."""
        self.problems: tuple[Problem, ...] = ()
        """What concerns no known topic, the first PROBLEMS_MAX."""

    @property
    def topics(self) -> list[TopicName]:
        """All topics with a segment, in order. Raises Transient before the first listing."""
        self._check_listed()
        return sorted(self._topics)

    async def every_topic(self) -> list[TopicName]:
        """Return all topics with a segment, in order. Raises Transient before the first listing."""
        return self.topics

    def _check_listed(self) -> None:
        if not self.listed_ms:
            raise Transient("the bucket was not listed yet", hint="try again in a moment")

    @property
    def counts(self) -> Totals:
        """The totals of all topics."""
        maps = [one.map for one in self._topics.values()]
        return Totals(len(maps), sum(len(one.segments) for one in maps), sum(len(one.gaps) for one in maps))

    def known(self, topic: TopicName) -> TopicMap | None:
        """Return the map as it is, without a request; None for a topic without segments."""
        found = self._topics.get(topic)
        return found.map if found is not None else None

    def unread(self, topic: TopicName) -> tuple[str, ...]:
        """Return which segments of a topic cannot be read and are at unknown positions: a gap need not show them."""
        found = self._topics.get(topic)
        problems = found.problems if found is not None else ()
        return tuple(one.text for one in problems if one.blocks and one.entries is None)

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the map, at most `head_s` old while the store answers. Raises Transient before the first listing."""
        self._check_listed()
        found = self._topics.get(topic)
        if found is None:
            return TopicMap(topic)
        if self._clock.monotonic() - found.looked_s >= self._head_s:
            try:
                async with asyncio.timeout(ANSWERS_S), found.lock:
                    if self._clock.monotonic() - found.looked_s >= self._head_s:
                        await self._look(found)
            except (OffloaderError, TimeoutError) as error:
                log.warning("head.unreadable", topic=str(topic), error=str(error) or "no answer")
                found.looked_s = self._clock.monotonic()
        return found.map

    async def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """List again and again until cancelled; `progress` gets the number of segments read by the first listing."""
        backoff = Backoff(self._clock)
        while True:
            self._due.clear()
            try:
                await self.refresh(progress)
            except (Transient, Denied, NotFound) as error:
                self.failure = error
                log.warning("bucket.listing_failed", error=str(error), listed_ms=self.listed_ms)
                await self._clock.sleep(backoff.pause_s(error))
                continue
            backoff = Backoff(self._clock)
            await self._clock.sleep(min(LISTING_PAUSE_S, self._listing_s))
            await race(self._due.wait(), self._clock.sleep(self._listing_s - LISTING_PAUSE_S))

    async def refresh(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """List all places, and renew the maps of the topics that have changed. Raises as the store does."""
        began_ms, began_s = self._clock.wall_ms(), self._clock.monotonic()
        listing = await self._listed(progress if not self.listed_ms else lambda _: None)
        if listing.unsettled and not self.listed_ms:
            listing = await self._listed(lambda _: None)
        if listing.unsettled:
            self._due.set()
        changed = []
        for topic, found in listing.known.items():
            state = self._topics.get(topic) or _Topic(TopicMap(topic))
            same = (state.found, state.problems) == (found, listing.problems[topic])
            if not same or state.stale or topic in listing.appended_before:
                changed.append(state)
        await each(changed, lambda one: self._renew(one, listing))
        await self._fill(changed)
        new = {one.map.topic: one for one in changed}
        self._topics = {topic: new.get(topic) or self._topics[topic] for topic in listing.known}
        self.problems = tuple(listing.problems[None][:PROBLEMS_MAX])
        self.failure, self.listed_ms = None, began_ms
        self.ready.set()
        self._show(began_ms, self._clock.monotonic() - began_s)

    async def _listed(self, progress: Callable[[int], None]) -> _Listing:
        counts, known, problems = Counts(), list[Known](), list[Problem]()
        new, old = set[UUID](), set[UUID]()
        appended = {
            topic: {known.segment.segment_id for known in one.appended}
            for topic, one in self._topics.items()
            if one.appended
        }
        manifests: dict[tuple[str, str], tuple[ObjectInfo, Known | Problem]] = {}
        for site in self._sites.values():
            async for batch in stored.batches(self._objects, site, counts):
                described = [one for one in batch if ObjectKind.MANIFEST in one.objects]
                for one in described:
                    earlier = (site.bucket, one.keys.manifest) in self._manifests
                    (old if earlier else new).add(one.segment_id)
                read = await each(described, partial(self._manifest, site))
                for one, found in zip(described, read, strict=True):
                    key = site.bucket, one.keys.manifest
                    manifests[key] = self._manifests[key] = one.objects[ObjectKind.MANIFEST], found
                    sound = rebuild.complete(found, one)
                    if isinstance(sound, Known):
                        known.append(sound)
                    else:
                        problems.append(sound)
                progress(counts.segments)
        self._manifests = manifests
        joined, contradictions = with_copies(known)
        ids = {found.segment.segment_id for found in joined}
        foreign = [problem for problem in problems if problem.kind is Kind.FOREIGN]
        listing = _Listing(defaultdict(list), defaultdict(list), defaultdict(set, appended))
        for found in joined:
            listing.known[found.topic].append(found)
        self._settle(listing, new - old)
        elsewhere = [problem for problem in problems if problem.blocks and ids.isdisjoint(problem.segments)]
        for problem in (*elsewhere, *contradictions):
            listing.problems[problem.topic].append(problem)
            if problem.topic is not None:
                listing.known.setdefault(problem.topic, [])
        if foreign and not joined:
            others = _of_others(foreign, {site.cluster for site in self._sites.values()})
            log.warning("bucket.of_other_clusters", problem=others.text)
            listing.problems[None].insert(0, others)
        return listing

    def _settle(self, listing: _Listing, new: set[UUID]) -> None:
        """Leave out the segments that only the next listing can place; `new` are those that no earlier one had."""
        for topic, found in tuple(listing.known.items()):
            kept = settled(topic, found, new, begins=topic not in self._topics)
            listing.unsettled |= len(kept) < len(found)
            listing.known[topic] = kept
            if not kept:
                del listing.known[topic]

    async def _manifest(self, site: Site, one: StoredSegment) -> Known | Problem:
        """Return what a manifest says; one that is listed as before is not read again, unless it was unreadable."""
        info, found = self._manifests.get((site.bucket, one.keys.manifest), (None, None))
        kept = isinstance(found, Known) or (found is not None and found.kind is Kind.FOREIGN)
        if found is not None and kept and info == one.objects[ObjectKind.MANIFEST]:
            return found
        return await retried(partial(rebuild.read_manifest, self._objects, site, one), clock=self._clock, policy=USUAL)

    async def _renew(self, state: _Topic, listing: _Listing) -> None:
        """Make the map of a topic that was listed anew, with its head as it is now."""
        topic = state.map.topic
        async with state.lock:
            heads = await self._heads(topic)
            looked_s = self._clock.monotonic()
            found = listing.known[topic]
            ids = {one.segment.segment_id for one in found}
            appended = [
                one for one in state.appended if one.segment.segment_id not in ids | listing.appended_before[topic]
            ]
            ids |= {one.segment.segment_id for one in appended}
            later = {
                one: known for one in heads if one.segment_id not in ids and (known := await self._fetched(one, topic))
            }
            state.found, state.problems, state.appended = found, listing.problems[topic], appended
            state.looked_s, state.seen = looked_s, heads
            state.heads.extend(one for one in heads if one not in later and one not in state.heads)
            state.make()
            waited, state.stale = state.stale, False
            for named, known in later.items():  # committed after the listing
                if not state.append(known, named):
                    state.stale = True
                    if not waited:
                        self._due.set()

    async def _fill(self, changed: Sequence[_Topic]) -> None:
        """Search ledgers that brokers have offloaded for topics that lack entries, once for each topic."""
        lacking = {
            one.map.topic: one
            for one in changed
            if one.brokers is None and (one.map.gaps or one.map.losses or has_front(one.found))
        }
        if not lacking:
            return
        found: dict[TopicName, list[Known]] = defaultdict(list)
        try:
            for site in {site.bucket: replace(site, prefix="") for site in self._sites.values()}.values():
                for one in await rebuild.broker_ledgers(self._objects, site, lacking, []):
                    found[one.topic].append(one)
        except OffloaderError:
            for state in lacking.values():
                state.stale = True
            raise
        for topic, state in lacking.items():
            state.brokers = tuple(found[topic])
            if state.brokers:
                state.make()

    async def _look(self, state: _Topic) -> None:
        """Read the head of a topic, and add the segment that it names to the map. Raises as the store does."""
        topic = state.map.topic
        heads = await self._heads(topic)
        for named in heads:
            if named not in state.seen:
                known = await self._fetched(named, topic)
                if known is None or not state.append(known, named):
                    state.stale = True
                    self._due.set()
        state.seen, state.looked_s = heads, self._clock.monotonic()

    async def _heads(self, topic: TopicName) -> list[HeadSegment]:
        """Return the newest segments that the heads of a topic name. Raises as the store does."""

        async def read(site: Site) -> HeadSegment | None:
            try:
                head = await rebuild.read_head(self._objects, site, topic)
            except Archived:
                return None
            return head.newest if head is not None else None

        found = await each(tuple(self._sites.values()), read)
        return sorted({one for one in found if one is not None}, key=lambda one: one.end)

    async def _fetched(self, named: HeadSegment, topic: TopicName) -> Known | None:
        """Return a segment that a head names; None if it is not whole and readable. Raises as the store does."""
        site = self._sites.get((named.bucket, named.prefix))
        if site is None:
            return None
        ledger_id = named.begin.ledger_id if named.ledger_based else None
        where = SegmentKeys(site.prefix, named.segment_id, ledger_id)
        one = StoredSegment(site.bucket, where)
        store = self._objects.at(site.bucket)
        try:
            infos = await each(stored.KINDS, lambda kind: store.head(where.of(kind)))
        except (NotFound, Archived):
            return None
        one.objects.update(zip(stored.KINDS, infos, strict=True))
        sound = await rebuild.read_sound(self._objects, site, one)
        return sound if isinstance(sound, Known) and sound.topic == topic else None

    def _show(self, listed_ms: int, seconds: float) -> None:
        counts = self.counts
        self._metrics.bucket_listed_timestamp_seconds.set(listed_ms / 1000)
        self._metrics.bucket_listing_seconds.set(seconds)
        self._metrics.bucket_topics.set(counts.topics)
        self._metrics.bucket_segments.set(counts.segments)
        self._metrics.bucket_gaps.set(counts.gaps)


def _of_others(foreign: Sequence[Problem], clusters: Collection[str]) -> Problem:
    """Return the problem of places that have segments, and none of the daemon's cluster."""
    text = f"no segment here is of cluster {', '.join(map(repr, sorted(clusters)))}, and {len(foreign)} are of others: "
    text += f"{foreign[0].text}; daemon.cluster is to be the name of the cluster that offloaded the topics"
    return Problem(kind=Kind.FOREIGN, text=text)
