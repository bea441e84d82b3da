"""Parsing, checks and errors that all records share.

Two releases work on the same records during an upgrade. This release keeps the fields that a later one has added when
it rewrites a record (`unknown`, `written`). Where that would be wrong, the later one sets `format` to a number that
this one does not know, and this one refuses the record.
"""

from collections.abc import Callable
from typing import NoReturn, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from offloaderd.core.errors import CorruptData, NewerRecord
from offloaderd.core.model import LEDGER_ID_MAX, Position
from offloaderd.format.parsing import filled, parse_message, value_of

M = TypeVar("M", bound=Message)
V = TypeVar("V")

HINT = "written by another program or a newer version; compare versions, then restore the node from a backup"


FORMAT = 0
"""The newest known format of records, for kinds without a number of their own (such as `context.FORMAT_PIECES`)."""


def parse(kind: type[M], data: bytes, path: str, *, known: int = FORMAT, text: bool = True) -> M:
    """Parse a message. Raises CorruptData, and NewerRecord for one that only a later release may change.

    `known` is the newest format of this kind that the caller reads. `text` checks that all texts are valid, which costs
    more than the rest of the parsing and is left out for messages that are only passed on.
    """
    try:
        message = parse_message(kind, data, key=path, at=0, text=text)
    except CorruptData as error:
        corrupt(path, error.expected, error.found)
    found: int = getattr(message, "format", FORMAT)
    if found > known:
        raise NewerRecord(path, found=found, known=known)
    return message


def unknown(message: Message) -> bytes:
    """Return the message's own unknown fields, without those of embedded messages."""
    rest = type(message)()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return rest.SerializeToString(deterministic=True)


def written(message: Message, kept: bytes) -> bytes:
    """Return a node's content, including the unknown fields from its last read."""
    message.MergeFromString(kept)
    return message.SerializeToString(deterministic=True)


def content(kind: type[Message], value: object, /, **other: object) -> bytes:
    """Return a node's content as `filled` builds it, including the unknown fields from its last read."""
    return written(filled(kind, value, **{"format": FORMAT} | other), getattr(value, "unknown", b""))


def read(kind: type[V], message: Message, /, **other: object) -> V:
    """Return a value as `value_of` does, with the message's unknown fields."""
    if hasattr(kind, "unknown"):
        other["unknown"] = unknown(message)
    return value_of(kind, message, **other)


def unless_newer(decode: Callable[..., object], data: bytes, path: str) -> None:
    """Allow a record to be replaced, even a damaged one, unless a later release wrote it. Raises NewerRecord."""
    try:
        decode(data, path=path)
    except NewerRecord:
        raise
    except CorruptData:
        pass


def corrupt(path: str, expected: object, found: object) -> NoReturn:
    """Raise CorruptData for a node. The offset is 0, since a message is damaged as a whole."""
    raise CorruptData(key=path, offset=0, expected=expected, found=found, hint=HINT)


def present(path: str, what: str, value: str) -> str:
    """Return a text field that must not be empty; raises CorruptData."""
    return value or corrupt(path, what, "nothing")


def segment_id(path: str, text: str) -> UUID:
    """Read a segment's id in its canonical spelling; raises CorruptData."""
    try:
        found = UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text:
        corrupt(path, "a segment's uuid", repr(text))
    return found


def position(path: str, ledger_id: int, entry_id: int) -> Position:
    """Read a position; raises CorruptData."""
    if not (0 <= ledger_id <= LEDGER_ID_MAX and entry_id >= 0):
        corrupt(path, "a position", f"{ledger_id}:{entry_id}")
    return Position(ledger_id, entry_id)
