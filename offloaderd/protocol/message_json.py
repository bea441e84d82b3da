"""Messages and other values as JSON, field by field: the output of commands and pages for programs.

A missing value is null: a field that was not set, an empty text, a time (`*_ms`) of 0. A position is the text
`ledger:entry`, an enumeration its name in lower case; a number with a fraction has three digits of it.
"""

from collections.abc import Collection, Iterable, Mapping

from google.protobuf.message import Message

from offloaderd.core.model import Position
from offloaderd.protocol.v1 import common_pb2

DIGITS = 3


def as_json(
    message: Message, *, leave_out: Collection[str] = (), kept: Collection[str] = (), nullable: Collection[str] = ()
) -> dict[str, object]:
    """Return a message as JSON, without the fields to `leave_out`; `kept` and `nullable` as in `picked`."""
    names = [name for name in message.DESCRIPTOR.fields_by_name if name not in leave_out]
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
            return {name: of_field(value, name) for name in value.DESCRIPTOR.fields_by_name}
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
