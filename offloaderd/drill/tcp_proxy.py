"""TCP servers on loopback that close every connection and end every task, and a proxy that can be cut."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Self

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

AHEAD_BYTES = 1 << 16
"""Bytes that are read ahead of a handler, and the longest text that it can read up to a separator."""


class Listener:
    """Serves each connection to a free port by a handler, until its context ends; then all are aborted.

    asyncio's own servers forget their handlers when they close (Server.wait_closed of Python 3.11 returns at once), so
    their tasks are made and kept here. With `tls` clients speak TLS.
    """

    def __init__(self, handler: Handler, *, ahead_bytes: int = AHEAD_BYTES, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._ahead_bytes = ahead_bytes
        self._server_tls = tls
        self._handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._over = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """Its address, as host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        """Its address, as a URL."""
        return f"http://{self.address}"

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, limit=self._ahead_bytes, ssl=self._server_tls
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept no more connections, abort the present ones, and wait for their ends."""
        self._over = True
        self._server.close()
        self.break_off()
        if self._handlers:
            await asyncio.wait(self._handlers)
        await self._server.wait_closed()

    def break_off(self) -> None:
        """Abort every connection."""
        for handler, writer in self._handlers.items():
            writer.transport.abort()
            handler.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._over:
            writer.transport.abort()
            return
        handler = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._handlers[handler] = writer
        handler.add_done_callback(self._handlers.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._handler(reader, writer)
        finally:
            writer.close()


async def between(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamReader, back: asyncio.StreamWriter
) -> None:
    """Relay bytes between two connections, until either ends."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(reader, back))
            group.create_task(copy(there, writer))
    except asyncio.CancelledError:
        back.transport.abort()
        raise


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy all bytes, then close."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


CONNECT_S = 5.0


class Link(Listener):
    """Async context manager: listens on a free port until it is left.

    `cut` drops all connections and refuses new ones until `mend`. `target` is a URL or HOST:PORT, several with commas
    between; each connection goes to the first that answers. With `tls` the proxy speaks TLS to it, and checks it; with
    `own` its clients speak TLS to the proxy.
    """

    def __init__(self, target: str, *, tls: ssl.SSLContext | None = None, own: ssl.SSLContext | None = None) -> None:
        super().__init__(self._pass_on, tls=own)
        places = [one.strip().rpartition("://")[2] for one in target.split(",")]
        self._targets = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in places)]
        self._tls = tls
        self._open = True
        self.connections = 0

    def cut(self) -> None:
        """Abort every connection, and refuse new ones."""
        self._open = False
        self.break_off()

    def mend(self) -> None:
        """Let connections through again."""
        self._open = True

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._open and (line := await self._connected()) is not None:
            await between(reader, writer, *line)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the first server that answers."""
        for host, port in self._targets:
            name = host if self._tls is not None else None
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(host, port, ssl=self._tls, server_hostname=name)
        return None
