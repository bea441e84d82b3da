"""Moves one segment's bytes into the bucket: multipart upload, index, manifest, verification.

Parts are sent in parallel within a limit per topic and one byte budget for all. A part that is the whole object is
put by one request, without an upload. Every request is retried until it succeeds or cannot; a missing upload, or a
stored object that differs from what was sent, is SegmentFailed. After a lost answer the store is read back. An upload
of an earlier owner is resumed: a part that is stored already is recognized by what the store lists of it and not sent
again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar
from uuid import UUID

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import (
    BucketMissing,
    Conflict,
    CorruptData,
    Denied,
    InvalidInput,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Transient,
)
from offloaderd.core.limits import ByteBudget, InGroup, Pace
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.retry import Backoff, retried
from offloaderd.core.traces import NO_TRACES, Traces
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.port import ObjectInfo, PartInfo, SegmentStore, find, present
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.objects.whole import Get, apart, read_sure
from offloaderd.segment.builder import CutPart
from offloaderd.segment.failures import FailureTracker, StoreReach, error_class
from offloaderd.segment.feed import Reservation

T = TypeVar("T")
log = structlog.get_logger(__name__)


class SegmentFailed(OffloaderError):
    """This attempt cannot become a segment: give it up and begin again at the same position under a new id."""


@dataclass(slots=True, kw_only=True)
class UploadLimits:
    """Parts in flight, and how a segment is verified before its commit; an open segment keeps its number of parts."""

    parts_in_flight_max: int
    readback: bool

    def follow(self, limits: "UploadLimits") -> None:
        """Take over other limits."""
        self.parts_in_flight_max, self.readback = limits.parts_in_flight_max, limits.readback


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Shared by the uploads to one service: one that throttles or is away does not slow down the others."""

    pace: Pace = field(default_factory=Pace)
    reach: StoreReach = field(default_factory=StoreReach)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadContext:
    """Shared by all uploads of a daemon; `pace` and `reach` are those of the first service."""

    objects: SegmentStore
    budget: ByteBudget
    limits: UploadLimits
    clock: Clock
    metrics: Metrics
    pace: Pace = field(default_factory=Pace)
    reach: StoreReach = field(default_factory=StoreReach)
    further: Mapping[str, ServiceContext] = field(default_factory=dict)
    """The further services, by the names of their buckets."""
    traces: Traces = NO_TRACES
    tries_max: int | None = None
    """Most tries of a request before its error is raised; None: it is repeated until it succeeds."""

    def service(self, bucket: str) -> ServiceContext:
        """Return what the uploads to a bucket's service share."""
        return self.further.get(bucket) or ServiceContext(self.pace, self.reach)

    def holder(self, bucket: str, segment_id: UUID) -> Hashable:
        """Return who holds memory for a segment in a bucket; with several services those of each are a group."""
        return InGroup(self.service(bucket).reach, segment_id) if self.further else segment_id

    def follow_pace(self, limit: int) -> None:
        """Change how many parts may be in flight to each service."""
        for pace in (self.pace, *(one.pace for one in self.further.values())):
            pace.follow(limit)


class SegmentUpload:
    """The objects of one segment, from the multipart upload of its data, if it takes one, until they are verified."""

    def __init__(
        self,
        upload_context: UploadContext,
        bucket: str,
        where: SegmentKeys,
        *,
        failure_tracker: FailureTracker,
        labels: Callable[[ObjectKind], dict[str, str]],
        stored_as: StoredAs = PLAIN,
    ) -> None:
        self._up = upload_context
        self._objects = upload_context.objects.at(bucket)
        self._service = upload_context.service(bucket)
        self._holder = upload_context.holder(bucket, where.segment_id)
        self._failure_tracker = failure_tracker
        self._labels = labels
        self._stored_as = stored_as
        self._where = where
        self._key = where.data
        self._parts: dict[int, PartInfo] = {}
        self._listed: dict[int, PartInfo] = {}  # stored by an earlier owner, compared once they are cut again
        self._completed = False  # by an earlier owner
        self._opaque = False  # its ETag says nothing of its bytes, nor do those of the parts
        self._doubt = False  # about the number of uploads, or what completed the known one
        self._slots = asyncio.Semaphore(upload_context.limits.parts_in_flight_max)
        self.upload_id = ""
        """Empty until the upload is created, and for an object of one part, which has none."""
        self.proven = True
        """Whether the object was certainly completed from the parts; if not, only a read can show that."""
        self.stored_count = 0
        """Number of parts that an earlier owner stored, from the first one on."""

    async def open(self, *, began_before: bool = False) -> str:
        """Create the multipart upload and return its id; one that a lost answer left is used.

        `began_before`: an earlier owner may have created one.
        """
        if began_before and await self._persist(self._head) is not None:
            raise SegmentFailed(f"{self._key} is complete, and no upload of it is on record: the metadata went back")
        asked = self._doubt = began_before

        async def once() -> str:
            nonlocal asked
            if asked:
                self._doubt = True
                async for upload in self._objects.list_uploads(self._key):
                    if upload.key == self._key:
                        return upload.upload_id
            asked = True
            return await self._objects.create_upload(
                self._key, metadata=self._labels(ObjectKind.DATA), stored_as=self._stored_as
            )

        self.upload_id = await self._persist(once)
        return self.upload_id

    async def resume(self, attempt: Attempt, *, trusted: bool) -> None:
        """Resume the upload of an earlier owner. Raises SegmentFailed when it differs from its record.

        The recorded parts count as sent if they are `trusted`; else they too have to be cut again and compared.
        """
        recorded = {
            number: PartInfo(part_number=number, etag=part.etag, size_bytes=part.size_bytes)
            for number, part in enumerate(attempt.parts, start=1)
        }
        if attempt.proven:
            self.upload_id = attempt.upload_id
            self._completed, self._parts, self.stored_count = True, recorded, len(recorded)
            return
        object_bytes = attempt.seal.data_bytes if attempt.seal is not None else None
        await self.take_up(attempt.upload_id, object_bytes, recorded, trusted=trusted)

    async def is_stored(self, object_bytes: int) -> bool:
        """Return whether an earlier owner has stored the object by one request; then it only has to be proven."""
        stored = await self._persist(self._head)
        if stored is None or stored.size_bytes != object_bytes:
            return False
        self.proven, self.stored_count = False, 1
        return True

    async def take_up(
        self, upload_id: str, object_bytes: int | None, recorded: Mapping[int, PartInfo], *, trusted: bool
    ) -> None:
        """Continue an upload by its id; `object_bytes` is the size of its object, None while that is undecided.

        Raises SegmentFailed as `resume`.
        """
        self.upload_id = upload_id
        listed = await self._list_with(recorded)
        if listed is None:
            if object_bytes is None:
                raise SegmentFailed(f"upload {self.upload_id} of {self._key} does not exist any more")
            self._completed = self._doubt = True
            self._opaque = (await self.verify(self._key, object_bytes)).etag_opaque
            listed = dict(recorded)
        for number, part in recorded.items():
            if listed.get(number) != part:
                raise SegmentFailed(
                    f"part {number} of {self._key} is recorded as {part}, the store has {listed.get(number)}"
                )
        self._parts = dict(recorded) if trusted else {}
        self._listed = {number: part for number, part in listed.items() if number not in self._parts}
        self.stored_count = next(number for number in count() if number + 1 not in listed)

    async def _list(self) -> dict[int, PartInfo] | None:
        """Return the stored parts, None when the upload does not exist any more."""
        found = await present(self._objects.list_parts(self._key, self.upload_id))
        return {part.part_number: part for part in found} if found is not None else None

    async def _list_with(self, recorded: Mapping[int, PartInfo]) -> dict[int, PartInfo] | None:
        """Return the stored parts as `_list`; a list without all that are recorded may lag, and is asked for again."""
        listed: dict[int, PartInfo] | None = None

        async def once() -> None:
            nonlocal listed
            listed = await self._persist(self._list)
            if listed is not None and (missing := recorded.keys() - listed.keys()):
                raise Transient(f"the list of the parts of {self._key} is without {len(missing)} that are recorded")

        with suppress(Transient):  # they are not there
            await retried(once, clock=self._up.clock)
        return listed

    async def reserve(self, part_bytes: int, held: Reservation | None = None) -> Reservation:
        """Wait for memory and a slot for one part; `unreserve` must follow, however sending it ends.

        `held` was reserved to read the part's entries.
        """
        await self._slots.acquire()
        try:
            if held is not None:
                return await held.moved(part_bytes)
            return await Reservation.of(self._up.budget, part_bytes, self._holder)
        except asyncio.CancelledError:
            self._slots.release()
            raise

    def unreserve(self, reservation: Reservation) -> None:
        """Release what `reserve` took for one part."""
        self._slots.release()
        reservation.release()

    async def send(self, part: CutPart) -> PartInfo:
        """Upload one reserved part unless it is stored; runs as a task of its own."""
        size = part.size_bytes
        metrics = self._up.metrics
        metrics.pipeline_bytes.labels(stage="transfer").inc(size)
        metrics.inflight_parts.inc()
        started = self._up.clock.monotonic()
        try:
            info = self._kept(part)
            if info is None:
                info = await self._persist(self._sending(part), paced=True)
                metrics.upload_parts.labels(outcome="ok").inc()
                metrics.upload_bytes.inc(size)
                exemplar = self._up.traces.exemplar(self._where.segment_id)
                metrics.upload_part_duration_seconds.observe(self._up.clock.monotonic() - started, exemplar)
                metrics.upload_last_success_timestamp_seconds.set(self._up.clock.wall_ms() / 1000)
            else:
                metrics.upload_parts.labels(outcome="kept").inc()
            self._parts[part.part_number] = info
        except SegmentFailed:
            metrics.upload_parts.labels(outcome="failed").inc()
            raise
        else:
            return info
        finally:
            metrics.inflight_parts.dec()
            metrics.pipeline_bytes.labels(stage="transfer").dec(size)

    def _sending(self, part: CutPart) -> Callable[[], Awaitable[PartInfo]]:
        """Return a request that sends a part, which is the whole object if there is no upload.

        After a lost answer it lists the stored parts first: a store that refuses a part without reading it closes the
        connection, and its refusal is lost, so only the list shows that the upload does not exist any more.
        """
        if not self.upload_id:
            return lambda: self._put_alone(part)
        number, lost = part.part_number, False

        async def once() -> PartInfo:
            nonlocal lost
            if lost:
                stored = {one.part_number: one for one in await self._objects.list_parts(self._key, self.upload_id)}
                if stored.get(number) == self._as_cut(part):
                    return stored[number]
            try:
                return await self._objects.upload_part(self._key, self.upload_id, number, part.pieces)
            except OutcomeUnknown:
                lost = True
                raise

        return once

    async def _put_alone(self, part: CutPart) -> PartInfo:
        """Store the only part as the object, unless there is one.

        That may be from an earlier owner, or from a try whose answer was lost: it is read back before the commit.
        """
        try:
            await self._objects.put(
                self._key,
                part.pieces,
                metadata=self._labels(ObjectKind.DATA),
                if_etag="",
                stored_as=self._stored_as,
            )
        except Conflict:
            if await self._head() is None:
                raise
            self.proven = False
        return PartInfo(part_number=part.part_number, etag="", size_bytes=part.size_bytes)

    def _as_cut(self, part: CutPart) -> PartInfo:
        """Return a part as the store lists it, if its parts are comparable."""
        return self._objects.parts.described(part.part_number, part.pieces)

    def _kept(self, part: CutPart) -> PartInfo | None:
        """Return a part as it is stored if it need not be sent."""
        listed = self._listed.pop(part.part_number, None)
        if listed is None and not self._completed:
            return None
        cut = self._as_cut(part)
        if self._completed and (listed is None or self._opaque or not self._objects.parts.comparable(listed)):
            return listed or cut  # the whole object is compared at the end
        if listed == cut:
            return listed
        if self._completed:
            raise SegmentFailed(f"part {part.part_number} of {self._key} was completed with other bytes")
        self._up.metrics.upload_parts.labels(outcome="replaced").inc()
        return None

    @property
    def _in_order(self) -> Sequence[PartInfo]:
        return [self._parts[number] for number in sorted(self._parts)]

    async def complete(self) -> None:
        """Complete the data object. A missing upload, or a conflict, may be one whose completion was not answered."""
        parts = self._in_order

        async def once() -> None:
            try:
                await self._objects.complete_upload(self._key, self.upload_id, parts)
            except (NotFound, Conflict):
                self._doubt = True
                if await self._head() is None:
                    raise

        if self.upload_id and not self._completed:
            await self._persist(once)

    async def check(self, object_bytes: int, *, compared: bool = False) -> None:
        """Compare the size of the completed data object with the one that was sent. Raises SegmentFailed.

        In doubt of what completed it, or if it is to be `compared`, the store compares it with the parts.
        """
        stored = await self.verify(self._key, object_bytes)
        if self._doubt or compared:
            await self._check_parts(stored)
            await self.abort_strays()

    async def _check_parts(self, stored: ObjectInfo) -> None:
        """Have the store compare the data object with its parts, if it can."""
        told = await self._persist(lambda: self._objects.made_of(stored, self._in_order))
        self.proven = told is not None
        if told is False:
            raise SegmentFailed(f"{self._key} with the ETag {stored.etag} holds other parts than were sent")

    async def abort_strays(self) -> None:
        """Abort uploads of this segment that a lost answer or an earlier owner left."""

        async def once() -> None:
            async for upload in self._objects.list_uploads(self._key):
                if upload.key == self._key:
                    await self._objects.abort_upload(self._key, upload.upload_id)

        await self._persist(once)

    async def put(self, kind: ObjectKind, data: bytes, check: Callable[[bytes], None]) -> None:
        """Put the index or the manifest and read it back, until `check` raises no CorruptData.

        The data are complete and may be the last copy: a store that damages these objects stalls the topic, and is no
        reason to give up the segment.
        """
        key, labels, stored_as = self._where.of(kind), self._labels(kind), self._stored_as.tags_alone

        async def once() -> None:
            await self._objects.put(key, data, metadata=labels, stored_as=stored_as)
            try:
                await self.checked(check, key)
            except CorruptData as error:
                raise Transient(f"what was stored reads back differently: {error}") from error

        await self._persist(once)
        self._up.metrics.verified_bytes.inc(len(data))

    async def verify(self, key: str, data_bytes: int) -> ObjectInfo:
        """Compare the stored size with the sent one; returns the store's description. Raises SegmentFailed."""
        stored = await self._persist(lambda: self._head(key))
        if stored is None or stored.size_bytes != data_bytes:
            found = stored.size_bytes if stored is not None else "no"
            raise SegmentFailed(f"{key} holds {found} bytes, not {data_bytes}")
        self._up.metrics.verified_bytes.inc(data_bytes)
        return stored

    async def checked(self, check: Callable[[bytes], T], key: str, first: int = 0, length: int | None = None) -> T:
        """Return the result of `check` for a range of an object of this segment.

        Bytes that are damaged in transit are read again, until two reads are alike: only then they are what is stored.
        Raises CorruptData as `check` does for those.
        """

        async def take(get: Get) -> T:
            return await apart(check, await get(None))

        return await self._persist(lambda: read_sure(take, lambda _: self._objects.get(key, first, length)))

    async def find(self, bucket: str, key: str) -> bytes | None:
        """Read a small object of any segment; None if it or its bucket does not exist."""
        try:
            store = self._up.objects.at(bucket)
        except BucketMissing:
            return None
        return await self._persist(lambda: present(store.get(key)), service=self._up.service(bucket))

    async def _head(self, key: str = "") -> ObjectInfo | None:
        return await find(self._objects, key or self._key)

    async def _persist(
        self, request: Callable[[], Awaitable[T]], *, paced: bool = False, service: ServiceContext | None = None
    ) -> T:
        """Retry a request until it succeeds; raises SegmentFailed when a retry cannot help.

        A `paced` request has a slot among the parts in flight during each try, not between tries. `service` answers
        it, if it is not that of the segment.
        """
        service = service or self._service
        backoff, what, pace = Backoff(self._up.clock), object(), service.pace
        try:
            while True:
                mark = pace.mark()
                try:
                    if paced:
                        async with pace.held():
                            mark = pace.mark()
                            result = await request()
                        pace.worked(mark)
                    else:
                        result = await request()
                    service.reach.worked(self._up.clock)
                    return result
                except (Transient, Conflict, Denied, NoSpace, BucketMissing) as error:
                    kind = error_class(error)
                    self._up.metrics.upload_retries.labels(**{"class": kind}).inc()
                    pace.failed(error, mark)
                    if self._up.tries_max is not None and backoff.tries + 1 >= self._up.tries_max:
                        raise
                    self._failure_tracker.record(error, what)
                    tries = backoff.tries
                    log.warning("upload.retried", key=self._key, error_class=kind, error=str(error), tries=tries)
                    await backoff.wait(error)
                except (NotFound, InvalidInput) as error:
                    raise SegmentFailed(f"upload {self.upload_id} of {self._key} cannot continue: {error}") from error
        finally:
            self._failure_tracker.clear(what)
