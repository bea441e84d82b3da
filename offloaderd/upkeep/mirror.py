"""The mirror: every owner copies the committed segments of its topics to the second place that their policy names.

    record the copy -> parts, each block checked -> complete, compare -> index, manifest -> add the place to the map

- The topic map is the only list: a segment's record names its copy, added in one transaction under the epoch after the
  copy was verified. Commits, rewriting, retention and deletion so keep both together.
- The copy is recorded before its first byte (`metadata/records/copy.py`), one for each topic. So the collector of
  garbage never takes an unfinished one for garbage, and the next owner resumes it without sending a stored part twice:
  the parts follow from the blocks of the manifest and the recorded size. One that nobody finishes, as its segment or
  the wish for it is gone, goes on the trash list.
- Live segments come first. A part of a copy takes memory only while half of it stays free for them, holds it for one
  try of each request, and takes none of their slots. An error of the mirror stalls no topic; the lag shows it, and
  copying continues by itself.
- The oldest segment is copied first: then the lag is one position, and a mirror alone has a history without a hole.
  A segment that cannot be read does not hold up those behind it, nor does a bucket that is away those elsewhere.
- Every block is checked on its way by its checksum in the manifest, so damaged data are never copied.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from uuid import UUID

import structlog

from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Conflict,
    CorruptData,
    Denied,
    Fenced,
    NoSpace,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.limits import Pace, TokenBucket
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import BlockInfo, SegmentManifest
from offloaderd.format.v2 import PREAMBLE
from offloaderd.format.verify import check_block, check_index
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, Delete, Replace
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records.copy import CopyAttempt
from offloaderd.metadata.records.deletion import encode_trash
from offloaderd.metadata.topic_map.mirroring import given_up
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.places import Place
from offloaderd.objects.port import PartRules
from offloaderd.objects.retrying import RetryingReader
from offloaderd.segment.builder import CutPart
from offloaderd.segment.complete import same_bytes
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker, StoreReach
from offloaderd.segment.upload import SegmentFailed, SegmentUpload, UploadLimits
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.settings import MirrorSettings

log = structlog.get_logger(__name__)

AT_ONCE = 4
"""Topics of a daemon that are copied to a bucket at a time, each one part at a time."""
LOOK_S = 600.0
"""How often a topic without anything to copy is checked, for changes without a notification."""
AGAIN_S = 3600.0
"""When a segment that could not be read is tried again."""
AWAY_S = 60.0
"""How long a bucket that did not answer is the last choice, and a segment whose earlier copy is there is left out."""
MEMORY_S = 0.5
"""Pause between two looks for memory that live segments leave free."""


class Unreadable(OffloaderError):
    """A segment cannot be read where it lies, so it cannot be copied."""


class Away(OffloaderError):
    """The bucket in which a segment lies does not give it at present."""


class Waiting(OffloaderError):
    """An earlier copy of a segment is still to be deleted."""


class Mirror:
    """Copies the segments of this daemon's topics."""

    def __init__(self, context: OffloadContext, options: MirrorSettings, *, again_s: float = AGAIN_S) -> None:
        up = context.upload_context
        self.context = context
        self.again_s = again_s
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._throttle = TokenBucket(options.bytes_per_s, up.clock, burst_s=0)
        # Its requests do not slow down those of live segments, are not counted among them, and stall no topic.
        self.upload_context = replace(
            up,
            limits=UploadLimits(parts_in_flight_max=1, readback=False),
            pace=Pace(AT_ONCE),
            reach=StoreReach(),
            further={},
            metrics=Metrics(),
            tries_max=1,
        )
        self._reader = RetryingReader(up.objects, clock=up.clock, throttle=self._throttle)

    def turns(self, bucket: str) -> asyncio.Semaphore:
        """Return the turns of copies to a bucket: one that does not answer holds up no copies to others."""
        return self._turns[bucket]

    def follow(self, options: MirrorSettings) -> None:
        """Use another rate; the place follows by the policies."""
        self._throttle.per_s = options.bytes_per_s

    async def run(self, offloader: TopicOffloader) -> None:
        """Copy what lacks a copy, until cancelled. Raises Fenced."""
        clock = self.context.upload_context.clock
        work, backoff = TopicMirror(self, offloader), Backoff(clock)
        while True:
            try:
                if await work.turn():
                    backoff.reset()
                    continue
            except Fenced:
                raise
            except OffloaderError as error:
                work.failed(error)
                pause_s = backoff.pause_s(Transient(str(error)))
                with offloader.rest.until(clock.monotonic() + pause_s):
                    await clock.sleep(pause_s)
                continue
            if work.next() is None:  # no await between this and the wait: see Signal
                patience_s = work.patience_s()
                with offloader.rest.until(clock.monotonic() + patience_s):
                    await offloader.changed.wait_at_most(clock, min(LOOK_S, patience_s))

    @asynccontextmanager
    async def memory(self, part_bytes: int, segment_id: UUID) -> AsyncIterator[None]:
        """Hold memory for a part, once live segments leave it."""
        up, holder = self.context.upload_context, ("copy", segment_id)
        while True:
            budget = up.budget
            spare = budget.idle or budget.used + part_bytes <= budget.limit // 2
            if spare and budget.take_now(part_bytes, holder):
                break
            await up.clock.sleep(up.clock.jitter(MEMORY_S))
        try:
            yield
        finally:
            budget.release(part_bytes, holder)

    async def tables(self, topic: TopicName, segment: CommittedSegment) -> tuple[SegmentManifest, bytes, bytes]:
        """Read a segment's manifest, and the bytes of index and manifest. Raises Unreadable, Away."""
        cluster = self.context.cluster

        def decode(index: bytes, manifest: bytes) -> tuple[SegmentManifest, bytes, bytes]:
            described = manifest_bytes.decode(manifest, key=segment.keys.manifest, data_bytes=segment.object_bytes)
            segment.check_manifest(described, managed_ledger=topic.managed_ledger, cluster=cluster)
            check_index(index, described, key=segment.keys.index)
            return described, index, manifest

        with _reading(segment):
            return await self._reader.at(segment.bucket).table(decode, segment.keys.index, segment.keys.manifest)

    async def blocks(self, segment: CommittedSegment, blocks: Sequence[BlockInfo]) -> list[bytes]:
        """Read neighbouring blocks with one request, and check them. Raises Unreadable, Away."""
        key, sound = segment.keys.data, []
        with _reading(segment):
            reader = self._reader.at(segment.bucket)
            found = await reader.pieces(key, blocks[0].offset, [block.length for block in blocks])
            for data, block in zip(found, blocks, strict=True):
                sound.append(await reader.sound(key, block.offset, data, partial(_checked, block=block, key=key)))
                await asyncio.sleep(0)  # noqa: TID251 - yields to the loop between blocks, takes no time
        return sound


@contextmanager
def _reading(segment: CommittedSegment) -> Iterator[None]:
    """Raise Unreadable for an object that is damaged, missing or archived, Away for what may be over soon."""
    try:
        yield
    except (CorruptData, NotFound, Archived, Transient, Denied) as error:
        lasts = not isinstance(error, Transient | Denied | BucketMissing) or isinstance(error, Archived)
        kind = Unreadable if lasts else Away
        raise kind(f"segment {segment.segment_id} cannot be read: {error}") from error


@dataclass(slots=True)
class _Copying:
    """A copy with its open upload; `stored` parts are in the mirror."""

    segment: CommittedSegment
    place: Place
    where: SegmentKeys
    upload: SegmentUpload
    described: SegmentManifest
    index: bytes
    manifest: bytes
    parts: Sequence[Sequence[BlockInfo]]
    stored: int = 0

    def is_on(self, attempt: CopyAttempt | None) -> bool:
        """Whether it is the copy that is on record: without one a collection of garbage may delete what it stored."""
        told = (self.segment.segment_id, (self.place.bucket, self.place.prefix), self.upload.upload_id)
        return attempt is not None and (attempt.segment_id, attempt.place, attempt.upload_id) == told


class TopicMirror:
    """The copies of one topic under one claim."""

    def __init__(self, mirror: Mirror, offloader: TopicOffloader) -> None:
        self._mirror = mirror
        self._owned = offloader
        self._clock = mirror.context.upload_context.clock
        self._metrics = mirror.context.upload_context.metrics
        self._path = paths.mirror(offloader.topic)
        self._loaded = False
        self._attempt: CopyAttempt | None = None
        self._version = 0
        self._copying: _Copying | None = None
        self._later: dict[UUID, float] = {}
        """When segments that could not be read, or copied at once, are tried again (monotonic)."""
        self._away: dict[str, float] = {}
        """Until when buckets that have not answered since are the last choice (monotonic)."""

    def next(self) -> CommittedSegment | None:
        """Return the oldest segment to copy now, of those that need no bucket that is away if there are such."""
        now_s, oldest = self._clock.monotonic(), None
        for one in self._owned.mirror.due(self._owned.map.segments, self._owned.policy):
            if self._later.get(one.segment_id, now_s) > now_s:
                continue
            if not self._needs_away(one, now_s):
                return one
            oldest = oldest or one
        return oldest

    def _needs_away(self, segment: CommittedSegment, now_s: float) -> bool:
        if not self._away:
            return False
        wanted = self._owned.mirror.target(segment, self._owned.policy)
        buckets = {segment.bucket, wanted[0]} if wanted is not None else {segment.bucket}
        return any(self._away.get(one, now_s) > now_s for one in buckets)

    def patience_s(self) -> float:
        """Return in how many seconds something is due if nothing changes."""
        now_s = self._clock.monotonic()
        ids = {one.segment_id for one in self._owned.mirror.due(self._owned.map.segments, self._owned.policy)}
        self._later = {one: due_s for one, due_s in self._later.items() if one in ids}
        return min((max(0.0, due_s - now_s) for due_s in self._later.values()), default=inf)

    async def turn(self) -> bool:
        """Copy the next segment; False without one. Raises OffloaderError: what is to be tried again after a pause."""
        if not self._loaded:
            await self._load()
        if self._attempt is not None and self._attempt.removing:
            removals, now_s = self._mirror.context.removals, self._clock.monotonic()
            if not removals.broke_off(self._owned.topic, self._attempt, now_s):
                self._loaded = False
                raise Transient("a collection of garbage deletes earlier copies")
            await self._write(None)  # it was broken off
        segment = self.next()
        if segment is None:
            if self._attempt is not None:
                await self._write(None)  # nothing wants it any more
            self._copying = None
            self._away.clear()
            self._worked()
            return False
        place = self._place(segment)
        if place is not None:
            async with self._mirror.turns(place.bucket):
                try:
                    await self._copy(segment)
                finally:
                    self._owned.mirror.copying_to = None
        return True

    def failed(self, error: OffloaderError) -> None:
        """Note an error of `turn`."""
        log.warning("mirror.retried", topic=str(self._owned.topic), error=str(error))
        self._metrics.mirror_copies.labels(outcome="failed").inc()
        self._owned.mirror.failed(error)
        if isinstance(error, Conflict | NotFound):
            self._loaded = False  # another process may have changed the record

    async def _load(self) -> None:
        node = await nodes.node(self._mirror.context.metadata, self._path)
        self._attempt = copy_record.decode(node.value, path=self._path) if node is not None else None
        self._version = node.version if node is not None else 0
        self._loaded = True

    async def _write(self, attempt: CopyAttempt | None) -> None:
        """Record the present copy, None for none; an unfinished one before it goes on the trash list.

        Raises Fenced, Conflict, NotFound, Transient.
        """
        value = copy_record.encode(attempt) if attempt is not None else None
        if value is None:
            step: Create | Replace | Delete = Delete(self._path, self._version)
        elif self._attempt is None:
            step = Create(self._path, value)
        else:
            step = Replace(self._path, value, self._version)

        async def recorded() -> bool:
            found = await nodes.node(self._mirror.context.metadata, self._path)
            return (found.value if found is not None else None) == value

        await self._owned.record.fence.settle([step, *await self._given_up(attempt)], recorded)
        self._version = self._version + 1 if isinstance(step, Replace) else 0
        self._attempt = attempt

    async def _given_up(self, attempt: CopyAttempt | None) -> list[Create]:
        """Return the step that moves the recorded copy to the trash list, unless its segment is to be copied there yet.

        The copy of a segment that cannot be read for some time makes way for another one and begins anew later.
        """
        left, store, owned = self._attempt, self._mirror.context.metadata, self._owned
        if left is None or left.removing:
            return []
        if attempt is not None and (attempt.segment_id, attempt.place) == (left.segment_id, left.place):
            return []
        segment = next((one for one in owned.map.segments if one.segment_id == left.segment_id), None)
        if segment is not None and owned.mirror.target(segment, owned.policy) == left.place:
            return []
        trash = given_up(left, now_ms=self._clock.wall_ms())
        path = trash.path(self._owned.topic)
        return [Create(path, encode_trash(trash))] if await nodes.node(store, path) is None else []

    async def _recorded(self, segment: CommittedSegment, place: Place) -> CopyAttempt:
        """Return the recorded copy of a segment to a place, a new one or one that was begun before."""
        known = self._attempt
        if known is not None and (known.segment_id, known.place) == (segment.segment_id, (place.bucket, place.prefix)):
            return known
        made = CopyAttempt(
            segment_id=segment.segment_id,
            bucket=place.bucket,
            prefix=place.prefix,
            part_bytes=self._mirror.context.layout.part_bytes,
            begun_ms=self._clock.wall_ms(),
            ledger_id=segment.keys.ledger_id,
        )
        await self._write(made)
        return made

    async def _begun(self, segment: CommittedSegment, place: Place) -> _Copying:
        """Return the copy of a segment with its upload open; after an error of a store it continues where it was.

        Raises Unreadable, Away, Waiting, SegmentFailed, Fenced, and the errors of the other store.
        """
        known, context, topic = self._copying, self._mirror.context, self._owned.topic
        if known is not None and (known.segment, known.place) == (segment, place) and known.is_on(self._attempt):
            return known
        earlier = paths.trash_copy(topic, segment.segment_id, (place.bucket, place.prefix))
        if await nodes.node(context.metadata, earlier) is not None:
            raise Waiting(f"an earlier copy of segment {segment.segment_id} in {place} is still to be deleted")
        described, index, manifest = await self._mirror.tables(topic, segment)
        attempt = await self._recorded(segment, place)
        where = SegmentKeys(place.prefix, segment.segment_id, segment.keys.ledger_id)
        upload = SegmentUpload(
            self._mirror.upload_context,
            place.bucket,
            where,
            failure_tracker=FailureTracker(topic, self._clock, lambda: None),
            labels=context.labels(where, topic),
            stored_as=place.stored_as,
        )
        if attempt.upload_id:
            await upload.take_up(attempt.upload_id, described.data_bytes, {}, trusted=False)
        else:
            await self._write(replace(attempt, upload_id=await upload.open()))
        rules = self._mirror.upload_context.objects.at(place.bucket).parts
        parts = list(parts_of(described, attempt.part_bytes, rules))
        return _Copying(segment, place, where, upload, described, index, manifest, parts)

    async def _copy(self, segment: CommittedSegment) -> None:
        """Copy one segment, and add its copy to the map."""
        owned = self._owned
        there = self._place(segment)
        if there is None:
            return  # the policy has changed
        owned.mirror.copying_to = there.bucket, there.prefix  # without an await since
        try:
            copying = self._copying = await self._begun(segment, there)
            await self._send(copying)
            await self._complete(copying)
        except Unreadable as error:
            self._skip(segment, error)
            return
        except Waiting as error:
            self._later[segment.segment_id] = self._clock.monotonic() + AWAY_S
            self.failed(error)
            return
        except (SegmentFailed, CorruptData) as error:  # the copy is not what was sent: it begins anew
            self._copying = None
            if self._attempt is not None:
                await self._write(replace(self._attempt, upload_id=""))
            raise Transient(f"the copy in {there} begins anew: {error}") from error
        except OffloaderError as error:
            if self._copying is not None and not self._copying.stored:
                self._copying = None  # no manifest stays in memory for an outage
            if isinstance(error, Away | Transient | Denied | NoSpace | BucketMissing):
                bucket = segment.bucket if isinstance(error, Away) else there.bucket
                self._away[bucket] = self._clock.monotonic() + AWAY_S
            raise
        await owned.record.mirrored(
            segment.segment_id, (there.bucket, there.prefix), [Delete(self._path, self._version)]
        )
        self._attempt, self._version, self._copying = None, 0, None
        self._later.pop(segment.segment_id, None)
        for bucket in (segment.bucket, there.bucket):
            self._away.pop(bucket, None)
        self._metrics.mirror_copies.labels(outcome="ok").inc()
        self._worked()
        log.info(
            "segment.mirrored",
            topic=str(owned.topic),
            segment_id=str(segment.segment_id),
            range=str(segment.range),
            bucket=there.bucket,
            prefix=there.prefix,
        )
        owned.changed.notify()

    def _place(self, segment: CommittedSegment) -> Place | None:
        """Return where a segment lacks its copy. Raises Transient if that is no place of this daemon's."""
        policy = self._owned.policy
        wanted = self._owned.mirror.target(segment, policy)
        return self._mirror.context.copied_to(wanted, policy, self._owned.topic) if wanted is not None else None

    def _skip(self, segment: CommittedSegment, error: Unreadable) -> None:
        """Leave a segment that cannot be read for some time; one that has left the map, for good."""
        if all(one.segment_id != segment.segment_id for one in self._owned.map.segments):
            return
        self._later[segment.segment_id] = self._clock.monotonic() + self._mirror.again_s
        self._metrics.mirror_copies.labels(outcome="failed").inc()
        self._owned.mirror.failed(error)
        log.error(
            "mirror.unreadable",
            topic=str(self._owned.topic),
            segment_id=str(segment.segment_id),
            range=str(segment.range),
            error=str(error),
            hint="offloadctl verify shows what is wrong; those behind it are copied meanwhile",
        )

    def _worked(self) -> None:
        """End the failure, unless a segment waits, or a bucket that one needs has not answered since it failed."""
        if self._later or self._away:
            return
        ended = self._owned.mirror.worked()
        if ended is not None:
            lasted_s = round(self._clock.monotonic() - ended.since_s, 3)
            log.info("mirror.recovered", topic=str(self._owned.topic), failed_s=lasted_s)

    async def _send(self, copying: _Copying) -> None:
        """Send the parts that are not stored yet. Raises Unreadable, SegmentFailed, and the errors of both stores."""
        segment, upload, described = copying.segment, copying.upload, copying.described
        while copying.stored < len(copying.parts):
            blocks, number = copying.parts[copying.stored], copying.stored + 1
            front = PREAMBLE[: described.preamble_bytes] if number == 1 else b""
            size_bytes = len(front) + sum(block.length for block in blocks)
            async with self._mirror.memory(size_bytes, segment.segment_id):
                pieces = await self._mirror.blocks(segment, blocks)
                await upload.send(CutPart(number, (front, *pieces), tuple(blocks)))
            copying.stored = number
            self._metrics.mirror_bytes.inc(size_bytes)
            self._metrics.mirror_parts.labels(outcome="kept" if number <= upload.stored_count else "sent").inc()

    async def _complete(self, copying: _Copying) -> None:
        """Complete the three objects and check them. Raises SegmentFailed, CorruptData, and the store's errors."""
        upload, described, where = copying.upload, copying.described, copying.where
        await upload.complete()
        await upload.check(described.data_bytes, compared=True)
        readback = self._mirror.context.upload_context.limits.readback or not upload.proven
        for block in described.blocks if readback else ():
            check = partial(check_block, info=block, key=where.data)
            await upload.checked(check, where.data, block.offset, block.length)
        for kind, data in ((ObjectKind.INDEX, copying.index), (ObjectKind.MANIFEST, copying.manifest)):
            await upload.put(kind, data, partial(same_bytes, where.of(kind), sent=data))


def _checked(data: bytes, *, block: BlockInfo, key: str) -> bytes:
    """Return a block's bytes. Raises CorruptData."""
    check_block(data, info=block, key=key)
    return data


def parts_of(described: SegmentManifest, part_bytes: int, rules: PartRules) -> Iterator[Sequence[BlockInfo]]:
    """Yield the blocks of each part of a data object: whole ones, `part_bytes` at least in each part but the last.

    A part has the least size that the store takes, and so much that there are as many as it takes at most.
    """
    least = max(part_bytes, rules.bytes_min, -(-described.data_bytes // rules.number_max))
    part: list[BlockInfo] = []
    size_bytes = described.preamble_bytes
    for block in described.blocks:
        if size_bytes >= least:
            yield part
            part, size_bytes = [], 0
        part.append(block)
        size_bytes += block.length
    yield part
