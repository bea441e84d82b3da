"""Every guard of a promise has a test that fails when the guard is taken away (docs/proof/invariants.md).

Guards whose line in tests/invariants.proven holds are kept; PROVE_EVERY_GUARD=1 proves all, and does not read the file.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tools import fork_server, invariants, mutants
from tools.fork_server import ForkServer, Run
from tools.imports import Imports
from tools.invariants import Guard, Prover, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMISES = {f"P{number}" for number in range(1, 12)}

MODULE = """\
LIMIT = 1


def size(number):
    return min(number, LIMIT)
"""
TESTS = """\
import subprocess
import sys

import pytest

from offloaderd.thing import size
from tests.rig import FIVE


@pytest.fixture
def limited():
    assert size(FIVE) == 1


def test_limited():
    assert size(FIVE) == 1


def test_in_its_fixture(limited):
    pass


def test_in_a_child():
    subprocess.run([sys.executable, "-c", "from offloaderd.thing import size; assert size(5) == 1"], check=True)


def test_that_waits():
    while size(FIVE) != 1:
        pass


def test_that_fails():
    assert size(FIVE) == 2
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """The server of forks that this file's tests share."""
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def prover(server: ForkServer) -> Prover:
    """What tries guards of this tree; a test with every guard in place is run once."""
    return Prover(server)


@cache
def kept() -> set[str]:
    """Return the names of the guards that are not proven again."""
    if os.environ.get("PROVE_EVERY_GUARD"):
        return set()
    imports, lines = Imports(), invariants.proven()
    return {guard.name for guard in invariants.guards() if invariants.line_of(guard, imports) in lines}


@pytest.mark.parametrize("guard", invariants.guards(), ids=lambda guard: f"{guard.promise}-{guard.does[:60]}")
def test_a_promise_breaks_without_its_guard(
    guard: Guard, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """The guard's test fails in a fork that runs without the guard."""
    if guard.name in kept():
        record_property("guard", "kept")
        return
    prover: Prover = request.getfixturevalue("prover")
    outcome = prover.try_without(guard)
    assert outcome.verdict is Verdict.CAUGHT, outcome.output
    record_property("guard", "proven")
    if outcome.hung:
        record_property("guard", "hung")


def test_every_promise_has_guards() -> None:
    """P1 to P11 are all listed, each with a guard at least, and no two guards of a promise do the same."""
    listed = {promise.name: promise.guards for promise in invariants.promises()}
    assert listed.keys() == PROMISES
    assert all(listed.values())
    assert len({guard.name for guard in invariants.guards()}) == len(invariants.guards())


def test_a_mutation_that_changes_nothing_survives(prover: Prover) -> None:
    """The check can fail: with the guard still in place its test passes, and that is told."""
    assert prover.try_without(unchanged()).verdict is Verdict.SURVIVED


def quick() -> Guard:
    """Return a guard whose test takes no time."""
    return next(guard for guard in invariants.guards() if "test_identity_record" in guard.test)


def unchanged() -> Guard:
    """Return a guard whose mutation changes nothing."""
    guard = quick()
    return Guard(promise="P0", does="stay", file=guard.file, old=guard.old, new=guard.old, test=guard.test)


def test_a_mutation_that_does_not_fit_is_told(prover: Prover) -> None:
    """A guard that has moved, or a test that is gone, is no success."""
    guard = quick()
    moved = Guard(promise="P0", does="move", file=guard.file, old="no such line", new="", test=guard.test)
    assert prover.try_without(moved).verdict is Verdict.BROKEN
    missing = "tests/test_tidy.py::test_no_such"
    gone = Guard(promise="P0", does="go", file=guard.file, old=guard.old, new=guard.new, test=missing)
    outcome = prover.try_without(gone)
    assert outcome.verdict is Verdict.BROKEN, outcome.output


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """A tree with one module, a rig and tests."""
    for file, text in {
        "offloaderd/__init__.py": "",
        "offloaderd/thing.py": MODULE,
        "offloaderd/other.py": "from offloaderd import thing\n",
        "tests/__init__.py": "",
        "tests/conftest.py": "",
        "tests/rig.py": "FIVE = 5\n",
        "tests/unit/__init__.py": "",
        "tests/unit/test_thing.py": TESTS,
        "tests/unit/test_other.py": "def test_nothing():\n    from offloaderd import other\n    assert other.thing\n",
        "tests/unit/test_apart.py": "def test_nothing():\n    pass\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    return tmp_path


def guard_of(test: str, old: str = "min(number, LIMIT)", new: str = "number") -> Guard:
    """Return a guard of the small tree."""
    name = f"tests/unit/test_thing.py::{test}"
    return Guard(promise="P0", does="limit", file="offloaderd/thing.py", old=old, new=new, test=name)


@pytest.mark.parametrize(
    ("guard", "verdict"),
    [
        (guard_of("test_limited"), Verdict.CAUGHT),
        (guard_of("test_in_a_child"), Verdict.CAUGHT),
        (guard_of("test_limited", old="LIMIT = 1", new="LIMIT = 0 + 1"), Verdict.SURVIVED),
        (guard_of("test_limited", old="LIMIT = 1", new="LIMIT = one"), Verdict.BROKEN),
        (guard_of("test_limited", old="def size", new="def other"), Verdict.BROKEN),
        (guard_of("test_in_its_fixture"), Verdict.BROKEN),
        (guard_of("test_that_fails"), Verdict.BROKEN),
    ],
    ids=["call", "child", "same", "import", "collection", "fixture", "unsound"],
)
def test_only_the_failed_call_of_a_test_has_noticed(
    server: ForkServer, small_tree: Path, guard: Guard, verdict: Verdict
) -> None:
    """Neither a module that cannot be imported nor a fixture is what the guard's test asserts; a child's failure is."""
    outcome = Prover(server, small_tree).try_without(guard)
    assert outcome.verdict is verdict, outcome.output
    assert (small_tree / guard.file).read_text(encoding="utf-8") == MODULE


def test_a_test_that_hangs_has_noticed_and_is_counted(server: ForkServer, small_tree: Path) -> None:
    """It is killed at the limit; the next one is not held up."""
    guard = guard_of("test_that_waits")
    change = (guard.file, invariants.mutated(MODULE, guard))
    run = server.run([guard.test], change, root=small_tree, limit_s=1.0)
    assert run.hung
    assert invariants.classify(run)[0] is Verdict.CAUGHT
    assert server.run([guard.test], root=small_tree).sound


class Answers:
    """Stands for a server, and gives these answers."""

    def __init__(self, *runs: Run) -> None:
        self._runs = iter(runs)

    def run(self, *_: object, **__: object) -> Run:
        """Return the next answer."""
        return next(self._runs)


@pytest.mark.parametrize("late", [Run(hung=True), Run(code=1, failed=["x"], output="E   TimeoutError")])
@pytest.mark.parametrize("sound", [True, False])
def test_a_test_that_is_late_with_the_guard_as_well_has_not_noticed(
    small_tree: Path, late: Run, *, sound: bool
) -> None:
    """A machine that stood still for a while proves nothing: such a test is run again, as patiently, on sound code."""
    guard = guard_of("test_limited")
    passed = Run(code=0, passed={guard.test: 0.1})
    server = cast("ForkServer", Answers(passed, late, passed if sound else late))
    assert Prover(server, small_tree).try_without(guard).verdict is (Verdict.CAUGHT if sound else Verdict.BROKEN)


@pytest.mark.parametrize("again", [Run(code=1, failed=["x"]), Run(hung=True), Run()])
def test_a_change_by_hand_is_noticed_only_by_a_test_that_passes_without_it(again: Run) -> None:
    """Not by one that fails, hangs or ends its process then."""
    failed = Run(code=1, failed=["x"])
    server = cast("ForkServer", Answers(failed, again, Run(code=5), Run(code=5)))
    assert not mutants.caught_by(server, "x", ("file", "text"))
    sound = Run(code=0, passed={"x": 0.1})
    assert mutants.caught_by(cast("ForkServer", Answers(failed, sound)), "x", ("file", "text")) == "x fails"


def test_a_process_with_threads_or_modules_of_ours_is_not_forked() -> None:
    """This one has imported the package: a fork of it would run what it has, not what is changed."""
    with pytest.raises(RuntimeError, match=r"threads, not one|has imported"):
        fork_server.check_fit_to_fork()


@pytest.mark.parametrize(
    ("file", "again"),
    [
        ("offloaderd/thing.py", True),
        ("offloaderd/other.py", False),
        ("tests/conftest.py", True),
        ("tests/rig.py", True),
        ("tests/unit/test_thing.py", True),
        ("tests/unit/test_apart.py", False),
    ],
)
def test_a_guard_is_proven_again_when_its_verdict_may_differ(small_tree: Path, file: str, *, again: bool) -> None:
    """After a change of the guarded module, of the test, or of what the test imports below tests/."""
    line = invariants.line_of(guard_of("test_limited"), Imports(small_tree))
    with (small_tree / file).open("a", encoding="utf-8") as changed:
        changed.write("\n# changed\n")
    assert (invariants.line_of(guard_of("test_limited"), Imports(small_tree)) != line) is again


def test_another_mutation_or_test_is_proven_again_and_what_moved_is_not(small_tree: Path) -> None:
    """No path is part of a line."""
    guard = guard_of("test_limited")
    line = invariants.line_of(guard, Imports(small_tree))
    others = [
        guard_of("test_limited", new="LIMIT"),
        guard_of("test_limited", old="LIMIT = 1"),
        guard_of("test_in_a_child"),
    ]
    assert line not in {invariants.line_of(other, Imports(small_tree)) for other in others}
    shutil.move(small_tree / guard.file, small_tree / "offloaderd/moved.py")
    moved = Guard(promise="P0", does="limit", file="offloaderd/moved.py", old=guard.old, new=guard.new, test=guard.test)
    assert invariants.line_of(moved, Imports(small_tree)) == line


def test_a_forged_line_is_found(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that claims what is not so is kept where only what is stale is proven; --all finds and removes it."""
    monkeypatch.setattr(invariants, "on_servers", lambda work, jobs, _: (work(server, job) for job in jobs))
    guard, path = unchanged(), tmp_path / "proven"
    path.write_text(f"{invariants.line_of(guard, Imports())}\n", encoding="utf-8")
    assert invariants.prove([guard], path)
    assert "guards: 1 kept, 0 proven" in capsys.readouterr().out
    assert not invariants.prove([guard], path, everything=True)
    assert "1 NOT CAUGHT" in capsys.readouterr().out
    assert not invariants.proven(path)


def test_what_is_proven_is_kept_and_lines_that_are_stale_are_told(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard's line is written when it was caught; a line of no guard goes."""
    monkeypatch.setattr(invariants, "on_servers", lambda work, jobs, _: (work(server, job) for job in jobs))
    guard, path = quick(), tmp_path / "proven"
    monkeypatch.setattr(invariants, "guards", lambda: [guard])
    path.write_text(f"{'0' * 20}  P0 no guard\n{'0' * 20}  {guard.name}\n", encoding="utf-8")
    assert set(invariants.stale(path)) == {"P0 no guard", guard.name}
    assert invariants.prove([guard], path)
    assert invariants.proven(path) == {invariants.line_of(guard, Imports())}
    assert not invariants.stale(path)


def test_where_everything_is_proven_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make prove` does not read the lines."""
    guard = quick()
    monkeypatch.setattr(invariants, "guards", lambda: [guard])
    monkeypatch.setattr(invariants, "proven", lambda: {invariants.line_of(guard, Imports())})
    monkeypatch.delenv("PROVE_EVERY_GUARD", raising=False)
    assert kept.__wrapped__() == {guard.name}
    monkeypatch.setenv("PROVE_EVERY_GUARD", "1")
    assert not kept.__wrapped__()


def test_a_change_by_hand_is_tried_on_the_tests_that_reach_it(server: ForkServer, small_tree: Path) -> None:
    """The nearest first, others not at all; what fails without the change as well has not noticed it."""
    near, far = "tests/unit/test_thing.py", "tests/unit/test_other.py"
    assert Imports(small_tree).reaching("offloaderd/thing.py") == [near, far]
    change = ("offloaderd/thing.py", mutants.changed(MODULE, 5, "min(number, LIMIT)", "number"))
    assert mutants.caught_by(server, near, change, small_tree) == f"{near}::test_limited fails"
    assert not mutants.caught_by(server, far, change, small_tree)
    same = ("offloaderd/thing.py", mutants.changed(MODULE, 1, "LIMIT", "LIMIT"))
    assert not mutants.caught_by(server, near, same, small_tree)


def test_what_fails_without_the_change_as_well_hides_no_test_that_notices(server: ForkServer, small_tree: Path) -> None:
    """A run ends with its first failure: those behind it are run as well."""
    file, tests = "tests/unit/test_thing.py", small_tree / "tests" / "unit" / "test_thing.py"
    tests.write_text(TESTS.replace("def test_limited", "def test_broken():\n    assert False\n\n\ndef test_limited"))
    change = ("offloaderd/thing.py", mutants.changed(MODULE, 5, "min(number, LIMIT)", "number"))
    assert mutants.caught_by(server, file, change, small_tree) == f"{file}::test_limited fails"


@pytest.mark.parametrize(("line", "old"), [(4, "LIMIT"), (5, "MAXIMUM"), (5, "m"), (9, "LIMIT")])
def test_a_change_by_hand_has_to_fit(line: int, old: str) -> None:
    """The text begins on that line, once."""
    with pytest.raises(ValueError, match=r"begin on line|there is no line"):
        mutants.changed(MODULE, line, old, "x")
