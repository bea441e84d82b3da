"""The part of the client that is about going back to a stock broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import rollback_pb2, rollback_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.model import TopicName


class RollbackCalls(Connection):
    """Calls of RollbackService, for DaemonClient to inherit."""

    async def plan_rollback(
        self, target: str, *, to_ledger_id: int | None = None
    ) -> AsyncGenerator[rollback_pb2.PlanRollbackResponse, None]:
        """Yield what a stock broker could read, for a topic or the topics of TENANT/NAMESPACE."""
        request = rollback_pb2.PlanRollbackRequest(target=target, to_ledger_id=to_ledger_id)
        call = rollback_pb2_grpc.RollbackServiceStub(self._channel).PlanRollback(request, timeout=self._timeout_s)
        with self._errors(call):
            async for found in call:
                yield found

    async def convert_topic(
        self, topic: TopicName | str, *, to_ledger_id: int | None = None
    ) -> rollback_pb2.ConvertTopicResponse:
        """Order that a topic's ledgers are rewritten; the topic's owner has to be asked."""
        request = rollback_pb2.ConvertTopicRequest(topic=str(topic), to_ledger_id=to_ledger_id)
        stub = rollback_pb2_grpc.RollbackServiceStub(self._channel)
        with self._errors():
            return await stub.ConvertTopic(request, timeout=self._timeout_s)

    async def follow_rollback(
        self, topic: TopicName | str, *, timeout_s: float | None
    ) -> AsyncGenerator[rollback_pb2.RollbackProgress, None]:
        """Yield progress until the order has ended."""
        request = rollback_pb2.FollowRollbackRequest(topic=str(topic))
        call = rollback_pb2_grpc.RollbackServiceStub(self._channel).FollowRollback(request, timeout=timeout_s)
        with self._errors(call):
            async for found in call:
                yield found

    async def stop_rollback(self, topic: TopicName | str) -> rollback_pb2.RollbackOrder:
        """Take the order back."""
        request = rollback_pb2.StopRollbackRequest(topic=str(topic))
        stub = rollback_pb2_grpc.RollbackServiceStub(self._channel)
        with self._errors():
            return (await stub.StopRollback(request, timeout=self._timeout_s)).order
