"""`grants/<ledger id>`: permission to delete a ledger from its source, with the evidence for its copy.

A grant records that every segment with entries of the ledger was found complete in the bucket, and read as far as
`readback` says, that together they hold all entries, when that was checked and by which daemon. A revoked grant stays
and prevents a new one until the revocation is lifted.

The evidence of a segment takes some 330 bytes. For a ledger in thousands of segments a node has no room for it: then
two hashes replace it, one over the segments' ids, one over the store's metadata of their objects. Earlier releases
could write no grant for such a ledger, and refuse to change this one (`format`).
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
"""Format of a grant with a summary in place of segments."""
SEGMENTS_BYTES_MAX: Final = 900_000
"""A larger grant gets a summary. Nodes of earlier releases had at most 1,000,000 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedObject:
    """One object as it was found. `crc32c` covers all its bytes; None if they were not read."""

    key: str
    size_bytes: int
    crc32c: int | None
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedSegment:
    """One segment's part of the ledger, and the segment's objects."""

    segment_id: UUID
    first_entry_id: int
    last_entry_id: int
    objects: tuple[GrantedObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Evidence for very many segments: their number, SHA-256 over their ids, SHA-256 over keys, sizes and ETags."""

    segments: int
    segments_sha256: bytes
    objects_sha256: bytes

    @classmethod
    def of(cls, segments: Sequence[GrantedSegment]) -> "Summary":
        """Return the summary of segments, in their order."""
        objects = ([[one.key, one.size_bytes, one.etag] for one in segment.objects] for segment in segments)
        return cls(
            segments=len(segments),
            segments_sha256=_of_ids(segment.segment_id for segment in segments),
            objects_sha256=sha256(b"".join(json.dumps(one).encode() + b"\n" for one in objects)).digest(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The evidence for one ledger, by segment or as a summary. Times are 0 for events that have not happened.

    From `source_deleted_ms` on, when offloaderd began to delete the ledger from its source, it cannot be revoked.
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
    places_sha256: bytes = b""
    """Hash of the places in which the segments were verified; empty in grants of earlier releases."""
    unknown: bytes = field(default=b"", repr=False, compare=False)

    @property
    def in_force(self) -> bool:
        """Whether the ledger was verified and the grant is not revoked."""
        return bool(self.verified_ms) and not self.revoked_ms

    @property
    def segment_count(self) -> int:
        """Number of verified segments."""
        return len(self.segments) if self.summary is None else self.summary.segments

    def is_of(self, segment_ids: Iterable[UUID]) -> bool:
        """Whether the verified segments are these, in this order."""
        if self.summary is not None:
            return self.summary.segments_sha256 == _of_ids(segment_ids)
        return [segment.segment_id for segment in self.segments] == [*segment_ids]

    def is_in(self, places: Iterable[tuple[str, str]]) -> bool:
        """Whether the segments were verified in these places, in this order; unknown ones count as the same."""
        return self.places_sha256 in {b"", of_places(places)}

    def finds(self, segments: Sequence[GrantedSegment]) -> bool:
        """Whether segments and their objects' metadata in the store are unchanged since the check."""
        return Summary.of(segments) == (self.summary or Summary.of(self.segments))

    def allows(self, now_ms: int) -> bool:
        """Whether the ledger may be deleted from its source now."""
        return self.in_force and now_ms >= self.not_before_ms


def _of_ids(segment_ids: Iterable[UUID]) -> bytes:
    return sha256(b"".join(one.bytes for one in segment_ids)).digest()


def of_places(places: Iterable[tuple[str, str]]) -> bytes:
    """Return the hash of places."""
    return sha256(json.dumps([*places]).encode()).digest()


def fitted(value: Grant) -> Grant:
    """Return a grant that fits a node: with a summary if it is too large otherwise."""
    if len(encode(value)) <= SEGMENTS_BYTES_MAX:
        return value
    return replace(value, segments=(), summary=Summary.of(value.segments))


def encode(value: Grant) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.GrantRecord, value, format=FORMAT_SUMMARY if value.summary else codec.FORMAT)


def decode(data: bytes, *, path: str) -> Grant:
    """Read a node's content. Raises CorruptData, also if the segments do not hold the whole ledger."""
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
    """Read the summary. Raises CorruptData for one besides segments, or without its hashes."""
    if (record.format == FORMAT_SUMMARY) is not record.HasField("summary"):
        codec.corrupt(path, f"format {FORMAT_SUMMARY} with a summary, and only then", record.format)
    if not record.HasField("summary"):
        return None
    found = record.summary
    sizes = {len(found.segments_sha256), len(found.objects_sha256)}
    if record.segments or not found.segments or sizes != {sha256().digest_size}:
        codec.corrupt(path, "a summary of segments with two hashes, and no segments beside it", "another")
    return codec.read(Summary, found)
