"""The part of the client that is about daemons and their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import placement_pb2, placement_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.model import TopicName


class PlacementCalls(Connection):
    """Calls of PlacementService, for DaemonClient to inherit."""

    async def daemons(self, topic: TopicName | str | None = None) -> placement_pb2.ListDaemonsResponse:
        """Return all daemons; for a topic in the order in which they should have it."""
        stub = placement_pb2_grpc.PlacementServiceStub(self._channel)
        with self._errors():
            request = placement_pb2.ListDaemonsRequest(topic="" if topic is None else str(topic))
            return await stub.ListDaemons(request, timeout=self._timeout_s)

    async def drain(
        self, *, undo: bool = False, dry_run: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[placement_pb2.DrainProgress, None]:
        """Have the daemon hand its topics to the others; yields how many are left, until there is none."""
        request = placement_pb2.DrainRequest(undo=undo, dry_run=dry_run)
        call = placement_pb2_grpc.PlacementServiceStub(self._channel).Drain(request, timeout=timeout_s)
        with self._errors(call):
            async for progress in call:
                yield progress
