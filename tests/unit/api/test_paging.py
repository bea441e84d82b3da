"""Pages of lists: every element once, whatever comes and goes between two of them; and codes beside texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import Message

from offloaderd.api.daemon import STANDINGS
from offloaderd.api.paging import page
from offloaderd.client import calls
from offloaderd.core.errors import InvalidInput
from offloaderd.core.health import HealthState
from offloaderd.core.model import OffloadMethod, RefusalKind
from offloaderd.daemon.doctor.finding import Verdict as CheckVerdict
from offloaderd.metadata.records.history import RangeState
from offloaderd.policy.selection import Outcome as ChangeOutcome
from offloaderd.protocol.codes import coded, is_code, numbers
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import (
    admin_pb2,
    common_pb2,
    control_pb2,
    placement_pb2,
    places_pb2,
    quota_pb2,
    retention_pb2,
    states_pb2,
)
from offloaderd.segment.states import SegmentState
from offloaderd.topic.requests import Outcome as OffloadOutcome
from offloaderd.upkeep.explain import State as EntryState
from offloaderd.upkeep.gc.findings import Verdict as GcVerdict
from tests.unit.api.test_quota_service import Said, served
from tests.unit.rigs.rig import enabled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import StrEnum

    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper as Enum

REAL_TIME = "gRPC"

Request = quota_pb2.ListQuotasRequest


def pages(items: Callable[[], Sequence[str]], size: int) -> list[list[str]]:
    """Return all pages of a list that may change between two of them."""
    found: list[list[str]] = []
    token = ""
    while not found or token:
        shown, token = page(Request(page_size=size, page_token=token), items(), str)
        found.append(list(shown))
    return found


def test_pages_hold_everything_once() -> None:
    """Of any size; without one there is a single page."""
    names = [f"{number:03}" for number in range(7)]
    assert pages(lambda: names, 3) == [names[:3], names[3:6], names[6:]]
    assert pages(lambda: names, 7) == pages(lambda: names, 0) == pages(lambda: names, 100) == [names]
    assert pages(list, 3) == [[]]


def test_what_comes_and_goes_moves_no_other() -> None:
    """The element that a token names may have gone, and others may have come before it."""
    turns = iter([["a", "b", "d"], ["a", "aa", "c", "d"], ["e"]])
    assert pages(lambda: next(turns), 2) == [["a", "b"], ["c", "d"]]
    ranked = iter([["c", "a", "b"], ["c", "b"]])
    with pytest.raises(InvalidInput, match="the list has no 'a' any more"):
        pages(lambda: next(ranked), 2)


def test_elements_without_a_name_have_a_page() -> None:
    """As the level of all modules, the first of the log levels."""
    assert pages(lambda: ["", "a", "b"], 1) == [[""], ["a"], ["b"]]


@pytest.mark.parametrize("token", ["?", "Y", "gICA", "é"])
def test_what_is_no_token_is_refused(token: str) -> None:
    """With what to give instead."""
    with pytest.raises(InvalidInput, match="no page_token of this list") as caught:
        page(Request(page_token=token), ["a", "c"], str)
    assert caught.value.hint


@pytest.mark.parametrize("other", [Request(), Request(prefix="b"), admin_pb2.ListTopicsRequest(prefix="a")])
def test_a_token_of_another_list_is_refused(other: Any) -> None:  # noqa: ANN401 - a request of any list
    """Also of the same list of something else: the page would leave elements out."""
    _, token = page(Request(prefix="a", page_size=1), ["b", "c", "d"], str)
    assert page(Request(prefix="a", page_size=2, page_token=token), ["b", "c", "d"], str) == (["c", "d"], "")
    other.page_token = token
    with pytest.raises(InvalidInput, match="no page_token of this list"):
        page(other, ["b", "c", "d"], str)


async def test_the_client_requests_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one answer, whose other fields are those of each page."""
    async with served() as (client, engine):
        await enabled(engine)
        await client.set_quotas("public/other", Said(calls=1))
        whole = await client.quotas()
        assert len(whole.namespaces) == 4
        for size in (1, 2, 3, 4):
            monkeypatch.setattr(calls, "PAGE_SIZE", size)
            assert await client.quotas() == whole
        assert (whole.daemon_id, whole.next_page_token) == ("d-1", "")


async def test_the_client_merges_pages_that_differ() -> None:
    """An error of any page stays; a value of the last page has nothing of those before."""
    answers = iter(
        [
            retention_pb2.ListLedgersResponse(
                ledgers=[retention_pb2.Ledger(ledger_id=1)],
                floor=common_pb2.Position(ledger_id=5, entry_id=3),
                metadata_error="away",
                next_page_token="t",
            ),
            retention_pb2.ListLedgersResponse(
                ledgers=[retention_pb2.Ledger(ledger_id=2)], floor=common_pb2.Position(ledger_id=6)
            ),
        ]
    )
    asked: list[tuple[int, str]] = []

    async def method(request: retention_pb2.ListLedgersRequest, timeout: float | None) -> Any:  # noqa: ANN401, ASYNC109
        asked.append((request.page_size, request.page_token))
        return next(answers)

    found = await calls.Calls("d:1")._list(method, retention_pb2.ListLedgersRequest(topic="t"))
    assert asked == [(calls.PAGE_SIZE, ""), (calls.PAGE_SIZE, "t")]
    assert [one.ledger_id for one in found.ledgers] == [1, 2]
    assert (found.floor.ledger_id, found.floor.entry_id) == (6, 0)
    assert (found.metadata_error, found.next_page_token) == ("away", "")


def test_every_list_has_pages() -> None:
    """Each answer with a list, whose call is named so, can be had in parts."""
    files = (admin_pb2, control_pb2, places_pb2, placement_pb2, quota_pb2, retention_pb2)
    methods = [
        method
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name.startswith("List") and not method.server_streaming
    ]
    assert len(methods) == 7
    for one in methods:
        assert {"page_size", "page_token"} <= set(one.input_type.fields_by_name), one.name
        assert "next_page_token" in one.output_type.fields_by_name, one.name


@pytest.mark.parametrize(
    ("texts", "enum"),
    [
        (HealthState, states_pb2.DaemonState),
        (SegmentState, states_pb2.SegmentState),
        (EntryState, states_pb2.EntryState),
        (RangeState, states_pb2.RangeState),
        (ChangeOutcome, states_pb2.ChangeOutcome),
        (OffloadMethod, states_pb2.OffloadMethod),
        (RefusalKind, states_pb2.RefusalKind),
        (GcVerdict, states_pb2.GcVerdict),
        (CheckVerdict, states_pb2.CheckVerdict),
    ],
)
def test_each_text_has_a_code(texts: type[StrEnum], enum: Enum[Any]) -> None:
    """And each code a text."""
    assert numbers(enum.DESCRIPTOR).keys() == {one.value for one in texts}


def test_standings_of_daemons_have_codes() -> None:
    """As they are written in lists of daemons."""
    assert numbers(states_pb2.DaemonStanding.DESCRIPTOR).keys() == {*STANDINGS}


def test_outcomes_of_requests_have_codes() -> None:
    """Also those without a request: of a dry run, and of another daemon's topic."""
    known = {one.value for one in OffloadOutcome} | {"planned", "unknown"}
    assert numbers(states_pb2.OffloadOutcome.DESCRIPTOR).keys() == known


def test_codes_are_set_wherever_they_are() -> None:
    """In inner messages and lists as well; a text that a later release has added has none, and JSON shows texts."""
    topics = [admin_pb2.TopicStatus(topic="t", state="not-owner", method="ledger-based"), admin_pb2.TopicStatus()]
    topics[1].refusals.add(kind="list-behind")
    status = admin_pb2.StatusResponse(state="serving", topics=topics)
    assert coded(status) is status
    assert status.state_code == states_pb2.DAEMON_STATE_SERVING
    assert status.topics[0].state_code == states_pb2.TOPIC_STATE_NOT_OWNER
    assert status.topics[0].method_code == states_pb2.OFFLOAD_METHOD_LEDGER_BASED
    assert (status.topics[1].state_code, status.topics[1].refusals[0].kind_code) == (0, 6)
    assert admin_pb2.StatusResponse(state="from the future") == coded(admin_pb2.StatusResponse(state="from the future"))
    assert "_code" not in str([as_json(one) for one in status.topics])


def test_a_code_stands_beside_a_text() -> None:
    """And nothing else is taken for one."""
    fields: dict[str, set[str]] = {}
    for file in (admin_pb2, retention_pb2, placement_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            fields[message.name] = {one.name for one in message.fields if is_code(one)}
    assert fields["Ledger"] == {"state_code"}
    assert fields["Segment"] == {"state_code", "method_code"}
    assert not fields["Grant"]
    assert isinstance(coded(retention_pb2.Grant()), Message)
