"""Lines `key=value` as brokers write and read them, with the number of each, and every mistake in them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BEGIN_CHARS = 40


class Property(NamedTuple):
    """One key with its value; the line is where it begins, from 1 on."""

    line: int
    key: str
    value: str


def properties(text: str, wanted: Callable[[str], bool]) -> tuple[list[Property], list[str]]:
    """Return the keys that are `wanted`, and what is wrong with lines: no `=`, no key, a wanted key given twice.

    Java takes the last of two lines with one key, and any blank for a `=`; in a broker's file both are mistakes.
    """
    found: dict[str, Property] = {}
    mistakes = []
    for number, line in _lines(text):
        key, equals, value = line.partition("=")
        key = key.rstrip()
        if not equals or not key or any(map(str.isspace, key)):
            begin = ascii(line.split()[0][:BEGIN_CHARS])  # no more of it: the rest may be a secret
            mistakes.append(f"line {number}, which begins with {begin}, is not KEY=VALUE")
            continue
        if not wanted(key):
            continue
        if key in found:
            mistakes.append(
                f"line {number}: {key} was given in line {found[key].line} already; Java takes the last one"
            )
        found[key] = Property(number, key, value.strip())
    return list(found.values()), mistakes


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield what is neither blank nor a comment, lines that end with a backslash joined with the next."""
    begun, whole = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not whole and (not line or line[0] in "#!"):
            continue
        begun = begun or number
        if len(line) - len(line.rstrip("\\")) & 1:
            whole += line[:-1]
            continue
        yield begun, whole + line
        begun, whole = 0, ""
    if whole:
        yield begun, whole
