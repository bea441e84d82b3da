"""`floor`: how far a topic's oldest segments were deleted, so that it never falls back behind what it had offloaded.

It only rises, in the very transaction that takes a segment out of the map. It keeps how the ledger it stands in ended,
for the context that knew has gone with the last of its segments.
"""

from dataclasses import dataclass, field

from offloaderd.core.model import LedgerEnd, Position
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """End of the last segment that was deleted; `end` is how its ledger ended, if it was offloaded to its end.

    `segments` and `object_bytes` count what was deleted in all; time and reason are those of the last deletion.
    """

    position: Position
    end: LedgerEnd | None
    deleted_ms: int
    segments: int
    object_bytes: int
    reason: str
    unknown: bytes = field(default=b"", repr=False, compare=False)


def encode(value: Floor) -> bytes:
    """Return the node's content."""
    return codec.content(
        records_pb2.FloorRecord,
        value,
        **halves("", value.position),
        ledger_entries=value.end.entries if value.end is not None else None,
        next_ledger_id=value.end.next_ledger_id if value.end is not None else None,
    )


def decode(data: bytes, *, path: str) -> Floor:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.FloorRecord, data, path)
    position = codec.position(path, record.ledger_id, record.entry_id)
    end: LedgerEnd | None = None
    if record.HasField("ledger_entries"):
        following = record.next_ledger_id if record.HasField("next_ledger_id") else None
        end = LedgerEnd(record.ledger_entries, following)
        if end.entries <= position.entry_id or (following is not None and following <= position.ledger_id):
            codec.corrupt(path, f"a ledger that ends at {position} or later, and a later one behind it", end)
    elif record.HasField("next_ledger_id"):
        codec.corrupt(path, "the entries of a ledger that has a successor", "none")
    return codec.read(Floor, record, position=position, end=end)
