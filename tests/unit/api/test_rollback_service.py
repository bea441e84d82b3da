"""RollbackService over gRPC, on a running engine: what is planned, who may order, and what is told meanwhile."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.api.history import RollbackService
from offloaderd.core.errors import InvalidInput, NotFound, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import OffloadMethod
from offloaderd.core.names.patterns import of_topic
from offloaderd.protocol.v1 import rollback_pb2_grpc
from tests.patience import PATIENCE_S
from tests.unit.api import serve
from tests.unit.api.serve import serving
from tests.unit.rigs.rig import TOPIC
from tests.unit.rigs.rolling import map_of, rolling, streamed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.core.model import TopicName
    from offloaderd.protocol.v1 import rollback_pb2
    from tests.unit.rigs.rig import Rig
    from tests.unit.rigs.rolling import Rolling

REAL_TIME = "gRPC"

NAME = str(TOPIC)


class Client(serve.Client):
    """The client over a channel of the test."""

    async def plans(self, target: str, to: int | None = None) -> list[rollback_pb2.PlanRollbackResponse]:
        """Return all plans."""
        return [one async for one in self.plan_rollback(target, to_ledger_id=to)]


@asynccontextmanager
async def served(rig: Rig) -> AsyncIterator[tuple[Client, Rolling]]:
    """Serve a running engine."""
    async with rolling(rig) as work:
        await work.progress()
        service = RollbackService(work.engine, work.store)
        async with serving(
            Metrics(), lambda server: rollback_pb2_grpc.add_RollbackServiceServicer_to_server(service, server)
        ) as channel:
            yield Client(channel), work


async def test_plan_convert_follow_and_plan_again() -> None:
    """What can be rewritten, with what it takes; progress to the end; then all is whole but the open ledger."""
    rig, _ = await streamed(15, 20, 10)
    async with served(rig) as (client, work):
        (plan,) = await client.plans(NAME)
        assert [(one.ledger_id, one.standing) for one in plan.ledgers] == [
            (0, "convertible"), (1, "convertible"), (2, "convertible"), (3, "convertible"), (4, "open"),
        ]  # fmt: skip
        first, *_, last = plan.ledgers
        assert (first.entries, first.payload_bytes, first.segments, first.segment_id) == (10, 1000, 1, "")
        assert first.requests > 5
        assert first.seconds > 0
        assert (last.requests, last.seconds) == (0, 0)
        assert last.why
        assert (plan.topic, plan.method, plan.enabled, plan.prefix) == (NAME, "streaming", True, "seg/")
        assert not plan.measured
        assert not plan.HasField("order")
        (limited,) = await client.plans(NAME, 1)
        assert [one.standing for one in limited.ledgers[:2]] == ["convertible"] * 2
        answer = await client.convert_topic(TOPIC, to_ledger_id=2)
        assert answer.order.to_ledger_id == 2
        reports = [one async for one in client.follow_rollback(TOPIC, timeout_s=PATIENCE_S)]
        assert (reports[-1].done, reports[-1].left, reports[-1].done_bytes) == (3, 0, 3000)
        assert reports[-1].order.ended_ms
        answer = await client.convert_topic(TOPIC)
        assert answer.order.to_ledger_id == 3
        await work.ended()
        (plan,) = await client.plans("public/default")
        assert [one.standing for one in plan.ledgers] == ["whole"] * 4 + ["open"]
        segments = (await map_of(rig)).segments
        assert [one.segment_id for one in plan.ledgers[:4]] == [str(one.segment_id) for one in segments[:4]]
        assert {one.driver for one in plan.ledgers[:4]} == {"offloaderd"}
        assert plan.measured
        assert plan.order.ended_ms
        assert not (await client.convert_topic(TOPIC)).HasField("order")


async def test_what_cannot_be_is_refused_with_its_reason() -> None:
    """Unknown topics, namespaces and ledgers; a topic that is not enabled; malformed names and numbers."""
    rig, _ = await streamed(15)

    async def refused(kind: type[OffloaderError], text: str, call: object) -> None:
        with pytest.raises(kind, match=text):
            await call  # type: ignore[misc]

    async with served(rig) as (client, _):
        await refused(NotFound, "unknown topic", client.plans("public/default/none"))
        await refused(NotFound, "no topic of public/other", client.plans("public/other"))
        await refused(InvalidInput, "malformed", client.plans("a b/c"))
        await refused(InvalidInput, "malformed", client.plans(""))
        await refused(InvalidInput, "belongs to one topic", client.plans("public/default", 3))
        await refused(InvalidInput, "no ledger id", client.plans(NAME, -1))
        await refused(NotFound, "no ledger 9", client.plans(NAME, 9))
        await refused(NotFound, "no ledger 9", client.convert_topic(TOPIC, to_ledger_id=9))
        await refused(NotFound, "not enabled", client.convert_topic(other("unknown")))
        await refused(NotFound, "nothing of this topic was ordered", client.stop_rollback(TOPIC))
        reports = [one async for one in client.follow_rollback(TOPIC, timeout_s=PATIENCE_S)]
        assert [one.HasField("order") for one in reports] == [False]
        assert (await client.convert_topic(TOPIC)).order.to_ledger_id == 0
        assert (await client.stop_rollback(TOPIC)).ended_ms


def other(name: str) -> TopicName:
    """Return another topic of the namespace."""
    return type(TOPIC)("public", "default", name)


async def test_the_plan_of_a_topic_that_nobody_works_on() -> None:
    """Any daemon can say what is in the tier; it tells that somebody has to enable the topic first."""
    rig, _ = await streamed(15)
    async with served(rig) as (client, work):
        await work.engine.deselect(of_topic(TOPIC))
        (plan,) = await client.plans(NAME)
        assert not plan.enabled
        assert plan.ledgers[0].standing == "convertible"
        assert OffloadMethod(plan.method) is OffloadMethod.STREAMING
