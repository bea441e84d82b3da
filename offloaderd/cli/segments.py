"""The table of segments, which `offloadctl segments` and a standalone show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.cli import show

if TYPE_CHECKING:
    from offloaderd.rpc.v1 import admin_pb2


def status(segment: admin_pb2.Segment) -> str:
    """Return the status word, with the state of a segment that is still open; an older daemon does not tell it."""
    return f"{segment.status}, {segment.state}" if segment.state and not segment.HasField("end") else segment.status


TABLE: show.Table[admin_pb2.Segment] = show.Table(
    ("STATUS", status),
    ("METHOD", "method"),
    ("WRITER", "writer"),
    ("BEGIN", "begin"),
    ("END", lambda one: show.position_of(one, "end") or "open"),
    (">ENTRIES", "entries"),
    (">PAYLOAD", "payload_bytes"),
    (">OBJECT", lambda one: show.size(one.object_bytes) if one.object_bytes else "-"),
    ("OFFLOADED AT (UTC)", "offloaded_ms"),
    ("DATA OBJECT", lambda one: f"{one.bucket}/{one.data_key}"),
)
