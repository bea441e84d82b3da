"""ZooKeeper does not answer: what the daemon knows by itself is told at once, and that it is no more than that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.api import calls as metadata_outage
from offloaderd.api.inspect import InspectService
from offloaderd.core.errors import Transient
from offloaderd.core.model import Position
from offloaderd.metadata.topic_map.map import load
from offloaderd.protocol.v1 import admin_pb2, common_pb2, inspect_pb2
from offloaderd.topic.status import TopicStatus
from tests.patience import PATIENCE_S
from tests.unit.api.test_admin import CONTEXT, ORDERS, OTHER, Room, commit, room, segments

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["room"]


@pytest.fixture
async def frozen(room: Room, monkeypatch: pytest.MonkeyPatch) -> Room:
    """A service whose metadata store takes requests and never answers; of one topic it knows what is committed."""
    await commit(room.store, ORDERS, 0, 9)
    room.engine.maps[ORDERS] = await load(room.store, ORDERS)
    room.engine.waiting.append(TopicStatus(topic=ORDERS, state="claiming", offloaded=Position(1, 9)))
    monkeypatch.setattr(metadata_outage, "ANSWERS_S", 0.01)

    async def silent(path: str) -> Sequence[str]:
        await asyncio.get_running_loop().create_future()
        return [path]

    for method in ("get", "children"):
        monkeypatch.setattr(room.store, method, silent)
    return room


async def test_status_shows_what_the_daemon_knows_and_that_metadata_is_down(frozen: Room) -> None:
    """Of all topics and of one; nothing asks the store again for each of them."""
    for request in (admin_pb2.StatusRequest(), admin_pb2.StatusRequest(topic=str(ORDERS))):
        async with asyncio.timeout(PATIENCE_S):
            found = await frozen.service.Status(request, CONTEXT)
        down = [(one.name, one.message) for one in found.dependencies if not one.up]
        assert down == [("metadata", "no answer within 0.01 s"), ("objects", "refused")]
        assert [(one.topic, one.state, one.lag_unknown) for one in found.topics] == [(str(ORDERS), "claiming", True)]
        assert found.topics[0].offloaded.entry_id == 9


async def test_segments_and_topics_are_those_that_the_daemon_knows(frozen: Room) -> None:
    """The list of topics says that it is not all of them."""
    assert [one.end.entry_id for one in await segments(frozen)] == [9]
    found = await frozen.service.ListTopics(admin_pb2.ListTopicsRequest(), CONTEXT)
    assert ([one.topic for one in found.topics], found.metadata_error) == ([str(ORDERS)], "no answer within 0.01 s")


async def test_what_it_does_not_know_is_no_answer_and_no_wait(frozen: Room) -> None:
    """Not that the topic is not there."""
    with pytest.raises(Transient, match="the metadata store does not answer"):
        await segments(frozen, OTHER)
    with pytest.raises(Transient, match="the metadata store does not answer"):
        await frozen.service.Status(admin_pb2.StatusRequest(topic=str(OTHER)), CONTEXT)
    with pytest.raises(Transient, match="it alone has the patterns"):
        await frozen.service.ListSelections(admin_pb2.ListSelectionsRequest(), CONTEXT)


async def test_explain_names_the_metadata_store_at_once(frozen: Room) -> None:
    """Neither a wait for the caller's deadline, nor a word of what the source or the bucket may have."""
    service = InspectService(None, None, frozen.engine, frozen.store)  # type: ignore[arg-type]
    request = inspect_pb2.ExplainRequest(topic=str(ORDERS), position=common_pb2.Position(ledger_id=1, entry_id=9))
    with pytest.raises(Transient, match="the metadata store does not answer") as refused:
        await service.Explain(request, None)  # type: ignore[arg-type]
    assert "ZooKeeper" in refused.value.hint


async def test_verify_names_the_metadata_store_at_once(frozen: Room) -> None:
    """What is committed is only known there."""
    service = InspectService(None, None, frozen.engine, frozen.store)  # type: ignore[arg-type]
    with pytest.raises(Transient, match="the metadata store does not answer"):
        await anext(service.Verify(inspect_pb2.VerifyRequest(topic=str(ORDERS)), None))  # type: ignore[arg-type]
