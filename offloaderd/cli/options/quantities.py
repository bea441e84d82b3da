"""Types of options: sizes, durations, times and other parsed texts; core/units.py defines how they are written."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, TypeVar

import click

from offloaderd.core import humanize as words
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.units import format_bytes, parse_bytes, parse_seconds

T = TypeVar("T")
_MILLISECOND = timedelta(milliseconds=1)
SEGMENT_BYTES_SMALL = 2**20
"""Below it a policy is taken with a warning: tests and trials need such segments, production does not."""


def with_hint(_: str, error: Exception) -> str:
    """Return the message for a text that cannot be parsed: the error, and its hint in a line of its own."""
    if not isinstance(error, InvalidInput):
        return str(error)
    return f"{error.message}\nhint: {error.hint}" if error.hint else error.message


class Parsed(click.ParamType[T]):
    """The value that `parse` makes of a text; `message` describes a text that it refuses."""

    def __init__(
        self, name: str, parse: Callable[[str], T], message: Callable[[str, Exception], str] = with_hint
    ) -> None:
        self.name = name
        self._parse = parse
        self._message = message

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ANN401
        """Parse a text, or fail; a default is taken unchanged."""
        if not isinstance(value, str):
            parsed: T = value
            return parsed
        try:
            return self._parse(value)
        except (InvalidInput, ValueError) as error:
            self.fail(self._message(value, error), param, ctx)


def size_param(bare: int = 1) -> Parsed[int]:
    """Return a number of bytes: 1048576, 64MiB, 64M, 256MB. One without a unit counts `bare` bytes."""

    def parse(text: str) -> int:
        size = parse_bytes(text, bare=Fraction(bare))
        if size <= 0:
            raise ValueError("not a size: at least 1 byte")
        return size

    return Parsed("size", parse, lambda text, error: f"{text!r} is {error}")


def duration_param(least: float | None = None) -> Parsed[float]:
    """Return a duration: 90s, 15min, 2h, 1.5d, or seconds. Gives seconds, `least` or more; more than 0 without one."""

    def parse(text: str) -> float:
        seconds = parse_seconds(text)
        if least is None and seconds <= 0:
            raise ValueError("not more than 0")
        if least is not None and seconds < least:
            raise ValueError(f"less than {least:g} s")
        return seconds

    return Parsed("duration", parse, lambda text, error: f"{text!r} is {error}")


def moment_ms(value: str) -> int:
    """Parse a time: ISO 8601, UTC unless it names a zone, or milliseconds since 1970. Returns milliseconds.

    Raises ValueError whose text shows an example.
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
    """Return the time that lies so many seconds back, 1970 at the earliest."""
    return max(0, clock.wall_ms() - round(seconds * 1000))


def warn_of_small_segments(size_bytes: int) -> None:
    """Warn on stderr of a segment size that is probably a forgotten unit or meant for blocks."""
    if 0 < size_bytes < SEGMENT_BYTES_SMALL:
        click.echo(
            f"warning: segments of {words.size(size_bytes)}: each is three objects and a transaction in ZooKeeper, "
            f"however little it holds\nhint: `offloadctl plan-cost` compares sizes; say {format_bytes(2**24)} or more",
            err=True,
        )


SIZE = size_param()
DURATION = duration_param()
MOMENT = Parsed("time", moment_ms)
