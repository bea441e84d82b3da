"""A gRPC server over loopback for tests of services, with the daemon's interceptor."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpc import aio

from offloaderd.api.interceptor import ErrorInterceptor
from offloaderd.client import DaemonClient
from offloaderd.client.channel import OpenChannel
from offloaderd.core.clock import SystemClock
from tests.unit.read.build import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.core.metrics.metrics import Metrics

REAL_TIME = "gRPC"

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
)


@asynccontextmanager
async def listening(metrics: Metrics, register: Callable[[aio.Server], None]) -> AsyncIterator[str]:
    """Serve what `register` adds; gives the address."""
    server = aio.server(interceptors=[ErrorInterceptor(metrics, clock=SystemClock())], options=OPTIONS)
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(2)
        await turns(20)  # gRPC's tasks of the last calls end a little after their clients know


@asynccontextmanager
async def serving(metrics: Metrics, register: Callable[[aio.Server], None]) -> AsyncIterator[aio.Channel]:
    """Serve what `register` adds; gives a channel to it."""
    async with listening(metrics, register) as address, aio.insecure_channel(address, options=OPTIONS) as channel:
        yield channel


class Client(DaemonClient):
    """The client over a channel of the test."""

    def __init__(self, channel: aio.Channel) -> None:
        super().__init__("127.0.0.1:1", timeout_s=30)
        self._channels[self.address] = OpenChannel(channel, ())
