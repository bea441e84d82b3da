"""`owner`: the one daemon that owns a topic. Ephemeral: deleted with the daemon's session."""

from dataclasses import dataclass

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A topic's owner: daemon, `host:port` of its gRPC server, session, and the epoch of its ownership."""

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
