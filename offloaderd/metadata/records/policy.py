"""`policy`: how one topic is offloaded. What is None is inherited from the daemon's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from offloaderd.errors import InvalidInput
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.model import ReadPriority


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """Topic level policy. A topic that is not `enabled` stays known and readable."""

    enabled: bool = True
    segment_bytes_max: int | None = None
    segment_age_max_s: float | None = None
    segment_age_min_s: float | None = None
    read_priority: ReadPriority | None = None


def disabled(policy: TopicPolicy) -> TopicPolicy:
    """Return the policy switched off, its settings kept for the day it is switched on again."""
    return replace(policy, enabled=False)


def encode(value: TopicPolicy) -> bytes:
    """Return the node's content."""
    return records_pb2.TopicPolicyRecord(
        enabled=value.enabled,
        segment_bytes_max=value.segment_bytes_max,
        segment_age_max_s=value.segment_age_max_s,
        segment_age_min_s=value.segment_age_min_s,
        read_priority=value.read_priority,
    ).SerializeToString(deterministic=True)


def decode(data: bytes, *, path: str) -> TopicPolicy:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.TopicPolicyRecord, data, path)
    priority: ReadPriority | None = None
    if record.HasField("read_priority"):
        try:
            priority = ReadPriority.parse(record.read_priority)
        except InvalidInput:
            codec.corrupt(path, "a read priority", repr(record.read_priority))
    return TopicPolicy(
        enabled=record.enabled,
        segment_bytes_max=record.segment_bytes_max if record.HasField("segment_bytes_max") else None,
        segment_age_max_s=(_seconds(path, record.segment_age_max_s) if record.HasField("segment_age_max_s") else None),
        segment_age_min_s=(_seconds(path, record.segment_age_min_s) if record.HasField("segment_age_min_s") else None),
        read_priority=priority,
    )


def _seconds(path: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        codec.corrupt(path, "a number of seconds", value)
    return value
