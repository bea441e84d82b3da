"""`offloadctl ledgers` and `offloadctl grants` against canned answers."""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.protocol.v1 import retention_pb2, retention_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import TOPIC, at, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

GRANT = retention_pb2.Grant(verified_ms=1_700_000_000_000, daemon_id="d1", epoch=4, not_before_ms=1_700_000_060_000)


class FakeRetention(retention_pb2_grpc.RetentionServiceServicer):
    """Answers with what a test put here, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.ledgers = retention_pb2.ListLedgersResponse()
        self.deleted = retention_pb2.DeleteLedgersResponse()

    def ListLedgers(self, request: Any, context: Any) -> Any:
        """Answer with the ledgers."""
        self.requests.append(request)
        return self.ledgers

    def DeleteLedgers(self, request: Any, context: Any) -> Any:
        """Answer with what goes."""
        self.requests.append(request)
        return self.deleted

    def RevokeGrant(self, request: Any, context: Any) -> Any:
        """Agree."""
        self.requests.append(request)
        return retention_pb2.RevokeGrantResponse(grant=retention_pb2.Grant(revoked_ms=1_700_000_000_000))

    def AllowGrant(self, request: Any, context: Any) -> Any:
        """Agree."""
        self.requests.append(request)
        return retention_pb2.AllowGrantResponse()


@pytest.fixture
def fake() -> Iterator[FakeRetention]:
    """A daemon that answers."""
    found = FakeRetention()
    with serving(partial(retention_pb2_grpc.add_RetentionServiceServicer_to_server, found)) as address:
        found.ctl = Ctl(address)  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def ask(fake: FakeRetention) -> Ctl:
    """Offloadctl against it."""
    found = fake.ctl  # type: ignore[attr-defined]
    assert isinstance(found, Ctl)
    return found


def test_ledgers_list(ask: Ctl, fake: FakeRetention) -> None:
    """A line a ledger, with what is worth knowing; below, what is gone and what could not be asked."""
    ledger = retention_pb2.Ledger
    fake.ledgers = retention_pb2.ListLedgersResponse(
        ledgers=[
            ledger(ledger_id=3, state="deleted", offloaded_entries=9, segments=1, deleted_ms=1_700_000_000_000),
            ledger(ledger_id=5, state="granted", entries=10, offloaded_entries=10, at_source=True, grant=GRANT),
            ledger(ledger_id=6, state="revoked", grant=retention_pb2.Grant(revoked_ms=1, revoked_reason="hold")),
            ledger(ledger_id=7, state="open", at_source=False),
        ],
        floor=at(2, 9),
        deleted_segments=4,
        deleted_bytes=2048,
        source_error="away",
    )
    answer = ask("ledgers", "list", "orders")
    lines = answer.out.splitlines()
    assert lines[1].split()[:3] == ["3", "deleted", "-"]
    assert lines[1].endswith("marked deleted at 2023-11-14 22:13:20")
    assert lines[2].endswith("checked by d1; may be deleted from 2023-11-14 22:14:20 on")
    assert lines[3].endswith("hold")
    assert lines[4].split()[-2:] == ["no", "-"]
    assert answer.err.splitlines() == ["deleted up to 2:9: 4 segments, 2.0 KiB", "the source was not read: away"]
    assert fake.requests[0].topic == TOPIC


def test_ledgers_list_as_json(ask: Ctl, fake: FakeRetention) -> None:
    """What is not known, or has not happened, is null."""
    fake.ledgers = retention_pb2.ListLedgersResponse(
        ledgers=[
            retention_pb2.Ledger(ledger_id=5, state="granted", offloaded_entries=10, grant=GRANT),
            retention_pb2.Ledger(ledger_id=6, state="revoked", grant=retention_pb2.Grant(revoked_ms=1)),
        ]
    )
    document = ask("ledgers", "list", "orders", "--json").json
    assert document["deleted_up_to"] is None
    row, revoked = document["ledgers"]
    assert (revoked["grant"]["epoch"], revoked["grant"]["verified_ms"]) == (None, None)
    assert (row["ledger_id"], row["entries"], row["at_source"], row["deleted_ms"]) == (5, None, None, None)
    assert row["grant"] == {
        "verified_ms": 1_700_000_000_000,
        "readback": False,
        "daemon_id": "d1",
        "epoch": 4,
        "not_before_ms": 1_700_000_060_000,
        "revoked_ms": None,
        "revoked_reason": None,
        "source_deleted_ms": None,
        "damaged": False,
    }


def test_ledgers_delete_says_what_goes_first(ask: Ctl, fake: FakeRetention) -> None:
    """A dry run is asked for as one, and speaks of what would be."""
    segment = retention_pb2.DeletedSegment(segment_id="s1", begin=at(3, 0), end=at(4, 9), object_bytes=1024)
    fake.deleted = retention_pb2.DeleteLedgersResponse(marked=[3, 4], segments=[segment], waits_for=[5])
    answer = ask("ledgers", "delete", "orders", "3", "4", "--dry-run")
    assert answer.out.splitlines() == [
        "would be marked deleted: 3, 4",
        "would be deleted: 1 segment, 1.0 KiB",
        "  s1  3:0..4:9",
        "their objects go after retention.reader_grace_s (1 h unless set)",
        "other segments wait for ledger 5, which is not marked",
    ]
    assert (list(fake.requests[0].ledger_ids), fake.requests[0].dry_run) == ([3, 4], True)
    fake.deleted = retention_pb2.DeleteLedgersResponse()
    answer = ask("ledgers", "delete", "orders", "3", "--yes")
    assert answer.out.splitlines() == ["marked deleted: none, all were before", "deleted: 0 segments, 0 B"]
    assert not fake.requests[1].dry_run
    assert ask("ledgers", "delete", "orders", "3", "--yes", "--json").json == {
        "topic": TOPIC,
        "dry_run": False,
        "marked": [],
        "segments": [],
        "waits_for": [],
    }
    assert ask("ledgers", "delete", "orders").code == 2
    assert ask("ledgers", "delete", "orders", "--", "-3").code == 2


def test_grants_revoke_and_allow(ask: Ctl, fake: FakeRetention) -> None:
    """Both name topic and ledger; the reason goes along."""
    answer = ask("grants", "revoke", "orders", "17", "--reason", "legal hold")
    assert answer.out == f"the source must keep ledger 17 of {TOPIC} (since 2023-11-14 22:13:20)\n"
    assert (fake.requests[0].ledger_id, fake.requests[0].reason) == (17, "legal hold")
    assert ask("grants", "revoke", "orders", "17", "--json").json["grant"]["revoked_ms"] == 1_700_000_000_000
    assert "is granted again once its copy is verified" in ask("grants", "allow", "orders", "17").out
    assert ask("grants", "allow", "orders", "17", "--json").json == {"topic": TOPIC, "ledger_id": 17, "grant": None}
