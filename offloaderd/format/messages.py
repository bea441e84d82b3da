"""Protobuf messages inside stored objects, parsed as strictly as the headers around them.

The library alone is too lenient for a hostile disk: it lets missing required fields pass, and hands out `bytes` for a
proto2 string that is not UTF-8.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from offloaderd.errors import CorruptData

M = TypeVar("M", bound=Message)


def parse_message(kind: type[M], data: bytes, *, key: str, at: int, text: bool = True) -> M:
    """Return the message that `data` holds; `at` is its offset in the object `key`. Raises CorruptData.

    Without `text` its strings are not looked at, for whoever does not read them.
    """
    name = kind.DESCRIPTOR.name
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise CorruptData(key=key, offset=at, expected=f"a {name} message", found=error) from None
    if not message.IsInitialized():
        raise CorruptData(key=key, offset=at, expected=f"all required fields of {name}", found="not all of them")
    if text and not _strings_are_text(message):
        raise CorruptData(key=key, offset=at, expected=f"UTF-8 text in the {name} message", found="other bytes")
    return message


def _strings_are_text(message: Message) -> bool:
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue  # of version 3 of the language, whose parser demands UTF-8
        if field.message_type is not None:
            if not all(map(_strings_are_text, values)):
                return False
        elif field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in values):
            return False
    return True
