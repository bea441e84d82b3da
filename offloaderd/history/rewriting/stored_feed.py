"""The stored feed: entries from the bucket, for rewriting, within the upload budget.

Manifests are compared with the map, and blocks with the checksums of their manifest. Data that seems damaged is read
once more, since a bit can flip in transit. Transient errors are retried; damaged or missing objects end the reading
with an error that names key and byte.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from offloaderd.core.errors import BucketMissing, CorruptData, Denied, InvalidInput, NotFound
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import SegmentManifest
from offloaderd.format.verify import BlockRun, check_index, runs
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.whole import read_apart
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.feed import EntryHash
from offloaderd.segment.upload import SegmentFailed

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
