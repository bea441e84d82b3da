"""A daemon's read service that is called without a connection, so that direct reads take no real time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from offloaderd.api.read import ReadService
from offloaderd.client.channel import Resume
from offloaderd.client.reading import DirectRead, ReadAnswer, Reading, Wanted, read_request
from offloaderd.core.errors import OffloaderError
from offloaderd.direct.bucket import segments_of
from offloaderd.protocol.conversion import decoded_read_response, to_position
from offloaderd.protocol.v1 import common_pb2, read_pb2
from tests.unit.read.build import TOPIC, flat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from offloaderd.client.reading import Attempt
    from offloaderd.direct import BucketReads
    from offloaderd.objects.port import ObjectReader
    from tests.unit.read.build import ReadRig

Planned = read_pb2.PlanReadResponse
Outcome = tuple[list[tuple[int, int, bytes]], str]
"""Entries, and the error's type and message, empty without one."""


class Here:
    """The calls of a client that a read makes, on the reader of a rig; `replan` may change each plan on its way."""

    address = "here"
    renewed = False

    def __init__(self, rig: ReadRig) -> None:
        self._rig = rig
        self._service = ReadService(rig.reader, 8, metrics=rig.metrics)
        self.plans: list[read_pb2.ReadRequest] = []
        self.streams: list[read_pb2.ReadRequest] = []
        self.replan: Callable[[Planned], Coroutine[Any, Any, None]] | None = None

    async def plan_read(self, request: read_pb2.ReadRequest, timeout_s: float | None = None) -> Planned:
        """See EntryCalls."""
        del timeout_s
        self.plans.append(_copied(request))
        plan = await self._service.PlanRead(_copied(request), None)  # type: ignore[arg-type] # no call has a context
        if self.replan is not None:
            await self.replan(plan)
        return plan

    async def read_once(
        self, request: read_pb2.ReadRequest, timeout_s: float | None
    ) -> AsyncGenerator[ReadAnswer, None]:
        """See EntryCalls."""
        del timeout_s
        self.streams.append(_copied(request))
        async with aclosing(self._service.Read(_copied(request), None)) as answers:  # type: ignore[arg-type, type-var]
            async for data in answers:
                yield ReadAnswer(*decoded_read_response(data, where="here"))

    async def newest(self) -> common_pb2.Position | None:
        """Return the newest entry."""
        return to_position((await self._rig.reader.last_positions(TOPIC)).confirmed)

    async def through(self, wanted: Wanted) -> Outcome:
        """Read a range through the daemon."""
        return await self._outcome(wanted, self.read_once)

    async def direct(self, wanted: Wanted, store: ObjectReader | None = None) -> Outcome:
        """Read a range directly, by default out of the daemon's own store."""
        async with segments_of(store or self._rig.store, self._rig.clock) as bucket:
            return await self.direct_of(bucket, wanted)

    async def direct_of(self, bucket: BucketReads, wanted: Wanted) -> Outcome:
        """Read a range directly out of a bucket."""
        reading: Any = self
        return await self._outcome(wanted, DirectRead(reading, bucket.sequence(), self._rig.clock).attempt)

    async def _outcome(self, wanted: Wanted, attempt: Attempt) -> Outcome:
        client: Any = self
        reading = Reading(
            read_request(TOPIC, wanted, framed=True),
            attempt=attempt,
            newest=self.newest,
            resume=Resume(client, self._rig.clock, 0),
            clock=self._rig.clock,
            timeout_s=None,
        )
        found: list[tuple[int, int, bytes]] = []
        try:
            async with aclosing(reading.answers()) as answers:
                async for answer in answers:
                    found += flat([answer.batch])
        except OffloaderError as error:
            return found, f"{type(error).__name__}: {error.message}"
        return found, ""


def _copied(request: read_pb2.ReadRequest) -> read_pb2.ReadRequest:
    """Return what a daemon would get."""
    return read_pb2.ReadRequest.FromString(request.SerializeToString())
