"""The text of an offset for each topic: the last entry that was read, and the time its ledger was created. Pure.

`7:41@1760000000000`, or `7:41` if the time is unknown. It distinguishes a topic that was created anew from the one
before.
"""

from collections.abc import Mapping

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position

NOTHING = Position(-1, -1)
"""Before the first entry of a topic."""

Offset = dict[str, str]
"""The texts of an offset, by the topic's full name."""


def position(offset: Mapping[str, str], name: str) -> Position:
    """Return the last position that was read of a topic. Raises InvalidInput."""
    return parsed(offset[name])[0] if name in offset else NOTHING


def parsed(text: str) -> tuple[Position, int | None]:
    """Read the text for a topic: a position, and the time its ledger was created (ms). Raises InvalidInput."""
    at, _, made = text.partition("@")
    if made and not (made.isascii() and made.isdecimal()):
        raise InvalidInput(f"not a position of an offset: {text!r}", hint="write LEDGER:ENTRY or LEDGER:ENTRY@TIME")
    return NOTHING if at == str(NOTHING) else Position.parse(at), int(made) if made else None


def following(at: Position) -> Position | None:
    """Return the next position; None for the oldest entry."""
    return None if at == NOTHING else Position(at.ledger_id, at.entry_id + 1)
