"""/metrics, /metrics/topics, /healthz, /readyz and the status page over HTTP.

aiohttp serves on the loop of the daemon, and not in a thread: a blocked loop then fails its liveness probe, as it
should; numbers are read where they are written; and no thread has to be joined at the end.
A scrape takes a few milliseconds of the loop; with many topics each family does, and others have their turn in between.
aiohttp is a dependency of the S3 client anyway.
"""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from offloaderd.access.certificates import Certificates, Watched, server_context
from offloaderd.core.errors import InvalidConfig
from offloaderd.core.health import Health
from offloaderd.core.metrics.families import Families
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.settings.sections import HttpSettings
from offloaderd.daemon.status_page.site import StatusSite

CLOSE_S = 0.5
"""How long answers in progress may take when the server closes."""

HEADER_BYTES_MAX = 8192

IDLE_S = 75.0
"""How long a connection may be without a whole request; longer than the pause between two scrapes."""

SEND_S = 30.0
"""Longest time for a client to receive an answer."""

log = structlog.get_logger(__name__)

END = b"# EOF\n"
"""The last line of a page in OpenMetrics."""

Scrape = Callable[[str, bool | None], Awaitable[tuple[bytes, str]]]
"""Returns a page of metrics and its content type, for what the caller accepts; with all families (None), only those by
topic (True), or only the others."""


class HttpServer:
    """The server, as an async context manager: it listens inside and leaves no task, thread or socket behind."""

    def __init__(
        self,
        settings: HttpSettings,
        metrics: Metrics | Scrape,
        health: Health,
        certificates: Watched[Certificates] | None = None,
        site: StatusSite | None = None,
        *,
        socket: Path | None = None,
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        """Prepare to serve `metrics`, `health` and the status page; nothing is opened yet.

        `socket`: listen on this Unix socket instead, without TLS; `routes` are further ones.
        """
        self._settings = settings
        self._socket = socket
        self._certificates = certificates if settings.tls != "off" and socket is None else None
        scrape = own_metrics(metrics) if isinstance(metrics, Metrics) else metrics
        self._context: ssl.SSLContext | None = None
        app = web.Application(client_max_size=0, middlewares=[_sent_in_time])
        app.router.add_get("/metrics", _page(scrape, topics=None if settings.topic_metrics else False))
        app.router.add_get("/metrics/topics", _page(scrape, topics=True))
        app.router.add_get("/healthz", _alive)
        app.router.add_get("/readyz", _readiness(health))
        app.router.add_routes(routes)
        if site is not None:
            site.add_to(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=CLOSE_S,
            keepalive_timeout=IDLE_S,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )

    @property
    def port(self) -> int:
        """The port in use; only inside the context."""
        return int(self._runner.addresses[0][1])

    @property
    def address(self) -> str:
        """HOST:PORT in use, or the Unix socket; only inside the context."""
        return f"{self._settings.host}:{self.port}" if self._socket is None else f"unix:{self._socket}"

    async def __aenter__(self) -> Self:
        """Listen. Raises InvalidConfig when the address cannot be listened on."""
        host, port = self._settings.host, self._settings.port
        await self._runner.setup()
        try:
            if self._certificates is not None:
                self._context = self._tls(self._certificates.value)
                self._context.sni_callback = self._present
                self._certificates.listen(self._renew)
            if self._socket is not None:
                await web.UnixSite(self._runner, self._socket).start()
            else:
                await web.TCPSite(self._runner, host, port, ssl_context=self._context).start()
        except BaseException as error:
            await self._runner.cleanup()
            if isinstance(error, OSError):
                raise _cannot_listen(host, port, error) from error
            raise
        return self

    def _tls(self, certificates: Certificates) -> ssl.SSLContext:
        return server_context(certificates, mutual=self._settings.tls == "mutual")

    def _renew(self, certificates: Certificates) -> None:
        """Use new certificates for later handshakes; files that changed since are read at their next change."""
        try:
            self._context = self._tls(certificates)
        except (OSError, ValueError) as error:
            log.warning("http.certificate_not_reloaded", error=str(error))

    def _present(self, connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        """Use the present context for a connection: the server of asyncio keeps the first one.

        OpenSSL calls it at the first message of every handshake, whether it names a server or not. It then takes
        certificate, key and authorities from the context of the connection.
        """
        if self._context is not None:
            connection.context = self._context

    async def __aexit__(self, *_: object) -> None:
        """Stop listening; answers in progress get CLOSE_S, idle connections are closed."""
        await self._runner.cleanup()


@web.middleware
async def _sent_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send the answer with a time limit: a client that does not read would keep it in memory for ever."""
    answer = await handler(request)
    transport = request.transport
    try:
        async with asyncio.timeout(SEND_S):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        if transport is not None:
            transport.abort()
    return answer


async def _alive(_request: web.Request) -> web.Response:
    """Answer: an answer alone shows that the loop runs."""
    return web.Response(text="alive\n")


def _readiness(health: Health) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def readyz(_request: web.Request) -> web.Response:
        view = health.view
        dependencies = {one.name: {"up": one.up, "message": one.message} for one in view.dependencies}
        body = {"ready": view.ready, "state": str(view.state), "reason": view.reason, "dependencies": dependencies}
        return web.json_response(body, status=200 if view.ready else 503)

    return readyz


def own_metrics(metrics: Families) -> Scrape:
    """Return the function that writes a page of metrics of this process."""

    async def scrape(accept: str, topics: bool | None) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        pieces, end = list[bytes](), b""
        for family in metrics.view(topics=topics).collect():
            piece = encode(_Alone(family))
            if piece.endswith(END):
                piece, end = piece.removesuffix(END), END
            pieces.append(piece)
            await asyncio.sleep(0)  # noqa: TID251 - gives others a turn, measures no time
        return b"".join([*pieces, end]), content_type

    return scrape


class _Alone(Collector):
    """A family of a page that is written family by family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Sequence[Metric]:
        """Return it."""
        return [self._family]


def _page(scrape: Scrape, *, topics: bool | None) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def page(request: web.Request) -> web.Response:
        body, content_type = await scrape(request.headers.get("Accept", ""), topics)
        return web.Response(body=body, headers={"Content-Type": content_type})

    return page


def _cannot_listen(host: str, port: int, error: OSError) -> InvalidConfig:
    match error.errno:
        case errno.EADDRINUSE:
            what = f"port {port} on {host} is in use"
            hint = "is another offloaderd running? set http.port to another port, or 0 for any free one"
        case errno.EACCES | errno.EPERM:
            what, hint = f"port {port} on {host} is not ours to open", "set http.port to 1024 or more"
        case _:
            what = f"cannot listen on {host}: {error.strerror or error}"
            hint = "set http.host to an address of this machine"
    return InvalidConfig(f"metrics and health server: {what}", hint=hint)
