"""`rollback/order`: the order to rewrite a topic's streaming segments as whole ledgers, and its failures.

The progress follows from the topic's map. The order has the limit, so that the next owner continues it, and the ledgers
that could not be rewritten, so that they are not tried again and again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from offloaderd.format.pb.storage import rollback_pb2
from offloaderd.metadata.records import codec

REASON_CHARS_MAX = 300
FAILURES_MAX = 1000
"""Most failures that are kept, those of the oldest ledgers, as a node has to stay below 1 MB. The log has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackOrder:
    """The order to rewrite the ledgers up to `to_ledger_id`. `failures` has the ledgers that failed, with the reason.

    `ended_ms` is 0 until the order has ended; `stopped`: it was withdrawn.
    """

    to_ledger_id: int
    ordered_ms: int
    ended_ms: int = 0
    stopped: bool = False
    failures: Mapping[int, str] = field(default_factory=dict)
    unknown: bytes = field(default=b"", repr=False, compare=False)

    @property
    def active(self) -> bool:
        """Whether the order has not ended."""
        return not self.ended_ms


def encode(value: RollbackOrder) -> bytes:
    """Return the node's content."""
    kept = sorted(value.failures.items())[:FAILURES_MAX]
    failures = [rollback_pb2.RollbackFailure(ledger_id=one, reason=reason[:REASON_CHARS_MAX]) for one, reason in kept]
    return codec.content(rollback_pb2.RollbackOrderRecord, value, failures=failures)


def decode(data: bytes, *, path: str) -> RollbackOrder:
    """Read the node's content; raises CorruptData."""
    record = codec.parse(rollback_pb2.RollbackOrderRecord, data, path)
    if record.to_ledger_id < 0 or any(one.ledger_id < 0 for one in record.failures):
        codec.corrupt(path, "ledger ids of 0 or more", "a negative one")
    return codec.read(RollbackOrder, record, failures={one.ledger_id: one.reason for one in record.failures})
