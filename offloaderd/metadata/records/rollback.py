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
"""So many are kept, the oldest ledgers first: a node has to stay below 1 MB. The log has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackOrder:
    """Rewrite the ledgers up to `to_ledger_id`. `failures` are those that could not be, with the reason.

    `ended_ms` is 0 while it is being carried out; `stopped` says that it was withdrawn.
    """

    to_ledger_id: int
    ordered_ms: int
    ended_ms: int = 0
    stopped: bool = False
    failures: Mapping[int, str] = field(default_factory=dict)
    unknown: bytes = field(default=b"", repr=False, compare=False)

    @property
    def active(self) -> bool:
        """Whether it is still to be carried out."""
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
