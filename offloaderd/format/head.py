"""The head of a topic and the marker of a place: the bucket's own record of progress and of its deployment.

Each is a small object beside the segments: a header (magic, version, checksum) and a protobuf message.
"""

import struct
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import google_crc32c
from google.protobuf.message import Message

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format.parsing import filled, halves, header_fields, parse_message, value_of
from offloaderd.format.pb.storage import head_pb2 as pb

M = TypeVar("M", bound=Message)

HEADER = struct.Struct(">III")
VERSION = 1


def _encoded(magic: int, message: Message) -> bytes:
    """Return the object's bytes; equal messages give equal bytes."""
    body = message.SerializeToString(deterministic=True)
    return HEADER.pack(magic, VERSION, google_crc32c.value(body)) + body


def _decoded(magic: int, kind: type[M], data: bytes, *, key: str) -> M:
    """Read an object; `key` names it in errors. Raises CorruptData."""
    version, crc32c = header_fields(HEADER, magic, data, key=key)
    if version != VERSION:
        hint = "a newer offloaderd may have written it" if version > VERSION else ""
        raise CorruptData(key=key, offset=4, expected=f"version {VERSION}", found=version, hint=hint)
    body = data[HEADER.size :]
    if google_crc32c.value(body) != crc32c:
        raise CorruptData(
            key=key, offset=8, expected=f"checksum {google_crc32c.value(body):08x}", found=f"{crc32c:08x}"
        )
    return parse_message(kind, body, key=key, at=HEADER.size)


HEAD_MAGIC = 0x8F4F4648
MARKER_MAGIC = 0x8F4F464C


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSegment:
    """A committed segment, or the one whose commit is next, and the place of its objects."""

    segment_id: UUID
    begin: Position
    end: Position
    bucket: str
    prefix: str
    ledger_based: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHead:
    """A topic's progress at its newest commit. `history` is the newest segment of its history.

    `deployment_id` is empty if unknown; `epoch` is that of the committing owner.
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
    """The deployment of a cluster that uses a place, since when (wall time), and the daemon that put the marker."""

    deployment_id: str
    cluster: str
    daemon_id: str
    since_ms: int
    before: str = ""


def encode_head(value: TopicHead) -> bytes:
    """Return the object's bytes."""
    newest = None if value.newest is None else _to_message(value.newest)
    history = None if value.history is None else _to_message(value.history)
    return _encoded(HEAD_MAGIC, filled(pb.TopicHead, value, newest=newest, history=history, source=None))


def decode_head(data: bytes, *, key: str) -> TopicHead:
    """Read a head; raises CorruptData."""
    message = _decoded(HEAD_MAGIC, pb.TopicHead, data, key=key)
    newest = _from_message(message.newest, key) if message.HasField("newest") else None
    history = _from_message(message.history, key) if message.HasField("history") else None
    return value_of(TopicHead, message, newest=newest, history=history)


def encode_marker(value: PlaceMarker) -> bytes:
    """Return the object's bytes."""
    return _encoded(MARKER_MAGIC, filled(pb.PlaceMarker, value))


def decode_marker(data: bytes, *, key: str) -> PlaceMarker:
    """Read a marker; raises CorruptData."""
    return value_of(PlaceMarker, _decoded(MARKER_MAGIC, pb.PlaceMarker, data, key=key))


def _to_message(value: HeadSegment) -> pb.HeadSegment:
    return filled(pb.HeadSegment, value, **halves("begin", value.begin), **halves("end", value.end))


def _from_message(message: pb.HeadSegment, key: str) -> HeadSegment:
    try:
        segment_id = UUID(message.segment_id)
    except ValueError:
        raise CorruptData(
            key=key, offset=HEADER.size, expected="a segment's uuid", found=repr(message.segment_id)
        ) from None
    begin = Position(message.begin_ledger_id, message.begin_entry_id)
    end = Position(message.end_ledger_id, message.end_entry_id)
    return value_of(HeadSegment, message, segment_id=segment_id, begin=begin, end=end)
