"""The gRPC server: all services, health and reflection behind one interceptor, on one port.

With certificates it accepts only TLS, 1.2 or newer. Each handshake uses the present certificate; open connections keep
theirs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module

import grpc
from google.protobuf import descriptor_pool
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from offloaderd.access.certificates import Certificates, Watched
from offloaderd.api.settings import GrpcSettings
from offloaderd.core.errors import InvalidConfig
from offloaderd.protocol.v1 import (
    admin_pb2_grpc,
    broker_pb2_grpc,
    control_pb2_grpc,
    doctor_pb2_grpc,
    history_pb2_grpc,
    identity_pb2_grpc,
    inspect_pb2_grpc,
    ledgers_pb2_grpc,
    offload_pb2_grpc,
    placement_pb2_grpc,
    policy_pb2_grpc,
    read_pb2_grpc,
    retention_pb2_grpc,
    rollback_pb2_grpc,
    upkeep_pb2_grpc,
)

PROTOCOL = "offloaderd.protocol.v1"
"""Package of the generated modules."""

FRAME_BYTES = 1024 * 1024
"""Size of a typical batch of entries: in one frame instead of 64 it costs the receiver a sixth less."""

AHEAD_BYTES = 2 * FRAME_BYTES
"""Bytes of a stream that are received before they are read. gRPC's own estimate was up to 50 MiB for one pusher: it
takes the daemon's work for latency of the line, and no budget counts those bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All services; `ledgers` only where the daemon has a store of its own."""

    offload: offload_pb2_grpc.OffloadServiceServicer
    read: read_pb2_grpc.ReadServiceServicer
    broker: broker_pb2_grpc.BrokerServiceServicer
    admin: admin_pb2_grpc.AdminServiceServicer
    doctor: doctor_pb2_grpc.DoctorServiceServicer
    upkeep: upkeep_pb2_grpc.UpkeepServiceServicer
    placement: placement_pb2_grpc.PlacementServiceServicer
    control: control_pb2_grpc.ControlServiceServicer
    retention: retention_pb2_grpc.RetentionServiceServicer
    inspect: inspect_pb2_grpc.InspectServiceServicer
    history: history_pb2_grpc.HistoryServiceServicer
    policy: policy_pb2_grpc.PolicyServiceServicer
    rollback: rollback_pb2_grpc.RollbackServiceServicer
    identity: identity_pb2_grpc.IdentityServiceServicer
    ledgers: ledgers_pb2_grpc.LedgerServiceServicer | None = None


class RpcServer:
    """Async context manager of the server: bound on entry, answering once `show` has it serving, stopped on exit."""

    def __init__(
        self,
        options: GrpcSettings,
        services: Services,
        interceptors: Sequence[aio.ServerInterceptor],
        certificates: Watched[Certificates] | None,
    ) -> None:
        self._options = options
        self._certificates = certificates
        self._services = services
        self._interceptors = interceptors
        self._health = health_aio.HealthServicer()
        self._names: list[str] = []
        self.port = 0

    async def __aenter__(self) -> "RpcServer":
        """Bind the port and answer health checks. Raises InvalidConfig when the port is not available."""
        options = self._options
        self._server = aio.server(
            interceptors=list(self._interceptors),
            options=[
                ("grpc.max_receive_message_length", options.message_bytes_max),
                ("grpc.max_send_message_length", options.message_bytes_max),
                ("grpc.http2.max_frame_size", FRAME_BYTES),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
                ("grpc.max_concurrent_streams", options.streams_max),
                ("grpc.server_handshake_timeout_ms", round(options.handshake_s_max * 1000)),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        self._register()
        address = f"[{options.host}]" if ":" in options.host else options.host
        try:
            if self._certificates is None:
                self.port = self._server.add_insecure_port(f"{address}:{options.port}")
            else:
                self.port = self._server.add_secure_port(f"{address}:{options.port}", _tls(self._certificates))
        except RuntimeError as error:
            raise InvalidConfig(
                f"cannot listen on {address}:{options.port} for gRPC",
                hint="the port is in use or not allowed: set grpc.port to another one (0 picks a free one)",
            ) from error
        await self.show(serving=False)
        await self._server.start()
        return self

    def _register(self) -> None:
        """Add each service of `Services`; the field NAME is that of `NAME.proto` with its one service."""
        for field in fields(self._services):
            if (servicer := getattr(self._services, field.name)) is not None:
                found = descriptor_pool.Default().FindFileByName(f"offloaderd/v1/{field.name}.proto")
                (name,) = found.services_by_name
                stubs = import_module(f"{PROTOCOL}.{field.name}_pb2_grpc")
                getattr(stubs, f"add_{name}Servicer_to_server")(servicer, self._server)
                self._names.append(found.services_by_name[name].full_name)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        shown = [*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(shown, self._server)

    async def show(self, *, serving: bool) -> None:
        """Set the health status of the whole server and of each service."""
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, and cut those that still run after `grace_s`."""
        await self._server.stop(grace_s)

    async def __aexit__(self, *_: object) -> None:
        """Cut running calls and free the port."""
        async with asyncio.timeout(10):
            await self._server.stop(0)


def _tls(certificates: Watched[Certificates]) -> grpc.ServerCredentials:
    """Return credentials that follow the files; gRPC calls `present` in its own thread, which only reads a value."""
    current = [certificates.value]

    def present() -> grpc.ServerCertificateConfiguration | None:
        now = certificates.value
        if now is current[0]:
            return None
        current[0] = now
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(current[0]),
        present,  # type: ignore[arg-type]  # the stubs know of no None, gRPC's own documentation does
        require_client_authentication=current[0].client_ca is not None,
    )


def _configuration(found: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.cert)], found.client_ca)
