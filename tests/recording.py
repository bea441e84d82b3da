"""The record of a proof: a line for each test that ended, written as it ends; a pytest plugin (tools/prove.py).

A file that cannot be collected, or is left out as a whole, has a line as well.

`--proof FOLDER` names the folder of one proof. `items.jsonl` there gets a line a test; tests that `done.txt` names are
left out; `collected.txt` gets the names of all that this run has before it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from tests.tiers import select

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from xdist.workermanage import WorkerController

ITEMS = "items.jsonl"
DONE = "done.txt"
COLLECTED = "collected.txt"


class Ended(TypedDict):
    """One test that ended."""

    id: str
    outcome: str
    """passed, failed or skipped"""
    seconds: float
    """Of setup, call and teardown."""
    reason: str
    """Why it was skipped."""
    worker: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the folder."""
    parser.addoption("--proof", metavar="FOLDER", help="folder of a proof: what it has is left out, what ends is added")


def pytest_configure(config: pytest.Config) -> None:
    """Record, where a folder is named."""
    if folder := config.getoption("--proof"):
        config.pluginmanager.register(Record(Path(folder), worker=hasattr(config, "workerinput")), "proof-record")


class Record:
    """The record of this run."""

    def __init__(self, folder: Path, *, worker: bool) -> None:
        self._folder = folder
        self._worker = worker
        self._running: dict[str, Ended] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what the proof has; in each worker the same."""
        done = set((self._folder / DONE).read_text().splitlines())
        select(config, items, lambda item: item.nodeid not in done)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what is to run, where no workers do."""
        if session.items and not self._worker:
            self._collected([item.nodeid for item in session.items])

    def pytest_xdist_node_collection_finished(self, node: WorkerController, ids: Sequence[str]) -> None:
        """Note what the workers are to run."""
        self._collected(ids)

    def _collected(self, ids: Sequence[str]) -> None:
        (self._folder / COLLECTED).write_text("".join(f"{one}\n" for one in ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests nobody sees: it cannot be imported, or leaves itself out."""
        if report.passed or self._worker:
            return
        self._write(Ended(id=report.nodeid, outcome=report.outcome, seconds=0.0, reason=_reason(report), worker=""))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a test's phases; a worker that crashed ends its test without a teardown."""
        if self._worker:
            return
        name = getattr(getattr(report, "node", None), "gateway", None)
        new = Ended(id=report.nodeid, outcome="passed", seconds=0.0, reason="", worker=getattr(name, "id", ""))
        ended = self._running.setdefault(report.nodeid, new)
        ended["seconds"] = round(ended["seconds"] + report.duration, 3)
        if report.failed:
            ended["outcome"] = "failed"
        elif report.skipped and ended["outcome"] == "passed":
            ended["outcome"] = "skipped"
            ended["reason"] = _reason(report)
        if report.when not in {"setup", "call"}:
            del self._running[report.nodeid]
            self._write(ended)

    def _write(self, ended: Ended) -> None:
        with (self._folder / ITEMS).open("a") as file:
            file.write(json.dumps(ended) + "\n")


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return why something was skipped; for what failed, nothing: pytest's output says it."""
    if not report.skipped:
        return ""
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
