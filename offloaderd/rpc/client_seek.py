"""The part of the client that seeks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.read.seek_goal import SeekKind
from offloaderd.rpc.v1 import read_pb2, read_pb2_grpc

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from grpc import aio

    from offloaderd.model import TopicName
    from offloaderd.read.seek_goal import Goal


class SeekCalls:
    """Seek of ReadService, for DaemonClient to inherit."""

    _channel: aio.Channel
    _timeout_s: float | None

    def _errors(self, call: aio.Call | None = None) -> AbstractContextManager[None]:
        """Turn gRPC's exceptions into ours."""
        raise TypeError("a part of DaemonClient, not a client by itself")

    async def seek(self, topic: TopicName, goal: Goal) -> read_pb2.SeekResponse:
        """Return where an entry is, or where the next one may come. Raises InvalidInput for a number that is none."""
        request = read_pb2.SeekRequest(topic=str(topic), target=seek_target(goal))
        with self._errors():
            return await read_pb2_grpc.ReadServiceStub(self._channel).Seek(request, timeout=self._timeout_s)


def seek_target(goal: Goal) -> read_pb2.SeekTarget:
    """Return what to look for as a message; raises InvalidInput for a number that is none."""
    value = goal.checked().value
    if goal.kind is SeekKind.TIME:
        return read_pb2.SeekTarget(time_ms=value)
    if goal.kind is SeekKind.INDEX:
        return read_pb2.SeekTarget(index=value)
    return read_pb2.SeekTarget(sequence=value)
