"""What the pages say of our commands is what our commands take; links lead somewhere; the harness itself can fail."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from tests.pages import NOT_RUN, ROOT, blocks, check, commands, pages, shell_lines

_TESTS = re.compile(r"`([\w/]*test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)")
_MODULE = re.compile(r"`([a-z_]+/[\w/]+\.py)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


def named(page: Path) -> str:
    """Name a test by its page."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=named)
def test_commands_exist_with_their_options(page: Path) -> None:
    """Every subcommand and flag, run or not, in blocks, transcripts and running text."""
    wrong = []
    for line, whole in shell_lines(page):
        try:
            for words in commands(line):
                check(words, whole=whole)
        except (click.UsageError, ValueError) as error:
            wrong.append(f"{line}\n    {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", pages(), ids=named)
def test_blocks_that_are_not_run_say_why(page: Path) -> None:
    """A second word is one of those that have a reason; a Python program compiles."""
    for block in blocks(page):
        if block.info[:1] in {("sh",), ("python",)}:
            assert set(block.info[1:]) <= set(NOT_RUN), f"{block.page}:{block.line}: {block.info}"
        if block.info[:1] == ("python",):
            compile(block.text, f"{block.page}:{block.line}", "exec")


@pytest.mark.parametrize("page", pages(), ids=named)
def test_tests_that_are_named_exist(page: Path) -> None:
    """Who reads that something was tried must find where."""
    missing = []
    for file, names in _TESTS.findall(page.read_text(encoding="utf-8")):
        (found,) = [path for path in (ROOT / "tests").rglob(Path(file).name) if path.match(file)]
        source = found.read_text(encoding="utf-8")
        missing += [name for name in re.findall(r"`(test_\w+)`", names) if f"def {name}(" not in source]
    assert not missing


@pytest.mark.parametrize("page", pages(), ids=named)
def test_modules_that_are_named_exist(page: Path) -> None:
    """A path in running text is one of the repository, of the package, or of the tests, whatever was moved."""
    roots = [ROOT, ROOT / "offloaderd", *(ROOT / "tests" / name for name in ("", "unit", "integration"))]
    found = set(_MODULE.findall(page.read_text(encoding="utf-8")))
    assert [path for path in sorted(found) if not any((root / path).is_file() for root in roots)] == []


@pytest.mark.parametrize("page", pages(), ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading of that page where one is named."""
    missing = []
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        file = (page.parent / target) if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor[1:] not in anchors(file)):
            missing.append(target + anchor)
    assert not missing


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_map_names_every_page() -> None:
    """docs/README.md links all the other pages."""
    text = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    absent = [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in text]
    assert absent == ["README.md"]


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("offloadctl nothing", True),
        ("offloadctl topics nothing orders", False),
        ("offloadctl read orders --nothing", False),
        ("seq 3 | offloadctl produce", True),
        ("docker compose exec offloaderd-0 offloadctl status --nothing", True),
        ("offloaderd check-config extra", True),
        ("offloadctl topics", True),
    ],
)
def test_what_our_commands_do_not_take_is_found(line: str, whole: bool) -> None:
    """An unknown command or option, a missing or superfluous argument, wherever the command stands in the line."""
    [words] = commands(line)
    with pytest.raises(click.UsageError):
        check(words, whole=whole)


def test_what_is_mentioned_may_be_a_part() -> None:
    """Placeholders and missing arguments are for running text; comments and other programs are left alone."""
    for line in ("offloadctl COMMAND --json", "offloadctl topics", "offloadctl read", "offloaderd serve --config FILE"):
        for words in commands(line):
            check(words, whole=False)
    assert list(commands("echo 1 # offloadctl nothing")) == []
    assert list(commands("a | offloadctl x > f && offloaderd y")) == [["offloadctl", "x"], ["offloaderd", "y"]]


def test_log_events_that_lead_to_a_failure_are_logged() -> None:
    """Each event of the index and of the table of other events of docs/failures.md is one of the package's."""
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    named = re.findall(r'(?m)^\| (?:<a id="[\w.]+"></a>)?`([a-z0-9_]+\.[a-z_]+)` \|', text)
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "offloaderd").rglob("*.py"))
    assert len(named) > 100
    assert [event for event in named if f'"{event}"' not in source] == []


def test_every_warning_leads_to_its_failure() -> None:
    """Each event that is a warning or an error has an anchor of its name in the index of docs/failures.md."""
    page = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "offloaderd").rglob("*.py"))
    logged = set(re.findall(r'\.(?:warning|error|exception|critical)\(\s*"([a-z0-9_]+\.[a-z_]+)"', source))
    assert len(logged) > 90
    assert sorted(logged - set(re.findall(r'<a id="([\w.]+)"></a>', page))) == []


def test_the_architecture_names_the_packages_in_their_order() -> None:
    """The table of packages in ARCHITECTURE.md is the contract of imports, layer by layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["id"] == "layers")
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("| package | contents |")[2]
    rows = re.findall(r"(?m)^\| (`.+?`) \|", table)
    assert [" | ".join(re.findall(r"`(\w+)`", row)) for row in rows] == layers
