"""Remove each guard of a promise, check that its test fails, and write the page that lists them all.

tests/invariants.toml names for every promise the guards in the code, and for every guard a test and a mutation. A
mutation is applied to a copy of the tree, where the test must then fail: a test that passes without its guard proves
nothing. Run it for all guards, or for those whose promise or file contains a word: `python tools/invariants.py P4`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "invariants.toml"
COPIED = ("offloaderd", "tests", "protos", "pyproject.toml")
PATIENCE_S = 15.0
"""How long a test waits for something, most often in vain."""
TEST_TIMEOUT_S, TIMEOUT_S = 60, 100.0
"""A test that hangs without its guard has noticed as well; its own time limit comes first."""
FAILED_TESTS = 1
"""Exit code of pytest when tests ran and some failed; any other means that they could not run."""


class Verdict(Enum):
    """The result of a mutation."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A place in the code that keeps a promise; `old` becomes `new`, and `test` must fail."""

    promise: str
    does: str
    file: str
    old: str
    new: str
    test: str

    @property
    def name(self) -> str:
        """Short name for lists."""
        return f"{self.promise} {self.does}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise to users, the way in which it is kept, and its guards."""

    name: str
    says: str
    how: str
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one guard's mutation; `output` is the end of the test's output."""

    guard: Guard
    verdict: Verdict
    output: str


def promises(path: Path = LIST) -> list[Promise]:
    """Read the list of promises."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["promise"]
    return [
        Promise(
            name=one["name"],
            says=one["says"],
            how=one["how"],
            guards=tuple(Guard(promise=one["name"], **guard) for guard in one["guard"]),
        )
        for one in found
    ]


def guards() -> list[Guard]:
    """Return every guard of every promise."""
    return [guard for promise in promises() for guard in promise.guards]


def mutated(source: str, guard: Guard) -> str:
    """Return a module without the guard. Raises ValueError unless the guard is there exactly once and it compiles."""
    if source.count(guard.old) != 1:
        raise ValueError(f"{guard.file} has {source.count(guard.old)} places like {guard.old!r}, not one")
    text = source.replace(guard.old, guard.new)
    compile(text, guard.file, "exec")
    return text


def try_without(guard: Guard, root: Path = ROOT) -> Outcome:
    """Run a guard's test on a copy of the tree without the guard."""
    try:
        text = mutated((root / guard.file).read_text(encoding="utf-8"), guard)
    except (ValueError, SyntaxError, OSError) as error:
        return Outcome(guard, Verdict.BROKEN, str(error))
    with tempfile.TemporaryDirectory(prefix="offloaderd-guard-") as name:
        copy = Path(name)
        for part in COPIED:
            if (root / part).is_dir():
                shutil.copytree(root / part, copy / part)
            else:
                shutil.copy2(root / part, copy / part)
        (copy / guard.file).write_text(text, encoding="utf-8")
        return Outcome(guard, *_verdict_of(_run([guard.test], copy)))


def _run(tests: list[str], tree: Path) -> subprocess.CompletedProcess[str] | None:
    """Run tests of a tree in a process of their own; None when they did not end in time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--hypothesis-seed=0",
        "-o",
        f"timeout={TEST_TIMEOUT_S}",
        *tests,
    ]
    try:
        return subprocess.run(
            command,
            cwd=tree,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1", "TEST_PATIENCE_S": f"{PATIENCE_S:g}"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _verdict_of(done: subprocess.CompletedProcess[str] | None) -> tuple[Verdict, str]:
    if done is None:
        return Verdict.CAUGHT, f"the test hung for {TIMEOUT_S:g} s"
    output = (done.stdout + done.stderr)[-3000:]
    if done.returncode == 0:
        return Verdict.SURVIVED, output
    collected = done.returncode == FAILED_TESTS and "error during collection" not in done.stdout
    return (Verdict.CAUGHT if collected else Verdict.BROKEN), output


def page() -> str:
    """Return docs/proof/invariants.md."""
    lines = [
        "# Promises, and what keeps them",
        "",
        "Generated from `tests/invariants.toml` by `make docs`. Each guard was taken out of the code, and its test",
        "then failed: `make invariants` does so for all of them, and `make test` includes it. Beside these tests,",
        "the promises are checked in the deterministic simulation (`make simulate`) and on real processes",
        "(`make soak`).",
    ]
    for promise in promises():
        lines += ["", f"## {promise.name}: {promise.says}", "", promise.how, ""]
        lines += ["| guard | where | test that fails without it | mutation |", "|---|---|---|---|"]
        for guard in promise.guards:
            change = f"`{_cell(guard.old)}` → " + (f"`{_cell(guard.new)}`" if guard.new.strip() else "removed")
            lines.append(f"| {guard.does} | `{guard.file}` | `{guard.test.removeprefix('tests/')}` | {change} |")
    return "\n".join(lines) + "\n"


def _cell(code: str) -> str:
    return " ".join(code.split()).replace("|", "\\|")


def main() -> None:
    """Try all guards, or those that were named; exit 1 unless every mutation was caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only guards whose promise, file or test contains one of these")
    parser.add_argument("--workers", type=int, default=2, help="tests at a time (default 2)")
    given = parser.parse_args()
    wanted = [
        guard
        for guard in guards()
        if not given.words or any(word in f"{guard.promise} {guard.file} {guard.test}" for word in given.words)
    ]
    sound = _run(sorted({guard.test for guard in wanted}), ROOT)
    if sound is not None and sound.returncode != 0:
        sys.exit(f"the tests fail with every guard in place:\n{sound.stdout[-3000:]}")
    bad = 0
    with ThreadPoolExecutor(given.workers) as pool:
        for outcome in pool.map(try_without, wanted):
            sys.stdout.write(f"{outcome.verdict.value:9} {outcome.guard.name}\n")
            if outcome.verdict is not Verdict.CAUGHT:
                bad += 1
                sys.stdout.write(f"{outcome.output}\n")
    sys.stdout.write(f"{len(wanted) - bad} of {len(wanted)} mutations were caught\n")
    sys.exit(1 if bad or not wanted else 0)


if __name__ == "__main__":
    main()
