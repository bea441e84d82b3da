"""From the last part to objects that may be committed: complete, index, verify, manifest, in this order.

Readers trust committed segments only, so each step may be repeated or abandoned. The manifest comes last because a
rebuild trusts it: its objects are verified, and compared with those that they replace.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import google_crc32c
import structlog

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.core.traces import SegmentTrace
from offloaderd.format import manifest_bytes, v1, v2
from offloaderd.format.manifest import BlockInfo, LedgerPart, SegmentManifest
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo as LedgerInfoMessage
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.format.verify import check_block
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.builder import SegmentBuilder
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import SegmentFailed, SegmentUpload

Prove = Callable[[SegmentManifest], Awaitable[None]]


log = structlog.get_logger(__name__)


class SegmentCompletion:
    """Completes one segment's objects; their bytes follow from the attempt's record and the blocks."""

    def __init__(self, context: OffloadContext, topic: TopicName, upload: SegmentUpload, trace: SegmentTrace) -> None:
        self._context = context
        self._topic = topic
        self._upload = upload
        self._trace = trace

    async def finish(
        self, attempt: Attempt, blocks: tuple[BlockInfo, ...], prove: Prove | None = None, *, draft: bool = False
    ) -> CommittedSegment:
        """Complete and verify the three objects; return the segment to commit.

        The attempt is recorded with its seal. `prove` gets the manifest before it is put, and may raise SegmentFailed.
        With `draft` a draft of the manifest is put, and the manifest is left to the process that commits. Raises
        SegmentFailed, InvalidInput for a contradiction.
        """
        index, described = self._describe(attempt, blocks)
        data_key, index_key = attempt.keys.data, attempt.keys.index
        self._trace.say(
            end=str(described.range.end),
            ledgers=len(described.ledgers),
            entries=sum(part.last_entry_id - part.first_entry_id + 1 for part in described.ledgers),
            payload_bytes=sum(part.payload_bytes for part in described.ledgers),
            object_bytes=described.data_bytes,
        )
        with self._stage("commit", described.data_bytes), self._trace.step("complete"):
            await self._upload.complete()
            await self._upload.put(ObjectKind.INDEX, index, lambda data: same_bytes(index_key, data, index))
        with self._stage("verify", described.data_bytes), self._trace.step("verify"):
            await self._upload.check(described.data_bytes)
            if self._context.upload_context.limits.readback or not self._upload.proven:
                await self._read_back(data_key, described)
            if prove is not None:
                await prove(described)
            await put_manifest(self._upload, attempt, described, ObjectKind.DRAFT if draft else ObjectKind.MANIFEST)
        if not draft:
            self._context.pasts.note(described)
        return CommittedSegment.described(described, bucket=attempt.bucket, prefix=attempt.keys.prefix)

    def _describe(self, attempt: Attempt, blocks: tuple[BlockInfo, ...]) -> tuple[bytes, SegmentManifest]:
        """Return the index and the manifest of a sealed attempt."""
        seal, layout = attempt.seal, attempt.layout
        assert seal is not None  # noqa: S101 - only sealed attempts are completed
        assert layout is not None  # noqa: S101 - only attempts with a layout are resumed
        if isinstance(layout, LedgerLayout):
            entries = v1.index_entries(blocks, dense=layout.dense_index)
            index = v1.encode_index(seal.data_bytes, layout.metadata, entries)
        else:
            index = v2.encode_index(seal.data_bytes, index_groups(seal.ledgers, blocks))
        described = SegmentManifest(
            segment_id=attempt.segment_id,
            managed_ledger=self._topic.managed_ledger,
            cluster=self._context.cluster,
            epoch=seal.epoch,
            assigned_ms=attempt.assigned_ms,
            sealed_ms=seal.sealed_ms,
            data_bytes=seal.data_bytes,
            preamble_bytes=layout.preamble_bytes,
            index_bytes=len(index),
            index_crc32c=google_crc32c.value(index),
            ledgers=seal.ledgers,
            blocks=blocks,
            software_version=seal.software_version,
            losses=seal.losses,
            ends=seal.ends,
            past=seal.past,
            replaces=seal.replaces,
            method=OffloadMethod.STREAMING if attempt.ledger_id is None else OffloadMethod.LEDGER_BASED,
            chunk_bytes=self._context.chunk_bytes if any(block.chunks for block in blocks) else 0,
        )
        return index, described

    @contextmanager
    def _stage(self, name: str, object_bytes: int) -> Iterator[None]:
        """Count a segment's bytes in a stage of the pipeline."""
        gauge = self._context.upload_context.metrics.pipeline_bytes.labels(stage=name)
        gauge.inc(object_bytes)
        try:
            yield
        finally:
            gauge.dec(object_bytes)

    async def _read_back(self, key: str, described: SegmentManifest) -> None:
        """Read every block and compare its checksum."""
        for block in described.blocks:
            try:
                await self._upload.checked(partial(check_block, info=block, key=key), key, block.offset, block.length)
            except CorruptData as flaw:
                raise SegmentFailed(f"what was stored reads back differently: {flaw}") from flaw


async def put_manifest(
    upload: SegmentUpload, attempt: Attempt, described: SegmentManifest, kind: ObjectKind = ObjectKind.MANIFEST
) -> None:
    """Put a segment's manifest, or its draft, and read it back. Raises SegmentFailed."""
    key, encoded = attempt.keys.of(kind), manifest_bytes.encode(described)
    await upload.put(kind, encoded, lambda data: same_manifest(key, data, encoded))


def same_bytes(key: str, found: bytes, sent: bytes) -> None:
    """Raise CorruptData unless an object reads back as it was sent."""
    if found != sent:
        raise CorruptData(key=key, offset=0, expected="what was sent", found="other bytes")


def same_manifest(key: str, found: bytes, sent: bytes) -> None:
    """Raise CorruptData unless a manifest reads back with the same content, chunks apart.

    A writer knows the chunks of the blocks that it cut itself, so the manifest of a fenced owner differs in them alone.
    """
    if found == sent:
        return
    expected = manifest_bytes.decode(sent, key=key)
    held = manifest_bytes.decode(found, key=key, data_bytes=expected.data_bytes)
    if without_chunks(held) != without_chunks(expected):
        raise CorruptData(key=key, offset=0, expected="what was sent", found="something else")


def without_chunks(described: SegmentManifest) -> SegmentManifest:
    """Return a manifest without chunks and sparse positions, which differ between owners and versions."""
    blocks = tuple(replace(block, chunks=b"", sparse=()) for block in described.blocks)
    return replace(described, chunk_bytes=0, blocks=blocks)


def keeps_seal(attempt: Attempt, builder: SegmentBuilder, topic: TopicName) -> bool:
    """Return whether a segment holds what was sealed; it is sealed again if the source has lost entries of it.

    It may hold the last copy. Entries are compared as well as the end: a ledger in the middle may be deleted. Raises
    SegmentFailed without an upload: the object may be stored, now or later, with all that was sealed.
    """
    seal, holds = attempt.seal, (builder.end, builder.entries)
    if seal is not None and (seal.end, seal.entries) != holds:
        if not attempt.upload_id:
            raise SegmentFailed("it was sealed with entries that the source has lost, and may be stored with them")
        log.error(
            "segment.resealed",
            topic=str(topic),
            segment_id=str(attempt.segment_id),
            sealed=str(seal.end),
            end=str(builder.end),
            entries_lost=seal.entries - builder.entries,
            hint="the source deleted what was sealed and not stored; look why it was late",
        )
        return False
    return seal is not None


def index_groups(ledgers: tuple[LedgerPart, ...], blocks: tuple[BlockInfo, ...]) -> list[v2.LedgerIndex]:
    """Group the blocks by ledger as PIP-76's index has them; `part_id` counts blocks of the object from 1."""
    entries: dict[int, list[IndexEntry]] = {part.ledger_id: [] for part in ledgers}
    for number, block in enumerate(blocks, start=1):
        entries[block.ledger_id].append(IndexEntry(block.first_entry_id, number, block.offset))
    return [v2.LedgerIndex(part.ledger_id, ledger_message(part), tuple(entries[part.ledger_id])) for part in ledgers]


def ledger_message(part: LedgerPart) -> bytes:
    """Return Pulsar's LedgerInfo for the index: of the whole ledger if closed, else up to the segment's end."""
    message = LedgerInfoMessage(ledgerId=part.ledger_id, entries=part.ledger_entries, timestamp=part.closed_ms)
    if part.ledger_bytes:
        message.size = part.ledger_bytes
    return message.SerializeToString(deterministic=True)
