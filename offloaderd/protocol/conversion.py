"""Conversion between the model's values and the API's messages, and of messages to JSON. No I/O.

Received values are checked. JSON, field by field, is the output of commands and pages for programs: a missing value is
null, that is a field that was not set, an empty text, a time (`*_ms`) of 0. A position is the text `ledger:entry`, an
enumeration its name in lower case; a number with a fraction has three digits of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from google.protobuf.message import DecodeError, Message

from offloaderd.core.entries import Entries, FramedEntries, decode_entries
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import ENTRY_BYTES_MAX, EntryBatch, Position
from offloaderd.core.read_options import Tier
from offloaderd.protocol.codes import is_code
from offloaderd.protocol.v1 import common_pb2, offload_pb2, read_pb2

TIERS = {
    Tier.BUFFER: common_pb2.TIER_BUFFER,
    Tier.SOURCE: common_pb2.TIER_SOURCE,
    Tier.OBJECTS: common_pb2.TIER_OBJECTS,
}

BATCH_ENTRIES_MAX = 1 << 17
"""Most entries in one message of a push: as many as eight-byte entries fill a mebibyte."""
UNCOUNTED_BYTES = 10 * BATCH_ENTRIES_MAX
"""Bytes of a push that are parsed uncounted, as many as that batch has. Of empty entries they hold 655,360: 10 MiB."""
FIELDS_MAX = BATCH_ENTRIES_MAX + 3
"""Most fields of a push: its entries, and the fields that name their ledger or topic."""


def to_position(value: Position | None) -> common_pb2.Position | None:
    """Return a position as a message, None (an unset field) when there is none."""
    return None if value is None else common_pb2.Position(ledger_id=value.ledger_id, entry_id=value.entry_id)


def from_position(message: common_pb2.Position) -> Position:
    """Read a position. Raises InvalidInput when it is negative."""
    return Position(message.ledger_id, message.entry_id).checked()


def to_batch(batch: EntryBatch) -> common_pb2.EntryBatch:
    """Return a batch as a message."""
    return common_pb2.EntryBatch(
        ledger_id=batch.ledger_id, first_entry_id=batch.first_entry_id, payloads=batch.payloads
    )


def from_batch(message: common_pb2.EntryBatch) -> EntryBatch:
    """Read a batch. Raises InvalidInput for a negative id, no entry, or an entry that is too large."""
    first = Position(message.ledger_id, message.first_entry_id).checked()
    payloads = checked_payloads(message.payloads)
    Position(first.ledger_id, first.entry_id + len(payloads) - 1).checked()
    return EntryBatch(first.ledger_id, first.entry_id, payloads)


def checked_payloads(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the entries of a request as a list.

    Raises InvalidInput for no entry, one that is too large, or more than BATCH_ENTRIES_MAX: a message could hold eight
    million empty ones.
    """
    if len(payloads) > BATCH_ENTRIES_MAX:
        raise _too_many()
    found = list(payloads)
    if not found:
        raise InvalidInput("a batch without entries", hint="send at least one")
    if (largest := max(map(len, found))) > ENTRY_BYTES_MAX:
        raise InvalidInput(f"an entry of {largest} bytes", hint=f"the limit is {ENTRY_BYTES_MAX} bytes")
    return found


def check_push(data: bytes) -> None:
    """Check the bytes of a StreamingOffloadRequest, as `check_fields` does."""
    check_fields(data, batch=_tag(offload_pb2.StreamingOffloadRequest.BATCH_FIELD_NUMBER))


def check_append(data: bytes) -> None:
    """Check the bytes of an AppendRequest, as `check_fields` does."""
    check_fields(data)


def check_fields(data: bytes, *, batch: int | None = None) -> None:
    """Raise InvalidInput for a request with more fields than a batch may have, before protobuf takes memory for it.

    Fields inside the field `batch` count as well. The last UNCOUNTED_BYTES are not counted, so a usual batch costs
    nothing. Bytes that protobuf might read in another way are refused as malformed, so that no field escapes the count.
    """
    at = fields = batch_end = 0
    try:
        while at < len(data) - UNCOUNTED_BYTES:
            inside = at < batch_end
            tag, start, after = _field(data, at, batch_end if inside else len(data))
            if tag == batch and not inside:
                at, batch_end = start, after
            else:
                at = after
            fields += 1
            if fields > FIELDS_MAX:
                raise _too_many()
    except IndexError as error:
        raise InvalidInput(f"a malformed request: {error}", hint="send what the protos say") from None


def _too_many() -> InvalidInput:
    return InvalidInput(f"a batch of more than {BATCH_ENTRIES_MAX} entries", hint="send them in several batches")


def encoded_read_response(batch: Entries, tier: Tier) -> bytes:
    """Return a serialized ReadResponse, built by hand: all bytes are copied once, into a buffer of the right size.

    Framed entries are sent as frames. To build the message and serialize it would copy twice, and takes longer than all
    the rest of a read.
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
    """Return the entries of a serialized ReadResponse, framed or not, and their tier; `where` is for errors.

    Frames are split in place, so every payload is copied once. Raises CorruptData for frames with wrong lengths, ids or
    number, and for bytes that are no such message.
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
    """Return the offsets of the field with the frames: its begin, its content, and its end; None without one.

    Raises IndexError for bytes that are no message.
    """
    at = 0
    while at < len(data):
        tag, start, end = _field(data, at, len(data))
        if tag == _FRAMES:
            return at, start, end
        at = end
    return None


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return a field's tag, and the offsets of its content and its end.

    Raises IndexError for bytes that are no field, and for a field that ends behind `end`.
    """
    tag, start = _number_at(data, at)
    wire_type = tag & 7
    if wire_type in _FIXED_BYTES:
        after = start + _FIXED_BYTES[wire_type]
    else:
        number, after = _number_at(data, start)
        if wire_type == _LENGTH_DELIMITED:
            start, after = after, after + number
    if tag > _TAG_MAX or wire_type not in _WIRE_TYPES or after > end:
        raise IndexError("a field of no known type, or cut short")
    return tag, start, after


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at an offset, and its end. Raises IndexError for one that does not end within the data."""
    value = shift = 0
    while (byte := data[at]) > 0x7F:
        if shift > _SHIFT_MAX:
            raise IndexError("a number without end")
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | byte << shift, at + 1


def _varint(value: int) -> bytes:
    """Return an unsigned number as protobuf writes it: seven bits a byte, the highest bit set in all but the last."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tag(field_number: int) -> int:
    """Return the tag of a field of bytes."""
    return field_number << 3 | _LENGTH_DELIMITED


@lru_cache(maxsize=4096)
def _payload_head(length: int) -> bytes:
    return _PAYLOAD_TAG + _varint(length)


_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_WIRE_TYPES = {0, _LENGTH_DELIMITED, *_FIXED_BYTES}
"""Wire types of protobuf: varints, fields with their length before them, numbers of fixed size. No groups."""
_TAG_MAX = (1 << 32) - 1
_SHIFT_MAX = 63

_FRAMES = _tag(read_pb2.ReadResponse.FRAMES_FIELD_NUMBER)
_FRAMES_TAG = _varint(_FRAMES)
_BATCH_TAG = _varint(_tag(read_pb2.ReadResponse.BATCH_FIELD_NUMBER))
_PAYLOAD_TAG = _varint(_tag(common_pb2.EntryBatch.PAYLOADS_FIELD_NUMBER))
_TIERS = {tier: read_pb2.ReadResponse(tier=number).SerializeToString() for tier, number in TIERS.items()}


DIGITS = 3


def as_json(
    message: Message, *, leave_out: Collection[str] = (), kept: Collection[str] = (), nullable: Collection[str] = ()
) -> dict[str, object]:
    """Return a message as JSON, without the fields to `leave_out`; `kept` and `nullable` as in `picked`."""
    names = [one.name for one in message.DESCRIPTOR.fields if one.name not in leave_out and not is_code(one)]
    return picked(message, *names, kept=kept, nullable=nullable)


def picked(of: object, *names: str, kept: Collection[str] = (), nullable: Collection[str] = ()) -> dict[str, object]:
    """Return fields of a message, or attributes of any value, as JSON; `shown=field` gives another name.

    `kept` names texts and times that are shown even if they are empty, `nullable` numbers that are null when they are
    0; both apply to inner messages as well.
    """

    def of_field(of: object, name: str) -> object:
        value = getattr(of, name)
        if isinstance(of, Message):
            field = of.DESCRIPTOR.fields_by_name[name]
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                return dict(sorted(value.items()))
            if field.has_presence:
                return of_value(value) if of.HasField(name) else None
            if field.enum_type is not None and not field.is_repeated:
                return field.enum_type.values_by_number[value].name.lower()
        may_be_null = isinstance(value, str) or name.endswith("_ms") or name in nullable
        return None if may_be_null and not value and name not in kept else of_value(value)

    def of_value(value: object) -> object:
        if isinstance(value, common_pb2.Position):
            return position_text(value)
        if isinstance(value, Message):
            return {one.name: of_field(value, one.name) for one in value.DESCRIPTOR.fields if not is_code(one)}
        if isinstance(value, Position):
            return str(value)
        if isinstance(value, float):
            return round(value, DIGITS)
        if value is None or isinstance(value, int | str | Mapping):
            return value
        return [of_value(one) for one in value] if isinstance(value, Iterable) else str(value)

    pairs = [name.partition("=") for name in names]
    return {shown: of_field(of, field or shown) for shown, _, field in pairs}


def position_of(message: Message, field: str) -> str | None:
    """Return a message's position as `ledger:entry`, None when it is unset."""
    return position_text(getattr(message, field)) if message.HasField(field) else None


def position_text(value: common_pb2.Position) -> str:
    """Return a position as `ledger:entry`."""
    return f"{value.ledger_id}:{value.entry_id}"
