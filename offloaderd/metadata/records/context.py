"""`ledgers/<id>`: Pulsar's OffloadContext with one OffloadSegment for every segment that holds entries of the ledger.

| field | ours |
|---|---|
| context.complete, uidMsb, uidLsb | of a ledger in one object (PIP-17): true and its uuid; else false and unset |
| context.timestamp, driverMetadata | of such a ledger: when it was offloaded, in milliseconds, and by which driver |
| context.ledgerEntries (1000), nextLedgerId (1001) | once all of a closed ledger is offloaded: entries, successor |
| context.bookkeeperDeleted | once the ledger source has no copy of it, or is about to delete it |
| context.deletedTimestamp (1002) | once the ledger is marked deleted: when, in milliseconds |
| context.createdTimestamp (1006) | where it is known: when the ledger was created, in milliseconds |
| context.assignedTimestamp (1003), dataObjectLength (1004), payloadBytes (1005) | of a ledger in one object |
| segment.uidMsb, uidLsb | the segment's uuid in two signed halves, the same in every ledger that it touches |
| segment.complete | true: only committed segments are here; the open segment is the topic's `attempt` |
| assignedTimestamp, offloadedTimestamp | milliseconds |
| endEntryId | last entry of this ledger in the segment |
| driverMetadata | name `offloaderd`, properties `bucket`, `prefix`; with a copy `mirror.bucket`, `mirror.prefix` |
| context.piece (1011), format (1010) | of a ledger with very many segments: pieces with older ones, and 1 |
| beginEntryId (1000) | only on a ledger's first segment, and only if that does not start at entry 0 |
| dataObjectLength (1001), payloadBytes (1002) | bytes of the whole data object; payload bytes of this ledger in it |

Segments ascend without a gap, so each begins after the end of the one before. A ledger in one object has no other
segments, and is whole. A rewrite of a node keeps unknown fields, as Pulsar keeps ours.

A context in pieces (`metadata/pieces.py`) names them in order; its own segments follow them. A piece is a context with
nothing but segments. The node's format makes releases without pieces refuse it, rather than read too few segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, TypeAlias
from uuid import UUID

from offloaderd.core.model import DRIVER, LedgerEnd, OffloadMethod
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import (
    OffloadContext,
    OffloadDriverMetadata,
    OffloadPiece,
    OffloadSegment,
)
from offloaderd.metadata.records import codec

FORMAT_PIECES: Final = 1
"""Format of a context with pieces, and of no other."""

_OURS: Final = (
    "offloadSegment",
    "ledgerEntries",
    "nextLedgerId",
    "deletedTimestamp",
    "bookkeeperDeleted",
    "createdTimestamp",
    "uidMsb",
    "uidLsb",
    "format",
    "piece",
)
"""Fields that are written anew each time."""
_FRAME_BYTES: Final = 3
"""Overhead of an embedded message of 128 bytes or more: field number and length."""
_OF_OBJECT: Final = ("timestamp", "assignedTimestamp", "dataObjectLength", "payloadBytes", "driverMetadata")
"""Fields of a whole-ledger object, removed once the ledger is not stored in one any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSegment:
    """One segment's part of a ledger: entries `begin_entry_id` to `end_entry_id`, both inclusive.

    With the method LEDGER_BASED it is the whole ledger in an object of its own. `source` is the message it was read
    from, kept for unknown fields.
    """

    segment_id: UUID
    begin_entry_id: int
    end_entry_id: int
    assigned_ms: int
    offloaded_ms: int
    object_bytes: int
    payload_bytes: int
    method: OffloadMethod = OffloadMethod.STREAMING
    driver: str = DRIVER
    properties: Mapping[str, str] = field(default_factory=dict)
    source: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class UnreadSegment:
    """A stored segment of which only the range of entries was decoded, both inclusive."""

    begin_entry_id: int
    end_entry_id: int
    message: OffloadSegment = field(repr=False, compare=False)
    method: ClassVar[OffloadMethod] = OffloadMethod.STREAMING


AnySegment: TypeAlias = LedgerSegment | UnreadSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A node below the context's with older segments: entries from the first to the last, both inclusive."""

    number: int
    begin_entry_id: int
    end_entry_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContext:
    """All segments with entries of one ledger, ascending; `end` once the ledger is offloaded to its end.

    If `pieces` hold the older segments, `segments` are the newer ones. `deleted_ms` is when the ledger was marked
    deleted, None while it is kept. `source_deleted`: the source has no copy any more, or is about to delete it.
    `created_ms` is the ledger's creation time, None if unknown. `source` as in LedgerSegment.
    """

    segments: tuple[LedgerSegment, ...] = ()
    end: LedgerEnd | None = None
    deleted_ms: int | None = None
    source_deleted: bool = False
    created_ms: int | None = None
    pieces: tuple[Piece, ...] = ()
    source: bytes = field(default=b"", repr=False, compare=False)

    @property
    def whole(self) -> bool:
        """Whether the ledger is stored in an object of its own."""
        return any(segment.method is OffloadMethod.LEDGER_BASED for segment in self.segments)


def encode(value: LedgerContext, segments: Sequence[AnySegment] | None = None) -> bytes:
    """Return the node's content, with `segments` in place of the context's own if they are given.

    Raises ValueError for segments that are not ascending and contiguous.
    """
    segments = value.segments if segments is None else segments
    objects = [one for one in segments if isinstance(one, LedgerSegment)]
    whole = next((one for one in objects if one.method is OffloadMethod.LEDGER_BASED), None)
    message = OffloadContext.FromString(value.source)
    for name in _OURS if whole is not None or not message.complete else (*_OURS, *_OF_OBJECT):
        message.ClearField(name)
    message.complete = False
    if value.source_deleted:
        message.bookkeeperDeleted = True
    if value.deleted_ms is not None:
        message.deletedTimestamp = value.deleted_ms
    if value.created_ms is not None:
        message.createdTimestamp = value.created_ms
    if value.end is not None:
        message.ledgerEntries = value.end.entries
        if value.end.next_ledger_id is not None:
            message.nextLedgerId = value.end.next_ledger_id
    if whole is not None:
        _encode_whole(message, whole, value.end, alone=len(segments) == 1)
        return message.SerializeToString(deterministic=True)
    for piece in value.pieces:
        message.format = FORMAT_PIECES
        message.piece.add(number=piece.number, beginEntryId=piece.begin_entry_id, endEntryId=piece.end_entry_id)
    expected = 0
    for index, segment in enumerate(segments):
        if segment.end_entry_id < segment.begin_entry_id or (index and segment.begin_entry_id != expected):
            raise ValueError(f"{segment} does not continue at entry {expected}")
        message.offloadSegment.append(_segment_message(segment, explicit=segment.begin_entry_id != expected))
        expected = segment.end_entry_id + 1
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, *, path: str) -> LedgerContext:
    """Read a node's content. Raises CorruptData for a gap, an overlap or an incomplete segment."""
    message = codec.parse(OffloadContext, data, path, known=FORMAT_PIECES)
    segments: list[LedgerSegment] = []
    if message.complete:
        segments.append(_whole(message, path))
    for found in message.offloadSegment:
        segments.append(_segment(found, segments[-1].end_entry_id + 1 if segments else None, path))
    return replace(_marks(message, segments, path), segments=tuple(segments))


def skim(data: bytes, *, path: str) -> tuple[LedgerContext, Sequence[AnySegment]]:
    """Read a node's content for a change: all but the segments, and these undecoded.

    So thousands of segments cost a few milliseconds, and unchanged ones stay as they are byte for byte. A ledger in one
    object is read as by `decode`. Raises CorruptData as `decode` does, except for errors within a segment.
    """
    message = codec.parse(OffloadContext, data, path, known=FORMAT_PIECES, text=False)
    if message.complete:
        known = decode(data, path=path)
        return known, known.segments
    segments: list[UnreadSegment] = []
    for found in message.offloadSegment:
        begin = segments[-1].end_entry_id + 1 if segments else found.beginEntryId
        segments.append(UnreadSegment(begin, found.endEntryId, found))
    return _marks(message, segments, path), segments


def read(segment: AnySegment, *, path: str) -> LedgerSegment:
    """Return a segment as `decode` does. Raises CorruptData."""
    if isinstance(segment, LedgerSegment):
        return segment
    return _segment(segment.message, segment.begin_entry_id, path)


def _marks(message: OffloadContext, segments: Sequence[AnySegment], path: str) -> LedgerContext:
    """Read all but the segments. Raises CorruptData for values that do not fit them."""
    pieces = _pieces(message, path)
    end: LedgerEnd | None = None
    if message.HasField("ledgerEntries"):
        following = message.nextLedgerId if message.HasField("nextLedgerId") else None
        end = LedgerEnd(message.ledgerEntries, following)
        if not segments or segments[-1].end_entry_id + 1 != end.entries:
            codec.corrupt(path, f"segments to the ledger's end at {end.entries} entries", "others")
    deleted_ms = message.deletedTimestamp if message.HasField("deletedTimestamp") else None
    if deleted_ms is not None and deleted_ms < 0:
        codec.corrupt(path, "a time of 0 or more", deleted_ms)
    if pieces and (not segments or segments[0].begin_entry_id != pieces[-1].end_entry_id + 1):
        codec.corrupt(path, f"a segment from entry {pieces[-1].end_entry_id + 1} on, behind the pieces", segments[:1])
    rest = OffloadContext()
    rest.CopyFrom(message)
    rest.ClearField("offloadSegment")
    return LedgerContext(
        end=end,
        deleted_ms=deleted_ms,
        source_deleted=message.bookkeeperDeleted,
        created_ms=message.createdTimestamp if message.HasField("createdTimestamp") else None,
        pieces=pieces,
        source=rest.SerializeToString(deterministic=True),
    )


def pieces_of(data: bytes, *, path: str) -> tuple[Piece, ...]:
    """Return the pieces of a node, without decoding its own segments. Raises CorruptData."""
    return _pieces(codec.parse(OffloadContext, data, path, known=FORMAT_PIECES, text=False), path)


def stored_bytes(segment: AnySegment) -> int:
    """Return the bytes of a segment in a node, without its begin."""
    return _segment_message(segment, explicit=False).ByteSize() + _FRAME_BYTES


def _pieces(message: OffloadContext, path: str) -> tuple[Piece, ...]:
    """Read the table of pieces. Raises CorruptData unless they ascend without a gap, each with a number of its own."""
    found = tuple(map(_piece, message.piece))
    for index, one in enumerate(found):
        begin = found[index - 1].end_entry_id + 1 if index else one.begin_entry_id
        if one.begin_entry_id != begin or not 0 <= begin <= one.end_entry_id:
            codec.corrupt(path, f"a piece from entry {begin} on", one)
    if len({one.number for one in found}) < len(found):
        codec.corrupt(path, "pieces of different numbers", found)
    if (message.format == FORMAT_PIECES) is not bool(found):
        codec.corrupt(path, f"format {FORMAT_PIECES} with pieces, and only then", message.format)
    return found


def _piece(message: OffloadPiece) -> Piece:
    return Piece(number=message.number, begin_entry_id=message.beginEntryId, end_entry_id=message.endEntryId)


def _encode_whole(message: OffloadContext, segment: LedgerSegment, end: LedgerEnd | None, *, alone: bool) -> None:
    """Write a ledger in one object as Pulsar does. Raises ValueError unless the segment is the whole ledger."""
    whole = end is not None and (segment.begin_entry_id, segment.end_entry_id) == (0, end.entries - 1)
    if not alone or not whole:
        raise ValueError(f"object {segment.segment_id} does not hold a whole ledger")
    message.complete = True
    message.uidMsb, message.uidLsb = split_uuid(segment.segment_id)
    message.timestamp = segment.offloaded_ms
    message.assignedTimestamp = segment.assigned_ms
    message.dataObjectLength = segment.object_bytes
    message.payloadBytes = segment.payload_bytes
    _set_driver(message.driverMetadata, segment)


def _whole(message: OffloadContext, path: str) -> LedgerSegment:
    """Read a ledger in one object; raises CorruptData."""
    if message.offloadSegment:
        codec.corrupt(path, "a ledger in one object, or its segments", "both")
    if not (message.HasField("uidMsb") and message.HasField("uidLsb") and message.ledgerEntries > 0):
        codec.corrupt(path, "a ledger in one object with its uuid and number of entries", "one without")
    numbers = (message.timestamp, message.assignedTimestamp, message.dataObjectLength, message.payloadBytes)
    if min(numbers) < 0:
        codec.corrupt(path, "times and sizes of 0 or more", numbers)
    driver, properties = _properties(message.driverMetadata)
    return LedgerSegment(
        segment_id=join_uuid(message.uidMsb, message.uidLsb),
        begin_entry_id=0,
        end_entry_id=message.ledgerEntries - 1,
        assigned_ms=message.assignedTimestamp,
        offloaded_ms=message.timestamp,
        object_bytes=message.dataObjectLength,
        payload_bytes=message.payloadBytes,
        method=OffloadMethod.LEDGER_BASED,
        driver=driver,
        properties=properties,
    )


def split_uuid(segment_id: UUID) -> tuple[int, int]:
    """Return the halves of a uuid as in Java: most and least significant, signed 64-bit."""
    raw = segment_id.bytes
    return int.from_bytes(raw[:8], "big", signed=True), int.from_bytes(raw[8:], "big", signed=True)


def join_uuid(msb: int, lsb: int) -> UUID:
    """Return the uuid of two signed 64-bit halves."""
    return UUID(bytes=msb.to_bytes(8, "big", signed=True) + lsb.to_bytes(8, "big", signed=True))


def _segment_message(segment: AnySegment, *, explicit: bool) -> OffloadSegment:
    """Build the message; `explicit` writes its begin."""
    if isinstance(segment, UnreadSegment):
        if explicit is segment.message.HasField("beginEntryId"):
            return segment.message
        moved = OffloadSegment()
        moved.CopyFrom(segment.message)
        moved.ClearField("beginEntryId")
        if explicit:
            moved.beginEntryId = segment.begin_entry_id
        return moved
    message = OffloadSegment.FromString(segment.source)
    message.uidMsb, message.uidLsb = split_uuid(segment.segment_id)
    message.complete = True
    message.assignedTimestamp = segment.assigned_ms
    message.offloadedTimestamp = segment.offloaded_ms
    message.endEntryId = segment.end_entry_id
    if explicit:
        message.beginEntryId = segment.begin_entry_id
    else:
        message.ClearField("beginEntryId")
    message.dataObjectLength = segment.object_bytes
    message.payloadBytes = segment.payload_bytes
    if not message.HasField("driverMetadata") or _properties(message.driverMetadata) != (
        segment.driver,
        segment.properties,
    ):
        _set_driver(message.driverMetadata, segment)
    return message


def _set_driver(message: OffloadDriverMetadata, segment: LedgerSegment) -> None:
    message.name = segment.driver
    message.ClearField("properties")
    for key, value in sorted(segment.properties.items()):
        message.properties.add(key=key, value=value)


def _segment(message: OffloadSegment, expected: int | None, path: str) -> LedgerSegment:
    """Check and read one segment; `expected` is its begin, None for a ledger's first segment."""
    if not (message.HasField("uidMsb") and message.HasField("uidLsb") and message.HasField("endEntryId")):
        codec.corrupt(path, "a segment with uuid and endEntryId", "one without")
    segment_id = join_uuid(message.uidMsb, message.uidLsb)
    if not message.complete:
        codec.corrupt(path, f"segment {segment_id} complete", "one that is not")
    begin = message.beginEntryId if message.HasField("beginEntryId") else (expected or 0)
    if begin < 0 or (expected is not None and begin != expected):
        codec.corrupt(path, f"segment {segment_id} to begin at entry {expected or 0}", begin)
    if message.endEntryId < begin:
        codec.corrupt(path, f"segment {segment_id} to end at entry {begin} or later", message.endEntryId)
    times = (message.assignedTimestamp, message.offloadedTimestamp)
    sizes = (message.dataObjectLength, message.payloadBytes)
    if min(*times, *sizes) < 0:
        codec.corrupt(path, f"times and sizes of segment {segment_id} of 0 or more", (*times, *sizes))
    driver, properties = _properties(message.driverMetadata)
    return LedgerSegment(
        segment_id=segment_id,
        begin_entry_id=begin,
        end_entry_id=message.endEntryId,
        assigned_ms=message.assignedTimestamp,
        offloaded_ms=message.offloadedTimestamp,
        object_bytes=message.dataObjectLength,
        payload_bytes=message.payloadBytes,
        driver=driver,
        properties=properties,
        source=message.SerializeToString(deterministic=True),
    )


def _properties(message: OffloadDriverMetadata) -> tuple[str, Mapping[str, str]]:
    return message.name, {one.key: one.value for one in message.properties}
