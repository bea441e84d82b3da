"""The proxies in front of servers that speak TLS: they check whom they talk to, and pass on what the client said."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Transient
from offloaderd.drill.s3_proxy import Fault, S3Proxy
from offloaderd.drill.scratch import Pair
from offloaderd.drill.tcp_proxy import Link, Listener
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from tests.authority import Authority
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REAL_TIME = "sockets"

CLOCK = SystemClock()


@asynccontextmanager
async def server(ca: Authority) -> AsyncIterator[tuple[int, list[str]]]:
    """Answer every request with an empty 200, over TLS; yields the port and the heads of requests."""
    heads: list[str] = []
    files = ca.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # who is not trusted is left alone
        finally:
            writer.transport.abort()

    async with Listener(answer, tls=context) as listening:
        yield listening.port, heads


def trusting(ca: Authority) -> ssl.SSLContext:
    """Trust an authority."""
    return ssl.create_default_context(cafile=str(ca.file))


def store(endpoint: str) -> S3Store:
    """A store behind a proxy that calls itself something else."""
    options = ObjectsSettings(
        bucket="offload",
        endpoint=endpoint,
        signed_host="s3.eu-west-1.amazonaws.com",
        access_key="key",
        secret_key="secret",
        connect_timeout_s=PATIENCE_S,
    )
    return S3Store(options, None, CLOCK)


async def test_requests_go_on_over_tls_and_name_the_service(tmp_path: Path) -> None:
    """The client speaks plainly to the proxy, and signs the host that the service has; faults are done all the same."""
    ca = Authority(tmp_path)
    async with (
        server(ca) as (port, heads),
        S3Proxy(f"https://localhost:{port}", prefix="a b/", tls=trusting(ca)) as proxy,
        store(proxy.endpoint) as bucket,
    ):
        await bucket.put("a b/9b2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11-index", b"x")
        assert "\r\nHost: s3.eu-west-1.amazonaws.com\r\n" in heads[0]
        assert "host;" in heads[0].partition("SignedHeaders=")[2].partition(",")[0]
        assert proxy.counts.requests == {"put index": 1}
        proxy.spoil("put index", Fault.SLOW_DOWN)
        with pytest.raises(Transient, match="SlowDown"):
            await bucket.put("a b/9b2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11-index", b"x")
        assert len(heads) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_server_of_another_authority_gets_nothing(tmp_path: Path, host: str) -> None:
    """Neither a request nor a single byte of what was to be sent."""
    ca, evil = Authority(tmp_path), Authority(tmp_path, "evil")
    async with server(evil) as (port, heads):
        async with S3Proxy(f"https://{host}:{port}", tls=trusting(ca)) as proxy, store(proxy.endpoint) as bucket:
            with pytest.raises(Transient):
                await bucket.put("k", b"secret")
        async with Link(f"{host}:{port}", tls=trusting(ca)) as link:
            reader, writer = await asyncio.open_connection(*link.address.split(":"))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
        assert not heads


async def test_a_link_goes_to_the_first_server_that_answers_and_can_be_cut(tmp_path: Path) -> None:
    """Of several, over TLS; cut, it drops what there is and refuses what comes, until it is mended."""
    ca = Authority(tmp_path)
    async with server(ca) as (port, heads), Link(f"127.0.0.1:1,localhost:{port}", tls=trusting(ca)) as link:

        async def asked() -> bytes:
            try:
                reader, writer = await asyncio.open_connection(*link.address.split(":"))
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                found = await reader.read()
                writer.close()
            except OSError:
                return b""
            return found

        assert (await asked()).startswith(b"HTTP/1.1 200 OK")
        link.cut()
        assert await asked() == b""
        link.mend()
        assert (await asked()).startswith(b"HTTP/1.1 200 OK")
        assert len(heads) == 2
        assert link.connections == 3


async def test_nobody_else_uses_the_line_to_zookeeper(tmp_path: Path) -> None:
    """It lends the daemon's certificate to who shows the drill's own: not to another, to none, or to plain bytes."""
    ca, own = Authority(tmp_path), Pair.made(tmp_path, CLOCK)
    foreign = ca.issue("somebody")

    async def asked(link: Link, pair: tuple[Path, Path] | None) -> bytes:
        context = ssl.create_default_context(cafile=str(own.cert)) if pair != (tmp_path, tmp_path) else None
        if context is not None and pair is not None:
            context.load_cert_chain(*pair)
        try:
            reader, writer = await asyncio.open_connection(*link.address.split(":"), ssl=context)
        except OSError:
            return b""
        try:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()

    async with (
        server(ca) as (port, heads),
        Link(f"localhost:{port}", tls=trusting(ca), own=own.server()) as link,
    ):
        for shown in (None, (foreign.cert, foreign.key), (tmp_path, tmp_path)):
            assert await asked(link, shown) == b""
        assert not heads
        assert (await asked(link, (own.cert, own.key))).startswith(b"HTTP/1.1 200 OK")
