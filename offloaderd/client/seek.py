"""The part of the client that seeks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.read.seek_goal import SeekKind
from offloaderd.rpc.v1 import read_pb2, read_pb2_grpc

if TYPE_CHECKING:
    from offloaderd.model import TopicName
    from offloaderd.read.seek_goal import Goal


class SeekCalls(Connection):
    """Seek of ReadService, for DaemonClient to inherit."""

    async def seek(self, topic: TopicName | str, goal: Goal) -> read_pb2.SeekResponse:
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
