"""`daemons/<id>`: a running daemon and its address. Ephemeral."""

from dataclasses import dataclass

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonNode:
    """One run of a daemon; `address` is its gRPC server's `host:port`, `process` its mark (fleet/registration.py).

    A `draining` daemon gives up its topics and takes none. `impaired` is why a daemon comes last in placement.
    """

    daemon_id: str
    address: str
    version: str
    started_ms: int
    draining: bool = False
    impaired: str = ""
    session_id: str = ""
    process: str = ""


def encode(value: DaemonNode) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.DaemonRecord, value)


def decode(data: bytes, *, path: str) -> DaemonNode:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.DaemonRecord, data, path)
    return codec.read(DaemonNode, record, daemon_id=codec.present(path, "a daemon's id", record.daemon_id))
