"""The status of a daemon has the declared tables of the cluster, or says why they are unknown."""

from __future__ import annotations

import pytest

from offloaderd.api import calls as metadata_outage
from offloaderd.core.errors import Denied, OffloaderError
from offloaderd.protocol.status import tables_json
from offloaderd.protocol.v1 import admin_pb2
from offloaderd.tables.reporter import Summary
from tests.unit.api.test_admin import CONTEXT, OTHER, Room, commit, room
from tests.unit.api.test_away import frozen

__all__ = ["frozen", "room"]

ASKED = admin_pb2.StatusRequest(tables=True)


async def test_status_has_the_declared_tables_if_they_are_asked_for(room: Room) -> None:
    """Of the whole cluster, so not beside one topic, whose reader may know no other; what is unknown is not `none`."""
    found = await room.service.Status(ASKED, CONTEXT)
    assert tables_json(found) is None, "a daemon that has no way to know"
    summary = Summary(name="orders", topics="a/b/*", tables=2, lag_seconds=7.5, lag_entries=3, said_ms=9)
    refusal: list[OffloaderError] = []

    async def tables() -> tuple[list[Summary], int]:
        if refusal:
            raise refusal[0]
        return [summary], 4

    room.service.tables = tables
    found = await room.service.Status(ASKED, CONTEXT)
    assert (found.tables.not_shown, found.tables.failure) == (4, "")
    (row,) = found.tables.declarations
    assert (row.name, row.topics, row.tables, row.failing, row.writer) == ("orders", "a/b/*", 2, 0, "")
    assert (row.lag_seconds, row.lag_entries, row.said_ms) == (7.5, 3, 9)
    refusal.append(Denied("no right"))
    found = await room.service.Status(ASKED, CONTEXT)
    assert (found.tables.failure, list(found.tables.declarations)) == ("no right", [])
    await commit(room.store, OTHER, 0, 9)
    for request in (admin_pb2.StatusRequest(), admin_pb2.StatusRequest(topic=str(OTHER), tables=True)):
        assert not (await room.service.Status(request, CONTEXT)).HasField("tables")


async def test_declared_tables_are_unknown_without_zookeeper(frozen: Room) -> None:
    """Nothing asks the store for them, and nobody takes them for none."""

    async def tables() -> tuple[list[Summary], int]:
        pytest.fail("the store was asked")

    frozen.service.tables = tables
    found = await frozen.service.Status(ASKED, CONTEXT)
    assert found.tables.failure == f"no answer within {metadata_outage.ANSWERS_S} s"
