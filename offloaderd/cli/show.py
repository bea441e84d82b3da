"""How values are shown: to people in words and units, to programs as JSON. Nothing here knows a command."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from google.protobuf.message import Message

    from offloaderd.rpc.v1 import common_pb2

WIDE = 1000
"""Width of a table: lines are never cut or folded, so that a key can be copied and a program can read them."""


def size(count: int) -> str:
    """Return a number of bytes as people read it: 512 B, 16.0 MiB."""
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def number(value: int) -> str:
    """Return a count with thousands separated: 336,776."""
    return f"{value:,}"


def plural(count: int, one: str, many: str = "") -> str:
    """Return `1 entry`, `2,000 entries`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def age(seconds: float) -> str:
    """Return a duration with the two units that matter: 340 ms, 3.2 s, 4 min 05 s, 2 h 03 min, 3 d 04 h."""
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
    """Return a wall-clock time in UTC to the second; `-` for none."""
    if not wall_ms:
        return "-"
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def rate(count: float, seconds: float) -> str:
    """Return bytes a second: 52.1 MiB/s; `-` when no time has passed."""
    return f"{size(int(count / seconds))}/s" if seconds > 0 else "-"


def position_of(message: Message, field: str) -> str | None:
    """Return a message's position as `ledger:entry`, None when it is unset."""
    if not message.HasField(field):
        return None
    value: common_pb2.Position = getattr(message, field)
    return f"{value.ledger_id}:{value.entry_id}"


def document(value: Mapping[str, object]) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Mapping[str, object]) -> str:
    """Return one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


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
