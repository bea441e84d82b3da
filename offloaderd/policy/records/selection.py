"""`selections/<pattern>`: the policy of every topic that a pattern matches, now or later."""

from dataclasses import dataclass

from offloaderd.core.errors import InvalidInput
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec
from offloaderd.policy.records import topic as policy_record
from offloaderd.policy.records.topic import TopicPolicy


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


def encode(value: Selection) -> bytes:
    """Return the node's content."""
    policy = policy_record.to_record(value.policy)
    return codec.content(records_pb2.SelectionRecord, value, pattern=value.pattern.text, policy=policy)


def decode(data: bytes, *, path: str) -> Selection:
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
        pattern=pattern,
        policy=policy_record.from_record(record.policy, path=path),
        created_ms=record.created_ms,
        refused=refused,
    )
