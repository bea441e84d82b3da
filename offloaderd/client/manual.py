"""The part of the client that is about offloading by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import admin_pb2, admin_pb2_grpc, common_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.model import Position, TopicName


class ManualCalls(Connection):
    """Calls of AdminService about offloading by hand, for DaemonClient to inherit."""

    async def offload(
        self,
        topic: TopicName | str,
        *,
        wait: bool,
        to: Position | None = None,
        size_threshold: int | None = None,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[admin_pb2.OffloadProgress, None]:
        """Have everything offloaded, or up to an entry, or all but the newest `size_threshold` bytes.

        Yields one report, or with `wait` reports until it is committed; of a dry run what would be done.
        """
        request = admin_pb2.OffloadRequest(
            topic=str(topic),
            wait=wait,
            to=None if to is None else common_pb2.Position(ledger_id=to.ledger_id, entry_id=to.entry_id),
            size_threshold=size_threshold,
            dry_run=dry_run,
        )
        call = admin_pb2_grpc.AdminServiceStub(self._channel).Offload(request, timeout=timeout_s)
        with self._errors(call):
            async for progress in call:
                yield progress

    async def offload_status(
        self, topic: TopicName | str, *, wait: bool, timeout_s: float | None = None
    ) -> AsyncGenerator[admin_pb2.OffloadProgress, None]:
        """Ask what became of the last offload by hand; with `wait` reports until nothing is under way."""
        request = admin_pb2.OffloadStatusRequest(topic=str(topic), wait=wait)
        call = admin_pb2_grpc.AdminServiceStub(self._channel).OffloadStatus(request, timeout=timeout_s)
        with self._errors(call):
            async for progress in call:
                yield progress
