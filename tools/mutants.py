"""Change a line of the package as you like, and see which unit test notices: python tools/mutants.py FILE:LINE OLD NEW.

All modules of unit tests whose imports reach the changed one run in forks (tools/fork_server.py), the nearest first,
until a test fails that passes without the change; with --all to the end. A change that no test notices needs a test,
and a guard if it breaks a promise (tests/invariants.toml). Exit code 0: noticed, 1: not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.fork_server import ForkServer, on_servers
from tools.imports import Imports

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 5.0
LIMIT_S = 300.0
"""For a module of tests."""


def changed(source: str, line: int, old: str, new: str) -> str:
    """Return a source with `new` for the one `old` that begins on a line, counted from 1. ValueError: there is none."""
    lines = source.splitlines(keepends=True)
    if not 1 <= line <= len(lines):
        raise ValueError(f"there is no line {line}, only {len(lines)}")
    before, after = "".join(lines[: line - 1]), "".join(lines[line - 1 :])
    places = [at for at in range(len(lines[line - 1])) if after.startswith(old, at)]
    if len(places) != 1:
        raise ValueError(f"{len(places)} places like {old!r} begin on line {line}, not one: {lines[line - 1].strip()}")
    text = before + after[: places[0]] + new + after[places[0] + len(old) :]
    compile(text, "the changed source", "exec")
    return text


def caught_by(server: ForkServer, tests: str, change: tuple[str, str], root: Path = ROOT) -> str:
    """Run a module of tests, and say which test fails for the change alone; "" if none does.

    A run ends with its first failure; one that is there without the change as well hides no other.
    """
    chosen = [tests]
    while True:
        run = server.run(chosen, change, root=root, patience_s=PATIENCE_S, limit_s=LIMIT_S)
        if run.sound:
            return ""
        sound = server.run(run.failed or chosen, root=root, patience_s=PATIENCE_S, limit_s=LIMIT_S)
        if sound.sound:
            break
        if not run.failed:
            return ""
        chosen += [f"--deselect={one}" for one in run.failed]
    if run.failed:
        return f"{run.failed[0]} fails"
    return f"{tests} {'hangs' if run.hung else 'cannot run: ' + (run.import_error or ', '.join(run.errors))}"


def search(modules: list[str], change: tuple[str, str], *, everything: bool, workers: int) -> int:
    """Run modules of tests on a change, report what is noticed, and return by how many."""
    found = 0
    for words in on_servers(lambda server, module: caught_by(server, module, change), modules, workers):
        if words:
            found += 1
            sys.stdout.write(f"caught: {words}\n")
            if not everything:
                break
    return found


def main() -> None:
    """Change the line, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("place", help="file and line, as offloaderd/segment/states.py:71")
    parser.add_argument("old", help="text that begins on this line, once")
    parser.add_argument("new", help="what is there instead")
    parser.add_argument("--all", action="store_true", help="do not stop at the first test that fails")
    parser.add_argument("--workers", type=int, default=2, help="modules of tests at a time (default 2)")
    given = parser.parse_args()
    file, _, line = given.place.rpartition(":")
    try:
        text = changed((ROOT / file).read_text(encoding="utf-8"), int(line), given.old, given.new)
    except (OSError, ValueError, SyntaxError) as error:
        sys.exit(f"{given.place}: {error}")
    modules = Imports().reaching(file)
    sys.stdout.write(f"{len(modules)} modules of unit tests reach {file}\n")
    if not modules or not search(modules, (file, text), everything=given.all, workers=given.workers):
        sys.exit("SURVIVED: no unit test notices")


if __name__ == "__main__":
    main()
