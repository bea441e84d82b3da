"""The rules of this tree that no linter knows, as tests: sizes, docstrings, leftovers, who may import what."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.metrics.processes import all_documented
from offloaderd.daemon.settings.sections import all_settings
from tests.pages import pages
from tools.invariants import stale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES_MAX = 600
TEST_MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

LONG_MODULES: dict[str, str] = {}
"""Modules that may be longer, each with its reason; the list may shrink freely and grow only with one."""

KEPT_APART = {
    "aiobotocore": ("offloaderd/objects/s3/client.py",),
    "cryptography": ("offloaderd/access/", "offloaderd/drill/scratch.py"),
    "fastavro": ("offloaderd/spark/value_schema.py", "offloaderd/spark/values.py"),
    "jinja2": ("offloaderd/daemon/status_page/site.py",),
    "jwt": ("offloaderd/access/tokens.py", "offloaderd/access/jwks.py"),
    "kazoo": ("offloaderd/metadata/zookeeper/store.py", "offloaderd/metadata/zookeeper/client.py"),
    "opentelemetry": ("offloaderd/daemon/telemetry.py",),
    "pyiceberg": tuple(
        f"offloaderd/spark/export/{name}.py" for name in ("iceberg", "iceberg_library", "buckets", "expiry")
    ),
    "pyspark": ("offloaderd/spark/", "offloaderd/standalone/"),
    "sqlite3": ("offloaderd/ledgers/embedded/database.py",),
}
"""Libraries that only these files of the package may import (beginnings of paths)."""

ONLY_HERE = {
    r"\.(?:cut_part|note_seal)\(": "offloaderd/segment/writer.py",
    r"\.position(?:, [^=\n]+)? = ": "offloaderd/topic/live_segment.py",
}
"""What one module alone does to segments and live topics: cut parts and record their end; move the position."""

TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")

LEFTOVERS = {
    "a note to oneself": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b"),
    "something not written yet": re.compile(r"\bNotImplemented" + r"Error\b"),
    "a debugger": re.compile(r"\b(?:break" + r"point\(\)|pdb\.set_trace)"),
}

MACHINE_WORDS = {
    "a path of somebody's machine": re.compile(r"(?<![\w.])/(?:home|Users|root|work|opt/wheels)/\w"),
    "the address of a package registry": re.compile(
        r"(?:files\.pythonhosted\.org|pypi\.org/simple|(?:^|\s)--(?:extra-)?index-url\b|(?:^|\s)--find-links\b"
        r"|https?://[^\s/]*(?:artifactory|nexus|devpi|pypi-?proxy|mirror))",
        re.MULTILINE,
    ),
}


BANNED = {
    "active": "awake",
    "all": "everybody",
    "answer": "heard",
    "caller": "visitor visitors",
    "classify, check": "judge judged judgement judges",
    "clear": "forgive",
    "components": "crew household",
    "context": "shop uplink workshop workshops",
    "cooldown": "shun shunned",
    "demand": "hungry",
    "error, failure": "met trouble troubled troubles",
    "failed": "hindered",
    "gap, incomplete": "torn",
    "idle, suspended": "dormitory lay sleeper sleepers sleeps sleepy",
    "is, wrong": "lie lies",
    "long poll": "bell bells",
    "notify, change": "news newsroom telling",
    "operator, client": "anybody somebody",
    "plan, state": "outlook",
    "preferred": "favourite",
    "provisional": "guest guests",
    "refresh": "heed",
    "replica read": "hunt hunter hunts",
    "reader": "looker",
    "report, show": "saying tells",
    "request": "asks",
    "segment completion": "sealer",
    "settings source, parsed": "harvest harvests",
    "shared, root, rig": "house",
    "snapshot": "sight",
    "unlisted, other": "stranger strangers",
}
"""Words that are no part of an identifier, an event, a metric or a setting, by what is used instead."""

BANNED_FOR_USERS = {
    "deleted": "gone",
    "failed": "died",
    "idle, suspended": "asleep sleep",
    "inspected": "looked",
    "notified": "told untold",
    "possibly": "maybe",
    "remaining": "left",
    "requested": "asked",
    "resumed": "continued",
    "retried": "again",
    "retained": "kept",
}
"""The same for events, metrics and settings alone."""


@cache
def tracked() -> tuple[str, ...]:
    """Return all files that git knows, and those it would take (new ones that are not ignored)."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - whichever git there is
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listed.stdout.decode().split("\0")
    return tuple(sorted({name for name in names if name and (ROOT / name).is_file()}))


@pytest.fixture(autouse=True, scope="module")
def garbage_of_other_tests_is_found() -> None:
    """Collect before `tree` freezes: what another test has left open is reported, and not kept for ever."""
    gc.collect()


def sources(*, generated: bool = False) -> list[str]:
    """Return our Python files, without generated ones unless asked for."""
    found = [name for name in tracked() if name.endswith(".py")]
    return found if generated else [name for name in found if not name.endswith(("_pb2.py", "_pb2_grpc.py"))]


@cache
def text(name: str) -> str:
    """Return a file as text; what is not text has none to check."""
    return (ROOT / name).read_bytes().decode(errors="replace")


@cache
def tree(name: str) -> ast.Module:
    """Return a module's syntax tree.

    Python before 3.11.5 fails if another tree is parsed meanwhile (cpython #106905), as by a collection of garbage that
    logs a traceback.
    """
    gc.disable()
    try:
        return ast.parse(text(name), name)
    finally:
        gc.freeze()  # no later collection looks for cycles in trees
        gc.enable()


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax tree: many tests look at them, and walking a tree takes long."""
    return tuple(ast.walk(tree(name)))


def undocumented(name: str) -> Iterator[str]:
    """Yield what is public in a module and says nothing: itself, classes, functions, methods; tests always count."""
    if Path(name).name != "__init__.py" or text(name).strip():
        if not ast.get_docstring(tree(name)):
            yield f"{name}: the module"
        yield from members(name, tree(name).body)


def members(name: str, body: list[ast.stmt]) -> Iterator[str]:
    """Yield the undocumented public definitions of a module or class."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node) and not has_other_home(node):
                yield f"{name}:{node.lineno}: {node.name}"
            if isinstance(node, ast.ClassDef):
                yield from members(name, node.body)


def has_other_home(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Tell whether a definition is documented elsewhere: an overload, an override, a property's setter."""
    marks = {mark.attr if isinstance(mark, ast.Attribute) else getattr(mark, "id", "") for mark in node.decorator_list}
    return bool(marks & {"overload", "override", "setter"})


def _name_of(node: ast.AST) -> str | None:
    return getattr(node, "id", None) or getattr(node, "attr", None)


@cache
def imported(name: str) -> set[str]:
    """Return the top-level packages that a module imports at any depth, type checking apart."""
    found: set[str] = set()
    skipped: set[ast.AST] = set()
    for node in nodes(name):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in map(_name_of, ast.walk(node.test)):
            skipped |= {inner for child in node.body for inner in ast.walk(child)}
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_modules_are_short() -> None:
    """A module is one idea: at most 600 lines, as is a list of tests, unless it is on the list with a reason."""
    long = {
        name: lines
        for name in sources()
        if (lines := text(name).count("\n"))
        > (TEST_MODULE_LINES_MAX if name.startswith("tests/") else MODULE_LINES_MAX)
    }
    assert not {name: lines for name, lines in long.items() if name not in LONG_MODULES}
    assert not LONG_MODULES.keys() - long.keys(), "on the list, and short or gone: take it off"


def test_functions_are_short() -> None:
    """A function fits on a screen: at most 70 lines."""
    long = [
        f"{name}:{node.lineno}: {node.name} has {lines} lines"
        for name in sources()
        for node in nodes(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("place", ["offloaderd/", "tools/", "bench/", "tests/"])
def test_what_is_public_says_what_it_is(place: str) -> None:
    """Every public module, class and function has a docstring, and every test one that says what it holds."""
    assert not [missing for name in sources() if name.startswith(place) for missing in undocumented(name)]


def test_test_names_are_unique_in_their_module() -> None:
    """A second test of one name would silently replace the first."""
    twice = [
        f"{name}: {test}"
        for name in sources()
        if name.startswith("tests/")
        for test, count in Counter(
            node.name
            for node in tree(name).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ).items()
        if count > 1
    ]
    assert not twice


def test_nothing_is_left_over() -> None:
    """No notes to oneself, nothing unfinished, no debugger in what is shipped or tested."""
    found = [
        f"{name}: {what}: {match.group()}"
        for name in tracked()
        if name.endswith((".py", ".proto", ".toml", "Makefile", ".md")) and not name.endswith("_pb2_grpc.py")
        for what, pattern in LEFTOVERS.items()
        if not (what == "something not written yet" and name.startswith("tests/"))  # a stub may refuse
        for match in pattern.finditer(text(name))
    ]
    assert not found


def test_unit_tests_know_no_real_time() -> None:
    """Each that needs it says why (tests/unit/conftest.py); to all others time is the loop's, so no machine is slow."""
    modules = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "unit").rglob("*.py")}
    reasons = {path: re.search(r'^REAL_TIME = "(.+)"$', text, re.MULTILINE) for path, text in modules.items()}
    assert [path for path, text in modules.items() if "\nREAL_TIME" in text and not reasons[path]] == []
    real = re.compile(r"\b(SystemClock|time\.(sleep|monotonic)|asyncio\.run)\b")
    assert [str(path) for path, text in modules.items() if not reasons[path] and real.search(text)] == []


def test_errors_of_tasks_are_taken_from_their_group_by_hand() -> None:
    """No `except*`: what it raises is put into a group again by Python 3.11.2, and not by 3.11.7."""
    found = [f"{name}:{node.lineno}" for name in sources() for node in nodes(name) if isinstance(node, ast.TryStar)]
    assert not found


def test_only_commands_print() -> None:
    """The package speaks through its log and its commands; nothing else writes to the terminal."""
    printing = [
        f"{name}:{node.lineno}"
        for name in sources()
        if name.startswith("offloaderd/") and not name.startswith("offloaderd/cli/")
        for node in nodes(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not printing


def test_no_machine_is_named() -> None:
    """No path of a machine and no address of a registry, in requirements least of all."""
    found = [
        f"{name}: {what}: {match.group()!r}"
        for name in tracked()
        if name != "tests/test_tidy.py"
        for what, pattern in MACHINE_WORDS.items()
        for match in pattern.finditer(text(name))
    ]
    assert not found


@pytest.mark.parametrize("library", sorted(KEPT_APART))
def test_libraries_stay_where_they_belong(library: str) -> None:
    """An adapter's library is imported by that adapter only, so that it can be replaced."""
    wrong = [
        name
        for name in sources(generated=True)
        if name.startswith("offloaderd/") and not name.startswith(KEPT_APART[library]) and library in imported(name)
    ]
    assert not wrong


@pytest.mark.parametrize("pattern", sorted(ONLY_HERE))
def test_one_module_alone_does_it(pattern: str) -> None:
    """One pipeline: a second place that did the same would have rules of its own."""
    found = re.compile(pattern)
    places = {
        name
        for name in sources()
        if name.startswith(("offloaderd/segment/", "offloaderd/history/", "offloaderd/topic/", "offloaderd/spark/"))
        and found.search(text(name))
    }
    assert places == {ONLY_HERE[pattern]}


def test_no_function_of_the_package_takes_too_many_arguments() -> None:
    """Who needs more is given what belongs together as one: the linter's bound has no exceptions here."""
    assert not [name for name in sources() if name.startswith("offloaderd/") and "PLR" + "0913" in text(name)]


def test_the_format_does_no_io() -> None:
    """The formats are pure: they open nothing, wait for nothing and ask no clock."""
    banned = {"asyncio", "io", "os", "pathlib", "random", "socket", "subprocess", "threading", "time"}
    impure = {
        name: found
        for name in sources()
        if name.startswith(("offloaderd/format/", "offloaderd/core/entries.py")) and (found := imported(name) & banned)
    }
    assert not impure


def test_a_package_goes_by_its_own_settings() -> None:
    """What is set for another package is its business; only who puts packages together knows all settings."""
    above = ("cli", "daemon", "direct", "drill", "processes", "spark", "standalone", "testing")
    lent = {("ledgers", "bookkeeper")}  # the source of managed ledgers follows them as the section of bookies says
    wrong = []
    for name in (one for one in sources() if one.startswith("offloaderd/")):
        package = name.split("/")[1]
        owners = set(re.findall(r"from offloaderd\.(\w+)(?:\.\w+)*\.settings import", text(name)))
        is_section = name.endswith(("/settings.py", "core/section.py"))
        if package not in above and (
            {(package, owner) for owner in owners - {package}} - lent
            or (not is_section and ("pydantic" in imported(name) or "offloaderd.core.section" in text(name)))
        ):
            wrong.append(name)
    assert not wrong


def test_every_requirement_is_pinned_and_hashed() -> None:
    """Each line of a compiled requirements file is one exact version with its hashes."""
    files = [name for name in tracked() if re.fullmatch(r"requirements/\w+\.txt", name)]
    assert {Path(name).stem for name in files} == {
        "build", "client", "dev", "fuzz", "pack", "runtime", "site", "spark", "standalone",
    }  # fmt: skip
    for name in files:
        blocks = re.split(r"\n(?=\S)", re.sub(r"(?m)^\s*#.*\n?", "", text(name)).strip())
        loose = [block for block in blocks if not re.match(r"[\w.-]+==\S+ \\\n\s+--hash=sha256:", block)]
        assert not loose, name


def test_the_locked_versions_agree() -> None:
    """Who runs and who tests has the same versions of what both have."""
    pins = {
        name: dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", text(f"requirements/{name}.txt")))
        for name in ("build", "client", "dev", "fuzz", "runtime", "site", "spark", "standalone")
    }
    assert pins["standalone"].items() <= pins["dev"].items() <= pins["fuzz"].items()
    assert pins["client"].items() <= pins["runtime"].items()
    assert pins["runtime"].items() <= pins["spark"].items() <= pins["standalone"].items()
    assert pins["build"].items() <= pins["standalone"].items()
    assert {name: pins["dev"].get(name, pin) for name, pin in pins["site"].items()} == pins["site"]


def words_of(name: str) -> set[str]:
    """Return the parts of a name in lower case: those of snake_case, CamelCase and UPPER_CASE."""
    return set(map(str.lower, re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)))


def banned_words(lists: Mapping[str, str]) -> dict[str, str]:
    """Return what is used instead, by each banned word."""
    return {word: instead for instead, words in lists.items() for word in words.split()}


def given_names(module: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield every name that a module gives, with its line: definitions, parameters, variables, attributes, aliases."""
    for node in module:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def misnamed(module: Iterable[ast.AST]) -> list[str]:
    """Return a line for each name of a module with a banned word in it."""
    banned = banned_words(BANNED)
    return [
        f"{line}: {name}: say {banned[word]} for {word}"
        for line, name in given_names(module)
        for word in sorted(words_of(name) & banned.keys())
    ]


def test_names_are_words_of_the_field() -> None:
    """No identifier and no module has a banned word as a part: docs/glossary.md has the words."""
    banned = banned_words(BANNED)
    assert not [f"{name}:{found}" for name in sources() for found in misnamed(nodes(name))]
    assert not [name for name in sources() if words_of(Path(name).stem) & banned.keys()]


def test_names_that_users_see_are_words_of_the_field() -> None:
    """No event, metric or setting has a banned word as a part."""
    banned = banned_words(BANNED | BANNED_FOR_USERS)
    names = {metric.name for metric in all_documented()} | {setting.key for setting in all_settings()}
    names |= {
        event
        for name in sources()
        if name.startswith("offloaderd/")
        for event in re.findall(r'\.(?:debug|info|warning|error|exception)\(\s*"([a-z0-9_]+\.[a-z_]+)"', text(name))
    }
    assert len(names) > 400
    assert not {name: found for name in sorted(names) if (found := words_of(name) & banned.keys())}


@pytest.mark.parametrize("word", banned_words(BANNED))
def test_a_banned_word_is_found_wherever_it_is_a_name(word: str) -> None:
    """Of classes, functions, parameters, variables, attributes and imports, whatever their case; and only as a part."""
    for source in (
        f"class A{word.title()}B: ...",
        f"async def open_{word}(): ...",
        f"def f(*, last_{word}=0): ...",
        f"{word.upper()}_MAX = 1",
        f"self._{word} = 1",
        f"for a{word.title()} in x: ...",
        f"import a as _{word}",
    ):
        assert len(misnamed(ast.walk(ast.parse(source)))) == 1, source
    assert not misnamed(ast.walk(ast.parse(f"x{word}s = open_{word}er()")))


def test_every_guard_was_proven_as_it_is() -> None:
    """Each line of tests/invariants.proven holds, and no guard lacks one: `make invariants` writes them."""
    assert not stale(), "not proven as they are: run `make invariants`, and commit tests/invariants.proven"


def test_every_test_that_a_page_names_is_there() -> None:
    """A page may promise only what a test shows: `tests/FILE.py` and `tests/FILE.py::NAME`."""
    named = {match for page in pages() for match in TEST_NAME.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    texts = {file: (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else "" for file, _ in named}
    assert [file for file, text in texts.items() if not text] == []
    assert [f"{file}::{name}" for file, name in named if name and f"def {name}(" not in texts[file]] == []
