"""Sizes and durations as options of commands; units.py says how they are written."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import click

from offloaderd import words
from offloaderd.units import format_bytes, parse_bytes, parse_seconds

SEGMENT_BYTES_SMALL = 2**20
"""No policy is refused below it, as tests and trials need such segments; nobody wants them for long."""


class SizeParam(click.ParamType[int]):
    """A number of bytes: 1048576, 64MiB, 64M, 256MB. One without a unit counts `bare` bytes."""

    name = "size"

    def __init__(self, bare: int = 1) -> None:
        self._bare = Fraction(bare)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """Parse a size > 0, or fail with what one looks like; a default is taken as it is."""
        if isinstance(value, int):
            return value
        try:
            size = parse_bytes(value, bare=self._bare)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)
        return size if size > 0 else self.fail(f"{value!r} is not a size: at least 1 byte", param, ctx)


class DurationParam(click.ParamType[float]):
    """A duration: 90s, 15min, 2h, 1.5d, or seconds. Gives seconds, `least` or more; more than 0 without one."""

    name = "duration"

    def __init__(self, least: float | None = None) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Parse a duration, or fail with what one looks like."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_seconds(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)
        if self._least is None and seconds <= 0:
            self.fail(f"{value!r} is not more than 0", param, ctx)
        if self._least is not None and seconds < self._least:
            self.fail(f"{value!r} is less than {self._least:g} s", param, ctx)
        return seconds


def warn_of_small_segments(size_bytes: int) -> None:
    """Say on stderr what segments of such a size mean, if somebody has left out a unit, or thought of blocks."""
    if 0 < size_bytes < SEGMENT_BYTES_SMALL:
        click.echo(
            f"warning: segments of {words.size(size_bytes)}: each is three objects and a transaction in ZooKeeper, "
            f"however little it holds\nhint: `offloadctl plan-cost` compares sizes; say {format_bytes(2**24)} or more",
            err=True,
        )


SIZE = SizeParam()
DURATION = DurationParam()
