"""UpkeepService: finds as they come, then the sum; a dry run unless it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from uuid import UUID

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError
from prometheus_client import CollectorRegistry

from offloaderd.api.daemon import UpkeepService
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.protocol.v1 import states_pb2, upkeep_pb2, upkeep_pb2_grpc
from offloaderd.upkeep.gc.findings import Finding, Kind, Summary, Verdict
from tests.unit.api.serve import serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Set as AbstractSet

    from grpc import aio

    from offloaderd.upkeep.gc.collector import Collector

REAL_TIME = "gRPC"

FIND = Finding(
    key="k",
    kind=Kind.UNCOVERED,
    verdict=Verdict.ALARM,
    reason="why",
    size_bytes=7,
    age_s=1.5,
    upload_id="u",
    topic=TopicName.parse("t/n/x"),
)


class Canned:
    """Says what was asked and yields one find."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, bool, set[UUID]]] = []

    async def collect(
        self, *, grace_s: float, apply: bool, also: AbstractSet[UUID]
    ) -> AsyncGenerator[Finding | Summary, None]:
        """Yield."""
        self.asked.append((grace_s, apply, set(also)))
        summary = Summary(applied=apply, grace_s=grace_s, topics=3, deleted_bytes=9)
        summary.count(FIND)
        yield FIND
        yield summary


async def test_finds_and_sum_are_streamed() -> None:
    """Everything of a find arrives; what is not said is the daemon's grace age and no deletion."""
    canned = Canned()

    def register(server: aio.Server) -> None:
        upkeep_pb2_grpc.add_UpkeepServiceServicer_to_server(
            UpkeepService(cast("Collector", canned), grace_s=60.0), server
        )

    async with serving(Metrics(CollectorRegistry()), register) as channel:
        stub = upkeep_pb2_grpc.UpkeepServiceStub(channel)
        events = [event async for event in stub.Gc(upkeep_pb2.GcRequest())]
        assert events[0].find == upkeep_pb2.GcFind(
            key="k",
            kind="uncovered",
            verdict="alarm",
            verdict_code=states_pb2.GC_VERDICT_ALARM,
            kind_code=states_pb2.GC_KIND_UNCOVERED,
            reason="why",
            size_bytes=7,
            age_s=1.5,
            upload_id="u",
            topic="persistent://t/n/x",
        )
        summary = events[1].summary
        assert (summary.applied, summary.grace_s, summary.topics, summary.deleted_bytes) == (False, 60, 3, 9)
        assert (dict(summary.finds), dict(summary.verdicts)) == ({"uncovered": 1}, {"alarm": 1})
        assert (
            len(
                [event async for event in stub.Gc(upkeep_pb2.GcRequest(apply=True, grace_s=0, also=[str(UUID(int=7))]))]
            )
            == 2
        )
        with pytest.raises(AioRpcError) as refused:
            [event async for event in stub.Gc(upkeep_pb2.GcRequest(grace_s=-1))]
        assert refused.value.code() is StatusCode.INVALID_ARGUMENT
        with pytest.raises(AioRpcError) as refused:
            [event async for event in stub.Gc(upkeep_pb2.GcRequest(also=["x"]))]
        assert refused.value.code() is StatusCode.INVALID_ARGUMENT
    assert canned.asked == [(60.0, False, set()), (0.0, True, {UUID(int=7)})]
