"""`asked` and `rollback/order`: the last manual request for a topic, and the order to rewrite its streaming segments.

A request is written once, for the next owner and for reports; its progress follows from the topic's map and policy. The
order to rewrite segments as whole ledgers has the limit, so that the next owner continues it, and the ledgers that
could not be rewritten, so that they are not tried again and again. Its progress follows from the map, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from offloaderd.core.model import Position
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import asked_pb2, rollback_pb2
from offloaderd.metadata.records import codec

WORDS_MAX = 500
"""Most characters of each text; longer ones are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One manual request. `target` is the newest entry to offload, None if there was nothing to do.

    `stood` is the offloaded position at the time of the request. `reason` says why less was to be done than `wanted`,
    or nothing.
    """

    wanted: str
    target: Position | None
    stood: Position | None
    asked_ms: int
    asked_by: str = ""
    reason: str = ""


def encode_asked(value: Asked) -> bytes:
    """Return the node's content."""
    words = {name: getattr(value, name)[:WORDS_MAX] for name in ("wanted", "asked_by", "reason")}
    positions = halves("", value.target) | halves("stood", value.stood)
    return codec.content(asked_pb2.AskedRecord, value, **positions, **words)


def decode_asked(data: bytes, *, path: str) -> Asked:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(asked_pb2.AskedRecord, data, path)
    pairs = (("ledger_id", "entry_id"), ("stood_ledger_id", "stood_entry_id"))
    for ledger, entry in pairs:
        if record.HasField(ledger) != record.HasField(entry):  # type: ignore[arg-type]
            codec.corrupt(path, "a position", "half of one")
    return codec.read(
        Asked,
        record,
        wanted=codec.present(path, "what was wanted", record.wanted),
        target=codec.position(path, record.ledger_id, record.entry_id) if record.HasField("ledger_id") else None,
        stood=codec.position(path, record.stood_ledger_id, record.stood_entry_id)
        if record.HasField("stood_ledger_id")
        else None,
    )


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


def encode_rollback(value: RollbackOrder) -> bytes:
    """Return the node's content."""
    kept = sorted(value.failures.items())[:FAILURES_MAX]
    failures = [rollback_pb2.RollbackFailure(ledger_id=one, reason=reason[:REASON_CHARS_MAX]) for one, reason in kept]
    return codec.content(rollback_pb2.RollbackOrderRecord, value, failures=failures)


def decode_rollback(data: bytes, *, path: str) -> RollbackOrder:
    """Read the node's content; raises CorruptData."""
    record = codec.parse(rollback_pb2.RollbackOrderRecord, data, path)
    if record.to_ledger_id < 0 or any(one.ledger_id < 0 for one in record.failures):
        codec.corrupt(path, "ledger ids of 0 or more", "a negative one")
    return codec.read(RollbackOrder, record, failures={one.ledger_id: one.reason for one in record.failures})
