"""Prove everything: `make prove`, or parts of it (`make prove PARTS="guards seeds"`).

The parts together are all tests there are, with 10,000 seeds. What ended is recorded under `build/prove/`, by the state
of the work tree: the same command again runs what failed and what is missing; a changed tree begins anew. Only seeds
that passed in another tree count in this one if all that the simulation is made of is the same; --fresh forgets them as
well. `report.md` and `report.json` say what ran, how long, and what was left out and why.

Exit code: 0 green; 1 something failed, or was left out for another reason than a missing tool; 2 unfinished. What runs
while the tree is changed does not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.clock import SystemClock
from tests.recording import COLLECTED, DONE, ITEMS, Ended
from tests.tiers import DRAWN_BY
from tools.git import git
from tools.imports import Imports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
PROOFS = ROOT / "build" / "prove"
KEPT = ROOT / "docs" / "proof" / "seeds"
"""The record of seeds that git has: it has the form of a proof."""
REAL = ("servers", "kills", "commands", "documents", "deploy", "bookies", "pulsar", "broker", "spark")
PARTS: Mapping[str, tuple[str, ...]] = {
    "unit": ("tests/unit", "tests/test_tidy.py", "tests/test_pips.py"),
    "golden": ("tests/golden",),
    "conformance": ("tests/conformance",),
    "guards": ("tests/test_invariants.py",),
    "seeds": ("tests/simulation",),
    **{name: (f"tests/integration/{name}",) for name in REAL},
}
"""Paths of each part; each test is in one part."""
MAY_BE_MISSING = (
    *(
        "needs Maven",
        "needs a C compiler",
        "no promtool",
        "out of reach",
        "authorities where we do not look",
        "make test-cluster",
    ),
    *(
        "no fake-gcs-server in build",
        "was not built: make readers",
        "in build/kubernetes",
        "no Node with npm",
        "npm cannot install Azurite",
    ),
)
"""Words of reasons to leave a test out: a tool or a service that the machine has not. Any other skip is a failure."""
OK, FAILED, UNFINISHED = 0, 1, 2
INTERRUPTED = 2
ENDED = frozenset({0, 1, 5})
"""Exit codes of pytest when it ran to its end: all passed, some failed, there was nothing to run."""
OUTCOMES = ("passed", "failed", "skipped", "missing")
SIMULATION = "simulation.txt"
"""The file of a proof with the hash of all that its seeds ran."""
FRESH = "fresh"
"""The file of a proof that takes over no seeds, however often it goes on."""
CLOCK = SystemClock()
SLOWEST = 10


class Figures(NamedTuple):
    """The figures of a part."""

    passed: int
    failed: int
    skipped: int
    missing: int
    """Tests that have not ended yet."""
    minutes: float
    """Of all workers together."""


def part_of(test: str) -> str:
    """Return the part that a test, or its file, belongs to. Raises LookupError for none."""
    file = test.partition("::")[0]
    for name, paths in PARTS.items():
        if any(file == path or file.startswith(f"{path}/") for path in paths):
            return name
    raise LookupError(f"{file} belongs to no part of the proof: add it to PARTS in tools/prove.py")


def state() -> str:
    """Return the hash of the work tree as it is, files that git does not track yet included, and Python's version."""
    with tempfile.TemporaryDirectory() as place:
        index = Path(place) / "index"
        shutil.copy(git("rev-parse", "--path-format=absolute", "--git-path", "index"), index)
        git("add", "--all", index=index)
        return f"{git('write-tree', index=index)[:16]}-{platform.python_version()}"


def simulation() -> str:
    """Return the hash of all that seeds run: the simulation, what it imports, the locked libraries and Python."""
    imports = Imports(ROOT)
    files = {"requirements/dev.txt"}
    for path in sorted((ROOT / "tests" / "simulation").glob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        files |= {*imports.distances(name), *imports.of_test(name)}
    whole = hashlib.sha256(platform.python_version().encode())
    for file in sorted(files):
        whole.update(file.encode() + b"\0" + imports.text(file).encode() + b"\0")
    return whole.hexdigest()


def carried(made_of: str, *, into: Path | None = None) -> list[Ended]:
    """Return the seeds that passed in other trees with the same simulation, each once."""
    found: dict[str, Ended] = {}
    for other in (KEPT / SIMULATION, *sorted(PROOFS.glob(f"*/{SIMULATION}"))):
        if other.parent != into and other.exists() and other.read_text() == made_of:
            found |= {one["id"]: one for one in ended(other.parent).values() if one["outcome"] == "passed"}
    return [one for one in found.values() if "::" in one["id"] and part_of(one["id"]) == "seeds"]


def carry(folder: Path) -> None:
    """Add the seeds that passed elsewhere with the same simulation to a proof that has not run them, unless fresh."""
    if (folder / FRESH).exists():
        return
    known = lines(folder)
    here = {one["id"] for one in known}
    found = carried((folder / SIMULATION).read_text(), into=folder)
    write(folder, [*known, *(one for one in found if one["id"] not in here)])


def keep() -> None:
    """Write the seeds that passed with the simulation at hand where git has them."""
    made_of = simulation()
    passed = sorted(carried(made_of), key=lambda one: one["id"])
    KEPT.mkdir(parents=True, exist_ok=True)
    write(KEPT, passed)
    (KEPT / SIMULATION).write_text(made_of)


def lines(folder: Path) -> list[Ended]:
    """Return all that was recorded, in its order; a line that a crash cut short does not count."""
    found: list[Ended] = []
    for line in (folder / ITEMS).read_text().splitlines() if (folder / ITEMS).exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def ended(folder: Path) -> dict[str, Ended]:
    """Return the last end of each test, and of each file that could not be collected."""
    return {one["id"]: one for one in lines(folder)}


def prove(folder: Path, parts: Sequence[str], workers: str) -> int:
    """Run what is missing of some parts; returns pytest's exit code."""
    before = [one for one in lines(folder) if "::" in one["id"]]  # whole files are collected anew
    write(folder, before)
    done = [one["id"] for one in ended(folder).values() if one["outcome"] == "passed"]  # a missing tool may have come
    (folder / DONE).write_text("".join(f"{one}\n" for one in done))
    (folder / COLLECTED).unlink(missing_ok=True)
    sys.stdout.write(f"proving {', '.join(parts)}; {len(done):,} tests of this tree have ended well before\n")
    sys.stdout.flush()
    seed = int(folder.name[:8], 16)  # another tree draws other examples, the same tree the same ones
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.recording", "--proof", str(folder), "--tier", "all"),
            *("-n", workers, "--max-worker-restart", "2", f"--hypothesis-seed={seed}"),
            *(path for part in parts for path in PARTS[part]),
        ],
        cwd=ROOT,
        env={**os.environ, "PROVE_EVERY_GUARD": "1", DRAWN_BY: (folder / SIMULATION).read_text()},
    )
    for number in (signal.SIGINT, signal.SIGTERM):  # pytest ends its tests, and the report is written
        signal.signal(number, lambda *_: run.send_signal(signal.SIGINT))
    code = run.wait()
    if (now := state()) != folder.name:
        write(folder, before)
        sys.stdout.write(f"the tree was changed meanwhile, to {now}: what ran does not count\n")
        return INTERRUPTED
    return code


def write(folder: Path, found: Iterable[Ended]) -> None:
    """Replace the record."""
    (folder / ITEMS).write_text("".join(f"{json.dumps(one)}\n" for one in found))


def figures(found: Iterable[Ended], missing: Iterable[str]) -> dict[str, Figures]:
    """Return the figures by part, in the order of PARTS; parts without a test are left out."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for one in found:
        part = part_of(one["id"])
        outcomes[part][one["outcome"]] += 1
        seconds[part] += one["seconds"]
    for test in missing:
        outcomes[part_of(test)]["missing"] += 1
    return {
        part: Figures(**{name: outcomes[part][name] for name in OUTCOMES}, minutes=round(seconds[part] / 60, 1))
        for part in PARTS
        if part in outcomes
    }


def is_allowed(reason: str) -> bool:
    """Return whether a test may be left out for this reason."""
    return any(words in reason for words in MAY_BE_MISSING)


def report(folder: Path, begun: float, parts: Sequence[str], code: int) -> int:
    """Write the report of all that ended in this tree; returns the exit code.

    `parts` and `code` are those of the last run. It is green only if pytest says so as well, and each part has tests.
    """
    found = ended(folder)
    collected = (folder / COLLECTED).read_text().splitlines() if (folder / COLLECTED).exists() else []
    missing = [test for test in collected if test not in found]
    table = figures(found.values(), missing)
    failed = sorted(one["id"] for one in found.values() if one["outcome"] == "failed")
    skipped = Counter(one["reason"].removeprefix("Skipped: ") for one in found.values() if one["outcome"] == "skipped")
    refused = [reason for reason in skipped if not is_allowed(reason)]
    again = sorted({one["id"] for one in lines(folder) if one["outcome"] == "failed"} - set(failed))
    empty = [part for part in parts if part not in table]
    unfinished = bool(missing or empty) or code not in ENDED
    unsaid = code == 1 and not failed
    slowest = sorted(found.values(), key=lambda one: -one["seconds"])[:SLOWEST]
    complete = set(parts) == PARTS.keys() and not unfinished
    document = {
        "commit": git("rev-parse", "HEAD"),
        "state": folder.name,
        "ended": datetime.fromtimestamp(CLOCK.wall_ms() // 1000, UTC).isoformat(),
        "minutes": round((CLOCK.monotonic() - begun) / 60, 1),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "whole": complete,
        "parts": {part: one._asdict() for part, one in table.items()},
        "exit code of pytest": code,
        "parts without tests": empty,
        "failed": failed,
        "failed before": again,
        "skipped": dict(skipped),
        "slowest": {one["id"]: one["seconds"] for one in slowest},
    }
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    page = [
        f"# Proof of {folder.name}",
        "",
        f"Commit {document['commit']}, {document['ended']}, {document['minutes']} minutes, {document['cores']} cores.",
        *([] if complete else ["", "**Not everything has run.**"]),
        "",
        "| part | passed | failed | skipped | not run yet | worker minutes |",
        "|---|---:|---:|---:|---:|---:|",
        *(f"| {part} | {' | '.join(f'{value:,}' for value in values)} |" for part, values in table.items()),
        f"| all | {' | '.join(f'{round(sum(column), 1):,}' for column in zip(*table.values(), strict=True))} |",
        *(["", f"**pytest ended with {code}; its output says why.**"] if code not in ENDED or unsaid else []),
        *(["", f"**No tests: {', '.join(empty)}.**"] if empty else []),
        *(["", "## Failed", "", *(f"- `{one}`" for one in failed)] if failed else []),
        *(["", "## Failed, and passed when run again", "", *(f"- `{one}`" for one in again)] if again else []),
        *(["", "## Skipped", "", *(f"- {count}: {reason}" for reason, count in skipped.items())] if skipped else []),
        *["", "## Slowest", "", *(f"- {one['seconds']:.1f} s `{one['id']}`" for one in slowest)],
    ]
    (folder / "report.md").write_text("\n".join(page) + "\n")
    total = ", ".join(f"{sum(getattr(one, name) for one in table.values()):,} {name}" for name in OUTCOMES)
    sys.stdout.write("\n".join([*page, "", f"report: {(folder / 'report.md').relative_to(ROOT)}", total, ""]))
    if failed or refused or unsaid or code not in {*ENDED, INTERRUPTED}:
        return FAILED
    return UNFINISHED if unfinished else OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove what the command line names."""
    parser = argparse.ArgumentParser(
        prog="make prove", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(PARTS)}")
    parser.add_argument("--list", action="store_true", help="name the parts and their tests")
    parser.add_argument("--fresh", action="store_true", help="forget what was proven of this tree")
    parser.add_argument("--workers", default="2", help="processes of pytest (default: 2)")
    chosen = parser.parse_args(arguments)
    if unknown := [part for part in chosen.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if chosen.list:
        sys.stdout.write("".join(f"{part:12} {' '.join(paths)}\n" for part, paths in PARTS.items()))
        return OK
    begun, folder = CLOCK.monotonic(), PROOFS / state()
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SIMULATION).exists():
        (folder / SIMULATION).write_text(simulation())
    if chosen.fresh:
        (folder / FRESH).touch()
    carry(folder)
    parts = chosen.parts or list(PARTS)
    return report(folder, begun, parts, prove(folder, parts, chosen.workers))


if __name__ == "__main__":
    sys.exit(main())
