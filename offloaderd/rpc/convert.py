"""Between the model's values and the API's messages. What comes in is checked; no I/O."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from offloaderd.errors import CorruptData, InvalidInput
from offloaderd.format.entries import decode_entries
from offloaderd.format.frames import FramedEntries
from offloaderd.model import ENTRY_BYTES_MAX, EntryBatch, Position
from offloaderd.read.plan import Tier
from offloaderd.rpc.v1 import common_pb2, read_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.format.frames import Entries

TIERS = {
    Tier.BUFFER: common_pb2.TIER_BUFFER,
    Tier.SOURCE: common_pb2.TIER_SOURCE,
    Tier.OBJECTS: common_pb2.TIER_OBJECTS,
}

BATCH_ENTRIES_MAX = 1 << 17
"""Entries of one message of a push: of a mebibyte with eight bytes each, as many."""


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
    """Return the entries of a request as a list.

    Raises InvalidInput when there is none, one is too large, or there are more than a message may take memory for: of
    empty ones it could have eight million.
    """
    if len(payloads) > BATCH_ENTRIES_MAX:
        raise InvalidInput(f"a batch of {len(payloads)} entries", hint=f"the limit is {BATCH_ENTRIES_MAX} entries")
    found = list(payloads)
    if not found:
        raise InvalidInput("a batch without entries", hint="send at least one")
    largest = max(map(len, found))
    if largest > ENTRY_BYTES_MAX:
        raise InvalidInput(f"an entry of {largest} bytes", hint=f"the limit is {ENTRY_BYTES_MAX} bytes")
    return found


def encoded_read_response(batch: Entries, tier: Tier) -> bytes:
    """Return a serialized ReadResponse, made by hand: everything is copied once, and nothing is grown.

    Framed entries go out as frames. Building the message and serializing it copies twice, and takes longer than all the
    rest of a read.
    """
    if isinstance(batch, FramedEntries):
        message = read_pb2.ReadResponse(tier=TIERS[tier], entries=batch.count)
        message.batch.ledger_id, message.batch.first_entry_id = batch.first
        return b"".join((message.SerializeToString(), _FRAMES_TAG, _varint(len(batch.frames)), batch.frames))
    payloads = batch.payloads
    heads = list(map(_payload_head, map(len, payloads)))
    chunks = [b""] * (2 * len(heads))
    chunks[::2] = heads
    chunks[1::2] = payloads
    ids = common_pb2.EntryBatch(ledger_id=batch.ledger_id, first_entry_id=batch.first_entry_id).SerializeToString()
    size = len(ids) + sum(map(len, heads)) + batch.payload_bytes()
    return b"".join((_BATCH_TAG, _varint(size), ids, *chunks, _TIERS[tier]))


def decoded_read_response(data: bytes, *, where: str) -> tuple[EntryBatch, common_pb2.Tier.ValueType]:
    """Return the entries of a serialized ReadResponse, which come framed or not, and their tier; `where` is for errors.

    Frames are taken apart where they lie, so every payload is copied once. Raises CorruptData for frames whose lengths,
    ids or number are not right, and for what is no such message.
    """
    try:
        found = _frames_in(data)
        begin, start, end = found or (len(data), len(data), len(data))
        response = read_pb2.ReadResponse.FromString(data if found is None else data[:begin] + data[end:])
    except (DecodeError, IndexError) as error:
        raise CorruptData(key=where, offset=0, expected="an answer with entries", found=str(error)) from None
    first = response.batch.first_entry_id
    if found is None and not response.entries:
        payloads = list(response.batch.payloads)
    else:
        payloads = decode_entries(
            data, start=start, end=end, first_entry_id=first, count=response.entries, key=where, at=0
        )
    return EntryBatch(response.batch.ledger_id, first, payloads), response.tier


def _frames_in(data: bytes) -> tuple[int, int, int] | None:
    """Return where the field with the frames begins, where its content does, and where it ends; None without one.

    Raises IndexError for what is no message.
    """
    at = 0
    while at < len(data):
        begin = at
        tag, at = _number_at(data, at)
        wire_type = tag & 7
        if wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
            continue
        value, at = _number_at(data, at)
        if tag == _FRAMES:
            if at + value > len(data):
                raise IndexError("frames that are cut short")
            return begin, at, at + value
        if wire_type == _LENGTH_DELIMITED:
            at += value
    return None


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place and where it ends. Raises IndexError at the end of the data."""
    value = shift = 0
    while (byte := data[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | byte << shift, at + 1


def _varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it: seven bits a byte, the last one without the eighth."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tag(field_number: int) -> int:
    """Return what stands before the length of a field of bytes."""
    return field_number << 3 | _LENGTH_DELIMITED


@lru_cache(maxsize=4096)
def _payload_head(length: int) -> bytes:
    return _PAYLOAD_TAG + _varint(length)


_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
"""Wire types of protobuf: what has its length before it, and numbers of always as many bytes. The rest are varints."""

_FRAMES = _tag(read_pb2.ReadResponse.FRAMES_FIELD_NUMBER)
_FRAMES_TAG = _varint(_FRAMES)
_BATCH_TAG = _varint(_tag(read_pb2.ReadResponse.BATCH_FIELD_NUMBER))
_PAYLOAD_TAG = _varint(_tag(common_pb2.EntryBatch.PAYLOADS_FIELD_NUMBER))
_TIERS = {tier: read_pb2.ReadResponse(tier=number).SerializeToString() for tier, number in TIERS.items()}
