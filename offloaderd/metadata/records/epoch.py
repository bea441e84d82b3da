"""`epoch`: the number of a topic's ownership. It only grows; commits check the node's version."""

from dataclasses import dataclass

from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata.records import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One ownership of a topic, counted from 1."""

    epoch: int
    daemon_id: str
    claimed_ms: int


def encode(value: Epoch) -> bytes:
    """Return the node's content."""
    return codec.content(records_pb2.EpochRecord, value)


def decode(data: bytes, *, path: str) -> Epoch:
    """Read a node's content. Raises CorruptData, also for an epoch of 0, as epochs start at 1."""
    record = codec.parse(records_pb2.EpochRecord, data, path)
    if not record.epoch:
        codec.corrupt(path, "an epoch of 1 or more", record.epoch)
    return codec.read(Epoch, record)
