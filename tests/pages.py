"""The commands and programs in the pages of docs/ and in README.md: found, checked against the real commands, or run.

Blocks of shell (`sh`), transcripts (`console`) and programs (`python`) are run by tests/integration/documents. One that
no test can run says why by a second word behind its backquotes, a key of `NOT_RUN`. All commands are checked against
the parsers of offloadctl and offloaderd, run or not, and so are those in running text.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offloaderd.cli.offloadctl.__main__ import cli as offloadctl
from offloaderd.cli.offloaderd.__main__ import cli as offloaderd

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {"offloadctl": offloadctl, "offloaderd": offloaderd}
NOT_RUN = {
    "beside": "needs a Pulsar standalone; tests/integration/pulsar/test_beside_pulsar.py runs it",
    "cluster": "needs a Pulsar cluster, or several machines",
    "docker": "needs a container engine",
    "kubernetes": "needs a cluster",
    "make": "prepares an environment, or takes many minutes; CI runs it",
    "pulsar": "needs a Pulsar cluster with its history",
    "push": "needs a daemon without a ledger store of its own; tests/integration/commands/test_client.py has one",
    "root": "changes the machine",
    "settings": "needs a daemon with a settings file, which a standalone has not; the tests of the commands have one",
    "server": "runs until it is stopped; tests/integration/commands/test_life_cycle.py and others run it",
    "stopped": "needs all daemons stopped; tests/integration/servers/test_upkeep.py runs it",
    "spark": "starts a Java for a minute; tests/integration/spark/test_spark_source.py runs it",
    "tables": "needs Pulsar and starts a Java; tests/integration/pulsar/test_tables_of_topics.py runs it",
    "tools": "needs a program that is not one of ours",
}
_FENCE = re.compile(r"```(?P<info>[^\n`]*)\n(?P<text>.*?)^\s*```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:offloadctl|offloaderd) [^`]+)`")
_OPERATORS = frozenset("|&;()<>")


@dataclass(frozen=True)
class Block:
    """A fenced block: `info` is what stands behind the backquotes."""

    page: str
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def runs(self) -> bool:
        """Whether a test is to run it."""
        return len(self.info) == 1 and self.info[0] in {"sh", "console", "python"}

    @property
    def program(self) -> str:
        """What is to be run: of a transcript the lines that begin with `$`."""
        if self.info[:1] != ("console",):
            return self.text
        return "".join(line.removeprefix("$ ") for line in self.text.splitlines(keepends=True) if line[:2] == "$ ")


def pages() -> list[Path]:
    """Return README.md, ARCHITECTURE.md and the pages of docs/ with the decisions."""
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, text.count("\n", 0, found.start()) + 1, tuple(found["info"].split()), found["text"])
        for found in _FENCE.finditer(text)
    ]


def shell_lines(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield what a page says of our commands, with whether it is whole: a line of a shell, not a mention in a text."""
    for block in blocks(page):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.info[:1] == ("sh",):
            yield from ((line, True) for line in lines)
        elif block.info[:1] in {(), ("console",)}:
            yield from ((line.strip().removeprefix("$ "), True) for line in lines if line.strip().startswith("$ "))
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from ((" ".join(found.split()), False) for found in _INLINE.findall(prose))


def commands(line: str) -> Iterator[list[str]]:
    """Yield every call of one of our commands in a line of shell. Raises ValueError for an open quotation mark."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= _OPERATORS:
            words.append(word)
            continue
        names = [number for number, one in enumerate(words) if one in COMMANDS]
        if names and (names[0] == 0 or words[names[0] - 1] in {"--", "exec"} or "exec" in words[: names[0]]):
            yield words[names[0] :]
        words = []


def check(words: list[str], *, whole: bool) -> None:
    """Raise click.UsageError for a command, option or number of arguments that our commands do not take.

    A mention (`whole` false) may leave arguments out, and end before its command does.
    """
    _check(COMMANDS[words[0]], words[0], words[1:], None, whole=whole)


def _check(command: click.Command, name: str, words: list[str], parent: click.Context | None, *, whole: bool) -> None:
    context = click.Context(command, info_name=name, parent=parent)
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage as error:
        if whole or isinstance(error, click.NoSuchOption):
            raise
        return  # an option is mentioned without its value
    if isinstance(command, click.Group):
        if not rest:
            if whole and not given.get("help") and "version" not in given and not command.invoke_without_command:
                raise click.UsageError(f"{context.command_path}: no command is named", context)
            return
        if not whole and not re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            return  # COMMAND, ...
        inner, found, rest = command.resolve_command(context, list(rest))
        if found is None or inner is None:
            raise click.UsageError(f"{context.command_path}: no command {rest[0]}", context)
        _check(found, inner, rest, context, whole=whole)
        return
    if not whole or given.get("help"):
        return
    if rest:
        raise click.UsageError(f"{context.command_path}: too many arguments: {rest}", context)
    missing = [
        one.name for one in command.get_params(context) if one.required and not _is_given(given.get(one.name or ""))
    ]
    if missing:
        raise click.UsageError(f"{context.command_path}: missing {missing}", context)


def _is_given(value: object) -> bool:
    """Whether the parser found a value; it has an object of its own for what was left out."""
    return isinstance(value, str | tuple | list) and bool(value)
