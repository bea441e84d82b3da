"""A drill of a restore: what a mount would bring up out of the bucket, proven by reads. `offloaderd drill restore`.

The code of a mount plans and writes into the metadata of an empty cluster in memory, as after the loss of everything
but the bucket. What it wrote is read back as a stock broker's driver reads it: each ledger is opened by the id in its
topic's list, and entries are read with their checksums, from where a daemon with `--read-only` would read them. The
bucket is only read.

The bucket may be in use meanwhile. So topics that do not come up are tried once more where a second listing shows them
differently: their segments may have been replaced or deleted by retention.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import inf
from typing import NamedTuple
from uuid import UUID

from offloaderd.bookkeeper.metadata import instance_path
from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, CorruptData, Denied, InvalidInput, NotFound, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Loss, Position, TopicName
from offloaderd.core.names.managed_ledgers import ROOT
from offloaderd.core.names.patterns import TopicPattern, partitioned_topic
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.units import abridged
from offloaderd.daemon.components import reader_options
from offloaderd.daemon.reader_daemon import SettingsPolicies
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import sites
from offloaderd.format.pulsar.messages import message_count
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.conversion import holders_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.mount import mount
from offloaderd.mount.captured import RETENTION, Captured
from offloaderd.mount.cluster import TargetCluster
from offloaderd.mount.mount import READY, Bucket, Prepared
from offloaderd.mount.plan import AtGap
from offloaderd.objects.port import ObjectReader
from offloaderd.read.reader import TopicReader
from offloaderd.read.stream import NoBuffers
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.bucket_topics import BucketTopics
from offloaderd.upkeep.grants.broker_request import extent_of

LEDGERS_ROOT = "/ledgers"
TOPICS_AT_ONCE = 500
"""Topics of one cluster in memory: each write there takes longer the more nodes there are."""
FAILURES_MAX = 5
"""Failures of one topic that are described; the others are counted."""


class Reading(StrEnum):
    """What is read of each ledger: nothing, the first and the last entry in each segment, or everything."""

    NONE = "none"
    ENDS = "ends"
    ALL = "all"


IN_FLIGHT = {Reading.NONE: 64, Reading.ENDS: 64, Reading.ALL: 8}
"""Ledgers that are read at a time. Their blocks are in the reader's cache, within its budget (memory.cache_bytes)."""

Progress = Callable[[str, int, int], None]
"""Called with what is counted, the number so far, and the whole number; 0 if that is unknown."""
BYTES_READ = "bytes read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be tried: topics that a pattern matches, or all; what is read; and what becomes of gaps."""

    patterns: Sequence[TopicPattern] = ()
    reading: Reading = Reading.ENDS
    at_gap: AtGap = AtGap.REFUSE


class Counts(NamedTuple):
    """Entries, bytes of payload, and messages that were read; `messages` is 0 unless everything is read."""

    entries: int = 0
    payload_bytes: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """A topic: what would come up, why not all of it would, and what of it was read. `begin` and `end`: None for none.

    `subscriptions` are those of a capture, `subscriptions_left_out` why others do not come up, by their names.
    `damaged` are objects that were not as they should be, and whose copy was read instead.
    """

    topic: TopicName
    ledgers: int
    entries: int
    payload_bytes: int
    begin: Position | None
    end: Position | None
    entries_left_out: int
    losses: tuple[Loss, ...]
    why: tuple[str, ...]
    read: Counts
    subscriptions: int
    subscriptions_left_out: Mapping[str, str]
    damaged: tuple[str, ...]

    @property
    def comes_up(self) -> bool:
        """Whether it would come up as its list says."""
        return not self.why


class _Outcome(NamedTuple):
    """The reads of one ledger; `failure` is empty if all succeeded."""

    read: Counts = Counts()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a drill. `to_do`: what an operator has to do besides, `unread`: objects that cannot be read.

    `system_topics` are topics of Pulsar itself that are never mounted. `seconds` by part: listing, plan, apply, read.
    """

    started_ms: int
    topics: Sequence[TopicResult]
    system_topics: int
    to_do: Sequence[str]
    unread: Sequence[str]
    seconds: dict[str, float]

    @property
    def sound(self) -> bool:
        """Whether every topic would come up, one at least, and everything in the bucket could be read."""
        return bool(self.topics) and not self.unread and not self.failed

    @property
    def failed(self) -> list[TopicResult]:
        """The topics that would not come up."""
        return [one for one in self.topics if not one.comes_up]

    @property
    def partitioned_topics(self) -> int:
        """Number of partitioned topics that would come up with a partition at least."""
        return len({partitioned_topic(one.topic) for one in self.topics if one.comes_up} - {None})


@dataclass(slots=True)
class RestoreDrill:
    """One drill on the places of the settings. `objects` is the bucket, which is only read, `captured` its capture."""

    objects: ObjectReader
    settings: Settings
    wish: Wish
    clock: Clock
    progress: Progress = lambda *_: None
    captured: Captured | None = None
    _seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("listing", "plan", "apply", "read"), 0.0))
    _damaged: dict[TopicName, dict[UUID, str]] = field(default_factory=dict)
    _to_do: set[str] = field(default_factory=set)
    _done: int = 0
    _total: int = 0
    _turns: asyncio.Semaphore = field(init=False)
    _topics: BucketTopics = field(init=False)
    _reader: TopicReader = field(init=False)

    def __post_init__(self) -> None:
        """Make the reader, as a daemon that only reads has it."""
        metrics = Metrics()
        self._turns = asyncio.Semaphore(IN_FLIGHT[self.wish.reading])
        self._topics = BucketTopics(
            self.objects, sites(self.settings), listing_s=inf, head_s=inf, clock=self.clock, metrics=metrics
        )
        self._reader = TopicReader(
            maps=self._topics,
            policies=SettingsPolicies(self.settings),
            objects=self.objects,
            source=None,
            hot=NoBuffers(),
            clock=self.clock,
            metrics=metrics,
            options=reader_options(self.settings),
        )
        self._reader.segments.damaged = self._note_damage

    async def run(self) -> Found:
        """Run it. Raises InvalidInput if no topic is chosen, Transient, Denied or BucketMissing without an answer."""
        started_ms = self.clock.wall_ms()
        async with self._reader:
            await self._list()
            matching = [one for one in self._topics.topics if self._is_wanted(one)]
            chosen = [one for one in matching if not mount.own_reason(one, is_named=True)]
            if not chosen:
                raise InvalidInput(
                    f"no topic of cluster {self.settings.daemon.cluster!r} in the bucket matches",
                    hint="daemon.cluster has to be the name of the cluster that offloaded it",
                )
            found = await self._tried(chosen)
            doubtful = [topic for topic, one in found.items() if not one.comes_up]
            if doubtful or self._topics.problems:
                before = {topic: self._state(topic) for topic in doubtful}
                await self._list()
                changed = [topic for topic in doubtful if self._state(topic) != before[topic]]
                for topic in changed:
                    del found[topic]
                    self._damaged.pop(topic, None)
                found |= await self._tried([one for one in changed if self._topics.known(one) is not None])
        return Found(
            started_ms=started_ms,
            topics=[found[topic] for topic in sorted(found)],
            system_topics=len(matching) - len(chosen),
            to_do=sorted(self._to_do),
            unread=[one.text for one in self._topics.problems],
            seconds=self._seconds,
        )

    def _state(self, topic: TopicName) -> object:
        return self._topics.known(topic), self._topics.unread(topic)

    def _is_wanted(self, topic: TopicName) -> bool:
        return not self.wish.patterns or any(pattern.matches(topic) for pattern in self.wish.patterns)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began_s = self.clock.monotonic()
        try:
            yield
        finally:
            self._seconds[part] += self.clock.monotonic() - began_s

    async def _list(self) -> None:
        with self._timed("listing"):
            await self._topics.refresh(lambda count: self.progress("segments read", count, 0))

    async def _tried(self, topics: Collection[TopicName]) -> dict[TopicName, TopicResult]:
        """Mount topics in empty clusters, partitions of one topic in the same, and read them."""
        maps = {one: known for one in self._topics.topics if (known := self._topics.known(one)) is not None}
        bucket = Bucket(objects=self.objects, maps=maps, unread=self._topics.unread, clock=self.clock)
        found: dict[TopicName, TopicResult] = {}
        self._done, self._total = 0, self._whole(maps[one] for one in topics)
        for batch in _batches(topics):
            cluster = await _empty_cluster(batch)
            with self._timed("plan"):
                prepared = await mount.prepare(
                    bucket,
                    cluster,
                    batch,
                    at_gap=self.wish.at_gap,
                    any_retention=False,
                    captured=self.captured,
                    named=batch,
                )
            with self._timed("apply"):
                _, problems = await mount.apply(cluster, prepared, lambda _: None)

            with self._timed("read"):
                results = await each(
                    prepared.topics, partial(self._result, cluster, maps, problems), in_flight_max=TOPICS_AT_ONCE
                )
            found |= {one.topic: one for one in results}
            self._to_do |= {one for one in problems if not one.startswith(tuple(f"{topic}: " for topic in batch))}
        return found

    def _whole(self, maps: Iterable[TopicMap]) -> int:
        """Return the bytes of payload of these topics if everything is read, else the number of their ledgers."""
        if self.wish.reading is Reading.ALL:
            return sum(segment.payload_bytes for one in maps for segment in one.segments)
        return sum(len({part.ledger_id for segment in one.segments for part in segment.slices}) for one in maps)

    def _advance(self, count: int) -> None:
        self._done += count
        self.progress(BYTES_READ if self.wish.reading is Reading.ALL else "ledgers", self._done, self._total)

    async def _result(
        self, cluster: TargetCluster, maps: Mapping[TopicName, TopicMap], problems: Sequence[str], one: Prepared
    ) -> TopicResult:
        """Read a topic as its list says."""
        plan, why, read = one.plan, list(one.why), Counts()
        if one.state == READY:
            there = await cluster.mounted_as(plan.topic)
            if there is None:
                name = f"{plan.topic}: "
                told = [text.removeprefix(name) for text in problems if text.startswith(name)]
                why += told or ["its list was not written"]
            else:
                listed, placeholder = there
                ledgers = [ledger for ledger in listed.ledgers if ledger.ledger_id < placeholder]
                read_one = partial(self._ledger, maps[plan.topic])
                outcomes = await each(ledgers, read_one, in_flight_max=IN_FLIGHT[self.wish.reading])
                read = _sum([outcome.read for outcome in outcomes])
                failures = [outcome.failure for outcome in outcomes if outcome.failure]
                why += abridged(failures, FAILURES_MAX, "more of its ledgers")
        return TopicResult(
            topic=plan.topic,
            ledgers=len(plan.ledgers),
            entries=plan.entries,
            payload_bytes=plan.size_bytes,
            begin=plan.begin,
            end=plan.end,
            entries_left_out=plan.entries_left_out,
            losses=plan.losses,
            why=tuple(why),
            read=read,
            subscriptions=len(one.subscriptions.nodes),
            subscriptions_left_out=one.subscriptions.left_out,
            damaged=() if why else tuple(self._damaged.get(plan.topic, {}).values()),
        )

    async def _ledger(self, topic_map: TopicMap, listed: ListedLedger) -> _Outcome:
        """Open a ledger as a broker's driver does, and read it. Raises Transient, BucketMissing."""
        read = Counts()
        async with self._turns:
            try:
                entries = _opened(topic_map, listed)
                for first, last in self._ranges(topic_map, listed.ledger_id, entries):
                    read = _sum([read, await self._read(topic_map.topic, first, last)])
            except BucketMissing:
                raise
            except (NotFound, CorruptData, Denied) as error:
                return _Outcome(read, f"ledger {listed.ledger_id}: {error}")
        if self.wish.reading is Reading.ALL:
            there, expected = (read.entries, read.payload_bytes), (entries, listed.size_bytes)
            differs = there != expected
            return _Outcome(
                read, f"ledger {listed.ledger_id}: {there} was read, {expected} is listed" if differs else ""
            )
        self._advance(1)
        return _Outcome(read)

    def _ranges(self, topic_map: TopicMap, ledger_id: int, entries: int) -> Iterator[tuple[Position, Position]]:
        """Yield the first and the last position of each read of a ledger."""
        if self.wish.reading is Reading.ALL:
            yield Position(ledger_id, 0), Position(ledger_id, entries - 1)
        elif self.wish.reading is Reading.ENDS:
            for segment in holders_of(topic_map, ledger_id):
                part = next(part for part in segment.slices if part.ledger_id == ledger_id)
                for entry_id in sorted({part.first_entry_id, part.last_entry_id}):
                    if entry_id < entries:
                        yield Position(ledger_id, entry_id), Position(ledger_id, entry_id)

    async def _read(self, topic: TopicName, first: Position, last: Position) -> Counts:
        """Read entries out of the bucket, each block or chunk checked. Raises as `TopicReader.read` does."""
        entries = payload_bytes = messages = 0
        reading = self._reader.read(topic, first=first, last=last, priority=ReadPriority.TIERED_STORAGE_FIRST)
        async with aclosing(reading) as batches:
            async for batch, _ in batches:
                size = batch.payload_bytes()
                entries, payload_bytes = entries + batch.count, payload_bytes + size
                if self.wish.reading is Reading.ALL:
                    messages += sum(map(message_count, batch.payloads))
                    self._advance(size)
        return Counts(entries, payload_bytes, messages)

    def _note_damage(self, topic: TopicName, segment: CommittedSegment, error: OffloaderError) -> None:
        self._damaged.setdefault(topic, {})[segment.segment_id] = str(error)


def _sum(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*counts, strict=True)))


def _batches(topics: Iterable[TopicName]) -> Iterator[list[TopicName]]:
    """Yield the topics in lists of TOPICS_AT_ONCE or little more, all partitions of a topic in one."""
    related: dict[TopicName, list[TopicName]] = defaultdict(list)
    for topic in sorted(topics):
        related[partitioned_topic(topic) or topic].append(topic)
    batch: list[TopicName] = []
    for names in related.values():
        batch += names
        if len(batch) >= TOPICS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


async def _empty_cluster(topics: Iterable[TopicName]) -> TargetCluster:
    """Return an initialised cluster without topics or ledgers, that has their namespaces as docs/mount.md says."""
    store = MemoryTree().connect()
    await store.create(instance_path(LEDGERS_ROOT), b"")
    policies = json.dumps({"retention_policies": RETENTION}).encode()
    for namespace in sorted({f"{topic.tenant}/{topic.namespace}" for topic in topics}):
        await store.create(f"/admin/policies/{namespace}", policies)
    return TargetCluster(store, ledgers_root=LEDGERS_ROOT, lists_root=ROOT)


def _opened(topic_map: TopicMap, listed: ListedLedger) -> int:
    """Return the number of entries of a ledger as a daemon gives it to a broker that has this list.

    Raises NotFound if it gives none, or another than the list says.
    """
    object_id = listed.offload.object_id if listed.offload is not None else None
    extent = extent_of(topic_map, listed.ledger_id, object_id) if object_id is not None else None
    if extent is None:
        raise NotFound("the bucket does not have all of it, or does not show that it was closed")
    if extent != (listed.entries, listed.size_bytes):
        raise NotFound(f"{listed.entries} entries of {listed.size_bytes} bytes are listed, and there are {extent}")
    return extent.entries
