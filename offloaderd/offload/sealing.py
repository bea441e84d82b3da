"""From the last part to objects that may be committed: complete, index, manifest, verify, in this order.

A reader trusts a segment only once it is committed, so each step may be repeated or abandoned without harm.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import google_crc32c

from offloaderd import __version__
from offloaderd.errors import CorruptData
from offloaderd.format import manifest, v2
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo as LedgerInfoMessage
from offloaderd.format.verify import check_block
from offloaderd.metadata.catalog import CommittedSegment, LedgerSlice
from offloaderd.objects import keys
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offloaderd.format.manifest import BlockInfo, LedgerPart, SegmentManifest
    from offloaderd.model import LedgerInfo, TopicName
    from offloaderd.offload.commit import Claim
    from offloaderd.offload.segment import SegmentBuilder
    from offloaderd.offload.topic import Workshop
    from offloaderd.offload.uploader import SegmentUpload


class Sealer:
    """Finishes one segment's objects."""

    def __init__(self, shop: Workshop, topic: TopicName, claim: Claim, upload: SegmentUpload) -> None:
        self._shop = shop
        self._topic = topic
        self._claim = claim
        self._upload = upload

    async def seal(self, builder: SegmentBuilder, infos: Mapping[int, LedgerInfo]) -> CommittedSegment:
        """Make the three objects complete and verified; returns what is to be committed. Raises SegmentFailed."""
        prefix, clock = self._shop.uplink.prefix, self._shop.uplink.clock
        ledgers = builder.ledgers(infos.get)
        index = v2.encode_index(builder.object_bytes, index_groups(ledgers, builder.blocks))
        described = manifest.SegmentManifest(
            segment_id=builder.segment_id,
            managed_ledger=self._topic.managed_ledger,
            cluster=self._shop.cluster,
            epoch=self._claim.epoch,
            assigned_ms=builder.assigned_ms,
            sealed_ms=clock.wall_ms(),
            data_bytes=builder.object_bytes,
            preamble_bytes=len(v2.PREAMBLE) if self._shop.layout.preamble else 0,
            index_bytes=len(index),
            index_crc32c=google_crc32c.value(index),
            ledgers=ledgers,
            blocks=builder.blocks,
            software_version=__version__,
        )
        encoded = manifest.encode(described)
        data_key = keys.data_key(prefix, builder.segment_id)
        index_key = keys.index_key(prefix, builder.segment_id)
        manifest_key = keys.manifest_key(prefix, builder.segment_id)
        with self._stage("commit", builder.object_bytes):
            await self._upload.complete(builder.object_bytes)
            await self._upload.put(index_key, index)
            await self._upload.put(manifest_key, encoded)
        with self._stage("verify", builder.object_bytes):
            await self._upload.verify(data_key, builder.object_bytes)
            await self._upload.verify(index_key, len(index), lambda data: same_bytes(index_key, data, index))
            await self._upload.verify(manifest_key, len(encoded), lambda data: same_bytes(manifest_key, data, encoded))
            if self._shop.uplink.limits.readback:
                await self._read_back(data_key, described)
        return CommittedSegment(
            segment_id=builder.segment_id,
            slices=tuple(
                LedgerSlice(part.ledger_id, part.first_entry_id, part.last_entry_id, part.payload_bytes)
                for part in ledgers
            ),
            object_bytes=builder.object_bytes,
            assigned_ms=builder.assigned_ms,
            offloaded_ms=clock.wall_ms(),
            bucket=self._shop.driver.get("bucket", ""),
            prefix=prefix,
        )

    @contextmanager
    def _stage(self, name: str, object_bytes: int) -> Iterator[None]:
        """Show a segment's bytes in a stage of the pipeline while it is there."""
        gauge = self._shop.uplink.metrics.pipeline_bytes.labels(stage=name)
        gauge.inc(object_bytes)
        try:
            yield
        finally:
            gauge.dec(object_bytes)

    async def _read_back(self, key: str, described: SegmentManifest) -> None:
        """Read every block again and compare its checksum, a block at a time."""
        for block in described.blocks:
            data = await self._upload.fetch(key, block.offset, block.length)
            try:
                check_block(data, block, key=key)
            except CorruptData as error:
                raise SegmentFailed(f"what was stored reads back differently: {error}") from error


def same_bytes(key: str, found: bytes, sent: bytes) -> None:
    """Raise SegmentFailed unless an object reads back as it was sent."""
    if found != sent:
        raise SegmentFailed(f"{key} reads back with other bytes than were sent")


def index_groups(ledgers: tuple[LedgerPart, ...], blocks: tuple[BlockInfo, ...]) -> list[v2.LedgerIndex]:
    """Group the blocks by ledger as PIP-76's index has them; `part_id` counts blocks of the object from 1."""
    entries: dict[int, list[v2.IndexEntry]] = {part.ledger_id: [] for part in ledgers}
    for number, block in enumerate(blocks, start=1):
        entries[block.ledger_id].append(v2.IndexEntry(block.first_entry_id, number, block.offset))
    return [v2.LedgerIndex(part.ledger_id, ledger_message(part), tuple(entries[part.ledger_id])) for part in ledgers]


def ledger_message(part: LedgerPart) -> bytes:
    """Pulsar's LedgerInfo for the index: whole ledger when it is closed, else up to the segment's last entry."""
    message = LedgerInfoMessage(ledgerId=part.ledger_id, entries=part.ledger_entries, timestamp=part.closed_ms)
    if part.ledger_bytes:
        message.size = part.ledger_bytes
    return message.SerializeToString(deterministic=True)
