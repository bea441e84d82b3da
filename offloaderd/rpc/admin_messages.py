"""AdminService's messages: what may be asked is checked here, what is answered is built here. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.errors import CorruptData, InvalidInput
from offloaderd.metadata.records import identity
from offloaderd.metadata.records.policy import TopicPolicy
from offloaderd.offload.states import SegmentState, state_of
from offloaderd.policy.policies import NAMES
from offloaderd.policy.rules import ANYWHERE, Surroundings, by_itself, checked, sound
from offloaderd.rpc.convert import to_position
from offloaderd.rpc.policy_messages import given_policies, policies_message
from offloaderd.rpc.v1 import admin_pb2, history_pb2

if TYPE_CHECKING:
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.metadata.records.identity import Refusal
    from offloaderd.metadata.records.selection import Selection
    from offloaderd.model import Loss
    from offloaderd.offload.selection import Change
    from offloaderd.offload.status import HistoryStatus, TopicStatus


def checked_prefix(text: str) -> tuple[str, ...]:
    """Read `tenant` or `tenant/namespace` (empty: everything); raises InvalidInput."""
    parts = tuple(text.removesuffix("/").split("/")) if text else ()
    if len(parts) > 2 or not all(parts):
        raise InvalidInput(f"malformed prefix {text!r}", hint="write TENANT or TENANT/NAMESPACE")
    return parts


def checked_policy(request: admin_pb2.EnableTopicRequest, place: Surroundings = ANYWHERE) -> TopicPolicy:
    """Read the policy of an EnableTopic request; raises InvalidInput with all that cannot work in it or there."""
    given = {field.name: value for field, value in request.ListFields() if field.name in NAMES}
    policies, flaws = sound({**given, **given_policies(request.policies)})
    checked(policies, flaws, by_itself(policies), place)
    return replace(TopicPolicy(enabled=True), **policies.said())


def selection(pattern: str, found: Selection | CorruptData, topics: int) -> admin_pb2.Selection:
    """Return a selection as a message, with how many topics it has enabled; a damaged one says how it is."""
    if isinstance(found, CorruptData):
        return admin_pb2.Selection(pattern=pattern, topics=topics, damage=str(found))
    return admin_pb2.Selection(
        pattern=pattern,
        topics=topics,
        created_ms=found.created_ms,
        segment_bytes_max=found.policy.segment_bytes_max,
        segment_age_max_s=found.policy.segment_age_max_s,
        segment_age_min_s=found.policy.segment_age_min_s,
        read_priority=found.policy.read_priority,
        outage=found.policy.outage or "",
        retention=found.policy.retention or "",
        retention_age_s=found.policy.retention_age_s,
        retention_bytes=found.policy.retention_bytes,
        policies=policies_message(found.policy),
        damage=found.refused,
    )


def topic_change(change: Change) -> admin_pb2.TopicChange:
    """Return what becomes of a topic as a message."""
    return admin_pb2.TopicChange(topic=str(change.topic), outcome=change.outcome, reason=change.reason)


def committed_segment(segment: CommittedSegment) -> admin_pb2.Segment:
    """Return a committed segment as a message."""
    return admin_pb2.Segment(
        segment_id=str(segment.segment_id),
        status="Offloaded",
        begin=to_position(segment.range.begin),
        end=to_position(segment.range.end),
        entries=segment.entries,
        payload_bytes=segment.payload_bytes,
        object_bytes=segment.object_bytes,
        assigned_ms=segment.assigned_ms,
        offloaded_ms=segment.offloaded_ms,
        data_key=segment.keys.data,
        bucket=segment.bucket,
        method=segment.method,
        writer=segment.driver,
        state=SegmentState.COMMITTED,
    )


def open_segment(attempt: Attempt, status: TopicStatus | None) -> admin_pb2.Segment:
    """Return the open segment as a message; entries and bytes are known only to the daemon that writes it."""
    if status is not None and status.open_segment_id != str(attempt.segment_id):
        status = None
    return admin_pb2.Segment(
        segment_id=str(attempt.segment_id),
        status=attempt.status.value,
        begin=to_position(attempt.begin),
        entries=status.open_segment_entries if status is not None else 0,
        payload_bytes=status.open_segment_bytes if status is not None else 0,
        assigned_ms=attempt.assigned_ms,
        data_key=attempt.keys.data,
        bucket=attempt.bucket,
        method=attempt.method,
        writer=attempt.driver,
        state=state_of(attempt),
    )


def topic_status(status: TopicStatus) -> admin_pb2.TopicStatus:
    """Return a topic's status as a message."""
    return admin_pb2.TopicStatus(
        topic=str(status.topic),
        state=status.state,
        asleep=status.asleep,
        owner=status.owner,
        epoch=status.epoch,
        confirmed=to_position(status.confirmed),
        offloaded=to_position(status.offloaded),
        lag_entries=status.lag_entries or 0,
        lag_bytes=status.lag_bytes or 0,
        lag_seconds=status.lag_seconds or 0.0,
        lag_unknown=status.lag_entries is None,
        lag_age_unknown=status.lag_seconds is None,
        open_segment_id=status.open_segment_id,
        open_segment_entries=status.open_segment_entries,
        open_segment_bytes=status.open_segment_bytes,
        open_segment_age_s=status.open_segment_age_s,
        open_segment_continued=status.open_segment_continued,
        buffer_bytes=status.buffer_bytes,
        segments_committed=status.segments_committed,
        stalled_reason=status.stalled_reason,
        edge=status.edge,
        hidden_entries=status.hidden_entries,
        looked_age_s=status.looked_age_s,
        losses=map(lost_range, status.losses),
        outage=status.outage,
        stalled_class=status.stalled_class,
        stalled_since_ms=status.stalled_since_ms,
        unprotected_entries=status.unprotected_entries,
        unprotected_bytes=status.unprotected_bytes,
        unprotected_since_ms=status.unprotected_since_ms,
        spilled_entries=status.spilled_entries,
        spilled_bytes=status.spilled_bytes,
        history=history_summary(status.history) if status.history is not None else None,
        method=status.method,
        taken_entries=status.taken_entries,
        taken_bytes=status.taken_bytes,
        paused_ms=status.paused_ms,
        paused_by=status.paused_by,
        refusals=[identity_refusal(one) for one in status.refusals],
        damaged_ledgers=status.damaged_ledgers[:DAMAGED_MAX],
    )


DAMAGED_MAX = 100
"""Ledgers of one topic that a status names; `offloadctl ledgers list` names all."""


def identity_refusal(one: Refusal) -> admin_pb2.IdentityRefusal:
    """Return what is refused of a topic as a message."""
    return admin_pb2.IdentityRefusal(
        kind=one.kind, found=one.found, evidence=one.evidence, since_ms=one.since_ms, hint=identity.hint(one.kind)
    )


def history_summary(found: HistoryStatus) -> history_pb2.HistorySummary:
    """Return what is left of a topic's history as a message."""
    return history_pb2.HistorySummary(
        boundary=to_position(found.boundary),
        worker=found.worker,
        left_entries=found.left_entries,
        left_bytes=found.left_bytes,
        live_waits=found.waits,
        error=found.error,
    )


def lost_range(loss: Loss) -> admin_pb2.LostRange:
    """Return a loss as a message."""
    return admin_pb2.LostRange(
        after=to_position(loss.after) if loss.after.ledger_id >= 0 else None,
        before=to_position(loss.before),
        entries=loss.entries,
        noticed_ms=loss.noticed_ms,
    )
