"""The part of the client that is about whose data these are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import identity_pb2, identity_pb2_grpc

if TYPE_CHECKING:
    from offloaderd.model import TopicName


class IdentityCalls(Connection):
    """Calls of IdentityService, for DaemonClient to inherit."""

    async def identity(self, topic: TopicName | str = "") -> identity_pb2.ShowIdentityResponse:
        """Return which deployment this is, and what is refused of a topic."""
        stub = identity_pb2_grpc.IdentityServiceStub(self._channel)
        with self._errors():
            return await stub.ShowIdentity(identity_pb2.ShowIdentityRequest(topic=str(topic)), timeout=self._timeout_s)

    async def accept_identity(
        self, topic: TopicName | str = "", *, kind: str = "", places: bool = False, source: bool = False, dry_run: bool
    ) -> list[str]:
        """Believe what is refused of a topic, of the places, or of the source; returns that in words."""
        request = identity_pb2.AcceptIdentityRequest(kind=kind, dry_run=dry_run)
        if topic:
            request.topic = str(topic)
        elif places:
            request.places = True
        elif source:
            request.source = True
        stub = identity_pb2_grpc.IdentityServiceStub(self._channel)
        with self._errors():
            return list((await stub.AcceptIdentity(request, timeout=self._timeout_s)).believed)
