"""The part of the client that changes a daemon while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import control_pb2, control_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.model import TopicName


class ControlCalls(Connection):
    """Calls of ControlService, for DaemonClient to inherit."""

    async def reload(self, *, dry_run: bool = False) -> control_pb2.ReloadResponse:
        """Have the daemon read its settings again; says what changed. Raises InvalidConfig with every mistake."""
        stub = control_pb2_grpc.ControlServiceStub(self._channel)
        with self._errors():
            return await stub.Reload(control_pb2.ReloadRequest(dry_run=dry_run), timeout=self._timeout_s)

    async def log_levels(self) -> Sequence[control_pb2.ModuleLevel]:
        """Return what is logged from which level on; the first is for all modules without one of their own."""
        stub = control_pb2_grpc.ControlServiceStub(self._channel)
        with self._errors():
            return (await stub.ListLogLevels(control_pb2.ListLogLevelsRequest(), timeout=self._timeout_s)).levels

    async def set_log_level(self, module: str, level: str, seconds: float = 0.0) -> Sequence[control_pb2.ModuleLevel]:
        """Have a module log from a level on for so long; an empty level takes that back. Raises InvalidInput."""
        stub = control_pb2_grpc.ControlServiceStub(self._channel)
        request = control_pb2.SetLogLevelRequest(module=module, level=level, seconds=seconds)
        with self._errors():
            return (await stub.SetLogLevel(request, timeout=self._timeout_s)).levels

    async def pause(
        self, topic: TopicName, *, undo: bool = False, dry_run: bool = False
    ) -> Sequence[control_pb2.PausedTopic]:
        """Have a topic with its partitions stand still, or go on. Raises NotFound when it is not enabled."""
        stub = control_pb2_grpc.ControlServiceStub(self._channel)
        request = control_pb2.PauseTopicRequest(topic=str(topic), undo=undo, dry_run=dry_run)
        with self._errors():
            return (await stub.PauseTopic(request, timeout=self._timeout_s)).topics
