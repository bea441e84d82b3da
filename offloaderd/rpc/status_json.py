"""A daemon's status as JSON: the same for `offloadctl status`, `offloadctl top` and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from offloaderd.rpc.v1 import admin_pb2, common_pb2, history_pb2


def position_of(message: Message, field: str) -> str | None:
    """Return a message's position as `ledger:entry`, None when it is unset."""
    if not message.HasField(field):
        return None
    value: common_pb2.Position = getattr(message, field)
    return f"{value.ledger_id}:{value.entry_id}"


def daemon_json(found: admin_pb2.StatusResponse) -> dict[str, object]:
    """Return the daemon as JSON shows it."""
    return {
        "id": found.daemon_id,
        "version": found.version,
        "state": found.state,
        "started_ms": found.started_ms,
        "memory_used_bytes": found.memory_used_bytes,
        "memory_budget_bytes": found.memory_budget_bytes,
        "dependencies": [
            {"name": one.name, "up": one.up, "message": one.message or None, "since_ms": one.since_ms or None}
            for one in found.dependencies
        ],
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
        "refusals": [
            {
                "kind": refusal.kind,
                "found": refusal.found,
                "evidence": refusal.evidence,
                "since_ms": refusal.since_ms,
                "hint": refusal.hint,
            }
            for refusal in one.refusals
        ],
        "confirmed": position_of(one, "confirmed"),
        "offloaded": position_of(one, "offloaded"),
        "history": history_json(one.history) if one.HasField("history") else None,
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
        "losses": [
            {
                "after": position_of(loss, "after"),
                "before": position_of(loss, "before"),
                "entries": loss.entries or None,
                "noticed_ms": loss.noticed_ms,
            }
            for loss in one.losses
        ],
    }


def history_json(one: history_pb2.HistorySummary) -> dict[str, object]:
    """Return what is left of a topic's history as JSON shows it."""
    return {
        "boundary": position_of(one, "boundary"),
        "worker": one.worker,
        "left_entries": one.left_entries,
        "left_bytes": one.left_bytes,
        "live_waits": one.live_waits,
        "error": one.error or None,
    }
