"""offloadctl gc: what it shows, its document, and its exit codes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.protocol.v1 import upkeep_pb2, upkeep_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

RUBBISH = upkeep_pb2.GcFind(
    key="seg/a", kind="leftover", verdict="delete", reason="nobody refers to it", size_bytes=2048, age_s=90_000
)
UPLOAD = upkeep_pb2.GcFind(key="seg/b", kind="upload", verdict="delete", reason="nobody", age_s=90_000, upload_id="u1")
YOUNG = upkeep_pb2.GcFind(key="seg/c", kind="young", verdict="keep", reason="young", size_bytes=1, age_s=10)
LOST = upkeep_pb2.GcFind(key="seg/d", kind="missing", verdict="alarm", reason="gone", topic="persistent://p/d/x")


class Upkeep(upkeep_pb2_grpc.UpkeepServiceServicer):
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.finds = [RUBBISH, UPLOAD, YOUNG]
        self.requests: list[Any] = []

    def Gc(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Yield the finds and their sum."""
        self.requests.append(request)
        summary = upkeep_pb2.GcSummary(
            applied=request.apply,
            grace_s=86_400,
            topics=2,
            segments=5,
            objects=15,
            object_bytes=5000,
            others=1,
            elsewhere=1,
            seconds=1.5,
            rubbish_bytes=2048,
        )
        for find in self.finds:
            summary.finds[find.kind] += 1
            summary.verdicts[find.verdict] += 1
            yield upkeep_pb2.GcEvent(find=find)
        yield upkeep_pb2.GcEvent(summary=summary)


@pytest.fixture
def upkeep() -> Upkeep:
    """What the daemon finds."""
    return Upkeep()


@pytest.fixture
def ctl(upkeep: Upkeep) -> Iterator[Ctl]:
    """Offloadctl, talking to it."""
    with serving(partial(upkeep_pb2_grpc.add_UpkeepServiceServicer_to_server, upkeep)) as address:
        yield Ctl(address)


def test_a_dry_run_is_the_default(ctl: Ctl, upkeep: Upkeep) -> None:
    """A line a find, what is young only counted, and the sum says that nothing was deleted."""
    answer = ctl("gc")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "VERDICT  KIND         SIZE       AGE  KEY    REASON",
        "delete   leftover  2.0 KiB  1 d 01 h  seg/a  nobody refers to it",
        "delete   upload     upload  1 d 01 h  seg/b  nobody",
        "",
        "inspected 15 objects (4.9 KiB) of 5 segments and 2 topics in 1.5 s; not 1 object with other keys and "
        "1 segment stored elsewhere",
        "would delete 2 (2.0 KiB); not deleted: 1 young (grace 1 d 00 h)",
        "nothing was deleted: this was a dry run, add --apply",
    ]
    assert (upkeep.requests[0].apply, upkeep.requests[0].HasField("grace_s")) == (False, False)


def test_apply_and_grace_are_handed_on(ctl: Ctl, upkeep: Upkeep) -> None:
    """And nothing is said of a dry run."""
    answer = ctl("gc", "--apply", "--yes", "--grace", "0", "--all", "--also", "u", "--also", "v")
    assert answer.code == 0
    assert "dry run" not in answer.out
    assert "seg/c" in answer.out
    assert (upkeep.requests[0].apply, upkeep.requests[0].grace_s) == (True, 0)
    assert list(upkeep.requests[0].also) == ["u", "v"]
    assert upkeep.requests[0].HasField("grace_s")


@pytest.mark.parametrize("verdict", ["alarm", "failed"])
def test_what_needs_an_operator_is_exit_code_1(ctl: Ctl, upkeep: Upkeep, verdict: str) -> None:
    """An alarm, or a deletion that failed, stands out."""
    LOST.verdict = verdict
    upkeep.finds = [LOST]
    answer = ctl("gc")
    assert answer.code == 1
    assert f"{verdict.upper()}" in answer.out.splitlines()[1]


def test_alarms_of_one_reason_are_one_line(ctl: Ctl, upkeep: Upkeep) -> None:
    """With their number and all their bytes; each of them is in the list of all, and in the document."""
    lost = [
        upkeep_pb2.GcFind(key=f"seg/{n}", kind="unknown_topic", verdict="alarm", reason="wiped", size_bytes=1, age_s=60)
        for n in range(2442)
    ]
    upkeep.finds = [*lost, RUBBISH]
    answer = ctl("gc")
    assert answer.code == 1
    assert len(answer.out.splitlines()) < 10
    assert "seg/0 and 2,441 more" in answer.out.splitlines()[1]
    assert "2.4 KiB" in answer.out.splitlines()[1]
    assert len(ctl("gc", "--all").out.splitlines()) > 2442
    assert len(ctl("gc", "--json").json["finds"]) == 2443


def test_as_a_document(ctl: Ctl) -> None:
    """Finds and sum as one document."""
    answer = ctl("gc", "--json")
    assert answer.json["finds"][1] == {
        "key": "seg/b",
        "upload_id": "u1",
        "kind": "upload",
        "verdict": "delete",
        "reason": "nobody",
        "size_bytes": 0,
        "age_s": 90_000.0,
        "topic": None,
    }
    assert answer.json["summary"]["finds"] == {"leftover": 1, "upload": 1, "young": 1}
    assert answer.json["summary"]["applied"] is False
