"""Strict parsing of headers and of protobuf messages in stored objects and records; messages from and to values.

The library alone accepts messages without required fields, and returns `bytes` for a proto2 string that is not UTF-8.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from inspect import signature
from struct import Struct
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position, TopicName
from offloaderd.protocol.codes import is_code

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def demand(key: str, offset: int, expected: str, found: object, *, holds: bool) -> None:
    """Raise CorruptData for a field at byte `offset` of the object `key` unless it holds what is expected."""
    if not holds:
        raise CorruptData(key=key, offset=offset, expected=expected, found=found)


def header_fields(
    form: Struct, magic: int, data: bytes | memoryview, *, header: str = "header", of: str = "", key: str, at: int = 0
) -> list[Any]:
    """Return the fields behind the magic in the header at the begin of `data`, at byte `at` of the object `key`.

    `of` names what has the header. Raises CorruptData.
    """
    if len(data) < form.size:
        expected = f"a {header} of {form.size} bytes"
        raise CorruptData(key=key, offset=at, expected=expected, found=f"{len(data)} bytes")
    found, *fields = form.unpack_from(data)
    if found != magic:
        raise CorruptData(key=key, offset=at, expected=f"magic {magic:08x}{of}", found=f"{found:08x}")
    return fields


def parse_message(kind: type[M], data: bytes, *, key: str, at: int, text: bool = True) -> M:
    """Return the message in `data`, which is at offset `at` of the object `key`. Raises CorruptData.

    Without `text` its strings are not checked, for callers that do not read them.
    """
    name = kind.DESCRIPTOR.name
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise CorruptData(key=key, offset=at, expected=f"a {name} message", found=error) from None
    if not message.IsInitialized():
        raise CorruptData(key=key, offset=at, expected=f"all required fields of {name}", found="not all of them")
    if text and not _strings_are_text(message, _text_of(kind.DESCRIPTOR)):
        raise CorruptData(key=key, offset=at, expected=f"UTF-8 text in the {name} message", found="other bytes")
    return message


class _Text(NamedTuple):
    """A field that is text, or has text inside: then `inner` are the fields there."""

    name: str
    is_repeated: bool
    inner: "Sequence[_Text]"


def _strings_are_text(message: Any, fields: Sequence[_Text]) -> bool:  # noqa: ANN401 - a message of any type
    for name, is_repeated, inner in fields:
        if not inner:
            value = getattr(message, name)
            if not (all(isinstance(text, str) for text in value) if is_repeated else isinstance(value, str)):
                return False
        elif is_repeated:
            for one in getattr(message, name):
                if not _strings_are_text(one, inner):
                    return False
        elif message.HasField(name) and not _strings_are_text(getattr(message, name), inner):
            return False
    return True


@cache
def _text_of(descriptor: Descriptor) -> Sequence[_Text]:
    """Return the fields whose text the library does not check: those of proto2. No message of ours contains itself."""
    unchecked = _syntax(descriptor.file) != "proto3"
    found = []
    for field in descriptor.fields:
        inner = _text_of(field.message_type) if field.message_type is not None else ()
        if inner or (unchecked and field.type == field.TYPE_STRING):
            found.append(_Text(field.name, field.is_repeated, inner))
    return tuple(found)


@cache
def _syntax(file: FileDescriptor) -> str:
    return FileDescriptorProto.FromString(file.serialized_pb).syntax


def filled(kind: type[M], value: object = None, /, **other: object) -> M:
    """Return a message with the fields in `other`, and for the rest the value's attributes of the same names.

    None leaves a field unset. Embedded messages are filled in the same way; ids and names of topics become text. Raises
    AttributeError for a field in neither, ValueError for one that the message does not have.
    """
    content = _CONTENT.get(kind) or _CONTENT.setdefault(kind, _content(kind))
    found = {name: getattr(value, name) for name in content if name not in other} | other
    return kind(**{name: one if type(one) in _PLAIN else content.get(name, _text)(one) for name, one in found.items()})


def _content(kind: type[Message]) -> dict[str, Callable[[Any], object]]:
    """Return the converter of each field."""
    found: dict[str, Callable[[Any], object]] = {}
    for field in kind.DESCRIPTOR.fields:
        if is_code(field):
            continue
        inner: Any = field.message_type  # its stub names a class that is not there at run time
        one = _text if inner is None else partial(_message, GetMessageClass(inner))
        if inner is not None and inner.GetOptions().map_entry:
            found[field.name] = dict
        else:
            found[field.name] = partial(_each, one) if field.is_repeated else one
    return found


_CONTENT: dict[type[Message], dict[str, Callable[[Any], object]]] = {}
_PLAIN = {type(None), bool, int, float, str, bytes}
"""Types that a message accepts unchanged."""


def _each(one: Callable[[Any], object], values: Iterable[object]) -> list[object]:
    return list(map(one, values))


def _message(kind: type[Message], value: object) -> Message:
    return value if isinstance(value, Message) else filled(kind, value)


def _text(value: object) -> object:
    return str(value) if isinstance(value, (UUID, TopicName)) else value


def value_of(kind: type[V], message: Message, /, **other: object) -> V:
    """Return a value made of the message's fields with its parameters' names, and of `other`; unset fields are None."""
    record: Any = message
    found = {
        name: getattr(record, name) if not optional or record.HasField(name) else None
        for name, optional in _same(type(message), kind)
        if name not in other
    }
    make: Callable[..., V] = kind
    return make(**found, **other)


def halves(name: str, value: Position | None) -> dict[str, object]:
    """Return the two fields of a position in a message; both are unset for None."""
    ledger_id, entry_id = value or (None, None)
    return {f"{name}_ledger_id".lstrip("_"): ledger_id, f"{name}_entry_id".lstrip("_"): entry_id}


_SAME: dict[tuple[type[Message], type], tuple[tuple[str, bool], ...]] = {}


def _same(kind: type[Message], of: type) -> tuple[tuple[str, bool], ...]:
    """Return the single fields of a message that are also parameters of a type, and whether they may be unset."""
    if (kind, of) not in _SAME:
        names = signature(of).parameters
        plain = [one for one in kind.DESCRIPTOR.fields if one.message_type is None and not one.is_repeated]
        _SAME[kind, of] = tuple((one.name, one.has_presence) for one in plain if one.name in names)
    return _SAME[kind, of]
