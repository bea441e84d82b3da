"""`owner`: the one daemon that works on a topic. Ephemeral: it goes with the daemon's session."""

from dataclasses import dataclass

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who owns a topic: daemon, the `host:port` of its gRPC server, its session, and the epoch it began."""

    daemon_id: str
    address: str
    session_id: str
    epoch: int


def encode(value: Owner) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.OwnerRecord, value)


def decode(data: bytes, *, path: str) -> Owner:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.OwnerRecord, data, path)
    return codec.read(Owner, record, daemon_id=codec.present(path, "a daemon's id", record.daemon_id))
