"""The promises of the proposals and their state: tests/pips.toml as a page, and its mistakes.

A row is one sentence of a proposal in our own words. It says what is done, where it lives and which test shows it, or
why there is nothing to show.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "pips.toml"
PROPOSALS = {
    "PIP-17": "Tiered storage for Pulsar topics: whole ledgers",
    "PIP-70": "Broker entry metadata",
    "PIP-73": "Read priority",
    "PIP-76": "Streaming offload",
}


ABOUT = """\
Generated from `tests/pips.toml` by `make docs`; `make check` sees to it that every module and every test that is named
is there. Each row is one sentence of PIP-17, PIP-70, PIP-73 or PIP-76 that promises something to a user, in our own
words. What a program beside the broker cannot do, or only in part, is gathered at the end with the reason."""
OUTSIDE = """\
offloaderd reads a cluster's ZooKeeper and bookies and never writes there: a broker caches the list of its ledgers with
the version of its node, and fences a topic whose list somebody else has changed. So whatever a proposal has the broker
do to its own metadata, to messages on their way in, or for its own consumers stays the broker's."""
WIDTH = 120


class Status(StrEnum):
    """The state of a promise."""

    DONE = "done"
    DIFFERS = "differs"
    PART = "in part"
    OUTSIDE = "not outside a broker"
    NOT_DONE = "not done"


SHOWN = (Status.DONE, Status.DIFFERS, Status.PART)
"""These live somewhere, and a test shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise. `says` is its text, `what` the way in which it is kept, or the reason why it is not."""

    pip: str
    section: str
    says: str
    status: str
    what: str
    where: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


def rows(path: Path = LIST) -> list[Row]:
    """Read the list."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["row"]
    return [Row(**{**one, "where": tuple(one.get("where", ())), "tests": tuple(one.get("tests", ()))}) for one in found]


def mistakes(table: Sequence[Row], root: Path = ROOT) -> Iterator[str]:
    """Yield the mistakes: an empty cell without a reason, a module or test that does not exist."""
    seen: set[str] = set()
    for row in table:
        name = f"{row.pip}, {row.says!r}"
        if row.pip not in PROPOSALS:
            yield f"{name}: no such proposal"
        if row.status not in set(Status):
            yield f"{name}: no such status as {row.status!r}"
        if not (row.section and row.says and row.what):
            yield f"{name}: an empty cell"
        if row.says in seen:
            yield f"{name}: twice"
        seen.add(row.says)
        if row.status in SHOWN and not (row.where and row.tests):
            yield f"{name}: {row.status}, and nothing that does it or shows it"
        yield from (f"{name}: there is no {one}" for one in row.where if not (root / one).exists())
        yield from (f"{name}: there is no test {one}" for one in row.tests if not _is_test(root, one))


def _is_test(root: Path, test: str) -> bool:
    """Say whether `file.py::name` is a test."""
    file, _, name = test.partition("::")
    return name.startswith("test_") and name in _functions(root / file)


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def page() -> str:
    """Return docs/proof/pips.md."""
    table = rows()
    counts = ", ".join(f"{sum(row.status == one for row in table)} {one}" for one in Status)
    lines = [
        "# What the proposals promise, and what became of it",
        "",
        *textwrap.wrap(ABOUT, WIDTH, break_on_hyphens=False),
        "",
        f"{len(table)} promises: {counts}.",
    ]
    for pip, title in PROPOSALS.items():
        lines += ["", f"## {pip}: {title}", ""]
        lines += [
            "| section | promise | status | what we do, and why | where | shown by |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in table if row.pip == pip]
    lines += [
        "",
        "## What of the PIPs cannot be done outside a broker, and why",
        "",
        *textwrap.wrap(OUTSIDE, WIDTH, break_on_hyphens=False),
        "",
        "| proposal | promise | status | why, and what there is instead |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.pip}, {row.section} | {row.says} | {row.status} | {row.what} |"
        for row in table
        if row.status in {Status.PART, Status.OUTSIDE}
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    where = "<br>".join(f"`{one.removeprefix('offloaderd/')}`" for one in row.where) or "-"
    tests = "<br>".join(f"`{one.removeprefix('tests/')}`" for one in row.tests) or "-"
    return f"| {row.section} | {row.says} | {row.status} | {row.what} | {where} | {tests} |"
