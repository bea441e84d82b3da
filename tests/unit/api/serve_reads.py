"""ReadService over a real gRPC connection, for tests of ranges and of seeking."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.api.read import ReadService
from offloaderd.protocol.conversion import decoded_read_response
from offloaderd.protocol.v1 import read_pb2, read_pb2_grpc
from tests.unit.api.serve import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpc import aio

    from offloaderd.core.model import EntryBatch
    from tests.unit.read.build import ReadRig


def entries_of(answer: read_pb2.ReadResponse) -> EntryBatch:
    """Return the entries of an answer, framed or not."""
    return decoded_read_response(answer.SerializeToString(), where="the test")[0]


@asynccontextmanager
async def served(rig: ReadRig, readers_max: int = 8) -> AsyncIterator[read_pb2_grpc.ReadServiceAsyncStub]:
    """Serve a rig's reader; gives a stub."""

    def register(server: aio.Server) -> None:
        service = ReadService(rig.reader, readers_max, metrics=rig.metrics)
        read_pb2_grpc.add_ReadServiceServicer_to_server(service, server)

    async with rig.reader, serving(rig.metrics, register) as channel:
        yield read_pb2_grpc.ReadServiceStub(channel)
