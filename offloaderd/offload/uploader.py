"""Moves one segment's bytes into the bucket: multipart upload, index, manifest, verification.

Parts go side by side under a limit per topic and one byte budget over all. Every request is tried until it is through
or cannot be; what ends a segment (its upload is gone, or a stored object is not what was sent) is SegmentFailed. A
lost answer is settled by reading back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import structlog

from offloaderd.errors import (
    BucketMissing,
    Denied,
    InvalidInput,
    NoSpace,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.objects import keys
from offloaderd.offload.budget import Backoff
from offloaderd.offload.pace import Pace
from offloaderd.offload.troubles import error_class

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from offloaderd.clock import Clock
    from offloaderd.metrics import Metrics
    from offloaderd.objects.port import PartInfo, SegmentStore
    from offloaderd.offload.budget import ByteBudget
    from offloaderd.offload.segment import CutPart
    from offloaderd.offload.troubles import Troubles

T = TypeVar("T")
log = structlog.get_logger(__name__)


class SegmentFailed(OffloaderError):
    """This attempt cannot become a segment: give it up and begin again at the same position under a new id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """How much may be on its way, and how far a finished segment is checked before it is committed."""

    parts_in_flight_max: int
    readback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """What all uploads of a daemon share."""

    objects: SegmentStore
    prefix: str
    budget: ByteBudget
    limits: UploadLimits
    clock: Clock
    metrics: Metrics
    pace: Pace = field(default_factory=Pace)


class SegmentUpload:
    """One multipart upload from its creation to verified objects."""

    def __init__(self, uplink: Uplink, segment_id: UUID, *, troubles: Troubles, cluster: str) -> None:
        self._up = uplink
        self._segment_id = segment_id
        self._troubles = troubles
        self._metadata = keys.segment_metadata(cluster)
        self._key = keys.data_key(uplink.prefix, segment_id)
        self._parts: dict[int, PartInfo] = {}
        self._slots = asyncio.Semaphore(uplink.limits.parts_in_flight_max)
        self.upload_id = ""

    async def open(self) -> str:
        """Create the multipart upload and return its id; one that a lost answer left behind is taken up."""
        asked = False

        async def once() -> str:
            nonlocal asked
            if asked:
                async for upload in self._up.objects.list_uploads(self._key):
                    if upload.key == self._key:
                        return upload.upload_id
            asked = True
            return await self._up.objects.create_upload(self._key, metadata=self._metadata)

        self.upload_id = await self._persist(once)
        return self.upload_id

    async def reserve(self, part_bytes: int) -> None:
        """Wait for room to hold and send one part of that size; `send` or `unreserve` must follow."""
        await self._slots.acquire()
        try:
            await self._up.budget.acquire(part_bytes)
        except asyncio.CancelledError:
            self._slots.release()
            raise

    async def send(self, part: CutPart, reserved_bytes: int) -> None:
        """Upload one part for which `reserve` has made room; run as a task of its own."""
        size = len(part.data)
        metrics = self._up.metrics
        metrics.pipeline_bytes.labels(stage="transfer").inc(size)
        metrics.inflight_parts.inc()
        started = self._up.clock.monotonic()
        try:
            self._parts[part.part_number] = await self._persist(
                lambda: self._up.objects.upload_part(self._key, self.upload_id, part.part_number, part.data),
                paced=True,
            )
            metrics.upload_parts.labels(outcome="ok").inc()
            metrics.upload_bytes.inc(size)
            metrics.upload_part_duration_seconds.observe(self._up.clock.monotonic() - started)
            metrics.upload_last_success_timestamp_seconds.set(self._up.clock.wall_ms() / 1000)
        except SegmentFailed:
            metrics.upload_parts.labels(outcome="failed").inc()
            raise
        finally:
            metrics.inflight_parts.dec()
            metrics.pipeline_bytes.labels(stage="transfer").dec(size)
            self._slots.release()
            self._up.budget.release(reserved_bytes)

    async def complete(self, object_bytes: int) -> None:
        """Make the data object visible. An upload that is gone may be one whose completion was never answered."""
        parts = [self._parts[number] for number in sorted(self._parts)]

        async def once() -> None:
            try:
                await self._up.objects.complete_upload(self._key, self.upload_id, parts)
            except NotFound:
                if await self._stored_bytes(self._key) is None:
                    raise

        await self._persist(once)
        stored = await self._persist(lambda: self._stored_bytes(self._key))
        if stored != object_bytes:
            raise SegmentFailed(f"{self._key} holds {stored} bytes after its completion, not {object_bytes}")

    async def put(self, key: str, data: bytes) -> None:
        """Store the index or the manifest; the same bytes again after a lost answer."""
        await self._persist(lambda: self._up.objects.put(key, data, metadata=self._metadata))

    async def verify(self, key: str, data_bytes: int, check: Callable[[bytes], None] | None = None) -> None:
        """Compare what is stored with what was sent: size by HEAD, or with `check` all bytes read back."""
        if check is not None:
            check(await self._persist(lambda: self._up.objects.get(key)))
        else:
            stored = await self._persist(lambda: self._stored_bytes(key))
            if stored != data_bytes:
                raise SegmentFailed(f"{key} holds {stored} bytes, not {data_bytes}")
        self._up.metrics.verified_bytes.inc(data_bytes)

    async def fetch(self, key: str, first: int, length: int) -> bytes:
        """Read back a part of an object that was just written."""
        return await self._persist(lambda: self._up.objects.get(key, first, length))

    async def _stored_bytes(self, key: str) -> int | None:
        try:
            return (await self._up.objects.head(key)).size_bytes
        except BucketMissing:
            raise
        except NotFound:
            return None

    async def _persist(self, request: Callable[[], Awaitable[T]], *, paced: bool = False) -> T:
        """Try a request until it works; raises SegmentFailed when trying again cannot help.

        One that is `paced` has its place among the parts on their way for each try, and gives it back between them.
        """
        backoff, what, pace = Backoff(self._up.clock), object(), self._up.pace
        try:
            while True:
                mark = pace.mark()
                try:
                    if not paced:
                        return await request()
                    async with pace.one_part():
                        mark = pace.mark()
                        result = await request()
                    pace.worked(mark)
                    return result
                except (Transient, Denied, NoSpace, BucketMissing) as error:
                    kind = error_class(error)
                    self._up.metrics.upload_retries.labels(**{"class": kind}).inc()
                    pace.failed(error, mark)
                    self._troubles.met(error, what)
                    tries = backoff.tries
                    log.warning("upload.retried", key=self._key, error_class=kind, error=str(error), tries=tries)
                    await backoff.wait(error)
                except (NotFound, InvalidInput) as error:
                    raise SegmentFailed(f"upload {self.upload_id} of {self._key} cannot go on: {error}") from error
        finally:
            self._troubles.over(what)
