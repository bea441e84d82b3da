"""`losses/<ledger id>`: entries that the source deleted before they were offloaded; no reader may skip such a gap."""

from offloaderd.core.model import START, Loss, Position
from offloaderd.format.parsing import halves
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


def encode(value: Loss) -> bytes:
    """Return the node's content."""
    positions = halves("after", value.after) | halves("before", value.before)
    return codec.content(records_pb2.LossRecord, value, **positions)


def decode(data: bytes, *, path: str) -> Loss:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.LossRecord, data, path)
    after = Position(record.after_ledger_id, record.after_entry_id)
    if after != START:
        codec.position(path, *after)
    before = codec.position(path, record.before_ledger_id, record.before_entry_id)
    if before <= after:
        codec.corrupt(path, f"a range behind {after}", before)
    return Loss(after, before, record.entries, record.noticed_ms)
