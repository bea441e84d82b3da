"""Times as people write them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from offloaderd.cli.ctl.quantities import Parsed

if TYPE_CHECKING:
    from offloaderd.clock import Clock

_MILLISECOND = timedelta(milliseconds=1)


def moment_ms(value: str) -> int:
    """Read a point in time: ISO 8601, UTC unless it names a zone, or milliseconds since 1970. Gives the latter.

    Raises ValueError with what one looks like.
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not a time: {value!r}; write 2026-11-21T10:00:00Z or milliseconds since 1970") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    wall_ms = (moment - datetime.fromtimestamp(0, UTC)) // _MILLISECOND
    if wall_ms < 0:
        raise ValueError(f"{value!r} is before 1970")
    return wall_ms


def ago_ms(clock: Clock, seconds: float) -> int:
    """Return when it was so long ago, 1970 at the earliest."""
    return max(0, clock.wall_ms() - round(seconds * 1000))


MOMENT = Parsed("time", moment_ms)
