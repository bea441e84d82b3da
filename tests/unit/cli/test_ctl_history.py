"""`offloadctl history` against canned answers."""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.protocol.v1 import history_pb2, history_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import at, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

RANGES = [
    history_pb2.HistoryRange(
        begin=at(1, 0), end=at(2, 4), entries=1500, payload_bytes=1 << 20, state="done", holder="d1", epoch=4,
        segment_id="a-b",
    ),
    history_pb2.HistoryRange(
        begin=at(2, 5), end=at(3, 9), entries=7, payload_bytes=70, state="planned", tries=2, last_error="away"
    ),
]  # fmt: skip
PLAN = history_pb2.HistoryPlan(
    begin=at(1, 0), last=at(3, 9), boundary=at(5, 0), order="history-first", worker="job", planned_ms=1_700_000_000_000,
    entries=2000, payload_bytes=2 << 20, segment_bytes=1 << 20, ranges=2, probes=12, split_seconds=0.5,
    doubtful_ledgers=1,
)  # fmt: skip


class FakeHistory(history_pb2_grpc.HistoryServiceServicer):
    """Answers with what a test put here, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.planned = history_pb2.PlanHistoryResponse()
        self.found = history_pb2.GetHistoryResponse()

    def PlanHistory(self, request: Any, context: Any) -> Any:
        """Answer with the plan."""
        self.requests.append(request)
        return self.planned

    def GetHistory(self, request: Any, context: Any) -> Any:
        """Answer with the state."""
        self.requests.append(request)
        return self.found


@pytest.fixture
def fake() -> Iterator[FakeHistory]:
    """A daemon that answers."""
    found = FakeHistory()
    with serving(partial(history_pb2_grpc.add_HistoryServiceServicer_to_server, found)) as address:
        found.ctl = Ctl(address)  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def ask(fake: FakeHistory) -> Ctl:
    """Offloadctl against it."""
    found = fake.ctl  # type: ignore[attr-defined]
    assert isinstance(found, Ctl)
    return found


def test_history_plan(ask: Ctl, fake: FakeHistory) -> None:
    """A line a segment; below, what finding them has cost, who is to do it, and which ledgers are in doubt."""
    fake.planned = history_pb2.PlanHistoryResponse(
        boundary=at(5, 0), ranges=RANGES, entries=1507, payload_bytes=(1 << 20) + 70, segment_bytes=1 << 20, probes=12,
        boundaries=1, seconds=0.25, doubtful=[history_pb2.DoubtfulLedger(ledger_id=3, reason="no length")],
        worker="job",
    )  # fmt: skip
    answer = ask("history", "plan", "orders", "--segment-size", "1MiB")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "BEGIN  END  ENTRIES  PAYLOAD",
        "1:0    2:4    1,500  1.0 MiB",
        "2:5    3:9        7     70 B",
    ]
    assert "ledger 3 is split by its entries' number: no length" in answer.err
    assert "2 segments of about 1.0 MiB, 1,507 entries, 1.0 MiB before 5:0" in answer.err
    assert "12 probes for 1 boundary in 250 ms; for the backfill job" in answer.err
    assert fake.requests[0].segment_bytes == 1 << 20
    shown = ask("history", "plan", "orders", "--json").json
    assert shown["boundary"] == "5:0"
    assert [one["end"] for one in shown["ranges"]] == ["2:4", "3:9"]
    assert shown["doubtful"] == [{"ledger_id": 3, "reason": "no length"}]


def test_history_plan_of_nothing(ask: Ctl) -> None:
    """No closed ledgers, or all is offloaded."""
    answer = ask("history", "plan", "orders")
    assert (answer.code, answer.out) == (0, "")
    assert "has no history that is not offloaded" in answer.err
    assert ask("history", "plan", "orders", "--json").json["boundary"] is None


def test_history_status(ask: Ctl, fake: FakeHistory) -> None:
    """Facts first, then the ranges that are not done."""
    fake.found = history_pb2.GetHistoryResponse(
        plan=PLAN, ranges=RANGES[1:], ranges_planned=1, ranges_done=1, left_entries=500, left_bytes=70,
        offloaded=at(2, 4), owner="d1", error="source away", live_waits=True,
    )  # fmt: skip
    answer = ask("history", "status", "orders")
    assert answer.code == 0
    facts = dict(line.split("  ", 1) for line in answer.out.split("\n\n")[0].splitlines())
    assert {name: text.strip() for name, text in facts.items()} == {
        "history": "1:0 to 3:9: 2,000 entries, 2.0 MiB",
        "done": "75.0 %, 500 entries, 70 B left",
        "offloaded to": "2:4",
        "live begins at": "5:0 when history is done",
        "order": "history-first when it was planned at 2023-11-14 22:13:20 UTC",
        "who": "a backfill job, which has not begun",
        "ranges": "1 done, 0 claimed, 1 planned; of about 1.0 MiB, 12 probes in 500 ms",
        "DOUBTFUL": "lengths of 1 ledger: split by entries",
        "FAILED": "source away",
    }
    assert answer.out.splitlines()[-1].split() == ["2:5", "3:9", "7", "70", "B", "planned", "-", "-", "2", "away"]
    assert (fake.requests[1].ranges_from, fake.requests[1].ranges_max) == (1, 50)
    shown = ask("history", "status", "orders", "--json").json
    assert (shown["done_percent"], shown["live_waits"], shown["states"]) == (
        75.0, True, {"planned": 1, "claimed": 0, "done": 1},
    )  # fmt: skip
    assert shown["history"]["boundary"] == "5:0"
    assert (fake.requests[-1].ranges_from, fake.requests[-1].ranges_max) == (0, 10_000)


def test_history_status_of_a_topic_without_one(ask: Ctl) -> None:
    """It is offloaded in one sequence."""
    answer = ask("history", "status", "orders")
    assert (answer.code, answer.out) == (0, "")
    assert "has no planned history" in answer.err
    assert ask("history", "status", "orders", "--json").json["history"] is None


@pytest.mark.parametrize(
    ("change", "who"),
    [
        ({"worker": "daemon"}, "daemon d1"),
        ({"holder": "driver-7", "holder_until_ms": 1_700_000_000_000}, "job driver-7, until 2023-11-14 22:13:20 UTC"),
    ],
)
def test_who_has_a_history(ask: Ctl, fake: FakeHistory, change: dict[str, Any], who: str) -> None:
    """The topic's owner, or the job that holds the lease."""
    plan = history_pb2.HistoryPlan()
    plan.CopyFrom(PLAN)
    for name, value in change.items():
        setattr(plan, name, value)
    fake.found = history_pb2.GetHistoryResponse(plan=plan, owner="d1")
    assert who in ask("history", "status", "orders", "--all").out
