"""The part of the client that is about daemons and their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.rpc.v1 import placement_pb2, placement_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractContextManager

    from grpc import aio

    from offloaderd.model import TopicName


class PlacementCalls:
    """Calls of PlacementService, for DaemonClient to inherit."""

    _channel: aio.Channel
    _timeout_s: float | None

    def _errors(self, call: aio.Call | None = None) -> AbstractContextManager[None]:
        """Turn gRPC's exceptions into ours."""
        raise TypeError("a part of DaemonClient, not a client by itself")

    async def daemons(self, topic: TopicName | None = None) -> placement_pb2.ListDaemonsResponse:
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
