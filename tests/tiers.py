"""Which tests a command runs, and which tests share a worker; a pytest plugin.

`make test` runs the tier `test`: everything but tests/integration, and of that the witnesses, one test or more for
each kind of real server. `make prove` runs all. A folder of tests/integration in GROUPS is one group: its tests share
servers that exist once a process, so that one worker of pytest-xdist runs them all. (The mark `xdist_group` does not:
pytest-xdist 3.8 writes the group to an attribute that pytest 9.2 no longer reads, pytest-dev/pytest-xdist#1386.)
"""

from __future__ import annotations

from hashlib import sha256
from os import environ
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdist.remote import Producer

ROOT = Path(__file__).resolve().parents[1]
INTEGRATION = ROOT / "tests" / "integration"
TIERS = ("quick", "test", "all")
KINDS = frozenset({"zookeeper", "s3", "bookies", "pulsar", "broker", "spark", "commands", "documents"})
"""What a witness can stand for."""
SLOW_KINDS = frozenset({"bookies", "pulsar", "broker", "spark"})
"""Kinds that need servers in Java besides ZooKeeper: no part of the tier `quick`."""
GROUPS = frozenset({"bookies", "broker", "deploy", "documents", "pulsar", "spark"})
"""Folders of tests/integration whose tests share servers."""
GROUPS_OF_FILES = {
    "tests/test_tidy.py": "sources",
    "tests/unit/test_dependencies.py": "sources",
    "tests/unit/test_release.py": "release",
}
"""Groups whose tests share what a process makes once, and takes long: the parsed tree, a whole release."""
LONG = ("group ", "tests/simulation/", "tests/integration/", "tests/conformance/")
"""What the names of groups, and of tests that may take long, begin with."""
SEEDS_OF_TIERS = {"quick": 0, "test": 500, "all": 10_000}
SEEDS_AT_ONCE = 50
SEEDS_OF_KILL_POINTS = {"quick": 0, "test": 1, "all": 20}
"""Simulated histories of each kill point."""
DRAWN_BY = "SEEDS_DRAWN_BY"
"""Environment variable with what draws seeds in place of the commit."""
FIRST_DRAWN_SEED = 10_000
"""Seeds from here on are drawn by the commit; those below are the same for all commits."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tiers."""
    text = "quick: no bookies, brokers, Spark, simulation; test: witnesses on real servers; all (default): everything"
    parser.addoption("--tier", choices=TIERS, default="all", help=text)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a module of real servers that has no witness: its imports alone take seconds."""
    if config.getoption("--tier") == "all" or collection_path.suffix != ".py":
        return None
    if not collection_path.is_relative_to(INTEGRATION) or not collection_path.name.startswith("test_"):
        return None
    return "mark.witness(" not in collection_path.read_text() or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not have; refuse a name that differs from worker to worker."""
    if unsteady := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"the names of these tests hold an address, give their parameters ids: {unsteady[:3]}")
    tier = config.getoption("--tier")
    if tier == "all":
        return
    select(config, items, lambda item: is_in(item, quick=tier == "quick"))


def select(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    """Leave out the tests that are not wanted, and report them as deselected."""
    chosen = [wanted(item) for item in items]
    config.hook.pytest_deselected(items=[item for item, one in zip(items, chosen, strict=True) if not one])
    items[:] = [item for item, one in zip(items, chosen, strict=True) if one]


def is_in(item: pytest.Item, *, quick: bool) -> bool:
    """Return whether the tiers `test`, or `quick`, have a test. Raises UsageError for a witness of an unknown kind."""
    if not item.path.is_relative_to(INTEGRATION):
        return True
    kinds = {kind for mark in item.iter_markers("witness") for kind in mark.args}
    if kinds - KINDS:
        raise pytest.UsageError(f"{item.nodeid} is a witness of {sorted(kinds - KINDS)}: known are {sorted(KINDS)}")
    return bool(kinds) and not (quick and kinds & SLOW_KINDS)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist has no types
    """Give each group to one worker, the largest first, and every other test to whichever worker is free.

    After the groups come tests that take long: one that began last would leave the other workers idle.
    """

    def schedule(self) -> None:
        """Give out the first tests; what takes long is put in front of all that is left then."""
        begins = self.collection is None
        super().schedule()
        if begins:
            for scope in [one for one in reversed(self.workqueue) if one.startswith(LONG)]:
                self.workqueue.move_to_end(scope, last=False)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if group := GROUPS_OF_FILES.get(file):
            return f"group {group}"
        folder = file.split("/")
        return f"group {folder[2]}" if folder[:2] == ["tests", "integration"] and folder[2] in GROUPS else nodeid


@pytest.hookimpl(optionalhook=True)  # a run may do without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Schedule by groups, whatever --dist says."""
    return GroupScheduling(config, log)


def seeds(tier: str) -> list[tuple[int, int]]:
    """Return the simulation's runs of a tier as (first seed, number): half fixed, half drawn by the commit."""
    half = SEEDS_OF_TIERS[tier] // 2
    drawn = FIRST_DRAWN_SEED + half * (int(sha256(commit()).hexdigest()[:8], 16) % 1_000_000)
    return [(first + at, SEEDS_AT_ONCE) for first in (0, drawn) for at in range(0, half, SEEDS_AT_ONCE)]


def commit() -> bytes:
    """Return the commit's hash, or, outside a repository, the text of the package; in a proof what it says instead."""
    if said := environ.get(DRAWN_BY):
        return said.encode()
    found = run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False)  # noqa: S607 - any git will do
    if found.returncode == 0:
        return found.stdout.strip()
    return b"".join(path.read_bytes() for path in sorted((ROOT / "offloaderd").rglob("*.py")))
