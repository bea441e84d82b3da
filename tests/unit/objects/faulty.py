"""An HTTP server on loopback that misbehaves on request."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from offloaderd.drill.tcp_proxy import Listener
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Behaviour = Callable[["Connection"], Awaitable[None]]


class Connection:
    """One accepted connection, its request's head already read."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.reader = reader
        self.writer = writer

    async def read_body(self) -> bytes:
        """Read the request's body to its end."""
        for line in self.head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                return await self.reader.readexactly(int(value))
        return b""

    def answer(self, status: str, body: bytes = b"", **headers: str) -> None:
        """Send an answer; a Content-Length in `headers` may lie."""
        named = {"Content-Length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self.writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)

    def reset(self) -> None:
        """Break the connection at once."""
        self.writer.transport.abort()


class FaultyServer:
    """Answers every connection with one behaviour, and remembers the heads of the requests."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            await self._behaviour(Connection(head, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def store_at(server: FaultyServer, **options: Any) -> AsyncIterator[S3Store]:  # noqa: ANN401 - the section's own
    """A store that talks to this server, patient: whoever tests time-outs says how long they are."""
    settings: dict[str, Any] = {"access_key": "key", "secret_key": "hush"}
    settings |= {"connect_timeout_s": PATIENCE_S, "read_timeout_s": PATIENCE_S}
    async with Listener(server.serve) as listener:
        made = ObjectsSettings(bucket="bucket", endpoint=listener.endpoint, **settings | options)
        async with S3Store(made, bytes_per_s_min=1 << 30) as store:
            yield store


def error_body(code: str) -> bytes:
    """S3's answer to what it refuses."""
    return f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode()
