"""The part of the client that is about history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import history_pb2, history_pb2_grpc

if TYPE_CHECKING:
    from offloaderd.model import TopicName


class HistoryCalls(Connection):
    """Calls of HistoryService, for DaemonClient to inherit."""

    async def plan_history(self, topic: TopicName | str, *, segment_bytes: int = 0) -> history_pb2.PlanHistoryResponse:
        """Return how a topic's history would be split; it takes as long as the source takes to answer."""
        request = history_pb2.PlanHistoryRequest(topic=str(topic), segment_bytes=segment_bytes)
        stub = history_pb2_grpc.HistoryServiceStub(self._channel)
        with self._errors():
            return await stub.PlanHistory(request, timeout=self._timeout_s)

    async def history(
        self, topic: TopicName | str, *, ranges_from: int = 0, ranges_max: int = 0
    ) -> history_pb2.GetHistoryResponse:
        """Return how far a topic's planned history is, with some of its ranges."""
        request = history_pb2.GetHistoryRequest(topic=str(topic), ranges_from=ranges_from, ranges_max=ranges_max)
        stub = history_pb2_grpc.HistoryServiceStub(self._channel)
        with self._errors():
            return await stub.GetHistory(request, timeout=self._timeout_s)
