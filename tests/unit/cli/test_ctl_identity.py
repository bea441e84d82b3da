"""`offloadctl identity` against canned answers."""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.protocol.v1 import admin_pb2, identity_pb2, identity_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import TOPIC, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 1_700_000_000_000
FOUND = identity_pb2.ShowIdentityResponse(
    deployment_id="d-1",
    made_ms=MS,
    made_by="one",
    source_kind="bookkeeper",
    source_id="i-1",
    source_found="i-2",
    places=[
        identity_pb2.PlaceIdentity(bucket="b", prefix="p/", deployment_id="d-2", since_ms=MS, other=True),
        identity_pb2.PlaceIdentity(bucket="c", error="away"),
    ],
    refusals=[
        admin_pb2.IdentityRefusal(
            kind="list-behind", found="the newest is 12", evidence="newest 12", since_ms=MS, hint="restore it"
        )
    ],
    accepted=[identity_pb2.AcceptedIdentity(kind="other-source", evidence="i-0", by="ann", at_ms=MS)],
)


class FakeIdentity(identity_pb2_grpc.IdentityServiceServicer):
    """Answers with the above, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def ShowIdentity(self, request: Any, context: Any) -> Any:
        """Answer."""
        self.requests.append(request)
        return FOUND

    def AcceptIdentity(self, request: Any, context: Any) -> Any:
        """Agree."""
        self.requests.append(request)
        return identity_pb2.AcceptIdentityResponse(believed=["the list is whole"])


@pytest.fixture
def fake() -> Iterator[FakeIdentity]:
    """A daemon that answers."""
    found = FakeIdentity()
    with serving(partial(identity_pb2_grpc.add_IdentityServiceServicer_to_server, found)) as address:
        found.ctl = Ctl(address)  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def ask(fake: FakeIdentity) -> Ctl:
    """Run commands against it."""
    found = fake.ctl  # type: ignore[attr-defined]
    assert isinstance(found, Ctl)
    return found


def test_all_that_is_known_is_shown(ask: Ctl, fake: FakeIdentity) -> None:
    """The deployment, its source, places of others, refusals and what was accepted."""
    shown = ask("identity", "show", "orders").out
    for text in ("d-1", "bookkeeper i-1", "i-2", "ANOTHER DEPLOYMENT", "away", "list-behind", "restore it", "by ann"):
        assert text in shown
    assert fake.requests[0].topic == TOPIC
    found = ask("identity", "show", "--json").json
    assert found["refusals"][0]["evidence"] == "newest 12"
    assert [one["other"] for one in found["places"]] == [True, False]


def test_an_acceptance_is_a_dry_run_unless_it_is_meant(ask: Ctl, fake: FakeIdentity) -> None:
    """Only with --apply is a finding accepted; both say what."""
    assert "would be taken as true" in ask("identity", "accept", "orders", "--kind", "list-behind").out
    assert "the list is whole" in ask("identity", "accept", "orders", "--kind", "list-behind", "--apply", "--yes").out
    assert [one.dry_run for one in fake.requests] == [True, False]
    assert {(one.topic, one.kind) for one in fake.requests} == {(TOPIC, "list-behind")}
    ask("identity", "accept", "--place", "--apply", "--yes")
    ask("identity", "accept", "--source")
    assert [one.WhichOneof("what") for one in fake.requests[2:]] == ["places", "source"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("orders",),
        ("--kind", "list-behind"),
        ("--place", "--source"),
        ("orders", "--kind", "list-behind", "--place"),
    ],
)
def test_one_thing_is_accepted_at_a_time(ask: Ctl, arguments: tuple[str, ...]) -> None:
    """A topic needs its kind; places and source stand alone."""
    answer = ask("identity", "accept", *arguments)
    assert answer.code == 2
    assert "name a topic and its --kind" in answer.err
