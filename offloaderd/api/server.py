"""The gRPC server: all services, health and reflection behind one interceptor, on one port.

With certificates it accepts only TLS, 1.2 or newer. Each handshake uses the present certificate; open connections keep
theirs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TypeAlias

import grpc
from google.protobuf import descriptor_pool
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from offloaderd.access.certificates import Certificates, Watched
from offloaderd.api.settings import GrpcSettings
from offloaderd.core.errors import InvalidConfig

PROTOCOL = "offloaderd.protocol.v1"
"""Package of the generated modules."""

FRAME_BYTES = 1024 * 1024
"""Size of a typical batch of entries: in one frame instead of 64 it costs the receiver a sixth less."""

AHEAD_BYTES = 2 * FRAME_BYTES
"""Bytes of a stream that are received before they are read. gRPC's own estimate was up to 50 MiB for one pusher: it
takes the daemon's work for latency of the line, and no budget counts those bytes."""


Services: TypeAlias = Mapping[str, object]
"""The services that the daemon has, by the names of their protos."""


@dataclass(eq=False)
class RpcServer:
    """Async context manager of the server: bound on entry, answering once `show` has it serving, stopped on exit.

    `shared_port` is a further port, which other processes of this host listen on as well; 0: none.
    """

    options: GrpcSettings
    services: Services
    interceptors: Sequence[aio.ServerInterceptor]
    certificates: Watched[Certificates] | None
    shared_port: int = 0
    port: int = 0
    _health: health_aio.HealthServicer = field(default_factory=health_aio.HealthServicer, init=False)
    _names: list[str] = field(default_factory=list, init=False)

    async def __aenter__(self) -> "RpcServer":
        """Bind the port and answer health checks. Raises InvalidConfig when the port is not available."""
        options = self.options
        self._server = aio.server(
            interceptors=list(self.interceptors),
            options=[
                ("grpc.max_receive_message_length", options.message_bytes_max),
                ("grpc.max_send_message_length", options.message_bytes_max),
                ("grpc.http2.max_frame_size", FRAME_BYTES),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
                ("grpc.max_concurrent_streams", options.streams_max),
                ("grpc.server_handshake_timeout_ms", round(options.handshake_s_max * 1000)),
                ("grpc.so_reuseport", int(self.shared_port != 0)),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        self._register()
        self.port = self._listen(options.port)
        if self.shared_port:
            self._listen(self.shared_port)
        await self.show(serving=False)
        await self._server.start()
        return self

    def _listen(self, port: int) -> int:
        """Bind a port, and return it; 0 is any free one. Raises InvalidConfig."""
        host = self.options.host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self.certificates is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, _tls(self.certificates))
        except RuntimeError as error:
            raise InvalidConfig(
                f"cannot listen on {address} for gRPC",
                hint="the port is in use or not allowed: set grpc.port to another one (0 picks a free one)",
            ) from error

    def _register(self) -> None:
        """Add each service; NAME.proto has one."""
        for proto, servicer in self.services.items():
            stubs = import_module(f"{PROTOCOL}.{proto}_pb2_grpc")  # which makes the file known to the pool
            found = descriptor_pool.Default().FindFileByName(f"offloaderd/v1/{proto}.proto")
            (service,) = found.services_by_name.values()
            getattr(stubs, f"add_{service.name}Servicer_to_server")(servicer, self._server)
            self._names.append(service.full_name)
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
