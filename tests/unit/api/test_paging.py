"""Pages of lists: every element once, whatever comes and goes between two of them; and codes beside texts."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import Message

from offloaderd.api.daemon import STANDINGS
from offloaderd.api.paging import page
from offloaderd.client import calls
from offloaderd.core.errors import InvalidInput
from offloaderd.core.health import HealthState
from offloaderd.core.metrics.families import ERROR_CLASSES
from offloaderd.core.model import Edge, HistoryOrder, OffloadMethod, OutagePolicy, RefusalKind
from offloaderd.daemon.doctor.finding import Verdict as CheckVerdict
from offloaderd.metadata.records.attempt import AttemptStatus
from offloaderd.metadata.records.history import RangeState, Worker
from offloaderd.metadata.topic_map.conversion import Standing
from offloaderd.policy.policies import Origin
from offloaderd.policy.selection import Outcome as ChangeOutcome
from offloaderd.protocol import v1
from offloaderd.protocol.codes import CODE, code_name, coded, is_code, numbers
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import (
    admin_pb2,
    broker_pb2,
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
from offloaderd.upkeep.flaws import Kind as FlawKind
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.gc.findings import Kind as GcKind
from offloaderd.upkeep.gc.findings import Verdict as GcVerdict
from tests.unit.api.test_quota_service import Said, served
from tests.unit.rigs.rig import enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
        (AttemptStatus, states_pb2.SegmentStatus),
        (Edge, states_pb2.SourceEdge),
        (OutagePolicy, states_pb2.OutagePolicy),
        (ERROR_CLASSES, states_pb2.StalledClass),
        (HistoryOrder, states_pb2.HistoryOrder),
        (Worker, states_pb2.HistoryWorker),
        (Origin, states_pb2.OriginLevel),
        (Standing, states_pb2.LedgerStanding),
        (GcKind, states_pb2.GcKind),
        (Level, states_pb2.VerifyLevel),
        (FlawKind, states_pb2.FlawKind),
        (STANDINGS, states_pb2.DaemonStanding),
        ((*OffloadOutcome, "planned", "unknown"), states_pb2.OffloadOutcome),  # of a dry run, of another daemon's topic
        (("first", "mirror"), states_pb2.PlaceRole),
        (("writing", "verifying", "committing"), states_pb2.RollbackPhase),
        (("deleted", "marked", "kept", "nothing", "elsewhere"), broker_pb2.DeleteOutcome),
    ],
)
def test_each_text_has_a_code(texts: Iterable[str], enum: Enum[Any]) -> None:
    """And each code a text."""
    assert numbers(enum.DESCRIPTOR).keys() == {code_name(one) for one in texts}


NO_CODES = {
    *(f"OffloadPolicies.{name}" for name in ("method", "read_priority", "history_order", "outage", "retention")),
    *(f"Selection.{name}" for name in ("read_priority", "outage", "retention")),  # what is set has one spelling
    "CacheState.state",  # a sentence if the cache is not used
    "ModuleLevel.level",
    "Place.kind",  # as in the settings
    "ShowIdentityResponse.source_kind",
}
"""Fields of answers that look like states and have no codes."""


def test_each_state_has_a_code() -> None:
    """Programs compare no texts: whatever one switches on in an answer stands beside an enumeration."""
    words = "state status kind verdict outcome standing phase role method worker order level origin edge outage"
    looks = (*words.split(), "retention", "priority", "stalled_class")

    def within(message: Any) -> Iterator[str]:  # noqa: ANN401 - a message descriptor, of which protobuf has two types
        codes = {one.name for one in message.fields if is_code(one)}
        for field in message.fields:
            if field.type == field.TYPE_STRING and field.name.endswith(looks) and f"{field.name}{CODE}" not in codes:
                yield f"{message.name}.{field.name}"
        for inner in message.nested_types:
            yield from within(inner)

    found = set()
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR
            answers = [one for one in file.message_types_by_name.values() if not one.name.endswith("Request")]
            found |= {text for message in answers for text in within(message)}
    assert found == NO_CODES


def test_codes_are_set_wherever_they_are() -> None:
    """In inner messages and lists as well; a text that a later release has added has none, and JSON shows texts."""
    topics = [admin_pb2.TopicStatus(topic="t", state="not-owner", method="ledger-based"), admin_pb2.TopicStatus()]
    topics[0].edge, topics[0].stalled_class = "explicit LAC", "no_space"
    topics[1].refusals.add(kind="list-behind")
    status = admin_pb2.StatusResponse(state="serving", topics=topics)
    assert coded(status) is status
    assert status.state_code == states_pb2.DAEMON_STATE_SERVING
    assert status.topics[0].state_code == states_pb2.TOPIC_STATE_NOT_OWNER
    assert status.topics[0].method_code == states_pb2.OFFLOAD_METHOD_LEDGER_BASED
    assert status.topics[0].edge_code == states_pb2.SOURCE_EDGE_EXPLICIT_LAC
    assert status.topics[0].stalled_class_code == states_pb2.STALLED_CLASS_NO_SPACE
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
    assert fields["Segment"] == {"status_code", "state_code", "method_code"}
    assert not fields["Grant"]
    assert isinstance(coded(retention_pb2.Grant()), Message)
