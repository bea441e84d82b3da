"""What all records share: parsing a message, checking its fields, and telling how it is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeVar
from uuid import UUID

from offloaderd.errors import CorruptData
from offloaderd.format.messages import parse_message
from offloaderd.model import LEDGER_ID_MAX, Position

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

HINT = "written by another program or a newer version; compare versions, then restore the node from a backup"


def parse(kind: type[M], data: bytes, path: str) -> M:
    """Parse a message; raises CorruptData."""
    try:
        return parse_message(kind, data, key=path, at=0)
    except CorruptData as error:
        corrupt(path, error.expected, error.found)


def corrupt(path: str, expected: object, found: object) -> NoReturn:
    """Raise CorruptData for a node; a message is broken as a whole, so the offset is 0."""
    raise CorruptData(key=path, offset=0, expected=expected, found=found, hint=HINT)


def present(path: str, what: str, value: str) -> str:
    """Return a text field that must not be empty; raises CorruptData."""
    return value or corrupt(path, what, "nothing")


def segment_id(path: str, text: str) -> UUID:
    """Read a segment's id in its one spelling; raises CorruptData."""
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
