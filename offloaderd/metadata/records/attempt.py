"""`attempt`: the one open segment of a topic, recorded before its first byte is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from offloaderd.model import Position


class AttemptStatus(StrEnum):
    """Status words of PIP-76."""

    ASSIGNED = "Assigned"
    OFFLOADED = "Offloaded"
    FAILED = "Failed"


_TO_WIRE = {
    AttemptStatus.ASSIGNED: records_pb2.ATTEMPT_STATUS_ASSIGNED,
    AttemptStatus.OFFLOADED: records_pb2.ATTEMPT_STATUS_OFFLOADED,
    AttemptStatus.FAILED: records_pb2.ATTEMPT_STATUS_FAILED,
}
_FROM_WIRE = {number: status for status, number in _TO_WIRE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A try to write a segment that starts at `begin`. `upload_id` is empty until the multipart upload exists."""

    segment_id: UUID
    begin: Position
    assigned_ms: int
    epoch: int
    status: AttemptStatus
    upload_id: str = ""
    driver: str = ""
    driver_properties: Mapping[str, str] = field(default_factory=dict)
    tries: int = 0
    last_error: str = ""


def encode(value: Attempt) -> bytes:
    """Return the node's content; equal attempts give equal bytes."""
    return records_pb2.AttemptRecord(
        segment_id=str(value.segment_id),
        begin_ledger_id=value.begin.ledger_id,
        begin_entry_id=value.begin.entry_id,
        assigned_ms=value.assigned_ms,
        epoch=value.epoch,
        status=_TO_WIRE[value.status],
        upload_id=value.upload_id,
        driver=value.driver,
        driver_properties=value.driver_properties,
        tries=value.tries,
        last_error=value.last_error,
    ).SerializeToString(deterministic=True)


def decode(data: bytes, *, path: str) -> Attempt:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.AttemptRecord, data, path)
    status = _FROM_WIRE.get(record.status)
    if status is None:
        codec.corrupt(path, "a known status", record.status)
    return Attempt(
        segment_id=codec.segment_id(path, record.segment_id),
        begin=codec.position(path, record.begin_ledger_id, record.begin_entry_id),
        assigned_ms=record.assigned_ms,
        epoch=record.epoch,
        status=status,
        upload_id=record.upload_id,
        driver=record.driver,
        driver_properties=dict(record.driver_properties),
        tries=record.tries,
        last_error=record.last_error,
    )
