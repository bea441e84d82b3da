"""The rewriting of stored entries: slices into a whole ledger, or many segments into one.

The entries are read from the bucket within the upload budget. Manifests are compared with the map, and blocks with the
checksums of their manifest. Data that seems damaged is read once more, since a bit can flip in transit. Transient
errors are retried; damaged or missing objects end the reading with an error that names key and byte.

The segment writer writes the new object. It may replace the only copy, so it is read back through its stored index, and
the hash of its entries has to equal that of the old objects. Only then is the manifest put, which names the replaced
segments and which a rebuild trusts, and the new object exchanged for the old ones (`metadata/topic_map/conversion.py`,
`metadata/topic_map/merging.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

from offloaderd.core.errors import BucketMissing, Conflict, CorruptData, Denied, Fenced, InvalidInput, NotFound
from offloaderd.core.model import EntryBatch, LedgerInfo, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import LedgerPart, Past, SegmentManifest
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.verify import BlockRun, check_index, runs
from offloaderd.history.segment import OwnedTopic
from offloaderd.ledgers.book import plain_metadata
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map import conversion
from offloaderd.metadata.topic_map.conversion import LedgerState
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.merging import Goal, goal_of
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.whole import read_apart
from offloaderd.segment.builder import LedgerCut
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.committer import Assignment, FindManifest, Surroundings, VerifiedSegment
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import EntryHash, Gap, HashingFeed
from offloaderd.segment.prefix_totals import past_within
from offloaderd.segment.roll import ExactStop, RollPolicy, SegmentProgress
from offloaderd.segment.states import SegmentState
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter

T = TypeVar("T")

PIECE_BYTES = 4 << 20
"""Size of one request; a larger block is read alone."""

CONFIRM_S = 2.0
"""Pause before data that seems damaged is read once more."""


class Unreadable(SegmentFailed):
    """The bucket lacks committed data, so it cannot be rewritten."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A segment's data object and its manifest."""

    bucket: str
    keys: SegmentKeys
    manifest: SegmentManifest


class BucketReader:
    """Reads segments of one topic from their buckets; `ready` is called before each request."""

    def __init__(
        self, context: OffloadContext, topic: TopicName, failure_tracker: FailureTracker, ready: Callable[[], None]
    ) -> None:
        self._objects = context.upload_context.objects
        self._clock = context.upload_context.clock
        self._budget = context.upload_context.budget
        self._cluster = context.cluster
        self._topic = topic
        self._failure_tracker = failure_tracker
        self._ready = ready
        self.piece_bytes = min(PIECE_BYTES, context.layout.part_bytes)
        """Largest request, unless one block is larger."""

    async def volume(self, segment: CommittedSegment) -> Volume:
        """Fetch a segment's manifest and compare it with the map. Raises Unreadable."""
        key = segment.keys.manifest

        async def fetch() -> SegmentManifest:
            decode = partial(manifest_bytes.decode, key=key, data_bytes=segment.object_bytes)
            described = await read_apart(decode, partial(self._objects.at(segment.bucket).get, key, 0))
            segment.check_manifest(described, managed_ledger=self._topic.managed_ledger, cluster=self._cluster)
            return described

        return Volume(segment.bucket, segment.keys, await self._confirmed(fetch))

    async def stored(self, volume: Volume) -> Volume:
        """Return the volume after comparing its stored index with its manifest. Raises Unreadable."""

        async def fetch() -> None:
            check = partial(check_index, manifest=volume.manifest, key=volume.keys.index)
            await read_apart(check, partial(self._objects.at(volume.bucket).get, volume.keys.index, 0))

        await self._confirmed(fetch)
        return volume

    async def entries(
        self, volumes: Sequence[Volume], ledger_id: int, first_entry_id: int = 0, *, reserve: bool = False
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the ledger's entries from `first_entry_id` on, once and in order. Raises Unreadable.

        With `reserve` each request takes its memory from the budget; else the caller has.
        """
        expected = first_entry_id
        for volume in volumes:
            blocks = [
                block
                for block in volume.manifest.blocks
                if block.ledger_id == ledger_id and block.last_entry_id >= first_entry_id
            ]
            for piece in runs(blocks, self.piece_bytes):
                # With a reservation of its own, a caller takes none here: it would wait behind others while it holds
                # one.
                async with self._budget.held(piece.length) if reserve else nullcontext():
                    for found in await self._piece(volume, piece):
                        batch = found.between(first_entry_id, found.last_entry_id)
                        if batch.first_entry_id != expected or not batch.payloads:
                            key = volume.keys.data
                            raise Unreadable(f"{key} continues with entry {batch.first}, not with entry {expected}")
                        expected = batch.last_entry_id + 1
                        yield batch

    async def _piece(self, volume: Volume, piece: BlockRun) -> list[EntryBatch]:
        """Fetch adjacent blocks, each checked against the manifest."""

        async def fetch() -> list[EntryBatch]:
            try:
                data = await self._objects.at(volume.bucket).get(volume.keys.data, piece.offset, piece.length)
            except InvalidInput:
                data = b""  # the object ends before that byte
            return piece.decoded(data, key=volume.keys.data, method=volume.manifest.method)

        return await self._confirmed(fetch)

    async def run(
        self,
        volumes: Sequence[Volume],
        slices: Sequence[LedgerSlice],
        behind: Position | None = None,
        *,
        reserve: bool = False,
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the entries of all slices, once and in order, or those behind a position. Raises Unreadable.

        `reserve` as in `entries`.
        """
        for part in slices:
            first = part.first_entry_id
            if behind is not None and behind.ledger_id >= part.ledger_id:
                first = behind.entry_id + 1 if behind.ledger_id == part.ledger_id else part.last_entry_id + 1
            if first > part.last_entry_id:
                continue
            async with aclosing(self.entries(volumes, part.ledger_id, first, reserve=reserve)) as batches:
                async for batch in batches:
                    yield batch

    async def hashed(self, volumes: Sequence[Volume], slices: Sequence[LedgerSlice]) -> EntryHash:
        """Return the hash of all entries of slices, read piece by piece. Raises Unreadable."""
        found = EntryHash()
        async with aclosing(self.run(volumes, slices, reserve=True)) as batches:
            async for batch in batches:
                found.take(batch)
                # Lets live segments work between two batches, however fast the bucket is.
                await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
        return found

    async def _confirmed(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Fetch, once more if the result seems damaged. Raises Unreadable."""
        try:
            return await self._patiently(fetch)
        except CorruptData:
            await self._clock.sleep(CONFIRM_S)
        try:
            return await self._patiently(fetch)
        except CorruptData as error:
            raise Unreadable(error.message, hint=error.hint) from error

    async def _patiently(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Retry until the store answers. Raises Unreadable for a missing object."""

        async def ready() -> T:
            self._ready()
            return await fetch()

        try:
            return await self._failure_tracker.until_answered(ready, object(), Denied, BucketMissing)
        except NotFound as error:
            raise Unreadable(error.message, hint="restore the object, or read from the ledger source") from error


BLOCK_BYTES = 64 << 20
"""Pulsar's default size of a block (`managedLedgerOffloadMaxBlockSizeInBytes`), for daemons without a setting."""

EXCHANGES_MAX = 5
"""Tries of the exchange while other processes change the map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldObjects:
    """The objects that hold a goal's entries; made by `look_up`.

    `closed_ms` returns when a ledger was closed by the source, None if that is not known.
    """

    context: OffloadContext
    topic: TopicName
    goal: Goal
    reader: BucketReader
    volumes: tuple[Volume, ...]
    closed_ms: Callable[[int], int | None]

    def info(self, ledger_id: int) -> LedgerInfo:
        """Return what map and manifests hold of a ledger, without the source."""
        goal = self.goal
        parts = [part for one in self.volumes for part in one.manifest.ledgers if part.ledger_id == ledger_id]
        known = max(parts, key=lambda part: (part.closed, part.ledger_entries))
        closed_ms = self.closed_ms(ledger_id)
        return LedgerInfo(
            ledger_id=ledger_id,
            closed=goal.whole or known.closed,
            entries=goal.entries if goal.whole else known.ledger_entries,
            size_bytes=sum(part.payload_bytes for part in parts) if goal.whole else known.ledger_bytes,
            closed_at_ms=max(part.closed_ms for part in parts) if closed_ms is None else closed_ms,
            created_ms=known.created_ms,
        )

    async def new_attempt(self, epoch: int, policy: RollPolicy | None) -> Attempt:
        """Return a new attempt, not recorded; its objects are stored where the old ones are. Raises Unreadable."""
        context, old = self.context, self.volumes[0]
        layout = await self._whole_layout() if self.goal.whole else context.layout
        place = context.places.find(old.bucket, old.keys.prefix) or context.places.home
        return context.attempt(self.goal.begin, layout, context.stored(place, policy, self.topic), epoch=epoch)

    async def _whole_layout(self) -> LedgerLayout:
        info = self.info(self.goal.begin.ledger_id)
        try:
            metadata = await until_answered(
                self.context.upload_context.clock, lambda: _described(self.context, self.topic, info)
            )
        except InvalidInput as error:
            raise Unreadable(error.message) from error
        return cut_of(self.context).layout(entries=info.entries, payload_bytes=info.size_bytes, metadata=metadata)

    def assignment(self, attempt: Attempt, *, resumed: bool, notes: Mapping[str, bool]) -> Assignment:
        """Return the assignment of an attempt."""
        begin, now_s = self.goal.begin, self.context.upload_context.clock.monotonic()
        after = Position(begin.ledger_id, begin.entry_id - 1)
        return Assignment(attempt=attempt, after=after, resumed=resumed, opened_s=now_s, notes=notes)

    def feed(self, attempt: Attempt) -> HashingFeed:
        """Return the feed of the entries; it reserves a part and one piece, which is fetched before the part is cut."""
        part_bytes = (attempt.layout or self.context.layout).part_bytes
        return HashingFeed(
            partial(self.reader.run, self.volumes, self.goal.slices),
            self.context.upload_context.budget,
            begin=self.goal.begin,
            reserve_bytes=part_bytes + self.reader.piece_bytes,
            holder=self.context.upload_context.holder(attempt.bucket, attempt.segment_id),
        )

    def stop(self) -> ExactStop:
        """Return the stop rule: the new object ends where the old ones do."""
        return ExactStop(end=self.goal.end, entries=self.goal.entries)


async def look_up(
    context: OffloadContext,
    topic: TopicName,
    goal: Goal,
    *,
    failure_tracker: FailureTracker,
    ready: Callable[[], None] = lambda: None,
    closed_ms: Callable[[int], int | None] = lambda _: None,
) -> OldObjects:
    """Find the objects of a goal's entries. `ready` is called before each request, and may raise. Raises Unreadable."""
    reader = BucketReader(context, topic, failure_tracker, ready)
    volumes = [await reader.volume(one) for one in goal.sources]
    return OldObjects(
        context=context, topic=topic, goal=goal, reader=reader, volumes=tuple(volumes), closed_ms=closed_ms
    )


class RewriteFacts:
    """The facts for the new object's manifest; `current` returns the topic's map. See SealFacts."""

    def __init__(self, old: OldObjects, current: Callable[[], TopicMap]) -> None:
        self._old = old
        self._current = current

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts."""
        return {part.ledger_id: self._old.info(part.ledger_id) for part in self._old.goal.slices}

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """See SealFacts: from the old manifests."""
        goal, topic_map = self._old.goal, self._current()
        before = max((one for one in topic_map.contexts if one < begin.ledger_id), default=begin.ledger_id)
        losses = tuple(loss for loss in topic_map.losses if begin <= loss.before <= goal.end)
        past = past_within(self._old.volumes[0].manifest, begin.ledger_id)
        lost_before = any(loss.before == begin for loss in losses)
        return Surroundings(
            losses=losses,
            ends=tuple((one, topic_map.ends[one]) for one in sorted({before, *infos}) if one in topic_map.ends),
            past=Past(past.entries, begin) if past is not None and lost_before else past,
            replaces=self._replaced(topic_map),
        )

    def _replaced(self, topic_map: TopicMap) -> tuple[UUID, ...]:
        """Return its sources, and what these replaced if it is still in the map for other entries."""
        known = {one.segment_id for one in topic_map.segments}
        before = {one for volume in self._old.volumes for one in volume.manifest.replaces}
        sources = {one.segment_id for one in self._old.goal.sources}
        return tuple(sorted(sources | (before & known)))


class SameEntries:
    """The proof that a new object holds the entries of the old ones, which `feed` has hashed."""

    def __init__(self, old: OldObjects, feed: HashingFeed, attempt: Attempt) -> None:
        self._old = old
        self._feed = feed
        self._attempt = attempt

    async def check(self, made: SegmentManifest) -> None:
        """Compare the stored entries with those of the old objects. Raises SegmentFailed."""
        old, goal = self._old, self._old.goal
        before = self._feed.digest(goal.end) or await old.reader.hashed(old.volumes, goal.slices)
        try:
            volume = await old.reader.stored(Volume(self._attempt.bucket, self._attempt.keys, made))
            after = await old.reader.hashed([volume], goal.slices)
        except Unreadable as error:
            raise SegmentFailed(f"what was stored reads back differently: {error.message}") from error
        if (before.entries, before.digest()) != (after.entries, after.digest()):
            raise SegmentFailed(f"object {made.segment_id} does not hold the entries of {goal.range}")


async def exchange(
    put: Callable[[], Awaitable[object]], reload: Callable[[], Awaitable[TopicMap]], segment_id: UUID
) -> None:
    """Exchange an object for its sources by `put`; after a conflict the map is read again.

    Raises Fenced, and SegmentFailed if the sources are not in the map any more.
    """
    for tries in range(1, EXCHANGES_MAX + 1):
        try:
            await put()
        except Fenced:
            raise
        except (Conflict, NotFound) as error:
            if any(one.segment_id == segment_id for one in (await reload()).segments):
                return
            if tries == EXCHANGES_MAX:
                raise SegmentFailed(f"the map has changed: {error.message}") from error
        else:
            return


def cut_of(context: OffloadContext) -> LedgerCut:
    """Return how ledgers are cut, with a source or without."""
    layout = context.layout
    return (
        context.ledgers
        or context.cut
        or LedgerCut(block_bytes=BLOCK_BYTES, part_bytes=layout.part_bytes, run_bytes=layout.block_bytes)
    )


async def _described(context: OffloadContext, topic: TopicName, info: LedgerInfo) -> bytes:
    """Return BookKeeper's metadata of a ledger, or metadata made from known values if the source has none."""
    if context.ledgers is None:
        return plain_metadata(info)
    try:
        return await context.ledgers.describer.described(topic, info.ledger_id)
    except (NotFound, InvalidInput):
        return plain_metadata(info)


class Stopped(SegmentFailed):
    """The order was withdrawn while the ledger was being rewritten."""


class ExchangeCommitter:
    """Replaces old objects by new ones in the owner's map; see Committer.

    `ready` is called before long steps, and may raise SegmentFailed.
    """

    manifest = ObjectKind.MANIFEST

    def __init__(
        self, record: TopicRecord, attempts: AttemptLog, proof: SameEntries, ready: Callable[[], None]
    ) -> None:
        self._record = record
        self._attempts = attempts
        self._proof = proof
        self._ready = ready

    async def begin(self, attempt: Attempt) -> None:
        """See Committer."""
        await self._attempts.begin(attempt)

    async def record_loss(self, gap: Gap) -> None:
        """Record none: a gap in stored entries is a failure."""

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer."""
        self._ready()

    async def before_manifest(self, described: SegmentManifest) -> None:
        """See Committer: the new object has to hold the same entries."""
        await self._proof.check(described)

    async def commit(self, segment: VerifiedSegment) -> None:
        """See Committer. Raises SegmentFailed if the map does not have the replaced segments any more."""
        record, made = self._record, segment.committed

        async def reload() -> TopicMap:
            await record.reload()
            return record.map

        with segment.trace.step("commit"):
            await exchange(lambda: record.exchange(self._attempts, made), reload, made.segment_id)

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """See Committer."""
        await self._attempts.give_up(attempt, why)


class LedgerRewrite:
    """The rewriting of one ledger by the topic's owner; `stopped` returns whether its order was withdrawn."""

    def __init__(
        self,
        offloader: OwnedTopic,
        context: OffloadContext,
        attempts: AttemptLog,
        row: LedgerState,
        stopped: Callable[[], bool],
    ) -> None:
        self.row = row
        self.failure_tracker = FailureTracker(offloader.topic, context.upload_context.clock, offloader.changed.notify)
        self._offloader = offloader
        self._context = context
        self._attempts = attempts
        self._stopped = stopped
        self._writer: SegmentWriter | None = None

    @property
    def _progress(self) -> SegmentProgress | None:
        return self._writer.progress if self._writer is not None else None

    @property
    def phase(self) -> str:
        """The phase, by its name in the API."""
        state = self._progress.state if self._progress is not None else SegmentState.ASSIGNED
        return _PHASES.get(state, "writing")

    @property
    def done_bytes(self) -> int:
        """Payload bytes that are in the new object."""
        return self._progress.payload_bytes if self._progress is not None else 0

    async def run(self, left: Attempt | None) -> CommittedSegment:
        """Rewrite the ledger, or resume `left`; returns the committed segment.

        Raises SegmentFailed, Unreadable and Stopped after its attempt was given up, and Fenced.
        """
        topic = self._offloader
        goal = goal_of(conversion.holders_of(topic.map, self.row.ledger_id), ledger_id=self.row.ledger_id)
        try:
            old = await look_up(
                self._context,
                topic.topic,
                goal,
                failure_tracker=self.failure_tracker,
                ready=self._ready,
                closed_ms=self._closed_ms,
            )
        except SegmentFailed as error:
            if left is not None:
                await self._attempts.give_up(left, str(error))
            raise
        attempt = left or await old.new_attempt(topic.claim.epoch, topic.policy)
        feed = old.feed(attempt)
        proof = SameEntries(old, feed, attempt)
        committer = ExchangeCommitter(topic.record, self._attempts, proof, self._ready)
        self._writer = SegmentWriter(self._context, self._attempts, committer, failure_tracker=self.failure_tracker)
        work = old.assignment(attempt, resumed=left is not None, notes={"rollback": True})
        written = await self._writer.run(work, feed, old.stop(), RewriteFacts(old, lambda: topic.map))
        assert written is not None  # noqa: S101 - no rewriting is left unfinished to the next owner
        return written.committed

    def _ready(self) -> None:
        """Raise Stopped if the order was withdrawn."""
        if self._stopped():
            raise Stopped(f"ledger {self.row.ledger_id} is not to be rewritten any more")

    def _closed_ms(self, ledger_id: int) -> int | None:
        known = self._offloader.record.chain.ledgers.get(ledger_id)
        return known.closed_at_ms if known is not None and known.closed else None


_PHASES = {
    SegmentState.COMPLETED: "verifying",
    SegmentState.VERIFIED: "committing",
    SegmentState.COMMITTED: "committing",
}
