"""A daemon's status as JSON: the same for `offloadctl status`, `offloadctl top` and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.rpc.message_json import as_json, position_of

if TYPE_CHECKING:
    from offloaderd.rpc.v1 import admin_pb2


def daemon_json(found: admin_pb2.StatusResponse) -> dict[str, object]:
    """Return the daemon as JSON shows it."""
    return {
        "id": found.daemon_id,
        "version": found.version,
        "state": found.state,
        "started_ms": found.started_ms,
        "memory_used_bytes": found.memory_used_bytes,
        "memory_budget_bytes": found.memory_budget_bytes,
        "dependencies": [as_json(one) for one in found.dependencies],
        "alarms": list(found.alarms),
    }


def topic_json(one: admin_pb2.TopicStatus) -> dict[str, object]:
    """Return a topic's status as JSON shows it; what does not exist is null."""
    opened = one.open_segment_id or None
    return {
        "topic": one.topic,
        "state": one.state,
        "asleep": one.asleep,
        "stalled_reason": one.stalled_reason or None,
        "stalled_class": one.stalled_class or None,
        "stalled_since_ms": one.stalled_since_ms or None,
        "outage": one.outage or None,
        "unprotected": {
            "entries": one.unprotected_entries,
            "bytes": one.unprotected_bytes,
            "since_ms": one.unprotected_since_ms,
            "spilled_entries": one.spilled_entries,
            "spilled_bytes": one.spilled_bytes,
        }
        if one.unprotected_since_ms
        else None,
        "owner": one.owner or None,
        "placement": one.placement or None,
        "paused": {"since_ms": one.paused_ms, "by": one.paused_by} if one.paused_ms else None,
        "epoch": one.epoch,
        "damaged_ledgers": list(one.damaged_ledgers),
        "refusals": [as_json(refusal) for refusal in one.refusals],
        "confirmed": position_of(one, "confirmed"),
        "offloaded": position_of(one, "offloaded"),
        "history": as_json(one.history) if one.HasField("history") else None,
        "lag_entries": None if one.lag_unknown else one.lag_entries,
        "lag_bytes": None if one.lag_unknown else one.lag_bytes,
        "lag_seconds": None if one.lag_age_unknown else one.lag_seconds,
        "open_segment": opened
        and {
            "segment_id": one.open_segment_id,
            "entries": one.open_segment_entries,
            "bytes": one.open_segment_bytes,
            "age_s": one.open_segment_age_s,
            "continued": one.open_segment_continued,
        },
        "buffer_bytes": one.buffer_bytes,
        "segments_committed": one.segments_committed,
        "edge": one.edge or None,
        "hidden_entries": one.hidden_entries,
        "looked_age_s": one.looked_age_s,
        "method": one.method or None,
        "taken_entries": one.taken_entries,
        "taken_bytes": one.taken_bytes,
        "losses": [as_json(loss, kept=("noticed_ms",), nullable=("entries",)) for loss in one.losses],
    }
