"""Sizes, durations, times and rates as people write and read them, with one parser for all places.

A size: `64MiB`, `1.5 GiB`, `256M`, `5242880`. KiB, MiB, GiB, TiB are powers of 1024, and so are K, M, G, T, as in
Pulsar's tools; kB, MB, GB, TB are powers of 1000. A size is a whole number of bytes: other values are refused, not
rounded. A duration: `90s`, `15min`, `2h`, `1.5d`; ms, s, m or min, h, d, w. Case does not matter. A number without a
unit is bytes or seconds by default.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction

SIZES: Mapping[str, Fraction] = {"b": Fraction(1)} | {
    unit: Fraction(base) ** power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
DURATIONS: Mapping[str, Fraction] = {"ms": Fraction(1, 1000)} | {
    unit: Fraction(seconds)
    for unit, seconds in (("s", 1), ("m", 60), ("min", 60), ("h", 3600), ("d", 86_400), ("w", 7 * 86_400))
}
SIZE_FORM = 'write a whole number of bytes or one with a unit, such as "64MiB" or "256MB"'
DURATION_FORM = 'write a number with ms, s, min, h, d or w, such as "90s" or "2h"'

_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_bytes(value: object, *, bare: Fraction = SIZES["b"]) -> int:
    """Read a size from text or a whole number; the unit of a bare number is `bare` bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    size = _quantity(value, SIZES, bare)
    if size is None:
        raise ValueError(f"not a size: {SIZE_FORM}")
    if size.denominator != 1:
        raise ValueError("not a whole number of bytes")
    return int(size)


def parse_seconds(value: str, *, bare: Fraction = DURATIONS["s"]) -> float:
    """Read a duration from text; the unit of a bare number is `bare` seconds. Raises ValueError."""
    seconds = _quantity(value, DURATIONS, bare)
    if seconds is None:
        raise ValueError(f"not a duration: {DURATION_FORM}")
    return float(seconds)


def _quantity(value: object, units: Mapping[str, Fraction], bare: Fraction) -> Fraction | None:
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = (units.get(match[2].lower()) if match[2] else bare) if match else None
    return None if match is None or factor is None else Fraction(match[1]) * factor


def format_bytes(size: int) -> str:
    """Write a size in the largest unit that divides it, as `parse_bytes` reads it."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


def size(count: int) -> str:
    """Format a number of bytes: 512 B, 16.0 MiB."""
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def number(value: int) -> str:
    """Format a count with thousands separated: 336,776."""
    return f"{value:,}"


def plural(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun: `1 entry`, `2,000 entries`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def abridged(texts: Sequence[str], most: int, more: str = "more") -> list[str]:
    """Return the first texts, and in place of the others how many they are: `and 2,000 more`."""
    left = len(texts) - most
    return [*texts[:most], f"and {left:,} {more}"] if left > 0 else list(texts)


def age(seconds: float) -> str:
    """Format a duration with its two largest units: 340 ms, 3.2 s, 4 min 05 s, 2 h 03 min, 3 d 04 h."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02} h"


def moment(wall_ms: int) -> str:
    """Format a wall-clock time in UTC to the second; `-` for none."""
    if not wall_ms:
        return "-"
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def visible(text: str) -> str:
    """Return a text with escapes for invisible characters and those that change the direction of text."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def rate(count: float, seconds: float) -> str:
    """Format bytes per second: 52.1 MiB/s; `-` if no time has passed."""
    return f"{size(int(count / seconds))}/s" if seconds > 0 else "-"
