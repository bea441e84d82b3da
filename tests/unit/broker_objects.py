"""Ledgers in tiered storage as a broker leaves them: V1 objects with its user metadata and no manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.model import LedgerInfo, LedgerOffload, OffloadMethod
from offloaderd.format import v1
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.objects import keys
from offloaderd.testing.builders import Block, encode_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from offloaderd.core.model import TopicName
    from offloaderd.objects.port import ObjectStore

BUCKET = "b"


def metadata_of(managed_ledger: str, payloads: Sequence[bytes]) -> bytes:
    """Return what BookKeeper would say of a closed ledger; an empty name is none, as before Pulsar 2.2."""
    message = LedgerMetadataFormat(
        quorumSize=2,
        ensembleSize=3,
        ackQuorumSize=2,
        length=sum(map(len, payloads)),
        lastEntryId=len(payloads) - 1,
        state=LedgerMetadataFormat.CLOSED,
        digestType=LedgerMetadataFormat.CRC32C,
        ctime=1,
    )
    message.segment.add(firstEntryId=0, ensembleMember=["a:1", "b:1", "c:1"])
    if managed_ledger:
        message.customMetadata.add(key="pulsar/managed-ledger", value=managed_ledger.encode())
    return message.SerializeToString()


@dataclass(kw_only=True)
class BrokerLedger:
    """One ledger that a broker has offloaded, with everything that may be wrong about it."""

    topic: TopicName
    ledger_id: int
    object_id: UUID
    payloads: Sequence[bytes]
    block_bytes_max: int = 1000
    index_every: int = 0
    driver: str = "aws-s3"
    bucket: str = BUCKET
    source_deleted: bool = False
    user_metadata: dict[str, str] = field(default_factory=dict)
    nameless: bool = False

    @property
    def keys(self) -> keys.SegmentKeys:
        """Where its objects are."""
        return keys.SegmentKeys("", self.object_id, self.ledger_id)

    @property
    def info(self) -> LedgerInfo:
        """What the broker's list says of it."""
        return LedgerInfo(
            ledger_id=self.ledger_id,
            closed=True,
            entries=len(self.payloads),
            size_bytes=sum(map(len, self.payloads)),
            closed_at_ms=5,
            offloaded=LedgerOffload(
                object_id=self.object_id,
                driver=self.driver,
                properties={"managedLedgerOffloadDriver": "AWS_S3", "bucket": self.bucket, "region": "x"},
                offloaded_ms=7,
                source_deleted=self.source_deleted,
            ),
        )

    @property
    def adopted(self) -> CommittedSegment:
        """The segment as its adoption records it."""
        return CommittedSegment(
            segment_id=self.object_id,
            slices=(LedgerSlice(self.ledger_id, 0, len(self.payloads) - 1, sum(map(len, self.payloads))),),
            object_bytes=len(self.objects()[0]),
            assigned_ms=1,
            offloaded_ms=2,
            bucket=self.bucket,
            prefix="",
            method=OffloadMethod.LEDGER_BASED,
            driver=self.driver,
        )

    @property
    def _name(self) -> str:
        return "" if self.nameless else self.topic.managed_ledger

    def objects(self) -> tuple[bytes, bytes]:
        """Return data and index."""
        blocks = list(
            encode_ledger(
                self.payloads,
                entry_count=len(self.payloads),
                payload_bytes=sum(map(len, self.payloads)),
                block_bytes_max=self.block_bytes_max,
            )
        )
        data = b"".join(chunk for block in blocks for chunk in block.chunks)
        entries = self._denser(blocks) if self.index_every else [block.index_entry for block in blocks]
        return data, v1.encode_index(len(data), metadata_of(self._name, self.payloads), entries)

    def _denser(self, blocks: Sequence[Block]) -> list[IndexEntry]:
        found, firsts = [], {block.index_entry.first_entry_id: block.index_entry for block in blocks}
        part, at = 0, 0
        for entry_id, payload in enumerate(self.payloads):
            if entry_id in firsts:
                part, at = firsts[entry_id].part_id, firsts[entry_id].offset + v1.BLOCK_HEADER_BYTES
                found.append(firsts[entry_id])
            elif entry_id % self.index_every == 0:
                found.append(IndexEntry(entry_id, part, at - v1.BLOCK_HEADER_BYTES))
            at += ENTRY_OVERHEAD_BYTES + len(payload)
        return found

    async def put(self, store: ObjectStore) -> None:
        """Store both objects as Pulsar does."""
        data, index = self.objects()
        for key, content, is_index in ((self.keys.data, data, False), (self.keys.index, index, True)):
            named = keys.ledger_metadata("test", self._name, index=is_index)
            if self.nameless:
                del named[keys.MANAGED_LEDGER_KEY]
            await store.put(key, content, metadata={**named, keys.SOFTWARE_VERSION_KEY: "4.0.7", **self.user_metadata})
