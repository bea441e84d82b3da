"""`policy`: how one topic is offloaded, and who said so. What is None is inherited from the daemon's settings.

A policy is somebody's word on this very topic, or, with `selected_by`, follows from a pattern and goes where that goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from offloaderd.errors import InvalidInput
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.model import OutagePolicy, ReadPriority, TierRetention


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """Topic level policy. A topic that is not `enabled` stays known and readable.

    `selected_by` is the pattern that the policy follows from; empty: the topic was enabled or disabled by its name.
    `partitioned`: there are no entries under this name, its partitions follow this policy.
    `retention` is taken over with its limits, or not at all; a limit of None is none.
    """

    enabled: bool = True
    segment_bytes_max: int | None = None
    segment_age_max_s: float | None = None
    segment_age_min_s: float | None = None
    read_priority: ReadPriority | None = None
    selected_by: str = ""
    partitioned: bool = False
    retention: TierRetention | None = None
    retention_age_s: float | None = None
    retention_bytes: int | None = None
    outage: OutagePolicy | None = None

    @property
    def active(self) -> bool:
        """Whether entries are to be offloaded under this very name."""
        return self.enabled and not self.partitioned


def disabled(policy: TopicPolicy) -> TopicPolicy:
    """Return the policy switched off by name, so that no pattern switches it on; its settings are kept."""
    return replace(policy, enabled=False, selected_by="")


def encode(value: TopicPolicy) -> bytes:
    """Return the node's content."""
    return to_record(value).SerializeToString(deterministic=True)


def decode(data: bytes, *, path: str) -> TopicPolicy:
    """Read a node's content; raises CorruptData."""
    return from_record(codec.parse(records_pb2.TopicPolicyRecord, data, path), path=path)


def to_record(value: TopicPolicy) -> records_pb2.TopicPolicyRecord:
    """Return the policy as a message, for nodes that hold one among other things."""
    return records_pb2.TopicPolicyRecord(
        enabled=value.enabled,
        segment_bytes_max=value.segment_bytes_max,
        segment_age_max_s=value.segment_age_max_s,
        segment_age_min_s=value.segment_age_min_s,
        read_priority=value.read_priority,
        selected_by=value.selected_by,
        partitioned=value.partitioned,
        retention=value.retention or "",
        retention_age_s=value.retention_age_s,
        retention_bytes=value.retention_bytes,
        outage=value.outage or "",
    )


def from_record(record: records_pb2.TopicPolicyRecord, *, path: str) -> TopicPolicy:
    """Read a message; raises CorruptData."""
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
        selected_by=record.selected_by,
        partitioned=record.partitioned,
        retention=_retention(path, record.retention),
        retention_age_s=_seconds(path, record.retention_age_s) if record.HasField("retention_age_s") else None,
        retention_bytes=record.retention_bytes if record.HasField("retention_bytes") else None,
        outage=_outage(path, record.outage),
    )


def _retention(path: str, text: str) -> TierRetention | None:
    if not text:
        return None
    try:
        return TierRetention(text)
    except ValueError:
        codec.corrupt(path, f"one of {', '.join(TierRetention)}", repr(text))


def _outage(path: str, text: str) -> OutagePolicy | None:
    if not text:
        return None
    try:
        return OutagePolicy.parse(text)
    except InvalidInput:
        codec.corrupt(path, f"one of {', '.join(OutagePolicy)}", repr(text))


def _seconds(path: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        codec.corrupt(path, "a number of seconds", value)
    return value
