"""`grants/<ledger id>`: permission to delete a ledger from its source, with what was verified of its copy.

A grant says that every segment which holds entries of the ledger was found complete in the bucket and read as far as
`readback` says, that together they hold all its entries, and when and by whom that was seen. A revoked grant stays as
the word that there is to be none; only lifting that makes a new one possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec

if TYPE_CHECKING:
    from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedObject:
    """One object as it was found. `crc32c` is of all its bytes, None when they were not read."""

    key: str
    size_bytes: int
    crc32c: int | None
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedSegment:
    """The part of the ledger that one segment holds, and the segment's objects."""

    segment_id: UUID
    first_entry_id: int
    last_entry_id: int
    objects: tuple[GrantedObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What was verified of one ledger. Times are 0 for what has not happened.

    `source_deleted_ms` is when offloaderd itself began to delete the ledger from its source: from there on it cannot
    be revoked any more.
    """

    ledger_id: int
    entries: int = 0
    segments: tuple[GrantedSegment, ...] = ()
    readback: bool = False
    verified_ms: int = 0
    daemon_id: str = ""
    epoch: int = 0
    not_before_ms: int = 0
    revoked_ms: int = 0
    revoked_reason: str = ""
    source_deleted_ms: int = 0
    damaged: bool = False
    """Revoked because the copy was found damaged."""
    unknown: bytes = field(default=b"", repr=False, compare=False)
    """What a later release has added to the record."""

    @property
    def in_force(self) -> bool:
        """Whether the ledger was verified and nobody took the permission back."""
        return bool(self.verified_ms) and not self.revoked_ms

    def allows(self, now_ms: int) -> bool:
        """Whether the ledger may be deleted from its source now."""
        return self.in_force and now_ms >= self.not_before_ms


def encode(value: Grant) -> bytes:
    """Return the node's content."""
    message = records_pb2.GrantRecord(
        ledger_id=value.ledger_id,
        entries=value.entries,
        segments=[
            records_pb2.GrantedSegment(
                segment_id=str(segment.segment_id),
                first_entry_id=segment.first_entry_id,
                last_entry_id=segment.last_entry_id,
                objects=[
                    records_pb2.GrantedObject(key=one.key, size_bytes=one.size_bytes, crc32c=one.crc32c, etag=one.etag)
                    for one in segment.objects
                ],
            )
            for segment in value.segments
        ],
        readback=value.readback,
        verified_ms=value.verified_ms,
        daemon_id=value.daemon_id,
        epoch=value.epoch,
        not_before_ms=value.not_before_ms,
        revoked_ms=value.revoked_ms,
        revoked_reason=value.revoked_reason,
        source_deleted_ms=value.source_deleted_ms,
        damaged=value.damaged,
    )
    return codec.written(message, value.unknown)


def decode(data: bytes, *, path: str) -> Grant:
    """Read a node's content; raises CorruptData, also for a grant whose segments do not hold the whole ledger."""
    record = codec.parse(records_pb2.GrantRecord, data, path)
    segments = tuple(
        GrantedSegment(
            segment_id=codec.segment_id(path, found.segment_id),
            first_entry_id=found.first_entry_id,
            last_entry_id=found.last_entry_id,
            objects=tuple(
                GrantedObject(
                    key=codec.present(path, "an object's key", one.key),
                    size_bytes=one.size_bytes,
                    crc32c=one.crc32c if one.HasField("crc32c") else None,
                    etag=one.etag,
                )
                for one in found.objects
            ),
        )
        for found in record.segments
    )
    if record.verified_ms:
        expected = 0
        for segment in segments:
            if segment.first_entry_id != expected or segment.last_entry_id < expected:
                codec.corrupt(path, f"a segment from entry {expected} on", segment.first_entry_id)
            expected = segment.last_entry_id + 1
        if expected != record.entries:
            codec.corrupt(path, f"segments that hold {record.entries} entries", expected)
    return Grant(
        ledger_id=record.ledger_id,
        entries=record.entries,
        segments=segments,
        readback=record.readback,
        verified_ms=record.verified_ms,
        daemon_id=record.daemon_id,
        epoch=record.epoch,
        not_before_ms=record.not_before_ms,
        revoked_ms=record.revoked_ms,
        revoked_reason=record.revoked_reason,
        source_deleted_ms=record.source_deleted_ms,
        damaged=record.damaged,
        unknown=codec.unknown(record),
    )
