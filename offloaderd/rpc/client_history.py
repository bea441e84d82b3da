"""The part of the client that is about history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.rpc.v1 import history_pb2, history_pb2_grpc

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from grpc import aio

    from offloaderd.model import TopicName


class HistoryCalls:
    """Calls of HistoryService, for DaemonClient to inherit."""

    _channel: aio.Channel
    _timeout_s: float | None

    def _errors(self, call: aio.Call | None = None) -> AbstractContextManager[None]:
        """Turn gRPC's exceptions into ours."""
        raise TypeError("a part of DaemonClient, not a client by itself")

    async def plan_history(self, topic: TopicName, *, segment_bytes: int = 0) -> history_pb2.PlanHistoryResponse:
        """Return how a topic's history would be split; it takes as long as the source takes to answer."""
        request = history_pb2.PlanHistoryRequest(topic=str(topic), segment_bytes=segment_bytes)
        stub = history_pb2_grpc.HistoryServiceStub(self._channel)
        with self._errors():
            return await stub.PlanHistory(request, timeout=self._timeout_s)

    async def history(
        self, topic: TopicName, *, ranges_from: int = 0, ranges_max: int = 0
    ) -> history_pb2.GetHistoryResponse:
        """Return how far a topic's planned history is, with some of its ranges."""
        request = history_pb2.GetHistoryRequest(topic=str(topic), ranges_from=ranges_from, ranges_max=ranges_max)
        stub = history_pb2_grpc.HistoryServiceStub(self._channel)
        with self._errors():
            return await stub.GetHistory(request, timeout=self._timeout_s)
