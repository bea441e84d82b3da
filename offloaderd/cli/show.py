"""Output of values: words and units for people, JSON for programs; checks, segments and flaws of both commands."""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TextIO, TypeVar

import click
from google.protobuf.message import Message
from rich.cells import cell_len
from rich.console import Console

from offloaderd.cli.program import FAILED, OK
from offloaderd.core.units import abridged, age, moment, number, plural, rate, size, visible
from offloaderd.protocol.conversion import picked, position_of, position_text
from offloaderd.protocol.status import holder_label, holder_words
from offloaderd.protocol.v1 import common_pb2

if TYPE_CHECKING:
    from offloaderd.daemon.doctor.finding import CheckResult
    from offloaderd.protocol.v1 import admin_pb2, doctor_pb2, inspect_pb2
    from offloaderd.upkeep.flaws import Flaw
    from offloaderd.upkeep.grants.revoke_on_damage import DamagedLedger

    Result = CheckResult | doctor_pb2.CheckResult

__all__ = [
    "Table", "abridged", "age", "cell", "console", "document", "fact_lines", "facts", "json_line", "moment", "note",
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


NAME_WIDTH = 26
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
NOUNS = (("ok", "ok", "ok"), ("warn", "warning", "warnings"), ("fail", "failed", "failed"), ("skipped",) * 3)


async def show_checks(
    results: AsyncGenerator[Result, None], write: Callable[[Mapping[str, object]], None] | None
) -> int:
    """Show an examination, each check at once or as one document; returns the exit code: 1 when anything failed."""
    seen: list[Result] = []
    async with aclosing(results):
        async for result in results:
            seen.append(result)
            if write is None:
                click.echo(check_line(result))
    failed = any(result.verdict == "fail" for result in seen)
    if write is not None:
        write({"passed": not failed, "checks": [check_json(result) for result in seen]})
    else:
        counts = Counter(result.verdict for result in seen)
        parts = [f"{counts[kind]} {one if counts[kind] == 1 else many}" for kind, one, many in NOUNS if counts[kind]]
        click.echo(f"\n{', '.join(parts)} in {age(sum(result.seconds for result in seen))}")
    return FAILED if failed else OK


def check_line(result: Result) -> str:
    """Return a result in one line that ends with its hint."""
    verdict = f"{result.verdict.upper() if result.verdict == 'fail' else result.verdict:<8}"
    todo = f" -> {result.what_to_do}" if result.what_to_do else ""
    return f"{click.style(verdict, STYLES.get(result.verdict))} {result.name:<{NAME_WIDTH}} {result.found}{todo}"


def check_json(result: Result) -> dict[str, object]:
    """Return a result as JSON shows it."""
    return picked(result, "name", "verdict", "found", "what_to_do", "seconds", kept=("found",))


def _segment_status(segment: admin_pb2.Segment) -> str:
    """Return the status, with the state of an open segment, which older daemons do not send."""
    return f"{segment.status}, {segment.state}" if segment.state and not segment.HasField("end") else segment.status


SEGMENTS: Table[admin_pb2.Segment] = Table(
    ("STATUS", _segment_status),
    ("METHOD", "method"),
    ("WRITER", "writer"),
    ("BEGIN", "begin"),
    ("END", lambda one: position_of(one, "end") or "open"),
    (">ENTRIES", "entries"),
    (">PAYLOAD", "payload_bytes"),
    (">OBJECT", lambda one: size(one.object_bytes) if one.object_bytes else "-"),
    ("OFFLOADED AT (UTC)", "offloaded_ms"),
    ("DATA OBJECT", lambda one: f"{one.bucket}/{one.data_key}"),
)


FILLED, PARTLY, EMPTY = "\u2588", "\u2592", "\u00b7"
"""Cells of a drawn layout whose entries a holder has, has in part, and has not."""
PLAIN_CELLS = str.maketrans({FILLED: "#", PARTLY: "+", EMPTY: "."})
CELLS_MAX = 60


def write_layout(topic: str, found: inspect_pb2.LayoutResponse) -> None:
    """Write which entries of a topic are where, each holder as a line of cells from the oldest entry to the newest."""
    ends = f", {position_of(found, 'first')} to {position_of(found, 'last')}" if found.entries else ""
    click.echo(f"{topic}: {plural(found.entries, 'entry', 'entries')}{ends}")
    if found.HasField("deleted"):
        click.echo(f"deleted by retention: all up to {position_of(found, 'deleted')}")
    labels = [visible(holder_label(one)) for one in found.holders]
    width = max(map(cell_len, labels), default=0)
    cells = min(CELLS_MAX, found.entries)
    for label, one in zip(labels, found.holders, strict=True):
        line = drawn(one, found.entries, cells)
        try:
            line.encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            line = line.translate(PLAIN_CELLS)
        click.echo(f"  {label}{' ' * (width - cell_len(label))}  {line}  {visible(holder_words(one))}".rstrip())


def drawn(one: inspect_pb2.LayoutResponse.Holder, entries: int, cells: int) -> str:
    """Return the extents of a holder as a line of cells; each cell is an equal part of a scale of `entries`."""
    there = [0] * cells
    starts = [entries * at // cells for at in range(cells + 1)]
    for extent in one.extents:
        end = extent.offset + extent.entries
        at = max(0, bisect_right(starts, extent.offset) - 1)
        while at < cells and starts[at] < end:
            there[at] += min(end, starts[at + 1]) - max(extent.offset, starts[at])
            at += 1
    sizes = [after - before for before, after in pairwise(starts)]
    kinds = (FILLED if has >= size else PARTLY if has else EMPTY for has, size in zip(there, sizes, strict=True))
    return "".join(kinds)


def write_flaws(flaws: Iterable[Flaw | inspect_pb2.Flaw]) -> None:
    """Write flaws with their offsets to stdout: a line for the flaw and one for its hint."""
    for flaw in flaws:
        kind, offset = flaw.kind.upper() if flaw.is_problem else flaw.kind, picked(flaw, "offset")["offset"]
        where = f"{flaw.key} at byte {offset}" if offset is not None else flaw.key
        said = f"expected {flaw.expected}, found {flaw.found}" if flaw.expected else flaw.found
        entries = f"; entries {flaw.entries}" if flaw.entries else ""
        click.echo(f"  {kind:<12} {where}: {said}{entries}")
        if flaw.what_to_do:
            click.echo(f"  {'':<12} -> {flaw.what_to_do}")


def write_ledgers(ledgers: Iterable[DamagedLedger]) -> None:
    """Write the fates of ledgers with damaged copies, in the form of flaws."""
    for one in ledgers:
        click.echo(f"  {one.fate.upper():<12} ledger {one.ledger_id}: {one.text}")
        click.echo(f"  {'':<12} -> {one.what_to_do}")


def damaged_ledger_json(one: DamagedLedger) -> dict[str, object]:
    """Return the fate of a ledger as JSON shows it."""
    return picked(one, "topic", "ledger_id", "fate", "text", "what_to_do", kept=("text", "what_to_do"))


def flaw_json(flaw: Flaw | inspect_pb2.Flaw) -> dict[str, object]:
    """Return a flaw as JSON shows it."""
    names = ("kind", "problem=is_problem", "key", "offset", "expected", "found", "entries", "segment_id", "what_to_do")
    return picked(flaw, *names, kept=("key", "found"))
