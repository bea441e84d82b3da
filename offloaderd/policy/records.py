"""Records of policies: of one topic, of a level above the topics, and of all topics that a pattern matches.

A value of None is inherited. The policy of a topic was set by name, or, with `selected_by`, follows from a pattern and
ends with it.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import HistoryOrder, MirrorRequired, OffloadMethod, OutagePolicy, TierRetention
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.parsing import filled
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.policy.policies import NAMES, OFF, OffloadPolicies

W = TypeVar("W", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Paused:
    """A pause of a topic by an operator: since when, in milliseconds, and by whom."""

    since_ms: int
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy(OffloadPolicies):
    """Topic level policy. A topic that is not `enabled` stays known and readable, as does one that is `paused`.

    `selected_by` is the pattern, or the namespace's policy, that it follows from; empty: the topic was enabled or
    disabled by its name. `partitioned`: there are no entries under this name, its partitions follow this policy.
    """

    enabled: bool = True
    paused: Paused | None = None
    selected_by: str = ""
    partitioned: bool = False
    unknown: bytes = field(default=b"", repr=False, compare=False)
    """Fields of a later release."""

    @property
    def active(self) -> bool:
        """Whether entries are offloaded under this name."""
        return self.enabled and not self.partitioned


def own(policy: OffloadPolicies) -> OffloadPolicies:
    """Return the offload policies alone."""
    return OffloadPolicies(**{name: getattr(policy, name) for name in NAMES})


def standing(wanted: TopicPolicy, current: object) -> TopicPolicy:
    """Return the policy of a topic with the present pause and fields of a later release, which stay."""
    return (
        replace(wanted, paused=current.paused, unknown=current.unknown) if isinstance(current, TopicPolicy) else wanted
    )


def disabled(policy: TopicPolicy) -> TopicPolicy:
    """Return the policy disabled by name, so that no pattern enables it; its values stay."""
    return replace(policy, enabled=False, selected_by="")


def encode_policy(value: TopicPolicy) -> bytes:
    """Return the node's content."""
    return to_record(value).SerializeToString(deterministic=True)


def decode_policy(data: bytes, *, path: str) -> TopicPolicy:
    """Read a node's content; raises CorruptData."""
    return from_record(codec.parse(records_pb2.TopicPolicyRecord, data, path), path=path)


def to_record(value: OffloadPolicies) -> records_pb2.TopicPolicyRecord:
    """Return the policy as a message, for nodes that hold one among other things."""
    named = {name: getattr(value, name) for name in NAMES}
    topic = value if isinstance(value, TopicPolicy) else TopicPolicy(enabled=False, **named)
    since_ms, by = (topic.paused.since_ms, topic.paused.by) if topic.paused else (0, "")
    record = filled(records_pb2.TopicPolicyRecord, topic, paused_ms=since_ms, paused_by=by, format=codec.FORMAT)
    record.MergeFromString(topic.unknown)
    return record


def from_record(record: records_pb2.TopicPolicyRecord, *, path: str) -> TopicPolicy:
    """Read a message; raises CorruptData."""
    for given, value in record.ListFields():
        if given.name.endswith("_s"):
            _check_seconds(path, value, off=given.name in _OFF)
    if record.threshold_bytes < OFF:
        codec.corrupt(path, "a number of bytes", record.threshold_bytes)
    return codec.read(
        TopicPolicy,
        record,
        paused=Paused(record.paused_ms, record.paused_by) if record.paused_ms else None,
        method=_word(path, OffloadMethod, record.method),
        read_priority=_priority(path, record),
        history_order=_word(path, HistoryOrder, record.history_order),
        outage=_word(path, OutagePolicy, record.outage),
        mirror_required=_word(path, MirrorRequired, record.mirror_required),
        retention=_word(path, TierRetention, record.retention),
    )


_OFF = {"threshold_s", "deletion_lag_s"}
"""Times that may be OFF."""


def _priority(path: str, record: records_pb2.TopicPolicyRecord) -> ReadPriority | None:
    if not record.HasField("read_priority"):
        return None
    try:
        return ReadPriority.parse(record.read_priority)
    except InvalidInput:
        codec.corrupt(path, "a read priority", repr(record.read_priority))


def _word(path: str, kind: type[W], text: str) -> W | None:
    """Read a value of an enumeration, None for the empty text."""
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        codec.corrupt(path, f"one of {', '.join(kind)}", repr(text))


def _check_seconds(path: str, value: float, *, off: bool) -> None:
    if not (math.isfinite(value) and (value >= 0 or (off and value == OFF))):
        codec.corrupt(path, "a number of seconds", value)


@dataclass(frozen=True, slots=True)
class LevelPolicy:
    """The policies of a level, and the time of their last change (wall clock)."""

    policies: OffloadPolicies
    changed_ms: int = 0


def encode_level(value: LevelPolicy) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.LevelPolicyRecord, value, policies=to_record(value.policies))


def decode_level(data: bytes, *, path: str) -> LevelPolicy:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.LevelPolicyRecord, data, path)
    if not record.HasField("policies"):
        codec.corrupt(path, "policies", "nothing")
    return LevelPolicy(own(from_record(record.policies, path=path)), record.changed_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A pattern with the policy of its topics. `created_ms` stays when the policy is changed.

    `refused` is the reason why the expression of an earlier release is no longer valid; empty: it is. A refused one
    selects nothing, and topics that it selected keep their policy until it is disabled.
    """

    pattern: TopicPattern
    policy: TopicPolicy
    created_ms: int
    refused: str = ""


def encode_selection(value: Selection) -> bytes:
    """Return the node's content."""
    policy = to_record(value.policy)
    return codec.content(records_pb2.SelectionRecord, value, pattern=value.pattern.text, policy=policy)


def decode_selection(data: bytes, *, path: str) -> Selection:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.SelectionRecord, data, path)
    refused = ""
    try:
        pattern = TopicPattern.named(record.pattern)
    except InvalidInput:
        codec.corrupt(path, "a pattern", repr(record.pattern))
    try:
        pattern = TopicPattern.parse(record.pattern)
    except InvalidInput as error:
        refused = error.message
    if pattern.text != record.pattern or pattern.topic is not None:
        codec.corrupt(path, "a pattern of several topics in its one spelling", repr(record.pattern))
    if not record.HasField("policy"):
        codec.corrupt(path, "a policy", "nothing")
    return Selection(
        pattern=pattern, policy=from_record(record.policy, path=path), created_ms=record.created_ms, refused=refused
    )
