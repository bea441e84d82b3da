"""offloadctl daemons and drain: what they show, whom they ask, and their documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.protocol.v1 import placement_pb2, placement_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class Fleet(placement_pb2_grpc.PlacementServiceServicer):
    """Two daemons, each a server of its own that answers with what it is told."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.reports = [placement_pb2.DrainProgress(left=2), placement_pb2.DrainProgress(done=True)]
        self.found = placement_pb2.ListDaemonsResponse()

    def ListDaemons(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Answer with all daemons."""
        self.requests.append(request)
        return self.found

    def Drain(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Answer with all reports."""
        self.requests.append(request)
        yield from self.reports


def placing(fleet: Fleet) -> AbstractContextManager[str]:
    """Serve on a free port."""
    return serving(partial(placement_pb2_grpc.add_PlacementServiceServicer_to_server, fleet))


@pytest.fixture
def fleet() -> Iterator[tuple[Ctl, Fleet, Fleet]]:
    """A command that asks the first of two daemons, and both of them."""
    one, two = Fleet(), Fleet()
    with placing(one) as first, placing(two) as second:
        one.found = placement_pb2.ListDaemonsResponse(
            daemons=[
                placement_pb2.Daemon(
                    daemon_id="two", address=second, version="1", standing="impaired", impaired="no bucket", topics=1234
                ),
                placement_pb2.Daemon(daemon_id="one", address=first, version="1", standing="working", asked=True),
            ],
            owner="one",
            reason="to be handed over to two",
        )
        yield Ctl(first), one, two


def test_daemons_are_listed_with_what_is_wrong(fleet: tuple[Ctl, Fleet, Fleet]) -> None:
    """Each has a line; the one that was asked is marked, and an impaired one says why."""
    answer = fleet[0]("daemons")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert "impaired: no bucket" in lines[1]
    assert "1,234" in lines[1]
    assert lines[2].startswith("one (answers)")
    document = fleet[0]("daemons", "orders", "--json").json
    assert [one["daemon_id"] for one in document["daemons"]] == ["two", "one"]
    assert (document["owner"], document["reason"]) == ("one", "to be handed over to two")
    assert fleet[1].requests[-1].topic == "persistent://public/default/orders"


def test_a_topics_owner_and_the_reason_are_told(fleet: tuple[Ctl, Fleet, Fleet]) -> None:
    """With a topic the table ends with who owns it and why it is not where it belongs."""
    answer = fleet[0]("daemons", "orders")
    assert answer.out.endswith("persistent://public/default/orders: owned by one; to be handed over to two\n")


def test_drain_calls_the_daemon_that_is_named(fleet: tuple[Ctl, Fleet, Fleet]) -> None:
    """The named daemon gets the request, wherever the command is sent; progress goes to stderr."""
    ctl, one, two = fleet
    answer = ctl("drain", "two")
    assert (answer.code, two.requests) == (0, [placement_pb2.DrainRequest()])
    assert answer.err == "2 topics left\n"
    assert "two has handed all its topics over" in answer.out
    assert ctl("drain", "--self", "--undo").out == "one takes topics again\n"
    assert one.requests[-1] == placement_pb2.DrainRequest(undo=True)


def test_drain_without_a_change_says_where_topics_would_go(fleet: tuple[Ctl, Fleet, Fleet]) -> None:
    """A dry run lists every topic with its next daemon, as a table and as a document."""
    ctl, one, _ = fleet
    move = placement_pb2.Move(topic="persistent://public/default/orders", to="two")
    one.reports = [placement_pb2.DrainProgress(left=1, moves=[move])]
    answer = ctl("drain", "--self", "--dry-run")
    assert "nothing was changed" in answer.out
    assert one.requests[-1].dry_run
    document = ctl("drain", "--self", "--dry-run", "--json").json
    assert document["moves"] == [{"topic": "persistent://public/default/orders", "to": "two"}]


@pytest.mark.parametrize("words", [("drain",), ("drain", "two", "--self"), ("drain", "three")])
def test_drain_wants_one_daemon_that_exists(fleet: tuple[Ctl, Fleet, Fleet], words: tuple[str, ...]) -> None:
    """Neither, both, or an unknown name is refused, and nothing is drained."""
    answer = fleet[0](*words)
    assert answer.code != 0
    assert not any(isinstance(one, placement_pb2.DrainRequest) for one in fleet[1].requests + fleet[2].requests)
