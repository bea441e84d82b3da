"""offloadctl offload, topics offload and topics offload-status: what is asked, what is shown, how it exits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from offloaderd.protocol.v1 import admin_pb2, common_pb2
from tests.unit.cli.fake_daemon import Failure, running_fake

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

TOPIC = "persistent://public/default/orders"
ASKED_MS = 1_700_000_000_000
BOTH_COMMANDS = pytest.mark.parametrize("words", [("offload", "orders"), ("topics", "offload", "orders")])
Progress = admin_pb2.OffloadProgress


def at(ledger_id: int, entry_id: int) -> common_pb2.Position:
    """Return a position."""
    return common_pb2.Position(ledger_id=ledger_id, entry_id=entry_id)


def reports() -> list[Progress]:
    """An offload that takes two steps."""
    return [
        Progress(
            outcome="running", target=at(3, 9), offloaded=at(3, 4), remaining_entries=5, remaining_bytes=500,
            wanted="everything", asked_ms=ASKED_MS, asked_by="ipv4:10.0.0.7:5", method="streaming", owner="d-1",
            segment_id="abc", segment_entries=2,
        ),
        Progress(
            outcome="done", target=at(3, 9), offloaded=at(3, 9), stood=at(3, 1), done=True, done_ms=ASKED_MS + 5000,
            wanted="everything", asked_ms=ASKED_MS, asked_by="ipv4:10.0.0.7:5", method="streaming", owner="d-1",
        ),
    ]  # fmt: skip


def a_plan() -> Progress:
    """What a dry run says."""
    return Progress(
        outcome="planned",
        done=True,
        target=at(3, 9),
        remaining_entries=10,
        remaining_bytes=1 << 20,
        reason="the rest is in the open ledger",
        plan=[
            admin_pb2.PlannedOffload(
                ledger_id=3, first_entry_id=0, last_entry_id=9, payload_bytes=1 << 20, method="ledger-based", due=True
            )
        ],
    )


@BOTH_COMMANDS
def test_a_wait_ends_with_one_result_line(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """Off a terminal nothing but the result is shown, and there is no deadline unless one is asked for."""
    fake.progress = reports()
    answer = ctl(*words, "--wait")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"offloaded {TOPIC} up to 3:9 at 2023-11-14 22:13:25 UTC\n"
    assert fake.requests[0] == admin_pb2.OffloadRequest(topic=TOPIC, wait=True)
    assert fake.deadlines[0] is None or fake.deadlines[0] > 10_000


@BOTH_COMMANDS
def test_without_wait_it_says_what_is_left(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """The first report is the result, under the usual deadline."""
    fake.progress = reports()[:1]
    assert ctl(*words).out == f"offloading {TOPIC} up to 3:9: 5 entries (500 B) to go\n"
    assert fake.deadlines[0] is not None
    assert fake.deadlines[0] < 31


@BOTH_COMMANDS
def test_json_is_one_document(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """Only the end is given."""
    fake.progress = reports()
    assert ctl(*words, "--wait", "--json").json == {
        "topic": TOPIC,
        "outcome": "done",
        "done": True,
        "reason": None,
        "wanted": "everything",
        "asked_ms": ASKED_MS,
        "asked_by": "ipv4:10.0.0.7:5",
        "done_ms": ASKED_MS + 5000,
        "target": "3:9",
        "offloaded": "3:9",
        "stood": "3:1",
        "remaining_entries": 0,
        "remaining_bytes": 0,
        "message": None,
        "method": "streaming",
        "owner": "d-1",
        "segment_id": None,
        "segment_entries": 0,
        "plan": [],
    }


@BOTH_COMMANDS
def test_nothing_to_do_is_said_and_is_no_failure(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """Never as success of something that was not done: the reason is given, and how far the topic is."""
    fake.progress = [
        Progress(outcome="nothing", done=True, reason="all of it is offloaded already", offloaded=at(3, 9))
    ]
    answer = ctl(*words, "--wait")
    assert answer.code == 0
    assert answer.out == f"nothing to offload of {TOPIC}: all of it is offloaded already (offloaded up to 3:9)\n"


@BOTH_COMMANDS
def test_a_failure_has_its_reason_and_exit_code(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """In the table and in JSON."""
    fake.progress = [Progress(outcome="failed", done=True, reason="the method is none", target=at(3, 9))]
    answer = ctl(*words, "--wait")
    assert (answer.code, answer.out) == (1, f"failed to offload {TOPIC} up to 3:9: the method is none\n")
    answer = ctl(*words, "--wait", "--json")
    assert (answer.code, answer.json["outcome"], answer.json["reason"]) == (1, "failed", "the method is none")


@BOTH_COMMANDS
def test_no_answer_is_a_failure(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """A server that says nothing has not offloaded anything."""
    answer = ctl(*words, "--wait")
    assert (answer.code, fake.progress) == (1, [])
    assert answer.err.startswith("error: the daemon ended the call without an answer")


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        (("--to", "12:499"), {"to": at(12, 499)}),
        (("--to", "latest"), {}),
        (("--size-threshold", "10G"), {"size_threshold": 10 << 30}),
        (("-s", "1.5M"), {"size_threshold": 3 << 19}),
        (("-s", "0"), {"size_threshold": 0}),
        (("--dry-run", "-s", "7"), {"size_threshold": 7, "dry_run": True}),
    ],
)
def test_what_is_asked(ctl: Ctl, fake: FakeDaemon, options: tuple[str, ...], request_: dict[str, object]) -> None:
    """The options become fields of the request; a threshold of nothing is one."""
    fake.progress = reports()
    assert ctl("topics", "offload", "orders", *options).code == 0
    assert fake.requests[0] == admin_pb2.OffloadRequest(topic=TOPIC, **request_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--to", "12"), "not a position"),
        (("--to", "newest"), "not a position"),
        (("--to", "12:-1"), "not a position"),
        (("--size-threshold", "-1"), "is not 0 to"),
        (("--size-threshold", "10X"), "is not 0 to"),
        (("--size-threshold", "5m30s"), "is not 0 to"),
        (("--size-threshold", "off"), "is not 0 to"),
        (("--size-threshold", "9999999T"), "is not 0 to"),
        (("--size-threshold", "0.3"), "is not 0 to"),
        (("--size-threshold", "1G", "--to", "latest"), "exclude each other"),
    ],
)
def test_what_cannot_be_asked(ctl: Ctl, fake: FakeDaemon, options: tuple[str, ...], says: str) -> None:
    """It is refused before anything is sent."""
    answer = ctl("topics", "offload", "orders", *options)
    assert (answer.code, fake.requests) == (2, [])
    assert says in answer.err


def test_a_dry_run_is_a_table_of_what_would_go(ctl: Ctl, fake: FakeDaemon) -> None:
    """One line a ledger, and the sum with what stays and why."""
    fake.progress = [a_plan()]
    answer = ctl("topics", "offload", "orders", "--dry-run")
    assert answer.code == 0
    head, row, total = answer.out.splitlines()
    assert head.split() == ["LEDGER", "ENTRIES", "COUNT", "SIZE", "METHOD", "BY", "ITSELF"]
    assert row.split() == ["3", "0..9", "10", "1.0", "MiB", "ledger-based", "yes"]
    said = f"would offload {TOPIC} up to 3:9, 10 entries (1.0 MiB); not more, as the rest is in the open ledger"
    assert total == said
    assert ctl("topics", "offload", "orders", "--dry-run", "--json").json["plan"] == [
        {
            "ledger_id": 3,
            "first_entry_id": 0,
            "last_entry_id": 9,
            "payload_bytes": 1 << 20,
            "method": "ledger-based",
            "due": True,
        }
    ]


def test_the_status_shows_what_is_known(ctl: Ctl, fake: FakeDaemon) -> None:
    """Facts that are not known are left out, the last line says how it stands."""
    fake.progress = reports()[:1]
    answer = ctl("topics", "offload-status", "orders")
    assert answer.code == 0
    assert [line.split(maxsplit=1) for line in answer.out.splitlines()] == [
        ["outcome", "running"],
        ["wanted", "everything"],
        ["asked", "2023-11-14 22:13:20 UTC from ipv4:10.0.0.7:5"],
        ["target", "3:9"],
        ["offloaded", "3:4 (nothing at the request)"],
        ["left", "5 entries, 500 B"],
        ["method", "streaming"],
        ["owner", "d-1"],
        ["segment", "abc, 2 entries so far"],
        ["offloading", f"{TOPIC} up to 3:9: 5 entries (500 B) to go"],
    ]
    assert fake.requests == [admin_pb2.OffloadStatusRequest(topic=TOPIC)]


def test_the_status_can_be_waited_for(ctl: Ctl, fake: FakeDaemon) -> None:
    """The end is shown, in JSON as one document."""
    fake.progress = reports()[:1]
    fake.waited = reports()
    answer = ctl("topics", "offload-status", "orders", "--wait", "--json")
    assert (answer.code, answer.json["outcome"]) == (0, "done")
    assert [request.wait for request in fake.requests] == [False, True]


@pytest.mark.parametrize(("outcome", "code"), [("nothing", 0), ("done", 0), ("failed", 1), ("unknown", 1)])
def test_the_status_exits_by_what_became_of_it(ctl: Ctl, fake: FakeDaemon, outcome: str, code: int) -> None:
    """Nothing to do is no failure; a script that goes on after an offload must not after one that is not known."""
    fake.progress = [Progress(outcome=outcome, done=True, reason="because")]
    answer = ctl("topics", "offload-status", "orders", "-w")
    assert (answer.code, answer.out.splitlines()[0].split()) == (code, ["outcome", outcome])


def test_the_owner_is_asked_for_what_it_alone_knows(ctl: Ctl, fake: FakeDaemon) -> None:
    """Another daemon says who has the topic; one that cannot be reached is told, and what is stored stands."""
    with running_fake() as owner:
        owner.progress = reports()[:1]
        known = Progress(outcome="running", target=at(3, 9), owner="d-2", owner_address=owner.address, message="ask it")
        fake.progress = [known]
        answer = ctl("topics", "offload-status", "orders")
        assert answer.out.splitlines()[-1] == f"offloading {TOPIC} up to 3:9: 5 entries (500 B) to go"
        assert len(owner.requests) == 1
    known.owner_address = "127.0.0.1:9"
    answer = ctl("topics", "offload-status", "orders")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, f"offloading {TOPIC} up to 3:9: ask it")
    assert answer.err == "cannot connect to the daemon at 127.0.0.1:9: what follows is all that is stored\n"


@pytest.mark.parametrize("words", [("topics", "offload"), ("topics", "offload-status"), ("offload",)])
def test_what_the_daemon_refuses_has_its_exit_code(ctl: Ctl, fake: FakeDaemon, words: tuple[str, ...]) -> None:
    """A topic that does not exist, or is not offloaded."""
    fake.failure = Failure(grpc.StatusCode.NOT_FOUND, "unknown topic", reason="NOT_FOUND", hint="look")
    answer = ctl(*words, "orders")
    assert (answer.code, answer.err) == (4, "error: unknown topic\nhint: look\n")
