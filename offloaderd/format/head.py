"""The head of a topic and the marker of a place: what the bucket says by itself of who works there, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from offloaderd.errors import CorruptData
from offloaderd.format import small
from offloaderd.format.pb.storage import head_pb2 as pb
from offloaderd.model import Position

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
    return small.encode(
        HEAD_MAGIC,
        pb.TopicHead(
            deployment_id=value.deployment_id,
            cluster=value.cluster,
            managed_ledger=value.managed_ledger,
            epoch=value.epoch,
            newest=_to_message(value.newest) if value.newest is not None else None,
            history=_to_message(value.history) if value.history is not None else None,
            put_ms=value.put_ms,
        ),
    )


def decode_head(data: bytes, *, key: str) -> TopicHead:
    """Read a head; raises CorruptData."""
    message = small.decode(HEAD_MAGIC, pb.TopicHead, data, key=key)
    return TopicHead(
        deployment_id=message.deployment_id,
        cluster=message.cluster,
        managed_ledger=message.managed_ledger,
        epoch=message.epoch,
        newest=_from_message(message.newest, key) if message.HasField("newest") else None,
        history=_from_message(message.history, key) if message.HasField("history") else None,
        put_ms=message.put_ms,
    )


def encode_marker(value: PlaceMarker) -> bytes:
    """Return the object's bytes."""
    return small.encode(
        MARKER_MAGIC,
        pb.PlaceMarker(
            deployment_id=value.deployment_id,
            cluster=value.cluster,
            daemon_id=value.daemon_id,
            since_ms=value.since_ms,
            before=value.before,
        ),
    )


def decode_marker(data: bytes, *, key: str) -> PlaceMarker:
    """Read a marker; raises CorruptData."""
    message = small.decode(MARKER_MAGIC, pb.PlaceMarker, data, key=key)
    return PlaceMarker(
        deployment_id=message.deployment_id,
        cluster=message.cluster,
        daemon_id=message.daemon_id,
        since_ms=message.since_ms,
        before=message.before,
    )


def _to_message(value: HeadSegment) -> pb.HeadSegment:
    return pb.HeadSegment(
        segment_id=str(value.segment_id),
        begin_ledger_id=value.begin.ledger_id,
        begin_entry_id=value.begin.entry_id,
        end_ledger_id=value.end.ledger_id,
        end_entry_id=value.end.entry_id,
        ledger_based=value.ledger_based,
        bucket=value.bucket,
        prefix=value.prefix,
    )


def _from_message(message: pb.HeadSegment, key: str) -> HeadSegment:
    try:
        segment_id = UUID(message.segment_id)
    except ValueError:
        raise CorruptData(
            key=key, offset=small.HEADER.size, expected="a segment's uuid", found=repr(message.segment_id)
        ) from None
    return HeadSegment(
        segment_id=segment_id,
        begin=Position(message.begin_ledger_id, message.begin_entry_id),
        end=Position(message.end_ledger_id, message.end_entry_id),
        bucket=message.bucket,
        prefix=message.prefix,
        ledger_based=message.ledger_based,
    )
