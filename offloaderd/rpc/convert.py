"""Between the model's values and the API's messages. What comes in is checked; no I/O."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from offloaderd.errors import InvalidInput
from offloaderd.model import ENTRY_BYTES_MAX, EntryBatch, Position
from offloaderd.read.plan import Tier
from offloaderd.rpc.v1 import common_pb2, read_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

TIERS = {
    Tier.BUFFER: common_pb2.TIER_BUFFER,
    Tier.SOURCE: common_pb2.TIER_SOURCE,
    Tier.OBJECTS: common_pb2.TIER_OBJECTS,
}


def to_position(value: Position | None) -> common_pb2.Position | None:
    """Return a position as a message, None (an unset field) when there is none."""
    return None if value is None else common_pb2.Position(ledger_id=value.ledger_id, entry_id=value.entry_id)


def from_position(message: common_pb2.Position) -> Position:
    """Read a position; raises InvalidInput when it is negative."""
    return Position(message.ledger_id, message.entry_id).checked()


def to_batch(batch: EntryBatch) -> common_pb2.EntryBatch:
    """Return a batch as a message."""
    return common_pb2.EntryBatch(
        ledger_id=batch.ledger_id, first_entry_id=batch.first_entry_id, payloads=batch.payloads
    )


def from_batch(message: common_pb2.EntryBatch) -> EntryBatch:
    """Read a batch; raises InvalidInput for a negative id, no entry, or an entry that is too large."""
    first = Position(message.ledger_id, message.first_entry_id).checked()
    payloads = checked_payloads(message.payloads)
    Position(first.ledger_id, first.entry_id + len(payloads) - 1).checked()
    return EntryBatch(first.ledger_id, first.entry_id, payloads)


def checked_payloads(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the entries of a request as a list; raises InvalidInput when there is none or one is too large."""
    found = list(payloads)
    if not found:
        raise InvalidInput("a batch without entries", hint="send at least one")
    largest = max(map(len, found))
    if largest > ENTRY_BYTES_MAX:
        raise InvalidInput(f"an entry of {largest} bytes", hint=f"the limit is {ENTRY_BYTES_MAX} bytes")
    return found


def encoded_read_response(batch: EntryBatch, tier: Tier) -> bytes:
    """Return a serialized ReadResponse, framed by hand: every payload is copied once, and nothing is grown.

    Building the message and serializing it copies twice, and takes longer than all the rest of a read.
    """
    payloads = batch.payloads
    heads = list(map(_payload_head, map(len, payloads)))
    chunks = [b""] * (2 * len(heads))
    chunks[::2] = heads
    chunks[1::2] = payloads
    ids = common_pb2.EntryBatch(ledger_id=batch.ledger_id, first_entry_id=batch.first_entry_id).SerializeToString()
    size = len(ids) + sum(map(len, heads)) + batch.payload_bytes()
    return b"".join((_BATCH_TAG, _varint(size), ids, *chunks, _TIERS[tier]))


def _varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it: seven bits a byte, the last one without the eighth."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tag(field_number: int) -> bytes:
    """Return what stands before the length of a field of bytes."""
    return _varint(field_number << 3 | 2)


@lru_cache(maxsize=4096)
def _payload_head(length: int) -> bytes:
    return _PAYLOAD_TAG + _varint(length)


_BATCH_TAG = _tag(read_pb2.ReadResponse.BATCH_FIELD_NUMBER)
_PAYLOAD_TAG = _tag(common_pb2.EntryBatch.PAYLOADS_FIELD_NUMBER)
_TIERS = {tier: read_pb2.ReadResponse(tier=number).SerializeToString() for tier, number in TIERS.items()}
