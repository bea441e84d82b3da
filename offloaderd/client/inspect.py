"""The part of the client that looks at what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import common_pb2, inspect_pb2, inspect_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.model import Position, TopicName


class InspectCalls(Connection):
    """Calls of InspectService, for DaemonClient to inherit."""

    async def explain(self, topic: TopicName | str, position: Position) -> inspect_pb2.ExplainResponse:
        """Return where an entry is, or why there is none."""
        message = common_pb2.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)
        request = inspect_pb2.ExplainRequest(topic=str(topic), position=message)
        stub = inspect_pb2_grpc.InspectServiceStub(self._channel)
        with self._errors():
            return await stub.Explain(request, timeout=self._timeout_s)

    async def verify(
        self, topic: TopicName | str, *, level: str = "full", timeout_s: float | None = None
    ) -> AsyncGenerator[inspect_pb2.VerifyEvent, None]:
        """Have the daemon compare a topic's segments with the bucket; yields what was found of each, then the sum."""
        stub = inspect_pb2_grpc.InspectServiceStub(self._channel)
        call = stub.Verify(inspect_pb2.VerifyRequest(topic=str(topic), level=level), timeout=timeout_s)
        with self._errors(call):
            async for event in call:
                yield event
