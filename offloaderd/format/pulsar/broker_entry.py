"""PIP-70 broker entry metadata: the optional bytes that a broker adds before the client's bytes of an entry.

Only the bytes show whether an entry has them: entries with and without them are mixed in one ledger. So reads never
fail; bytes that are no such head belong to the client.
"""

import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from offloaderd.core.entries import Entries
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch
from offloaderd.format.pb.pulsar.broker_entry_metadata_pb2 import BrokerEntryMetadata

MAGIC = b"\x0e\x02"
HEAD = struct.Struct(">2si")


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """The broker's metadata: its clock in milliseconds, and the index of the entry's last message in the topic."""

    broker_timestamp: int | None = None
    index: int | None = None


def read_head(payload: bytes) -> BrokerEntry | None:
    """Return the broker's metadata of an entry, None without them; never raises."""
    if payload[:2] != MAGIC or len(payload) < HEAD.size:
        return None
    _, size = HEAD.unpack_from(payload)
    if not 0 <= size <= len(payload) - HEAD.size:
        return None
    try:
        message = BrokerEntryMetadata.FromString(payload[HEAD.size : HEAD.size + size])
    except DecodeError:
        return None
    return BrokerEntry(
        message.broker_timestamp if message.HasField("broker_timestamp") else None,
        message.index if message.HasField("index") else None,
    )


def without_head(payload: bytes) -> bytes:
    """Return the client's bytes: the entry without the broker's metadata; never raises."""
    if read_head(payload) is None:
        return payload
    _, size = HEAD.unpack_from(payload)
    return payload[HEAD.size + size :]


def without_heads(batch: Entries) -> EntryBatch:
    """Return entries without the broker's metadata before each."""
    return EntryBatch(batch.ledger_id, batch.first_entry_id, [without_head(one) for one in batch.payloads])


def encode_head(*, broker_timestamp: int | None = None, index: int | None = None) -> bytes:
    """Return the head for the client's bytes. Raises InvalidInput for a number that is no uint64."""
    try:
        message = BrokerEntryMetadata(broker_timestamp=broker_timestamp, index=index)
    except ValueError as error:
        raise InvalidInput(f"broker entry metadata cannot be stored: {error}") from None
    body = message.SerializeToString(deterministic=True)
    return HEAD.pack(MAGIC, len(body)) + body
