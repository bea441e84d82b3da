"""Messages of AdminService and of policies: requests are checked, answers built. No I/O.

Mistakes in a policy's values are reported by `policy.rules`.
"""

from dataclasses import replace

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import Loss
from offloaderd.format.parsing import filled
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.policy.policies import NAMES, Effective, OffloadPolicies
from offloaderd.policy.records import Selection, TopicPolicy
from offloaderd.policy.rules import ANYWHERE, Surroundings, by_itself, checked, sound
from offloaderd.protocol.v1 import admin_pb2, policy_pb2
from offloaderd.segment.states import SegmentState, state_of
from offloaderd.topic.status import TopicStatus

DAMAGED_MAX = 100
"""Damaged ledgers of one topic in a status; `offloadctl ledgers list` shows all."""


def checked_prefix(text: str) -> tuple[str, ...]:
    """Parse `tenant` or `tenant/namespace` (empty: everything); raises InvalidInput."""
    parts = tuple(text.removesuffix("/").split("/")) if text else ()
    if len(parts) > 2 or not all(parts):
        raise InvalidInput(f"malformed prefix {text!r}", hint="write TENANT or TENANT/NAMESPACE")
    return parts


def checked_policy(request: admin_pb2.EnableTopicRequest, place: Surroundings = ANYWHERE) -> TopicPolicy:
    """Parse the policy of an EnableTopic request; raises InvalidInput with all mistakes in it or at its place."""
    given = {field.name: value for field, value in request.ListFields() if field.name in NAMES}
    policies, flaws = sound({**given, **given_policies(request.policies)})
    checked(policies, flaws, by_itself(policies), place)
    return replace(TopicPolicy(enabled=True), **policies.set_values())


def selection(pattern: str, found: Selection | CorruptData, topics: int) -> admin_pb2.Selection:
    """Return a selection with the number of topics that it has enabled; of a damaged one only the damage."""
    if isinstance(found, CorruptData):
        return admin_pb2.Selection(pattern=pattern, topics=topics, damage=str(found))
    return filled(
        admin_pb2.Selection,
        found.policy,
        pattern=pattern,
        topics=topics,
        created_ms=found.created_ms,
        policies=policies_message(found.policy),
        damage=found.refused,
    )


def committed_segment(segment: CommittedSegment) -> admin_pb2.Segment:
    """Return a committed segment as a message."""
    return filled(
        admin_pb2.Segment,
        segment,
        status="Offloaded",
        data_key=segment.keys.data,
        writer=segment.driver,
        state=SegmentState.COMMITTED,
    )


def open_segment(attempt: Attempt, status: TopicStatus | None) -> admin_pb2.Segment:
    """Return the open segment; only the daemon that writes it knows entries and bytes."""
    if status is not None and status.open_segment_id != str(attempt.segment_id):
        status = None
    return filled(
        admin_pb2.Segment,
        attempt,
        end=None,
        entries=status.open_segment_entries if status is not None else 0,
        payload_bytes=status.open_segment_bytes if status is not None else 0,
        object_bytes=None,
        offloaded_ms=None,
        data_key=attempt.keys.data,
        writer=attempt.driver,
        state=state_of(attempt),
    )


def topic_status(status: TopicStatus) -> admin_pb2.TopicStatus:
    """Return a topic's status as a message."""
    return filled(
        admin_pb2.TopicStatus,
        status,
        placement=None,
        lag_unknown=status.lag_entries is None,
        lag_age_unknown=status.lag_seconds is None,
        losses=map(lost_range, status.losses),
        damaged_ledgers=status.damaged_ledgers[:DAMAGED_MAX],
    )


def lost_range(loss: Loss) -> admin_pb2.LostRange:
    """Return a loss as a message."""
    return filled(admin_pb2.LostRange, loss, after=loss.after if loss.after.ledger_id >= 0 else None)


def given_policies(message: policy_pb2.OffloadPolicies) -> dict[str, object]:
    """Return the values that are set, by name."""
    return {field.name: value for field, value in message.ListFields()}


def policies_message(policies: OffloadPolicies) -> policy_pb2.OffloadPolicies:
    """Return a policy's values as a message."""
    return policy_pb2.OffloadPolicies(**policies.set_values())


def origins(effective: Effective) -> list[policy_pb2.PolicyOrigin]:
    """Return the level of each value that is set."""
    said = effective.values.set_values()
    levels = {name: effective.level_of(name) for name in NAMES if name in said}
    return [policy_pb2.PolicyOrigin(field=name, origin=level.origin, name=level.name) for name, level in levels.items()]
