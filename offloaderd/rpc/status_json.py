"""A daemon's status as JSON: the same for `offloadctl status`, `offloadctl top` and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.rpc.message_json import as_json, picked

if TYPE_CHECKING:
    from offloaderd.rpc.v1 import admin_pb2


def daemon_json(found: admin_pb2.StatusResponse) -> dict[str, object]:
    """Return the daemon as JSON shows it."""
    names = ("id=daemon_id", "version", "state", "started_ms", "memory_used_bytes", "memory_budget_bytes")
    return picked(found, *names, "dependencies", "alarms", kept=("daemon_id", "version", "state", "started_ms"))


def topic_json(one: admin_pb2.TopicStatus) -> dict[str, object]:
    """Return a topic's status as JSON shows it; what does not exist is null."""
    unprotected = {
        "entries": one.unprotected_entries,
        "bytes": one.unprotected_bytes,
        "since_ms": one.unprotected_since_ms,
        **picked(one, "spilled_entries", "spilled_bytes"),
    }
    opened = {
        "segment_id": one.open_segment_id,
        "entries": one.open_segment_entries,
        "bytes": one.open_segment_bytes,
        "age_s": one.open_segment_age_s,
        "continued": one.open_segment_continued,
    }
    lag = {
        "lag_entries": None if one.lag_unknown else one.lag_entries,
        "lag_bytes": None if one.lag_unknown else one.lag_bytes,
        "lag_seconds": None if one.lag_age_unknown else one.lag_seconds,
    }
    return {
        **picked(one, "topic", "state", "asleep", "stalled_reason", "stalled_class", "stalled_since_ms", "outage"),
        "unprotected": unprotected if one.unprotected_since_ms else None,
        **picked(one, "owner", "placement"),
        "paused": {"since_ms": one.paused_ms, "by": one.paused_by} if one.paused_ms else None,
        **picked(one, "epoch", "damaged_ledgers", "refusals", "confirmed", "offloaded", "history"),
        **lag,
        "open_segment": opened if one.open_segment_id else None,
        **picked(one, "buffer_bytes", "segments_committed", "edge", "hidden_entries"),
        "looked_age_s": one.looked_age_s,
        **picked(one, "method", "taken_entries", "taken_bytes"),
        "losses": [as_json(loss, kept=("noticed_ms",), nullable=("entries",)) for loss in one.losses],
    }
