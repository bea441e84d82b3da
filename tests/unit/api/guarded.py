"""A daemon's gRPC server behind its gate, with services that only answer: who gets past the gate gets an answer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offloaderd.access.certificates import Certificates, TlsFiles, Watched, load_certificates
from offloaderd.access.roles import Grant, Rights
from offloaderd.api.gate import Authentication, Gate, Limits
from offloaderd.api.interceptor import ErrorInterceptor
from offloaderd.api.server import RpcServer, Services
from offloaderd.api.settings import GrpcSettings
from offloaderd.client import DaemonClient, Trust
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.protocol.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2_grpc,
    cache_pb2_grpc,
    control_pb2_grpc,
    doctor_pb2_grpc,
    history_pb2_grpc,
    identity_pb2_grpc,
    inspect_pb2_grpc,
    ledgers_pb2,
    ledgers_pb2_grpc,
    offload_pb2,
    offload_pb2_grpc,
    placement_pb2_grpc,
    places_pb2_grpc,
    policy_pb2_grpc,
    quota_pb2_grpc,
    read_pb2,
    read_pb2_grpc,
    retention_pb2_grpc,
    rollback_pb2_grpc,
    upkeep_pb2_grpc,
)
from tests.unit.read.build import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from grpc import aio

    from offloaderd.core.clock import Clock

REAL_TIME = "gRPC"


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """Answers; `slow` keeps a call waiting."""

    def __init__(self) -> None:
        self.slow = asyncio.Event()
        self.slow.set()
        self.calls = 0

    async def Status(self, request: Any, context: Any) -> admin_pb2.StatusResponse:  # noqa: ANN401, N802 - as generated
        """Answer with nothing."""
        self.calls += 1
        await self.slow.wait()
        return admin_pb2.StatusResponse(daemon_id="d")

    async def EnableTopic(self, request: Any, context: Any) -> admin_pb2.EnableTopicResponse:  # noqa: ANN401, N802
        """Answer with what was asked."""
        return admin_pb2.EnableTopicResponse(pattern=request.topic)

    async def DisableTopic(self, request: Any, context: Any) -> admin_pb2.DisableTopicResponse:  # noqa: ANN401, N802
        """Answer with what was asked."""
        return admin_pb2.DisableTopicResponse(pattern=request.topic)


class Reads(read_pb2_grpc.ReadServiceServicer):
    """Streams as much as anybody takes; `open` is how many streams have not ended."""

    def __init__(self) -> None:
        self.open = 0

    async def ReadMessages(self, request: Any, context: Any) -> AsyncIterator[read_pb2.ReadMessagesResponse]:  # noqa: ANN401, N802
        """Stream large answers without end."""
        self.open += 1
        try:
            while True:
                yield read_pb2.ReadMessagesResponse(messages=[read_pb2.Message(data=bytes(1 << 20))])
        finally:
            self.open -= 1

    async def Read(self, request: Any, context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]  # noqa: ANN401, N802
        """Stream large answers, which are serialized already, without end."""
        while True:
            yield read_pb2.ReadResponse(frames=bytes(1 << 20)).SerializeToString()

    async def LastPositions(self, request: Any, context: Any) -> read_pb2.LastPositionsResponse:  # noqa: ANN401, N802
        """Answer with nothing."""
        return read_pb2.LastPositionsResponse()


class Pushes(offload_pb2_grpc.OffloadServiceServicer):
    """Takes what is pushed."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def StreamingOffload(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override] # noqa: ANN401, N802
        """Note every message that came through."""
        while isinstance(request := await context.read(), offload_pb2.StreamingOffloadRequest):
            self.taken.append(request.open.topic)
            await context.write(offload_pb2.StreamingOffloadResponse())


class Appends(ledgers_pb2_grpc.LedgerServiceServicer):
    """Takes what is appended."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def Append(self, request_iterator: Any, context: Any) -> AsyncIterator[ledgers_pb2.AppendResponse]:  # noqa: ANN401, N802
        """Note every message that came through."""
        async for request in request_iterator:
            self.taken.append(request.topic)
            yield ledgers_pb2.AppendResponse()


@dataclass
class Site:
    """A guarded server: its address, its services, its numbers, its certificates."""

    address: str
    metrics: Metrics
    admin: Admin
    reads: Reads
    pushes: Pushes
    appends: Appends
    gate: Gate
    certificates: Watched[Certificates] | None

    def client(self, **trust: Any) -> DaemonClient:  # noqa: ANN401 - Trust's own fields
        """Return a client that trusts this."""
        return DaemonClient(self.address, timeout_s=20, trust=Trust(**trust))

    def refusals(self, reason: str) -> float:
        """How often something was refused for a reason."""
        return self.metrics.registry.get_sample_value("offloaderd_grpc_refused_total", {"reason": reason}) or 0.0


def empty(kind: Any) -> Any:  # noqa: ANN401 - of any service
    """Make a service that does not implement all of its calls; the type checker would have it do so."""
    return kind()


@asynccontextmanager
async def guarded(
    *,
    files: TlsFiles | None = None,
    grants: Sequence[str] | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    message_bytes_max: int = 6 << 20,
    **authentication: Any,  # noqa: ANN401 - Authentication's own fields
) -> AsyncIterator[Site]:
    """Serve on a free port; `grants` None is a daemon without authentication."""
    clock, metrics = clock or SystemClock(), Metrics()
    certificates = Watched(files.all, lambda: load_certificates(files)) if files is not None else None
    rules = None
    if grants is not None:
        rules = Authentication(rights=Rights(map(Grant.parse, grants)), **authentication)
    gate = Gate(metrics, clock, limits, rules)
    admin, reads, pushes, appends = empty(Admin), empty(Reads), Pushes(), empty(Appends)
    services: Services = {
        "offload": pushes,
        "read": reads,
        "admin": admin,
        "broker": empty(broker_pb2_grpc.BrokerServiceServicer),
        "cache": empty(cache_pb2_grpc.CacheServiceServicer),
        "places": empty(places_pb2_grpc.PlacesServiceServicer),
        "doctor": empty(doctor_pb2_grpc.DoctorServiceServicer),
        "upkeep": empty(upkeep_pb2_grpc.UpkeepServiceServicer),
        "placement": empty(placement_pb2_grpc.PlacementServiceServicer),
        "retention": empty(retention_pb2_grpc.RetentionServiceServicer),
        "identity": empty(identity_pb2_grpc.IdentityServiceServicer),
        "inspect": empty(inspect_pb2_grpc.InspectServiceServicer),
        "history": empty(history_pb2_grpc.HistoryServiceServicer),
        "policy": empty(policy_pb2_grpc.PolicyServiceServicer),
        "quota": empty(quota_pb2_grpc.QuotaServiceServicer),
        "control": empty(control_pb2_grpc.ControlServiceServicer),
        "rollback": empty(rollback_pb2_grpc.RollbackServiceServicer),
        "ledgers": appends,
    }
    options = GrpcSettings.model_construct(
        port=0, message_bytes_max=message_bytes_max, streams_max=100, handshake_s_max=2.0
    )
    interceptors: list[aio.ServerInterceptor] = [ErrorInterceptor(metrics, clock=clock, gate=gate)]
    async with RpcServer(options, services, interceptors, certificates) as server:
        await server.show(serving=True)
        yield Site(f"127.0.0.1:{server.port}", metrics, admin, reads, pushes, appends, gate, certificates)
        await server.stop(0.5)
        await turns(20)
