"""The tiers of tests, and the proof of everything."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests import tiers
from tests.recording import COLLECTED, DONE, ITEMS, Ended, Record
from tools import prove
from tools.imports import Imports

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "tests/golden/test_a.py::test_one", "tests/unit/core/test_b.py::test_two"


def test_each_test_belongs_to_one_part() -> None:
    """No file of tests is in no part, and no part is a folder that is gone."""
    folders = {path.name for path in tiers.INTEGRATION.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(prove.REAL)
    assert folders >= tiers.GROUPS
    files = [path.relative_to(tiers.ROOT).as_posix() for path in (tiers.ROOT / "tests").rglob("test_*.py")]
    assert {prove.part_of(file) for file in files} == set(prove.PARTS)
    with pytest.raises(LookupError, match="belongs to no part"):
        prove.part_of("tests/integration/test_new.py")


def test_each_kind_of_server_has_a_witness() -> None:
    """`make test` leaves out no kind of server."""
    marks = [
        words
        for path in tiers.INTEGRATION.rglob("test_*.py")
        for words in re.findall(r"mark\.witness\(([^)]*)\)", path.read_text())
    ]
    assert {kind for words in marks for kind in re.findall(r"\w+", words)} == tiers.KINDS


def test_tests_that_share_servers_share_a_worker() -> None:
    """A folder in GROUPS is one unit of work; elsewhere each test is one."""
    scheduling = tiers.GroupScheduling.__new__(tiers.GroupScheduling)
    scope = scheduling._split_scope
    assert scope("tests/integration/pulsar/test_x.py::test_a") == scope("tests/integration/pulsar/test_y.py::test_b[c]")
    assert scope("tests/integration/servers/test_x.py::test_a") != scope("tests/integration/servers/test_x.py::test_b")


def test_half_of_the_seeds_follows_from_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed ones come first; another commit draws others; none is drawn twice."""
    chosen = {}
    for name in (b"one", b"two"):
        monkeypatch.setattr(tiers, "commit", lambda name=name: name)
        runs = tiers.seeds("test")
        chosen[name] = {seed for first, number in runs for seed in range(first, first + number)}
    assert len(chosen[b"one"]) == 500
    assert chosen[b"one"] & chosen[b"two"] == set(range(250))
    assert tiers.seeds("quick") == []


def ran(when: str, outcome: str = "passed", test: str = ONE, **rest: object) -> pytest.TestReport:
    """Return the report of a phase of a test."""
    return pytest.TestReport(test, (test, 0, ""), {}, outcome, rest.get("longrepr"), when, duration=0.5)  # type: ignore[arg-type]


def test_a_test_is_recorded_when_it_ends(tmp_path: Path) -> None:
    """Its phases are one line; one that failed in its teardown, or crashed its worker, has failed."""
    record = Record(tmp_path, worker=False)
    for report in (ran("setup"), ran("call"), ran("teardown"), ran("setup", test=TWO), ran("call", test=TWO)):
        record.pytest_runtest_logreport(report)
    assert [one["id"] for one in prove.ended(tmp_path).values()] == [ONE]
    record.pytest_runtest_logreport(ran("teardown", "failed", test=TWO))
    record.pytest_runtest_logreport(ran("???", "failed", test="tests/golden/test_a.py::test_crash"))
    with (tmp_path / ITEMS).open("a") as file:
        file.write('{"id": "cut sh')
    outcomes = {one["id"]: one["outcome"] for one in prove.ended(tmp_path).values()}
    assert outcomes == {ONE: "passed", TWO: "failed", "tests/golden/test_a.py::test_crash": "failed"}
    assert prove.ended(tmp_path)[ONE]["seconds"] == 1.5


def test_what_has_ended_well_is_not_run_again(tmp_path: Path) -> None:
    """The next run of the same tree leaves it out."""
    (tmp_path / DONE).write_text(f"{ONE}\n")
    left_out: list[str] = []

    def deselected(items: list[SimpleNamespace]) -> None:
        left_out.extend(item.nodeid for item in items)

    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselected))
    items = [SimpleNamespace(nodeid=ONE), SimpleNamespace(nodeid=TWO)]
    Record(tmp_path, worker=True).pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == [TWO]
    assert left_out == [ONE]


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_file_whose_tests_nobody_sees_is_recorded(tmp_path: Path, outcome: str) -> None:
    """One that cannot be imported has failed; one that leaves itself out is skipped, for its reason."""
    record, why = Record(tmp_path, worker=False), ("test_a.py", 1, "Skipped: not today")
    report = pytest.CollectReport("tests/golden/test_a.py", outcome, why, [])  # type: ignore[arg-type]
    record.pytest_collectreport(report)
    (one,) = prove.ended(tmp_path).values()
    assert one["outcome"] == outcome
    assert one["reason"] == ("Skipped: not today" if outcome == "skipped" else "")
    Record(tmp_path, worker=True).pytest_collectreport(report)  # the other process writes it
    assert len(prove.lines(tmp_path)) == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a proof of some tree."""
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "git", lambda *_: "0123456789abcdef")
    return tmp_path


def end(test: str, outcome: str = "passed", reason: str = "") -> Ended:
    """Return the record of a test."""
    return Ended(id=test, outcome=outcome, seconds=60.0, reason=reason, worker="gw0")


@pytest.mark.parametrize(
    ("outcome", "reason", "collected", "code"),
    [
        ("passed", "", [ONE], prove.OK),
        ("passed", "", [ONE, TWO], prove.UNFINISHED),
        ("failed", "", [ONE], prove.FAILED),
        ("skipped", "Skipped: the driver needs Maven and a JDK", [ONE], prove.OK),
        ("skipped", "Skipped: not today", [ONE], prove.FAILED),
    ],
)
def test_the_report_says_what_ran(
    folder: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, reason: str, collected: list[str], code: int
) -> None:
    """A proof is green when all that was collected passed, or lacked a tool; a page and a document say so."""
    monkeypatch.setattr(prove, "PARTS", {part: prove.PARTS[part] for part in ("unit", "golden")})
    prove.write(folder, [end(TWO)] if TWO not in collected else [])
    prove.write(folder, [*prove.lines(folder), end(ONE, outcome, reason)])
    (folder / COLLECTED).write_text("".join(f"{test}\n" for test in collected))
    assert prove.report(folder, 0.0, list(prove.PARTS), 0) == code
    document = json.loads((folder / "report.json").read_text())
    assert document["parts"]["golden"][outcome] == 1
    assert document["whole"] is (collected == [ONE])
    page = (folder / "report.md").read_text()
    assert ("Not everything has run" in page) is (collected != [ONE])
    assert ONE in page
    assert reason.removeprefix("Skipped: ") in page


@pytest.mark.parametrize(
    ("code", "parts", "outcome"),
    [
        (0, ["golden"], prove.OK),
        (5, ["golden"], prove.OK),
        (1, ["golden"], prove.FAILED),
        (2, ["golden"], prove.UNFINISHED),
        (3, ["golden"], prove.FAILED),
        (-9, ["golden"], prove.FAILED),
        (0, ["golden", "unit"], prove.UNFINISHED),
    ],
    ids=["all", "nothing left", "no test failed", "interrupted", "internal error", "killed", "a part without tests"],
)
def test_it_is_not_green_where_pytest_is_not(folder: Path, code: int, parts: list[str], outcome: int) -> None:
    """Nor where a part has no tests: though all that is on record has passed, and nothing was collected."""
    prove.write(folder, [end(ONE)])
    assert prove.report(folder, 0.0, parts, code) == outcome
    assert json.loads((folder / "report.json").read_text())["whole"] is False


def test_seeds_of_a_tree_with_the_same_simulation_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that passed, and no other test; a tree with another simulation gives none."""
    monkeypatch.setattr(prove, "PROOFS", folder)
    test = "tests/simulation/test_simulation.py::test_promises_hold_whatever_happens"
    for name, made_of in (("one", "this"), ("two", "that"), ("new", "this")):
        (folder / name).mkdir()
        (folder / name / prove.SIMULATION).write_text(made_of)
        prove.write(folder / name, [end(f"{test}[{name}]"), end(f"{test}[bad]", "failed"), end(ONE)])
    assert [one["id"] for one in prove.carried("this", into=folder / "new")] == [f"{test}[one]"]
    assert prove.carried("another") == []
    for name, outcome in (("one", "failed"), ("two", "passed")):
        prove.write(folder / "new", [end(f"{test}[{name}]", outcome)])
        prove.carry(folder / "new")
        prove.carry(folder / "new")
        found = [(one["id"], one["outcome"]) for one in prove.lines(folder / "new")]
        carried = [(f"{test}[one]", "passed")] if name == "two" else []
        assert found == [(f"{test}[{name}]", outcome), *carried], "what has run here is not replaced"
    prove.write(folder / "new", [])
    (folder / "new" / prove.FRESH).touch()
    prove.carry(folder / "new")
    assert prove.lines(folder / "new") == []


def test_git_has_the_seeds_of_recorded_proofs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count where no proof is left; those of another simulation are replaced."""
    monkeypatch.setattr(prove, "PROOFS", folder / "proofs")
    monkeypatch.setattr(prove, "KEPT", folder / "kept")
    test = "tests/simulation/test_simulation.py::test_promises_hold_whatever_happens"
    for made_of, seed in (("this", "one"), ("this", "two"), ("that", "three")):
        monkeypatch.setattr(prove, "simulation", lambda made_of=made_of: made_of)
        proof = prove.PROOFS / seed
        proof.mkdir(parents=True)
        (proof / prove.SIMULATION).write_text(made_of)
        prove.write(proof, [end(f"{test}[{seed}]"), end(f"{test}[bad]", "failed"), end(ONE)])
        prove.keep()
        shutil.rmtree(proof)
        kept = ["three"] if made_of == "that" else ["one", "two"] if seed == "two" else ["one"]
        assert [one["id"] for one in prove.carried(made_of)] == [f"{test}[{name}]" for name in kept]


def test_the_simulation_is_made_of_the_engine_and_not_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that seeds run changes the hash, and a command does not."""
    files: set[str] = set()
    text = Imports.text

    def read(self: Imports, file: str) -> str:
        files.add(file)
        return text(self, file)

    monkeypatch.setattr(Imports, "text", read)
    whole = prove.simulation()
    assert {"offloaderd/topic/offloader.py", "offloaderd/upkeep/mirror.py", "tests/simulation/oracle.py"} <= files
    others = ("offloaderd/cli/offloaderd/", "offloaderd/spark/", "offloaderd/mount/")
    assert not [file for file in files if file.startswith(others)]
    monkeypatch.setattr(Imports, "text", lambda *_: "pass")
    assert prove.simulation() != whole


def test_a_proof_draws_its_seeds_by_what_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """So another commit with the same simulation has the same ones."""
    monkeypatch.setenv(tiers.DRAWN_BY, "made of this")
    assert tiers.commit() == b"made of this"


def test_what_failed_before_it_passed_is_told(folder: Path) -> None:
    """Running it again is no proof that it always passes."""
    prove.write(folder, [end(ONE, "failed"), end(ONE)])
    assert prove.report(folder, 0.0, ["golden"], 0) == prove.OK
    assert json.loads((folder / "report.json").read_text())["failed before"] == [ONE]


class NoTests:
    """Stands for a run of pytest, in which a test passes."""

    folder: Path

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait(self) -> int:
        """Record a test."""
        prove.write(self.folder, [*prove.lines(self.folder), end(TWO)])
        return 0


@pytest.mark.parametrize("changed", [False, True])
def test_what_ran_while_the_tree_was_changed_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, changed: bool
) -> None:
    """What ended before stays; a file that was not collected then is collected anew, and a line that was cut goes.

    What was left out runs again: the tool that it lacked may have come.
    """
    skipped = f"{ONE}-on-a-server"
    proof = folder / "0123456789abcdef-3.11.2"
    proof.mkdir()
    (proof / prove.SIMULATION).write_text("made of this")
    prove.write(proof, [end(ONE), end(skipped, "skipped"), end("tests/unit/core/test_b.py", "failed")])
    with (proof / ITEMS).open("a") as file:
        file.write('{"id": "cut sh')
    monkeypatch.setattr(NoTests, "folder", proof, raising=False)
    monkeypatch.setattr(subprocess, "Popen", NoTests)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(prove, "state", lambda: "another" if changed else proof.name)
    assert prove.prove(proof, ["unit", "golden"], "2") == (prove.INTERRUPTED if changed else 0)
    assert prove.ended(proof).keys() == ({ONE, skipped} if changed else {ONE, skipped, TWO})
    assert (proof / DONE).read_text() == f"{ONE}\n"
