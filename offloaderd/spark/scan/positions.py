"""What an offset says of each topic: the last entry that was handed out, and when the ledger of that was made. Pure.

`7:41@1760000000000`, or `7:41` where nobody knows. By the time a topic that was made again is told from the one before.
"""

from collections.abc import Mapping

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import Position

NOTHING = Position(-1, -1)
"""Before the first entry of a topic."""

Offset = dict[str, str]
"""What an offset says, by the topic's full name."""


def position(offset: Mapping[str, str], name: str) -> Position:
    """Return up to where a topic was handed out. Raises InvalidInput."""
    return parsed(offset[name])[0] if name in offset else NOTHING


def parsed(text: str) -> tuple[Position, int | None]:
    """Read what an offset says of a topic: a position, and when its ledger was made (ms). Raises InvalidInput."""
    at, _, made = text.partition("@")
    if made and not (made.isascii() and made.isdecimal()):
        raise InvalidInput(f"not a position of an offset: {text!r}", hint="write LEDGER:ENTRY or LEDGER:ENTRY@TIME")
    return NOTHING if at == str(NOTHING) else Position.parse(at), int(made) if made else None


def following(at: Position) -> Position | None:
    """Return what comes after a position; None for everything that there is."""
    return None if at == NOTHING else Position(at.ledger_id, at.entry_id + 1)
