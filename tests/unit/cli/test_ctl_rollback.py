"""`offloadctl rollback` against canned answers."""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.cli import options
from offloaderd.protocol.v1 import rollback_pb2, rollback_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "persistent://public/default/orders"
ORDER = rollback_pb2.RollbackOrder(to_ledger_id=5, ordered_ms=1_700_000_000_000)
ENDED = rollback_pb2.RollbackOrder(to_ledger_id=5, ordered_ms=1_700_000_000_000, ended_ms=1_700_000_100_000)
FAILED = rollback_pb2.RollbackOrder(
    to_ledger_id=5, ordered_ms=1, ended_ms=2, failures=[rollback_pb2.RollbackFailure(ledger_id=4, reason="damaged")]
)
PLAN = rollback_pb2.PlanRollbackResponse(
    topic=TOPIC, method="streaming", enabled=True, prefix="p/", bytes_per_s=1 << 20,
    losses=["after 1:1 and before 2:0"],

    ledgers=[
        rollback_pb2.RollbackLedger(
            ledger_id=2, standing="trimmed", why="gone", entries=3, payload_bytes=30, segments=1
        ),
        rollback_pb2.RollbackLedger(
            ledger_id=3, standing="whole", entries=10, payload_bytes=100, segments=1, segment_id="a-b", driver="aws-s3"
        ),
        rollback_pb2.RollbackLedger(
            ledger_id=4, standing="convertible", entries=1000, payload_bytes=2 << 20, segments=3, requests=25, seconds=2
        ),
        rollback_pb2.RollbackLedger(
            ledger_id=5, standing="convertible", entries=1, payload_bytes=1 << 20, segments=1, requests=14, seconds=1
        ),
    ],
)  # fmt: skip


class FakeRollback(rollback_pb2_grpc.RollbackServiceServicer):
    """Answers with what a test put here, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.plans = [PLAN]
        self.order: Any = ORDER
        self.reports: list[Any] = []

    def PlanRollback(self, request: Any, context: Any) -> Any:
        """Answer with the plans."""
        self.requests.append(request)
        yield from self.plans

    def ConvertTopic(self, request: Any, context: Any) -> Any:
        """Answer with the order."""
        self.requests.append(request)
        return rollback_pb2.ConvertTopicResponse(order=self.order)

    def FollowRollback(self, request: Any, context: Any) -> Any:
        """Answer with the reports."""
        self.requests.append(request)
        yield from self.reports

    def StopRollback(self, request: Any, context: Any) -> Any:
        """Answer with the order."""
        self.requests.append(request)
        return rollback_pb2.StopRollbackResponse(order=self.order)


@pytest.fixture
def fake() -> Iterator[FakeRollback]:
    """A daemon that answers."""
    found = FakeRollback()
    with serving(partial(rollback_pb2_grpc.add_RollbackServiceServicer_to_server, found)) as address:
        found.ctl = Ctl(address)  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def ask(fake: FakeRollback) -> Ctl:
    """Offloadctl against it."""
    found = fake.ctl  # type: ignore[attr-defined]
    assert isinstance(found, Ctl)
    return found


def test_plan(ask: Ctl, fake: FakeRollback) -> None:
    """A line a ledger; below, what a stock broker could read, what stays, what it takes and what is left to others."""
    answer = ask("rollback", "plan", "orders")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "LEDGER  STANDING     ENTRIES  PAYLOAD  SEGMENTS  REQUESTS   TIME  NOTE",
        "     2  trimmed            3     30 B         1         -      -  gone",
        "     3  whole             10    100 B         1         -      -  a-b by aws-s3",
        "     4  convertible    1,000  2.0 MiB         3        25  2.0 s",
        "     5  convertible        1  1.0 MiB         1        14  1.0 s",
        f"{TOPIC}: a stock broker could read 1 of 4 ledgers in the tier, and 3 after it",
        "to rewrite: 2 ledgers, 3.0 MiB, about 39 requests and 3.0 s at 1.0 MiB/s (a guess, nothing was measured yet)",
        "stay in segments, which a stock broker cannot read: ledger 2",
        "lost, in no ledger: entries after 1:1 and before 2:0",
        "its method is streaming: what comes later will lie in segments again; set another method first",
        "the keys begin with 'p/', which a stock broker does not put in front: copy the objects",
        "nothing here writes below /managed-ledgers: for a broker to find the objects, the topic's node there has to "
        "name each ledger's uuid and driver in its offload context (-o json lists them)",
    ]
    assert fake.requests[0].target == "orders"
    shown = ask("rollback", "plan", "orders", "--to", "4", "--json").json["topics"][0]
    assert fake.requests[1].to_ledger_id == 4
    assert [(one["ledger_id"], one["converts"], one["segment_id"]) for one in shown["ledgers"]] == [
        (2, False, None),
        (3, False, "a-b"),
        (4, True, None),
        (5, False, None),
    ]
    assert (shown["order"], shown["history_unfinished"], shown["prefix"]) == (None, None, "p/")


def test_plan_of_a_namespace_and_its_limits(ask: Ctl, fake: FakeRollback) -> None:
    """One after the other; what hinders a topic is said with it, and how the last order stands."""
    empty = rollback_pb2.PlanRollbackResponse(topic="b", unfinished="before 7:0", order=FAILED)
    running = rollback_pb2.PlanRollbackResponse(topic="c", enabled=True, method="none", order=ORDER, measured=True)
    fake.plans = [PLAN, empty, running]
    answer = ask("rollback", "plan", "public/default", "--to", "4")
    assert "     5  convertible        1  1.0 MiB         1         -      -  behind --to" in answer.out
    assert "stay in segments, which a stock broker cannot read: ledger 2, 5" in answer.out
    assert "b: a stock broker could read 0 of 0 ledgers in the tier, and 0 after it" in answer.out
    assert "its history before 7:0 is still being offloaded" in answer.out
    assert "the topic is not enabled" in answer.out
    assert "1 ledger could not be rewritten" in answer.out
    assert "ordered up to ledger 5 at 2023-11-14 22:13:20, and being carried out" in answer.out


def test_convert_wants_a_confirmation_or_yes(ask: Ctl, fake: FakeRollback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal --yes is needed; a dry run shows the plan and orders nothing."""
    answer = ask("rollback", "convert", "orders")
    assert (answer.code, fake.requests) == (2, [])
    assert "add --yes" in answer.err
    answer = ask("rollback", "convert", "orders", "--dry-run")
    assert (answer.code, fake.requests[0].target) == (0, TOPIC)
    answer = ask("rollback", "convert", "orders", "--yes", "--to", "5")
    assert (fake.requests[1].topic, fake.requests[1].to_ledger_id) == (TOPIC, 5)
    assert answer.out == (
        f"ledgers of {TOPIC} up to 5 are being rewritten; offloadctl rollback status {TOPIC} shows how far\n"
    )
    assert ask("rollback", "convert", "orders", "--yes", "--json").json["order"]["to_ledger_id"] == 5
    assert not fake.requests[2].HasField("to_ledger_id")
    fake.order = None
    assert "nothing of" in ask("rollback", "convert", "orders", "--yes").out
    assert ask("rollback", "convert", "orders", "--yes", "--json").json["order"] is None
    monkeypatch.setattr(options, "confirm", lambda question: None)
    assert ask("rollback", "convert", "orders").code == 0


def test_waiting_shows_progress_and_what_came_of_it(ask: Ctl, fake: FakeRollback) -> None:
    """Each change on stderr, the result on stdout; exit code 1 when a ledger could not be rewritten."""
    fake.reports = [
        rollback_pb2.RollbackProgress(order=ORDER, left=2, ledger_id=4, phase="writing", ledger_bytes=2048),
        rollback_pb2.RollbackProgress(order=ORDER, left=2, ledger_id=4, phase="writing", ledger_bytes=2048),
        rollback_pb2.RollbackProgress(order=ORDER, done=1, left=1, error="away"),
        rollback_pb2.RollbackProgress(order=ENDED, done=2, done_bytes=4096),
    ]
    answer = ask("rollback", "convert", "orders", "--yes", "--wait")
    assert answer.code == 0
    assert answer.err.splitlines() == [
        "0 of 2 ledgers rewritten; ledger 4: writing, 2.0 KiB",
        "1 of 2 ledgers rewritten; it does not move: away",
        "2 of 2 ledgers rewritten",
    ]
    assert answer.out == f"done: 2 ledgers of {TOPIC} rewritten, 4.0 KiB\n"
    fake.reports = [rollback_pb2.RollbackProgress(order=FAILED, done=1)]
    answer = ask("rollback", "convert", "orders", "--yes", "--wait")
    assert answer.code == 1
    assert "ledger 4 could not be: damaged" in answer.out
    shown = ask("rollback", "convert", "orders", "--yes", "--wait", "--json")
    assert shown.code == 1
    assert shown.json["order"]["failures"] == [{"ledger_id": 4, "reason": "damaged"}]
    assert (shown.json["ledger_id"], shown.json["phase"], shown.json["error"]) == (None, None, None)
    fake.reports = []
    assert "ended the call without an answer" in ask("rollback", "convert", "orders", "--yes", "--wait").err


def test_status_and_stop(ask: Ctl, fake: FakeRollback) -> None:
    """One report and no more; what was stopped is told from what had ended."""
    fake.reports = [rollback_pb2.RollbackProgress(order=ORDER, left=2)] * 2
    assert ask("rollback", "status", "orders").out == "0 of 2 ledgers rewritten\n"
    assert ask("rollback", "status", "orders", "--json").json["left"] == 2
    fake.reports = [rollback_pb2.RollbackProgress(order=ENDED, done=2, done_bytes=10)]
    assert ask("rollback", "status", "orders").out.startswith("done: 2 ledgers")
    fake.reports = [rollback_pb2.RollbackProgress()]
    assert "nothing of" in ask("rollback", "status", "orders").out
    assert ask("rollback", "status", "orders", "--json").json["order"] is None
    assert ask("rollback", "stop", "orders").out == f"the rewriting of {TOPIC} had ended\n"
    fake.order = rollback_pb2.RollbackOrder(to_ledger_id=5, ended_ms=7, stopped=True)
    assert ask("rollback", "stop", "orders").out == f"the rewriting of {TOPIC} was stopped\n"
    assert ask("rollback", "stop", "orders", "--json").json["order"]["stopped"] is True
