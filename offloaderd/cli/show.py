"""How values are shown: to people in words and units, to programs as JSON. Nothing here knows a command."""

from __future__ import annotations

import json
import sys
from io import StringIO
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console
from rich.table import Table

from offloaderd.rpc.message_json import position_of
from offloaderd.words import age, moment, number, plural, rate, size, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "WIDE", "age", "console", "document", "facts", "json_line", "moment", "note", "number", "plural", "position_of",
    "rate", "rendered", "size", "table", "visible",
]  # fmt: skip

WIDE = 1000
"""Width of a table: lines are never cut or folded, so that a key can be copied and a program can read them."""


def document(value: Mapping[str, object]) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Mapping[str, object]) -> str:
    """Return one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def note(text: str) -> None:
    """Write to stderr what is under way, for whoever waits; it is no part of the answer."""
    click.echo(text, err=True)


def console(stream: TextIO | None = None) -> Console:
    """Return a console that shows text as it is."""
    return Console(file=stream or sys.stdout, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table; a column whose name starts with `>` is aligned to the right."""
    click.echo(rendered(columns, rows), nl=False)


def rendered(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text, without the blanks that pad its last column."""
    target = Console(file=StringIO(), width=WIDE, markup=False, highlight=False, emoji=False, no_color=True)
    grid = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for name in columns:
        grid.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    with target.capture() as capture:
        target.print(grid)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Write `name  value` lines, aligned."""
    lines = list(pairs)
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {value}".rstrip())
