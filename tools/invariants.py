"""Remove each guard of a promise, check that its test fails, and write the page that lists them all.

tests/invariants.toml names for every promise the guards in the code, and for every guard a test and a mutation. A
mutation is applied in a fork of a server (tools/fork_server.py), where the test must then fail: a test that passes
without its guard proves nothing. What was proven is kept in tests/invariants.proven, a line a guard, and proven again
when something changes that the line was made of: `python tools/invariants.py`, or for those guards whose promise, file
or test contains a word `python tools/invariants.py P4`. With --all nothing is taken from the file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from tools.fork_server import LIMIT_S, on_servers
from tools.imports import Imports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tools.fork_server import ForkServer, Run

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "invariants.toml"
PROVEN = ROOT / "tests" / "invariants.proven"
MACHINERY = 1
"""Part of every line: another number where the way changes in which a guard is proven, and all are proven anew."""
DIGITS = 20
PATIENCE_MIN_S, PATIENCE_MAX_S, PATIENCE_TIMES = 2.0, 15.0, 5
"""How long a test waits without its guard, most often in vain: some times what the whole test takes with it."""
LIMIT_MIN_S, LIMIT_TIMES = 20.0, 20
"""After what time it hangs."""
TESTS_FAILED = 1
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
    """The result of one guard's mutation; `output` says why, with the end of the test's output."""

    guard: Guard
    verdict: Verdict
    output: str
    hung: bool = False


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


class Prover:
    """Tries guards on a server of forks; each test once with every guard in place, and then without the one."""

    def __init__(self, server: ForkServer, root: Path = ROOT) -> None:
        self._server = server
        self._root = root
        self._seconds: dict[str, float] = {}
        """What a test takes that has passed with every guard in place."""

    def check(self, tests: Sequence[str]) -> str:
        """Run tests with every guard in place; returns the output if they do not all pass."""
        due = [test for test in dict.fromkeys(tests) if test not in self._seconds]
        if not due:
            return ""
        run = self._server.run(due, root=self._root, limit_s=len(due) * LIMIT_S)
        if not run.sound:
            return f"hung: {run.hung}, failed: {run.failed}, errors: {run.errors}\n{run.output}"
        for test in due:
            parts = (f"{test}[", f"{test}::")
            self._seconds[test] = sum(s for name, s in run.passed.items() if name == test or name.startswith(parts))
        return ""

    def try_without(self, guard: Guard) -> Outcome:
        """Run a guard's test without the guard."""
        try:
            text = mutated((self._root / guard.file).read_text(encoding="utf-8"), guard)
        except (ValueError, SyntaxError, OSError) as error:
            return Outcome(guard, Verdict.BROKEN, str(error))
        if output := self.check([guard.test]):
            return Outcome(guard, Verdict.BROKEN, f"the test does not pass with every guard in place: {output}")
        seconds = self._seconds[guard.test]
        patience_s = min(max(PATIENCE_TIMES * seconds, PATIENCE_MIN_S), PATIENCE_MAX_S)
        limit_s = max(LIMIT_TIMES * seconds, LIMIT_MIN_S)
        change = (guard.file, text)
        run = self._server.run([guard.test], change, root=self._root, patience_s=patience_s, limit_s=limit_s)
        verdict, reason = classify(run)
        if verdict is Verdict.CAUGHT and (run.hung or "TimeoutError" in run.output):
            sound = self._server.run([guard.test], root=self._root, patience_s=patience_s, limit_s=limit_s)
            if not sound.sound:  # the machine was busy, or the test is unsteady
                return Outcome(
                    guard, Verdict.BROKEN, f"{reason}, and so it does with every guard in place\n{run.output}"
                )
        return Outcome(guard, verdict, f"{reason}\n{run.output}", run.hung)


def classify(run: Run) -> tuple[Verdict, str]:
    """Return what a run on changed code says about the tests, and why. Only the failed call of a test has noticed."""
    if run.import_error:
        return Verdict.BROKEN, f"the changed module cannot be imported: {run.import_error}"
    if run.hung:
        return Verdict.CAUGHT, "the test hung"
    if run.code == TESTS_FAILED and run.failed:
        return Verdict.CAUGHT, f"failed: {', '.join(run.failed)}"
    if run.sound:
        return Verdict.SURVIVED, "the test passed" if run.imported else "the test passed, and never imports the module"
    return Verdict.BROKEN, f"no test's call failed (exit code {run.code}; errors: {', '.join(run.errors) or 'none'})"


def line_of(guard: Guard, imports: Imports) -> str:
    """Return the line that a proven guard has: a hash of all that the verdict was made of, and its name.

    That is the mutation, the guarded module, the test and what it is made of below tests/, this machinery and Python.
    Other modules of the package are no part of it, and no path is: what only moves stays proven.
    """
    file, _, test = guard.test.partition("::")
    sources = sorted(_digest(imports.text(part)) for part in imports.of_test(file))
    python = ".".join(map(str, sys.version_info[:2]))
    whole = [str(MACHINERY), python, guard.old, guard.new, test, imports.text(guard.file), *sources]
    return f"{_digest(chr(0).join(whole))[:DIGITS]}  {guard.name}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def proven(path: Path = PROVEN) -> set[str]:
    """Return the lines of what was proven; none where there is no file."""
    return set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()


def stale(path: Path = PROVEN) -> list[str]:
    """Return the guards whose line is missing or was made of something else, and lines that are of no guard."""
    imports = Imports()
    lines = {line_of(guard, imports) for guard in guards()}
    return sorted(line.partition("  ")[2] for line in lines ^ proven(path))


def page() -> str:
    """Return docs/proof/invariants.md."""
    lines = [
        "# Promises, and what keeps them",
        "",
        "Generated from `tests/invariants.toml` by `make docs`. Each guard was taken out of the code, and its test",
        "then failed: `make invariants ALL=1` does so for all of them, `make test` for those that have changed since",
        "(`tests/invariants.proven`). Beside these tests, the promises are checked in the deterministic simulation",
        "(`make simulate`) and on real processes (`make soak`).",
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


def prove(wanted: Sequence[Guard], path: Path = PROVEN, *, everything: bool = False, workers: int = 2) -> bool:
    """Prove those guards whose line in a file is stale, or all, rewrite the file, and report; True: all were caught."""
    imports = Imports()
    before = proven(path)
    lines = {guard: line_of(guard, imports) for guard in wanted}
    due = [guard for guard in wanted if everything or lines[guard] not in before]
    count: Counter[str] = Counter(kept=len(wanted) - len(due))
    kept = before.intersection(lines.values())
    try:
        for outcome in outcomes(due, workers):
            sys.stdout.write(f"{outcome.verdict.value:9} {outcome.guard.name}\n")
            if outcome.verdict is Verdict.CAUGHT:
                kept.add(lines[outcome.guard])
                count.update(proven=1, hung=outcome.hung)
            else:
                kept.discard(lines[outcome.guard])
                count["bad"] += 1
                sys.stdout.write(f"{outcome.output}\n")
    finally:
        _write(path, kept, {guard.name for guard in wanted})
    sys.stdout.write(summary(count) + "\n")
    return not count["bad"]


def summary(count: Counter[str]) -> str:
    """Say how many guards were kept and proven, how many of these by a test that hung, and how many were not."""
    words = [f"{count['kept']} kept", f"{count['proven']} proven"]
    words += [f"{count['hung']} of them by a test that hung"] if count["hung"] else []
    words += [f"{count['bad']} NOT CAUGHT"] if count["bad"] else []
    return f"guards: {', '.join(words)}"


def outcomes(due: Sequence[Guard], workers: int) -> Iterator[Outcome]:
    """Yield the results of guards, as they come in; those of one module of tests one after the other."""
    by_module: defaultdict[str, list[Guard]] = defaultdict(list)
    for guard in due:
        by_module[guard.test.partition("::")[0]].append(guard)
    for done in on_servers(_try_each, list(by_module.values()), workers):
        yield from done


def _try_each(server: ForkServer, same_module: list[Guard]) -> list[Outcome]:
    prover = Prover(server)
    prover.check([guard.test for guard in same_module])  # at once; where one fails, each says so for itself
    return [prover.try_without(guard) for guard in same_module]


def _write(path: Path, lines: set[str], names: set[str]) -> None:
    """Replace the lines of some guards; those of guards that are no more go as well."""
    others = {guard.name for guard in guards()} - names
    lines |= {line for line in proven(path) if line.partition("  ")[2] in others}
    path.write_text("".join(f"{line}\n" for line in sorted(lines, key=_by_name)), encoding="utf-8")


def _by_name(line: str) -> tuple[int, str]:
    promise, _, does = line.partition("  ")[2].partition(" ")
    return int(promise.removeprefix("P")), does


def main() -> None:
    """Prove what is stale, or all; exit 1 unless every mutation was caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only guards whose promise, file or test contains one of these")
    parser.add_argument("--all", action="store_true", help="prove what is in tests/invariants.proven as well")
    parser.add_argument("--workers", type=int, default=2, help="tests at a time (default 2)")
    given = parser.parse_args()
    wanted = [
        guard
        for guard in guards()
        if not given.words or any(word in f"{guard.promise} {guard.file} {guard.test}" for word in given.words)
    ]
    if not wanted:
        sys.exit(f"no guard's promise, file or test contains {' or '.join(given.words)}")
    sys.exit(not prove(wanted, everything=given.all, workers=given.workers))


if __name__ == "__main__":
    main()
