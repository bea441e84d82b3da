"""`floor`: end of a topic's deleted oldest segments, so that the offloaded position never falls.

It only rises, in the transaction that removes a segment from the map. It keeps the end of its ledger, because the
ledger's context is deleted with the ledger's last segment.
"""

from dataclasses import dataclass, field

from offloaderd.core.model import LedgerEnd, Position
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """End of the last segment that was deleted; `end` is its ledger's end, if the ledger was offloaded to its end.

    `segments` and `object_bytes` count all deletions; time and reason are those of the last one.
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
