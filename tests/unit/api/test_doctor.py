"""DoctorService: results as they come, one examination at a time, nothing left running."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from offloaderd.api.daemon import DoctorService
from offloaderd.client import translated
from offloaderd.core.errors import Conflict
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.doctor.finding import CheckResult, Verdict
from offloaderd.protocol.v1 import doctor_pb2, doctor_pb2_grpc
from tests.patience import PATIENCE_S
from tests.unit.api.serve import serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from grpc import aio

REAL_TIME = "gRPC"

FIRST = CheckResult(name="a", verdict=Verdict.OK, found="well", seconds=0.5)
SECOND = CheckResult(name="b", verdict=Verdict.FAIL, found="ill", what_to_do="rest")


class Examination:
    """Yields one result, and the second one once it may."""

    def __init__(self) -> None:
        self.resume = asyncio.Event()
        self.closed = asyncio.Event()

    async def __call__(self) -> AsyncGenerator[CheckResult, None]:
        """Run."""
        try:
            yield FIRST
            await self.resume.wait()
            yield SECOND
        finally:
            self.closed.set()


async def test_results_are_streamed_and_a_second_call_is_refused() -> None:
    """The first result is there before the second is known; meanwhile nobody else may ask; afterwards one may."""
    examination = Examination()
    service = DoctorService(examination)

    def register(server: aio.Server) -> None:
        doctor_pb2_grpc.add_DoctorServiceServicer_to_server(service, server)

    async with serving(Metrics(CollectorRegistry()), register) as channel:
        stub = doctor_pb2_grpc.DoctorServiceStub(channel)
        call = stub.Examine(doctor_pb2.ExamineRequest())
        results = [await anext(aiter(call))]
        with pytest.raises(Exception, match="under way") as refused:
            [result async for result in stub.Examine(doctor_pb2.ExamineRequest())]
        assert isinstance(translated(refused.value, "here"), Conflict)  # type: ignore[arg-type]
        examination.resume.set()
        results += [result async for result in call]
        assert [(one.name, one.verdict, one.found, one.what_to_do, one.seconds) for one in results] == [
            ("a", "ok", "well", "", 0.5),
            ("b", "fail", "ill", "rest", 0.0),
        ]
        assert len([result async for result in stub.Examine(doctor_pb2.ExamineRequest())]) == 2


async def test_a_client_that_goes_away_ends_the_examination() -> None:
    """What it holds is free, and the next one may ask."""
    examination = Examination()
    service = DoctorService(examination)

    def register(server: aio.Server) -> None:
        doctor_pb2_grpc.add_DoctorServiceServicer_to_server(service, server)

    async with serving(Metrics(CollectorRegistry()), register) as channel:
        stub = doctor_pb2_grpc.DoctorServiceStub(channel)
        call = stub.Examine(doctor_pb2.ExamineRequest())
        await anext(aiter(call))
        call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await examination.closed.wait()
        examination.resume.set()
        assert len([result async for result in stub.Examine(doctor_pb2.ExamineRequest())]) == 2


async def test_closing_the_generator_is_enough() -> None:
    """As the interceptor does."""
    examination = Examination()
    service = DoctorService(examination)
    async with aclosing(service.Examine(doctor_pb2.ExamineRequest(), None)) as results:  # type: ignore[arg-type, type-var]
        await anext(results)
    assert examination.closed.is_set()
