"""A TCP proxy on loopback whose connections can be cut, in front of one of several servers, by TLS or not."""

import asyncio
import contextlib
import ssl

from offloaderd.drill.listener import Listener, between

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
        """Break every connection in the middle of whatever it does."""
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
