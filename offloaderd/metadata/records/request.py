"""`asked`: the last manual request for a topic, for its next owner and for reports.

Written once, at the request; its progress follows from the topic's map and policy.
"""

from dataclasses import dataclass

from offloaderd.core.model import Position
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import asked_pb2
from offloaderd.metadata.records import codec

WORDS_MAX = 500
"""Most characters of each text; longer ones are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. `target` is the newest entry to offload, None if there was nothing to do.

    `stood` is the offloaded position then. `reason` says why there was nothing to do, or less than was `wanted`.
    """

    wanted: str
    target: Position | None
    stood: Position | None
    asked_ms: int
    asked_by: str = ""
    reason: str = ""


def encode(value: Asked) -> bytes:
    """Return the node's content."""
    words = {name: getattr(value, name)[:WORDS_MAX] for name in ("wanted", "asked_by", "reason")}
    positions = halves("", value.target) | halves("stood", value.stood)
    return codec.content(asked_pb2.AskedRecord, value, **positions, **words)


def decode(data: bytes, *, path: str) -> Asked:
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
