"""The status page over HTTP: authorization, answers, and security headers.

Nothing is loaded from other servers, nothing is inline but the plots, and every name is escaped, since producers choose
the names of topics. Characters that are not printable are written as escapes, so that no name can pose as another.

A visit needs the role of the call Status. A browser sends a token as the password (the user name is ignored), a program
as `authorization: Bearer TOKEN`; a certificate counts if http.tls is mutual.
"""

import asyncio
import ipaddress
from base64 import b64decode
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import grpc
import structlog
from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from offloaderd.access.audit import LOGGER, SCHEMA
from offloaderd.access.roles import Role
from offloaderd.api.gate import Caller, Gate
from offloaderd.api.interceptor import code_name
from offloaderd.core import units as words
from offloaderd.core.errors import Denied, InvalidInput, OffloaderError, Transient, Unauthenticated
from offloaderd.core.health import Health
from offloaderd.core.model import TopicName
from offloaderd.daemon.status_page import last_hour
from offloaderd.daemon.status_page.board import ONLY, SORTS, Board, Wanted, wanted_topic
from offloaderd.protocol.conversion import as_json, position_of
from offloaderd.protocol.errors import code_of
from offloaderd.protocol.status import holder_label, holder_words, lag_cells, rated_json, topic_facts
from offloaderd.protocol.v1 import admin_pb2, inspect_pb2

STATUS = "/offloaderd.v1.AdminService/Status"
"""The call whose role a visitor needs."""

REFRESH_S = 5
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
CODES = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
ASSETS = {"status.css": "text/css", "status.js": "text/javascript", "icon.svg": "image/svg+xml"}

audit = structlog.get_logger(LOGGER)


class StatusSite:
    """The page, its JSON, its style and its script. `board` is set once the daemon serves."""

    def __init__(self, gate: Gate | None, health: Health, *, private: bool, process: tuple[int, int] = (1, 1)) -> None:
        """`private`: only this machine may reach the page, without authentication. Without a gate everybody is let in.

        `process` is the number of this process among those of the host, and their count.
        """
        self.board: Board | None = None
        self._gate = gate
        self._health = health
        self._private = private
        self._templates = Environment(
            loader=PackageLoader("offloaderd.daemon.status_page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "size": words.size,
            "number": words.number,
            "age": words.age,
            "moment": words.moment,
            "shown": words.visible,
            "position": position_of,
            "lag": lag_cells,
            "holder_label": holder_label,
            "holder_words": holder_words,
        }
        self._templates.globals |= {
            "REFRESH_S": REFRESH_S,
            "PROCESS": process,
            "SORTS": SORTS,
            "ONLY": ONLY,
            **{name: getattr(last_hour, name) for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT")},
        }

    def add_to(self, app: web.Application) -> None:
        """Add its routes to an application."""
        app.router.add_get("/", redirect_to("status"))
        self.add_pages_to(app, "")

    def add_pages_to(self, app: web.Application, below: str) -> None:
        """Add the pages and what they load, below a path."""
        app.router.add_get(f"{below}/status", self._guarded(self._page, self._error_page))
        app.router.add_get(f"{below}/status.json", self._guarded(self._json, _error_json))
        for name, kind in ASSETS.items():
            content = files("offloaderd.daemon.status_page").joinpath("static", name).read_bytes()
            app.router.add_get(f"{below}/{name}", _asset(content, kind))

    async def fill(self, board: Board) -> None:
        """Show a board from now on; runs until cancelled."""
        self.board = board
        await board.sampler.run()

    def _guarded(
        self, answer: Callable[[web.Request], Awaitable[web.Response]], refuse: Callable[[OffloaderError], web.Response]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return a handler that answers visitors who may call Status, and refuses others with the reason."""

        async def handler(request: web.Request) -> web.Response:
            try:
                response = await self._let_in(request, answer)
            except OffloaderError as error:
                response = refuse(error)
                response.set_status(CODES.get(code_of(error), 500))
                if response.status == 401:
                    response.headers["WWW-Authenticate"] = 'Basic realm="offloaderd", charset="UTF-8"'
            response.headers.update(HEADERS)
            return response

        return handler

    async def _let_in(
        self, request: web.Request, answer: Callable[[web.Request], Awaitable[web.Response]]
    ) -> web.Response:
        if self._private and not names_this_machine(request.headers.get("Host", "localhost")):
            hint = "ask for 127.0.0.1 or localhost instead"
            raise InvalidInput("asked for by a name that is not this machine's", hint=hint)
        if self._gate is None:
            return await answer(request)
        caller: Caller | None = None
        began_s = asyncio.get_running_loop().time()
        try:
            with self._gate.admitted(STATUS, HttpCaller(request), stream=False) as caller:
                topic = wanted_topic(request.query)
                caller.check(admin_pb2.StatusRequest(topic="" if topic is None else str(topic)))
                async with asyncio.timeout(caller.seconds_max):
                    return await answer(request)
        except TimeoutError:
            raise Transient("the answer took too long", hint="try again in a moment") from None
        except Denied as error:
            audit.info(
                "audit.call",
                schema=SCHEMA,
                seconds=round(asyncio.get_running_loop().time() - began_s, 6),
                role=Role.READ,
                service="http",
                method=request.path,
                peer=request.remote or "",
                code=code_name(code_of(error)),
                error=error.message,
                identity=caller.name if caller is not None else "",
                via=caller.via if caller is not None else "none",
                topics=caller.named if caller is not None else [],
            )
            raise

    def _ready(self) -> Board:
        if self.board is None:
            raise Transient(self._health.view.reason, hint="the page fills as soon as the daemon serves")
        return self.board

    async def _page(self, request: web.Request) -> web.Response:
        board, topic = self._ready(), wanted_topic(request.query)
        if topic is not None:
            found, rate = await board.topic(topic)
            layout, layout_error = await _layout(board, topic)
            return self._rendered(
                "topic.html",
                one=found,
                rate=rate,
                facts=topic_facts(found, None),
                layout=layout,
                layout_error=layout_error,
                plots=last_hour.topic_plots(board.sampler.topics, found.topic, board.clock.wall_ms()),
                now_ms=board.clock.wall_ms(),
            )
        wanted = Wanted.of(request.query)
        found_page = await board.show(wanted)
        return self._rendered(
            "status.html",
            wanted=wanted,
            view=found_page,
            now_ms=found_page.now_ms,
            state=self._health.view.reason,
            plots=last_hour.daemon_plots(found_page.ring, found_page.now_ms),
        )

    async def _json(self, request: web.Request) -> web.Response:
        board, topic = self._ready(), wanted_topic(request.query)
        if topic is not None:
            document = rated_json(*await board.topic(topic))
            layout, layout_error = await _layout(board, topic)
            shown = {"layout_error": layout_error} if layout is None else {"layout": as_json(layout)}
            return web.json_response({**document, **shown})
        return web.json_response((await board.show(Wanted.of(request.query))).as_json())

    def _error_page(self, error: OffloaderError) -> web.Response:
        return self._rendered("error.html", error=error)

    def _rendered(self, template: str, **values: object) -> web.Response:
        text = self._templates.get_template(template).render(**values)
        return web.Response(text=text, content_type="text/html", charset="utf-8")


async def _layout(board: Board, topic: TopicName) -> tuple[inspect_pb2.LayoutResponse | None, str]:
    """Return the layout of a topic, or why there is none: the rest of what is known is shown all the same."""
    try:
        return await board.layouts(topic), ""
    except OffloaderError as error:
        return None, str(error)


def _error_json(error: OffloaderError) -> web.Response:
    return web.json_response({"error": error.message, "hint": error.hint or None})


def redirect_to(address: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that sends a visitor on, with the query."""

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{address}{query_of(request)}", headers=HEADERS)

    return redirect


def query_of(request: web.Request) -> str:
    """Return the query of a request as one that is read in the same way; aiohttp's `query_string` is decoded."""
    return f"?{urlencode(list(request.query.items()))}" if request.query else ""


def _asset(content: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def asset(_request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)

    return asset


ALTERNATIVE = {"URI": "peer_uri", "DNS": "peer_dns"}
"""Names of a certificate as Python's TLS calls them, and as gRPC does."""


class HttpCaller:
    """A request with the methods of a call context that the gate uses."""

    def __init__(self, request: web.Request) -> None:
        self._request = request

    def peer(self) -> str:
        """Return the peer of the request in the form of gRPC; the port is always 0."""
        return f"http:{self._request.remote}:0"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return the credentials of the request. Raises Unauthenticated if they were sent unencrypted."""
        given = self._request.headers.getall("Authorization", [])
        if given and not self._request.secure and not is_local(self._request.remote or ""):
            raise Unauthenticated(
                "a token was sent in the clear: whoever listened has it now",
                hint="have it replaced; set http.tls of the daemon",
            )
        return [("authorization", bearer_of(one)) for one in given]

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names in the verified certificate. Raises Unauthenticated without one."""
        transport = self._request.transport
        certificate: dict[str, Any] | None = transport.get_extra_info("peercert") if transport is not None else None
        if not certificate:
            raise Unauthenticated(
                "this address asks for no certificate, so nobody is known here",
                hint="set http.tls = mutual of the daemon, or have it take tokens",
            )
        pairs = [pair for name in certificate.get("subject", ()) for pair in name]
        found = {"x509_common_name": [value.encode() for key, value in pairs if key == "commonName"]}
        for kind, name in certificate.get("subjectAltName", ()):
            if kind in ALTERNATIVE:
                found.setdefault(ALTERNATIVE[kind], []).append(name.encode())
        return found


def bearer_of(header: str) -> str:
    """Return a header in the form of the API: the password of a browser becomes a bearer token."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        _, _, token = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, or not of ASCII or UTF-8
        token = ""
    if not token:
        raise Unauthenticated("malformed authorization", hint="give the token as the password")
    return f"Bearer {token}"


def is_local(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_this_machine(host: str) -> bool:
    """Whether a Host header is an address or localhost, and no name that another server may resolve to this machine.

    A foreign page can resolve its own name to 127.0.0.1, and would read what only this machine may (DNS rebinding).
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True
