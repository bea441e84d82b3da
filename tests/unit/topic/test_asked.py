"""What became of a request follows from what is stored, and of two requests the one that goes further is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import Conflict
from offloaderd.core.model import HistoryOrder, Loss, Position
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.records.orders import Asked
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.topic import requests as asked
from offloaderd.topic.requests import Fate, Outcome, Why, fate_of, reached
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.testing.memory.metadata import MemoryMetadata

ASKED_MS, DONE_MS = 1000, 2000
REQUEST = Asked(wanted="everything", target=Position(2, 9), stood=None, asked_ms=ASKED_MS)


def offloaded(end: Position, *losses: Loss) -> TopicMap:
    """Return the map of a topic with one segment that ends there."""
    segment = CommittedSegment(
        segment_id=UUID(int=1),
        slices=(LedgerSlice(end.ledger_id, 0, end.entry_id, 1),),
        object_bytes=1,
        assigned_ms=1,
        offloaded_ms=DONE_MS,
        bucket="b",
        prefix="",
    )
    return TopicMap(TOPIC, (segment,), losses=losses)


def a_plan(*, worker: Worker, done_ms: int = 0) -> HistoryPlan:
    """Return the plan of a history that ends with 1:9."""
    return HistoryPlan(
        boundary=2,
        first=1,
        last=Position(1, 9),
        order=HistoryOrder.ALONGSIDE,
        worker=worker,
        planned_ms=1,
        epoch=1,
        daemon_id="one",
        entries=10,
        payload_bytes=10,
        done_ms=done_ms,
    )


@pytest.mark.parametrize(("end", "outcome"), [((2, 8), "running"), ((2, 9), "done"), ((3, 0), "done")])
def test_it_is_done_when_its_target_is_offloaded(end: tuple[int, int], outcome: str) -> None:
    """Not an entry before; when it was done is what its segment says, if there still is one."""
    fate = fate_of(REQUEST, offloaded(Position(*end)))
    assert fate == Fate(Outcome(outcome), "", DONE_MS if end == (2, 9) else 0)


def test_it_fails_for_now_while_nothing_takes_the_topic() -> None:
    """A method that takes nothing, and a topic that is disabled; neither matters once it is done."""
    behind, done = offloaded(Position(2, 8)), offloaded(Position(2, 9))
    assert fate_of(REQUEST, behind, none=True) == Fate(Outcome.FAILED, f"{Why.NONE}; it continues under another method")
    assert fate_of(REQUEST, behind, active=False).outcome is Outcome.FAILED
    for fate in (fate_of(REQUEST, done, none=True), fate_of(REQUEST, done, active=False)):
        assert fate.outcome is Outcome.DONE


def test_entries_that_were_lost_since_are_no_success() -> None:
    """A loss of an earlier time, or behind the target, is not this request's."""
    loss = Loss(Position(1, 9), Position(2, 0), 5, ASKED_MS)
    fate = fate_of(REQUEST, offloaded(Position(2, 9), loss))
    assert fate.outcome is Outcome.FAILED
    assert "after 1:9 and before 2:0" in fate.reason
    for other in (loss._replace(noticed_ms=ASKED_MS - 1), loss._replace(after=Position(2, 9), before=Position(3, 0))):
        assert fate_of(REQUEST, offloaded(Position(2, 9), other)).outcome is Outcome.DONE


def test_nothing_to_do_stays_what_it_was() -> None:
    """With the reason that was found when it was asked."""
    nothing = replace(REQUEST, target=None, reason=str(Why.OPEN))
    assert fate_of(nothing, TopicMap(TOPIC)) == Fate(Outcome.NOTHING, str(Why.OPEN), 0)


def test_what_is_asked_includes_history() -> None:
    """Beside live segments that are there, history has to be, unless a job is to do it; and its own entries always."""
    live = offloaded(Position(2, 9))
    for worker, done in ((Worker.DAEMON, False), (Worker.JOB, True)):
        current = replace(live, history=a_plan(worker=worker))
        assert reached(current, Position(2, 9)) is done
        assert reached(current, Position(2, 0)) is done, "the first live entry"
        assert not reached(current, Position(1, 3))
        assert reached(replace(current, history=a_plan(worker=worker, done_ms=5)), Position(2, 9))


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadata]:
    """An empty metadata store."""
    async with MemoryTree().connect() as store:
        yield store


async def test_the_request_that_goes_further_is_kept(store: MemoryMetadata) -> None:
    """While it is under way; one that is done gives way to any, also to one that had nothing to do."""
    current = offloaded(Position(2, 3))
    for request, kept in (
        (REQUEST, REQUEST),
        (replace(REQUEST, target=Position(2, 8)), REQUEST),
        (replace(REQUEST, target=None), REQUEST),
        (further := replace(REQUEST, target=Position(3, 0), wanted="more"), further),
    ):
        await asked.record(store, TOPIC, current, request)
        assert await asked.read(store, TOPIC) == kept
    nothing = replace(REQUEST, target=None, reason=str(Why.OFFLOADED))
    await asked.record(store, TOPIC, offloaded(Position(3, 0)), nothing)
    assert await asked.read(store, TOPIC) == nothing


async def test_two_that_ask_at_once(store: MemoryMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second looks again; who never comes first is told."""
    path, others = paths.asked(TOPIC), [replace(REQUEST, wanted=f"{number}") for number in range(2)]
    create, replace_node = store.create, store.replace

    async def create_late(path: str, value: bytes, *, ephemeral: bool = False) -> None:
        await create(path, orders.encode_asked(others[0]))
        await create(path, value, ephemeral=ephemeral)

    monkeypatch.setattr(store, "create", create_late)
    further = replace(REQUEST, target=Position(3, 3))
    await asked.record(store, TOPIC, TopicMap(TOPIC), further)
    assert await asked.read(store, TOPIC) == further

    async def replace_late(path: str, value: bytes, version: int) -> int:
        await replace_node(path, orders.encode_asked(others[1]), version)
        return await replace_node(path, value, version)

    monkeypatch.setattr(store, "replace", replace_late)
    with pytest.raises(Conflict, match="changes faster"):
        await asked.record(store, TOPIC, TopicMap(TOPIC), replace(REQUEST, target=Position(4, 4)))
    assert (await store.get(path)).value == orders.encode_asked(others[1])
