"""`daemons/<id>`, and a topic's `epoch` and `owner`: running daemons, and which of them owns the topic."""

from dataclasses import dataclass
from typing import Final

from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import compacted_of
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec

FORMAT_COMPACTED: Final = 1
"""The format of the epochs of compacted ledgers' topics (`compacted_of`).

Releases before take such a topic for one that Pulsar does not have, whose copies may be deleted. They refuse this
format, so they never own one.
"""


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


def encode_daemon(value: DaemonNode) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.DaemonRecord, value)


def decode_daemon(data: bytes, *, path: str) -> DaemonNode:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.DaemonRecord, data, path)
    return codec.read(DaemonNode, record, daemon_id=codec.present(path, "a daemon's id", record.daemon_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One ownership of a topic, counted from 1. `format`: that of its record, see `format_of`."""

    epoch: int
    daemon_id: str
    claimed_ms: int
    format: int = codec.FORMAT


def format_of(topic: TopicName) -> int:
    """Return the format of a topic's epoch."""
    return codec.FORMAT if compacted_of(topic) is None else FORMAT_COMPACTED


def encode_epoch(value: Epoch) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.EpochRecord, value, format=value.format)


def decode_epoch(data: bytes, *, path: str) -> Epoch:
    """Read a node's content. Raises CorruptData, also for an epoch of 0, as epochs start at 1."""
    record = codec.parse(records_pb2.EpochRecord, data, path, known=FORMAT_COMPACTED)
    if not record.epoch:
        codec.corrupt(path, "an epoch of 1 or more", record.epoch)
    return codec.read(Epoch, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A topic's owner: daemon, `host:port` of its gRPC server, session, and the epoch of its ownership."""

    daemon_id: str
    address: str
    session_id: str
    epoch: int


def encode_owner(value: Owner) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.OwnerRecord, value)


def decode_owner(data: bytes, *, path: str) -> Owner:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.OwnerRecord, data, path)
    return codec.read(Owner, record, daemon_id=codec.present(path, "a daemon's id", record.daemon_id))
