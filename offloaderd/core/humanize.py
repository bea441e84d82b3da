"""Formatting for people: sizes, durations, times, rates."""

from datetime import UTC, datetime


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
