"""When each long check ran last: `make record RUN=soak` runs one and notes it; a page shows them all.

The notes are `docs/proof/runs.json`, a row for each check, and `make docs` writes `docs/proof/runs.md` from them. A row
says what ran on which commit, how long, how it ended, and the last line that it wrote. Beside it are the seeds that
passed in proofs: they count on other machines as well (tools/prove.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from offloaderd.core.clock import SystemClock
from tools import prove
from tools.git import git

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / "docs" / "proof" / "runs.json"
CHECKS: Mapping[str, str] = {
    "test": "the tests, with witnesses on real servers",
    "prove": "everything that tests show, with all guards and 10,000 simulated clusters",
    "fuzz": "decoders of foreign bytes, guided by coverage",
    "soak": "kills, pauses and cuts on real servers, for a time",
    "squeeze": "daemons with a tenth of the line they need, under a memory limit",
    "test-broker": "two stock brokers with the driver, beside Pulsar's own offloader",
    "test-brokers": "the driver in brokers of each version of Pulsar that it is for",
    "test-restore": "everything but the bucket is lost: empty clusters get all topics back, compared byte by byte",
    "test-cluster": "Spark's jobs on a standalone cluster, with a packed environment",
    "test-stores": "what depends on the S3 server, on versitygw and MinIO",
    "test-page": "the status page in a headless Chromium",
    "table-hour": "a topic of a real Pulsar becomes a table, 1,000 messages a second, each exactly once",
    "bench": "speed, beside the limits and Pulsar's own offloader",
}
"""Targets of the Makefile, and what each shows."""
LAST_CHARACTERS = 200
CLOCK = SystemClock()


class Note(TypedDict):
    """The last run of a check."""

    command: str
    date: str
    commit: str
    """With `+` behind it where the work tree had changes."""
    minutes: float
    passed: bool
    last: str
    """The last line of its output."""


def notes() -> dict[str, Note]:
    """Return the notes by check."""
    found: dict[str, Note] = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    return found


def runs_page() -> str:
    """Return the page."""
    known = notes()
    lines = [
        "# When each long check ran last",
        "",
        "Generated from `docs/proof/runs.json` by `make docs`. `make record RUN=NAME` runs a check and notes it here.",
        "",
        "| check | what it shows | date | commit | minutes | outcome | last line |",
        "|---|---|---|---|---:|---|---|",
    ]
    for name, text in CHECKS.items():
        if (note := known.get(name)) is None:
            lines.append(f"| `make {name}` | {text} | never noted | | | | |")
            continue
        outcome, last = "passed" if note["passed"] else "**failed**", note["last"].replace("|", "\\|")
        row = (f"`{note['command']}`", text, note["date"], note["commit"], f"{note['minutes']:.0f}", outcome, last)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def commit() -> str:
    """Return the commit at hand, marked where the work tree differs."""
    return git("rev-parse", "HEAD")[:12] + ("+" if git("status", "--porcelain") else "")


def record(name: str, command: Sequence[str]) -> int:
    """Run a check, show what it writes, and note how it ended; returns its exit code."""
    at, begun, last = commit(), CLOCK.monotonic(), ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None  # noqa: S101 - it is a pipe
        for line in run.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip("= \n") or last
    note = Note(
        command=" ".join(command),
        date=datetime.fromtimestamp(CLOCK.wall_ms() // 1000, UTC).date().isoformat(),
        commit=at,
        minutes=round((CLOCK.monotonic() - begun) / 60, 1),
        passed=run.returncode == 0,
        last=last[:LAST_CHARACTERS],
    )
    NOTES.write_text(json.dumps({**notes(), name: note}, indent=1, sort_keys=True) + "\n")
    if name == "prove":
        prove.keep()
    return run.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and note the check that the command line names."""
    parser = argparse.ArgumentParser(prog="make record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=CHECKS, metavar="NAME", help=f"one of {', '.join(CHECKS)}")
    parser.add_argument("variables", nargs="*", metavar="VARIABLE=VALUE", help="for make, such as MINUTES=30")
    chosen = parser.parse_args(arguments)
    return record(chosen.name, ["make", chosen.name, *chosen.variables])


if __name__ == "__main__":
    sys.exit(main())
