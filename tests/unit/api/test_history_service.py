"""HistoryService over gRPC, on a real topic: what would be planned, what is, and how far it is."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.api.history import RANGES_MAX, HistoryService
from offloaderd.core.errors import InvalidInput, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import HistoryOrder
from offloaderd.protocol.v1 import history_pb2_grpc
from tests.unit.api.serve import Client, serving
from tests.unit.history.test_history import rig_with, until_done
from tests.unit.rigs.rig import TOPIC, enabled, offloader_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.fleet.engine import Engine

REAL_TIME = "gRPC"


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[Client]:
    """Serve what an engine knows."""
    service = HistoryService(engine)
    async with serving(
        Metrics(), lambda server: history_pb2_grpc.add_HistoryServiceServicer_to_server(service, server)
    ) as channel:
        yield Client(channel)


async def test_a_plan_changes_nothing() -> None:
    """Before the topic is enabled: boundary, ranges of the size asked for, what they cost, and who would do it."""
    rig = await rig_with(200, daemon_bytes_max=17_999)
    async with rig.engine() as engine, served(engine) as client:
        found = await client.plan_history(TOPIC)
        assert (found.boundary.ledger_id, found.boundary.entry_id) == (6, 0)
        assert [(one.begin.ledger_id, one.begin.entry_id, one.entries) for one in found.ranges] == [
            (0, 0, 40), (1, 10, 40), (2, 20, 40), (4, 0, 40), (5, 10, 20),
        ]  # fmt: skip
        assert (found.entries, found.payload_bytes, found.segment_bytes) == (180, 18_000, 4000)
        assert (found.boundaries, found.worker, found.planned) == (4, "job", False)
        assert 0 < found.probes <= 4 * 6
        assert len((await client.plan_history(TOPIC, segment_bytes=9000)).ranges) == 2
        assert not (await client.history(TOPIC)).HasField("plan")
        assert engine.topics() == []


async def test_how_far_history_is() -> None:
    """Left to a job; then taken on by the daemon and done, with each range and its segment."""
    rig = await rig_with(200, order=HistoryOrder.HISTORY_FIRST, daemon_bytes_max=0)
    async with rig.engine() as engine, served(engine) as client:
        await enabled(engine)
        found = await client.history(TOPIC, ranges_max=RANGES_MAX)
        assert (found.plan.worker, found.plan.order, found.plan.ranges) == ("job", "history-first", 0)
        assert (found.left_entries, found.left_bytes, found.live_waits, found.owner) == (180, 18_000, True, "one")
        assert (await client.plan_history(TOPIC)).planned
    rig.history_bytes_max = 4 << 30
    async with rig.engine("two") as engine, served(engine) as client:
        topic = await offloader_of(engine)
        await until_done(topic)
        found = await client.history(TOPIC, ranges_from=1, ranges_max=3)
        assert (found.ranges_done, found.ranges_claimed, found.ranges_planned) == (5, 0, 0)
        assert [(one.begin.ledger_id, one.state, one.holder) for one in found.ranges] == [
            (1, "done", "two"), (2, "done", "two"), (4, "done", "two"),
        ]  # fmt: skip
        ids = [str(one.segment_id) for one in topic.map.segments]
        assert [one.segment_id for one in found.ranges] == ids[1:4]
        assert (found.left_entries, found.live_waits, found.plan.done_ms > 0) == (0, False, True)
        assert found.offloaded.ledger_id == 5
        assert not (await client.plan_history(TOPIC)).ranges


async def test_what_is_left_is_planned() -> None:
    """A plan of a history that is offloaded in part begins where it goes on."""
    rig = await rig_with(200)
    async with rig.engine() as engine, served(engine) as client:
        topic = await enabled(engine)
        await until(lambda: len([one for one in topic.map.segments if one.begin.ledger_id < 6]) >= 2)
        if topic.map.unfinished is not None:
            found = await client.plan_history(TOPIC)
            assert found.entries < 180
        await until_done(topic)


async def test_bad_requests_are_told() -> None:
    """Unknown topics, no source, more ranges than one answer has."""
    rig = await rig_with(200)
    async with rig.engine() as engine, served(engine) as client:
        with pytest.raises(NotFound):
            await client.plan_history(type(TOPIC).parse("public/default/nothing"))
        with pytest.raises(InvalidInput):
            await client.history(TOPIC, ranges_max=RANGES_MAX + 1)
    async with rig.engine(push_only=True) as engine, served(engine) as client:
        with pytest.raises(NotFound):
            await client.plan_history(TOPIC)
