"""`verified`: when each of a topic's segments was last looked at by the scrub, how closely, and what was wrong.

One node a topic, written by its owner, some seconds behind what was done: what a crash loses is looked at again. A
segment that is not in it has never been looked at. Nothing depends on it but when to look again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.format.pb.storage import verified_pb2
from offloaderd.metadata.records import codec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

SEGMENTS_MAX = 8_000
"""More would make the node too large; the rest counts as never verified."""
FLAW_CHARS_MAX = 300
FLAWS_BYTES_MAX = 300_000
"""For the words of all flaws together: where everything is damaged, how many there are is what counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerified:
    """One look at a segment. `flaw` is the first of its `flaws` in words."""

    verified_ms: int
    level: str
    flaws: int = 0
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The segment that is being read, of which so many blocks are sound."""

    segment_id: UUID
    blocks: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What is known of a topic."""

    segments: Mapping[UUID, SegmentVerified]
    cursor: Cursor | None = None


def encode(value: Verified) -> bytes:
    """Return the node's content: of too many segments those that were looked at last, and all that are not sound."""
    chosen = sorted(value.segments.items(), key=lambda one: (not one[1].flaws, -one[1].verified_ms))[:SEGMENTS_MAX]
    flawed = sum(bool(one.flaws) for _, one in chosen)
    chars = min(FLAW_CHARS_MAX, FLAWS_BYTES_MAX // (4 * max(1, flawed)))  # a character has at most 4 bytes
    message = verified_pb2.VerifiedRecord(
        segments=[
            verified_pb2.VerifiedSegment(
                segment_id=str(segment_id),
                verified_ms=one.verified_ms,
                level=one.level,
                flaws=one.flaws,
                flaw=one.flaw[:chars],
            )
            for segment_id, one in sorted(chosen, key=lambda one: one[0])
        ]
    )
    if value.cursor is not None:
        message.cursor.segment_id, message.cursor.blocks = str(value.cursor.segment_id), value.cursor.blocks
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, *, path: str) -> Verified:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(verified_pb2.VerifiedRecord, data, path)
    segments = {
        codec.segment_id(path, one.segment_id): SegmentVerified(
            verified_ms=one.verified_ms, level=one.level, flaws=one.flaws, flaw=one.flaw
        )
        for one in record.segments
    }
    cursor = None
    if record.HasField("cursor"):
        cursor = Cursor(codec.segment_id(path, record.cursor.segment_id), record.cursor.blocks)
    return Verified(segments, cursor)
