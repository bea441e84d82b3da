"""`policies/broker`, `policies/namespaces/<tenant>/<namespace>`: defaults of topics without a value of their own."""

from dataclasses import dataclass

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import topic as policy_record


@dataclass(frozen=True, slots=True)
class LevelPolicy:
    """The policies of a level, and the time of their last change (wall clock)."""

    policies: OffloadPolicies
    changed_ms: int = 0


def encode(value: LevelPolicy) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.LevelPolicyRecord, value, policies=policy_record.to_record(value.policies))


def decode(data: bytes, *, path: str) -> LevelPolicy:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.LevelPolicyRecord, data, path)
    if not record.HasField("policies"):
        codec.corrupt(path, "policies", "nothing")
    return LevelPolicy(policy_record.own(policy_record.from_record(record.policies, path=path)), record.changed_ms)
