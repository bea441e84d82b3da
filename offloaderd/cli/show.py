"""Output of values: words and units for people, JSON for programs. Nothing here knows a command."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TextIO, TypeVar

import click
from google.protobuf.message import Message
from rich.cells import cell_len
from rich.console import Console

from offloaderd.core.humanize import age, moment, number, plural, rate, size, visible
from offloaderd.protocol.message_json import position_of, position_text
from offloaderd.protocol.v1 import common_pb2

__all__ = [
    "Table", "age", "cell", "console", "document", "fact_lines", "facts", "json_line", "moment", "note",
    "number", "plural", "position_of", "rate", "rendered", "size", "table", "visible",
]  # fmt: skip

T = TypeVar("T")


def document(value: Mapping[str, object]) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Mapping[str, object]) -> str:
    """Return one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def note(text: str) -> None:
    """Write to stderr what is in progress; it is no part of the answer."""
    click.echo(text, err=True)


def console(stream: TextIO | None = None) -> Console:
    """Return a console that shows text as it is."""
    return Console(file=stream or sys.stdout, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table; a column whose name starts with `>` is aligned to the right."""
    click.echo(rendered(columns, rows), nl=False)


def rendered(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text: a line a row, control characters escaped, without blanks at the ends of lines."""
    lines = [[name.removeprefix(">") for name in columns], *([visible(one) for one in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]

    def padded(text: str, width: int, name: str) -> str:
        blanks = " " * (width - cell_len(text))
        return blanks + text if name.startswith(">") else text + blanks

    return "".join("  ".join(map(padded, line, widths, columns)).rstrip() + "\n" for line in lines)


class Table(Generic[T]):
    """A table by its columns: a name, as in `table`, and a field of the row (see `cell`) or a function of the row.

    An empty text is shown as `-`, except in the last column.
    """

    def __init__(self, *columns: tuple[str, str | Callable[[T], str]]) -> None:
        self._columns = columns

    def show(self, rows: Iterable[T]) -> None:
        """Write the table."""
        click.echo(self.rendered(rows), nl=False)

    def rendered(self, rows: Iterable[T]) -> str:
        """Return the table as text."""
        return rendered([name for name, _ in self._columns], map(self._row, rows))

    def _row(self, of: T) -> list[str]:
        *cells, last = (cell(of, what) if isinstance(what, str) else what(of) for _, what in self._columns)
        return [*(one or "-" for one in cells), last]


def cell(of: object, field: str) -> str:
    """Return a field, or an item of a mapping, in the form that its name and type demand; `-` if it is unset.

    The forms: bytes, a moment, a duration, a number with separated thousands, an id, a position or a text.
    """
    value = of[field] if isinstance(of, Mapping) else getattr(of, field)
    if value is None:
        return "-"
    if isinstance(of, Message) and of.DESCRIPTOR.fields_by_name[field].has_presence and not of.HasField(field):
        return "-"
    if isinstance(value, common_pb2.Position):
        return position_text(value)
    if field.endswith("_ms"):
        return moment(value)
    if field.endswith("_s"):
        return age(value)
    if isinstance(value, int) and not field.endswith("_id"):
        return size(value) if "_bytes" in field else number(value)
    return str(value)


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Write `name  value` lines, aligned."""
    click.echo(fact_lines(pairs))


def fact_lines(pairs: Iterable[tuple[str, str]]) -> str:
    """Return `name  value` lines, aligned."""
    lines = list(pairs)
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in lines)
