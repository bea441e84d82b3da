"""A ZooKeeper of one test's own, which may be hurt: a real one here, the simulation's in simulated.py."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig, Transient
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.standalone.ports import free_ports
from offloaderd.standalone.zookeeper import ZooKeeperOptions, ZooKeeperServer, zookeeper
from tests.real.freezing import freeze

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.metadata.port import MetadataStore, SessionObserver

CLOCK = SystemClock()


class Server(Protocol):
    """A server that goes and comes, and its clients."""

    address: str

    def store(
        self, *, session_s: float = 30, call_s: float = 10, observer: SessionObserver = lambda _: None
    ) -> AbstractAsyncContextManager[MetadataStore]:
        """Open a store of one root."""
        ...

    async def start(self) -> None:
        """Start it over what it has stored."""
        ...

    async def kill(self) -> None:
        """Break all connections and take no more."""
        ...

    def pause(self) -> None:
        """Let it answer nothing; connections stay open."""
        ...


class PrivateServer:
    """A ZooKeeper of one test's own, which may be hurt."""

    def __init__(self, directory: Path) -> None:
        self._options = ZooKeeperOptions(directory=directory, port=free_ports(1, CLOCK)[0])
        self._stack = AsyncExitStack()
        self._server: ZooKeeperServer | None = None
        self.address = f"127.0.0.1:{self._options.port}"

    async def start(self) -> None:
        """Start it over its directory."""
        self._server = await self._stack.enter_async_context(zookeeper(self._options, CLOCK))

    async def kill(self) -> None:
        """End it as kill -9 does."""
        self._signal(signal.SIGKILL)
        await self._stack.aclose()
        self._server = None

    def pause(self) -> None:
        """Stop the process; its connections stay open and silent."""
        if self._server is not None and self._server.child.pid is not None:
            freeze(self._server.child.pid, CLOCK)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._server is not None and self._server.child.pid is not None:
            os.killpg(self._server.child.pid, number)

    def store(
        self, *, session_s: float = 30, call_s: float = 10, observer: SessionObserver = lambda _: None
    ) -> ZooKeeperStore:
        """Open a store of one root."""
        options = MetadataSettings(session_timeout_s=session_s)
        return ZooKeeperStore(self.address, "/r", options, call_timeout_s=call_s, observer=observer)


@asynccontextmanager
async def private_server(directory: Path) -> AsyncIterator[PrivateServer]:
    """Run a server, and kill it at the end; by another port if a program took the first one meanwhile."""
    server = PrivateServer(directory)
    try:
        await server.start()
    except InvalidConfig as error:
        if "in use" not in error.message:
            raise
        server = PrivateServer(directory)
        await server.start()
    try:
        yield server
    finally:
        await server.kill()


async def readable(store: MetadataStore) -> bool:
    """Return whether the store answers."""
    try:
        await store.children("/")
    except Transient:
        return False
    return True
