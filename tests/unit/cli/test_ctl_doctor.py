"""offloadctl doctor: the daemon's results as lines and as a document, and its refusals."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.cli import show
from offloaderd.daemon.doctor.finding import CheckResult, Verdict
from offloaderd.protocol.v1 import doctor_pb2, doctor_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

WELL = doctor_pb2.CheckResult(name="settings", verdict="ok", found="valid", seconds=0.25)
DOUBT = doctor_pb2.CheckResult(name="cluster rights", verdict="warn", found="open", what_to_do="close it", seconds=1)
ILL = doctor_pb2.CheckResult(name="bucket", verdict="fail", found="no bucket", what_to_do="make it", seconds=0.5)
LEFT = doctor_pb2.CheckResult(name="bucket write", verdict="skipped", found="no bucket")


class Examiner(doctor_pb2_grpc.DoctorServiceServicer):
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.results = [WELL, DOUBT]

    def Examine(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Yield the results."""
        yield from self.results


@pytest.fixture
def examiner() -> Examiner:
    """What the daemon finds."""
    return Examiner()


@pytest.fixture
def ctl(examiner: Examiner) -> Iterator[Ctl]:
    """Offloadctl, talking to it."""
    with serving(partial(doctor_pb2_grpc.add_DoctorServiceServicer_to_server, examiner)) as address:
        yield Ctl(address)


def test_a_warning_is_no_failure(ctl: Ctl) -> None:
    """One line each with what to do at its end, then the sum; exit code 0."""
    answer = ctl("doctor")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "ok       settings                   valid",
        "warn     cluster rights             open -> close it",
        "",
        "1 ok, 1 warning in 1.2 s",
    ]


def test_a_failure_is_exit_code_1(ctl: Ctl, examiner: Examiner) -> None:
    """And stands out."""
    examiner.results = [WELL, WELL, ILL, LEFT]
    answer = ctl("doctor")
    assert answer.code == 1
    assert "FAIL     bucket                     no bucket -> make it" in answer.out
    assert answer.out.splitlines()[-1] == "2 ok, 1 failed, 1 skipped in 1.0 s"


def test_as_a_document(ctl: Ctl, examiner: Examiner) -> None:
    """One document with everything; what is nothing to do is null."""
    examiner.results = [WELL, ILL]
    answer = ctl("doctor", "--json")
    assert answer.code == 1
    assert answer.json == {
        "passed": False,
        "checks": [
            {"name": "settings", "verdict": "ok", "found": "valid", "what_to_do": None, "seconds": 0.25},
            {"name": "bucket", "verdict": "fail", "found": "no bucket", "what_to_do": "make it", "seconds": 0.5},
        ],
    }


def test_without_a_daemon_the_exit_code_says_so(ctl: Ctl) -> None:
    """Nobody listens: code 3, as with every command."""
    answer = ctl("doctor", at="127.0.0.1:1")
    assert answer.code == 3
    assert "error: cannot connect" in answer.err


def test_results_of_this_process_are_shown_alike() -> None:
    """The doctor's own type and the message of the API look the same."""
    here = CheckResult(name=ILL.name, verdict=Verdict.FAIL, found=ILL.found, what_to_do=ILL.what_to_do, seconds=0.5)
    assert show.check_line(here) == show.check_line(ILL)
    assert show.check_json(here) == show.check_json(ILL)
