"""`grants/<ledger id>`: permission to delete a ledger from its source, with what was verified of its copy.

A grant says that every segment which holds entries of the ledger was found complete in the bucket and read as far as
`readback` says, that together they hold all its entries, and when and by whom that was seen. A revoked grant stays as
the word that there is to be none; only lifting that makes a new one possible.

Some 330 bytes say what was found of a segment. Of a ledger in thousands of segments that would not go into a node: then
two hashes say it, of which ids the segments have and of what the store tells of their objects. Earlier releases could
write no grant of such a ledger; they refuse to touch this one (`format`).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final
from uuid import UUID

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec

FORMAT_SUMMARY: Final = 1
"""Format of a grant that has a summary instead of segments; any other has none."""
SEGMENTS_BYTES_MAX: Final = 900_000
"""A grant that would be larger has a summary. Earlier releases got no more than 1,000,000 bytes into a node."""


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
class Summary:
    """What was verified of very many segments: how many, SHA-256 over their ids, and over keys, sizes and ETags."""

    segments: int
    segments_sha256: bytes
    objects_sha256: bytes

    @classmethod
    def of(cls, segments: Sequence[GrantedSegment]) -> "Summary":
        """Return what is said of segments, in their order."""
        objects = ([[one.key, one.size_bytes, one.etag] for one in segment.objects] for segment in segments)
        return cls(
            segments=len(segments),
            segments_sha256=_of_ids(segment.segment_id for segment in segments),
            objects_sha256=sha256(b"".join(json.dumps(one).encode() + b"\n" for one in objects)).digest(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What was verified of one ledger, by segment or as a summary of them. Times are 0 for what has not happened.

    `source_deleted_ms` is when offloaderd itself began to delete the ledger from its source: from there on it cannot
    be revoked any more.
    """

    ledger_id: int
    entries: int = 0
    segments: tuple[GrantedSegment, ...] = ()
    summary: Summary | None = None
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

    @property
    def in_force(self) -> bool:
        """Whether the ledger was verified and nobody took the permission back."""
        return bool(self.verified_ms) and not self.revoked_ms

    @property
    def segment_count(self) -> int:
        """Number of the segments that were verified."""
        return len(self.segments) if self.summary is None else self.summary.segments

    def is_of(self, segment_ids: Iterable[UUID]) -> bool:
        """Whether these are the segments that were verified, in this order."""
        if self.summary is not None:
            return self.summary.segments_sha256 == _of_ids(segment_ids)
        return [segment.segment_id for segment in self.segments] == [*segment_ids]

    def finds(self, segments: Sequence[GrantedSegment]) -> bool:
        """Whether segments, and what the store says of their objects, are as they were verified."""
        return Summary.of(segments) == (self.summary or Summary.of(self.segments))

    def allows(self, now_ms: int) -> bool:
        """Whether the ledger may be deleted from its source now."""
        return self.in_force and now_ms >= self.not_before_ms


def _of_ids(segment_ids: Iterable[UUID]) -> bytes:
    return sha256(b"".join(one.bytes for one in segment_ids)).digest()


def fitted(value: Grant) -> Grant:
    """Return a grant that goes into a node: with a summary if its segments would not."""
    if len(encode(value)) <= SEGMENTS_BYTES_MAX:
        return value
    return replace(value, segments=(), summary=Summary.of(value.segments))


def encode(value: Grant) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.GrantRecord, value, format=FORMAT_SUMMARY if value.summary else codec.FORMAT)


def decode(data: bytes, *, path: str) -> Grant:
    """Read a node's content; raises CorruptData, also for a grant whose segments do not hold the whole ledger."""
    record = codec.parse(records_pb2.GrantRecord, data, path, known=FORMAT_SUMMARY)
    segments = tuple(
        codec.read(
            GrantedSegment,
            found,
            segment_id=codec.segment_id(path, found.segment_id),
            objects=tuple(
                codec.read(GrantedObject, one, key=codec.present(path, "an object's key", one.key))
                for one in found.objects
            ),
        )
        for found in record.segments
    )
    summary = _summary(record, path)
    if record.verified_ms and summary is None:
        expected = 0
        for segment in segments:
            if segment.first_entry_id != expected or segment.last_entry_id < expected:
                codec.corrupt(path, f"a segment from entry {expected} on", segment.first_entry_id)
            expected = segment.last_entry_id + 1
        if expected != record.entries:
            codec.corrupt(path, f"segments that hold {record.entries} entries", expected)
    return codec.read(Grant, record, segments=segments, summary=summary)


def _summary(record: records_pb2.GrantRecord, path: str) -> Summary | None:
    """Read the summary; raises CorruptData for one beside segments, or without its hashes."""
    if (record.format == FORMAT_SUMMARY) is not record.HasField("summary"):
        codec.corrupt(path, f"format {FORMAT_SUMMARY} with a summary, and only then", record.format)
    if not record.HasField("summary"):
        return None
    found = record.summary
    sizes = {len(found.segments_sha256), len(found.objects_sha256)}
    if record.segments or not found.segments or sizes != {sha256().digest_size}:
        codec.corrupt(path, "a summary of segments with two hashes, and no segments beside it", "another")
    return codec.read(Summary, found)
