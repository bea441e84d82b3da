"""The part of the client that is about deleting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import retention_pb2, retention_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.model import TopicName


class RetentionCalls(Connection):
    """Calls of RetentionService, for DaemonClient to inherit."""

    async def ledgers(self, topic: TopicName | str) -> retention_pb2.ListLedgersResponse:
        """Return a topic's ledgers, with what has become of each."""
        request = retention_pb2.ListLedgersRequest(topic=str(topic))
        stub = retention_pb2_grpc.RetentionServiceStub(self._channel)
        with self._errors():
            return await stub.ListLedgers(request, timeout=self._timeout_s)

    async def delete_ledgers(
        self, topic: TopicName | str, ledger_ids: Sequence[int], *, dry_run: bool = False
    ) -> retention_pb2.DeleteLedgersResponse:
        """Mark ledgers deleted in the tier; the topic's owner has to be asked."""
        request = retention_pb2.DeleteLedgersRequest(topic=str(topic), ledger_ids=ledger_ids, dry_run=dry_run)
        stub = retention_pb2_grpc.RetentionServiceStub(self._channel)
        with self._errors():
            return await stub.DeleteLedgers(request, timeout=self._timeout_s)

    async def revoke_grant(self, topic: TopicName | str, ledger_id: int, *, reason: str = "") -> retention_pb2.Grant:
        """Take back, or forbid beforehand, the permission to delete a ledger from its source."""
        request = retention_pb2.RevokeGrantRequest(topic=str(topic), ledger_id=ledger_id, reason=reason)
        stub = retention_pb2_grpc.RetentionServiceStub(self._channel)
        with self._errors():
            return (await stub.RevokeGrant(request, timeout=self._timeout_s)).grant

    async def allow_grant(self, topic: TopicName | str, ledger_id: int) -> None:
        """Lift a revocation."""
        request = retention_pb2.AllowGrantRequest(topic=str(topic), ledger_id=ledger_id)
        stub = retention_pb2_grpc.RetentionServiceStub(self._channel)
        with self._errors():
            await stub.AllowGrant(request, timeout=self._timeout_s)
