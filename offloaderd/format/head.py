"""The head of a topic and the marker of a place: what the bucket says by itself of who works there, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format import small
from offloaderd.format.parsing import filled, halves, value_of
from offloaderd.format.pb.storage import head_pb2 as pb

HEAD_MAGIC = 0x8F4F4648
MARKER_MAGIC = 0x8F4F464C


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSegment:
    """A segment that is committed, or whose commit comes next, and where its objects lie."""

    segment_id: UUID
    begin: Position
    end: Position
    bucket: str
    prefix: str
    ledger_based: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHead:
    """How far a topic is by its newest commit. `history` is the newest segment of a history that is not done.

    `deployment_id` is empty where it is not known; `epoch` is that of the owner that commits.
    """

    managed_ledger: str
    cluster: str
    epoch: int
    newest: HeadSegment | None
    history: HeadSegment | None = None
    deployment_id: str = ""
    put_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceMarker:
    """Which deployment of a cluster's name works in a place, since when (wall time), and who put it."""

    deployment_id: str
    cluster: str
    daemon_id: str
    since_ms: int
    before: str = ""


def encode_head(value: TopicHead) -> bytes:
    """Return the object's bytes."""
    newest = None if value.newest is None else _to_message(value.newest)
    history = None if value.history is None else _to_message(value.history)
    return small.encode(HEAD_MAGIC, filled(pb.TopicHead, value, newest=newest, history=history, source=None))


def decode_head(data: bytes, *, key: str) -> TopicHead:
    """Read a head; raises CorruptData."""
    message = small.decode(HEAD_MAGIC, pb.TopicHead, data, key=key)
    newest = _from_message(message.newest, key) if message.HasField("newest") else None
    history = _from_message(message.history, key) if message.HasField("history") else None
    return value_of(TopicHead, message, newest=newest, history=history)


def encode_marker(value: PlaceMarker) -> bytes:
    """Return the object's bytes."""
    return small.encode(MARKER_MAGIC, filled(pb.PlaceMarker, value))


def decode_marker(data: bytes, *, key: str) -> PlaceMarker:
    """Read a marker; raises CorruptData."""
    return value_of(PlaceMarker, small.decode(MARKER_MAGIC, pb.PlaceMarker, data, key=key))


def _to_message(value: HeadSegment) -> pb.HeadSegment:
    return filled(pb.HeadSegment, value, **halves("begin", value.begin), **halves("end", value.end))


def _from_message(message: pb.HeadSegment, key: str) -> HeadSegment:
    try:
        segment_id = UUID(message.segment_id)
    except ValueError:
        raise CorruptData(
            key=key, offset=small.HEADER.size, expected="a segment's uuid", found=repr(message.segment_id)
        ) from None
    begin = Position(message.begin_ledger_id, message.begin_entry_id)
    end = Position(message.end_ledger_id, message.end_entry_id)
    return value_of(HeadSegment, message, segment_id=segment_id, begin=begin, end=end)
