"""A proxy in front of a real S3 server that injects faults into requests and answers.

It parses enough of S3 to distinguish operations, so a fault is planned for an operation (`spoil`) or drawn for each
request from a seed (`shake`). Each request goes to the server over a connection of its own, with its signed parts
unchanged. A fault is counted when it happens, not when it is planned.
"""

import asyncio
import contextlib
import hashlib
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from offloaderd.core.clock import SystemClock
from offloaderd.drill.tcp_proxy import Listener
from offloaderd.objects import keys

CLOCK = SystemClock()
SILENCE_MAX_S = 60.0
HEAD_BYTES_MAX = 1 << 20


class Fault(StrEnum):
    """A fault of a request or its answer."""

    ERROR = "error"  # 500, not forwarded
    SLOW_DOWN = "slow down"  # 503 SlowDown, not forwarded
    RESET = "reset"  # connection reset, not forwarded
    CUT = "cut"  # half of the request's body reaches the server, then both connections are reset
    LOST = "lost"  # carried out, connection reset before the answer
    SILENT = "silent"  # carried out, no answer until the client gives up
    TRUNCATED = "truncated"  # half of the answer's body, then a reset
    SHORT = "short"  # half of the answer's body, as if it were complete
    FLIPPED = "flipped"  # one bit of the answer's body is flipped
    WRONG_ETAG = "wrong etag"  # the answer names another ETag
    SLOW = "slow"  # carried out, answered late
    TWICE = "twice"  # carried out twice, the second time when the client has its answer


OPERATIONS = (
    "create_upload",
    "upload_part",
    "list_parts",
    "complete_upload",
    "abort_upload",
    "list_uploads",
    "list",
    "delete",
    "put data",
    "put index",
    "put manifest",
    "get data",
    "get index",
    "get manifest",
    "head data",
    "head index",
    "head manifest",
)

_PUT = {"put data", "put index", "put manifest"}
_WITH_BODY = {"upload_part", "complete_upload", "delete", *_PUT}
_WITH_ETAG = {"upload_part", "complete_upload", "list_parts", "head data", *_PUT}
_WITH_CONTENT = {"get data", "get index", "get manifest"}
_XML = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>spoilt</Message></Error>"


def suits(fault: Fault, operation: str) -> bool:
    """Return whether a fault is possible for an operation."""
    if fault is Fault.CUT:
        return operation in _WITH_BODY
    if fault is Fault.WRONG_ETAG:
        return operation in _WITH_ETAG
    if fault in {Fault.SHORT, Fault.FLIPPED}:
        return operation in _WITH_CONTENT
    if fault is Fault.TRUNCATED:
        return operation in _WITH_CONTENT | {"list_parts", "list_uploads", "list"}
    return operation in OPERATIONS


@dataclass(slots=True)
class Message:
    """One HTTP message: its first line and headers as they came, and its body."""

    head: list[bytes]
    body: bytes = b""

    @property
    def length(self) -> int | None:
        """The value of Content-Length, None without one."""
        value = self.header(b"content-length")
        return None if value is None else int(value)

    def header(self, name: bytes) -> bytes | None:
        """Return a header's value; `name` is in lower case."""
        for line in self.head[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def without(self, *names: bytes) -> list[bytes]:
        """Return the head without some headers."""
        return [self.head[0], *(line for line in self.head[1:] if line.partition(b":")[0].lower() not in names)]

    def encoded(self, head: list[bytes] | None = None) -> bytes:
        """Return the message as it is sent."""
        return b"\r\n".join([*(head or self.head), b"", b""]) + self.body


@dataclass(slots=True)
class _Planned:
    operation: str
    fault: Fault
    times: int
    skip: int


@dataclass(slots=True)
class Shaking:
    """Faults drawn for each request: how often, of which kinds, from which seed."""

    seed: int
    rate: float
    faults: tuple[Fault, ...] = tuple(Fault)
    drawn: int = 0

    def draw(self, operation: str) -> Fault | None:
        """Return the fault of the next request, None for none."""
        self.drawn += 1
        digest = hashlib.blake2b(f"{self.seed}/{self.drawn}".encode(), digest_size=16).digest()
        if int.from_bytes(digest[:8]) >= self.rate * 2**64:
            return None
        suited = [fault for fault in self.faults if suits(fault, operation)]
        return suited[int.from_bytes(digest[8:]) % len(suited)] if suited else None


@dataclass(slots=True)
class Counts:
    """Counts: requests by operation, bytes of parts, faults by operation and kind."""

    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    part_bytes: int = 0


class S3Proxy(Listener):
    """Async context manager: listens on a free loopback port until it is left.

    It speaks TLS to an `endpoint` with https, and checks it by `tls` (None: the system's authorities). Keys are
    parsed behind `prefix`. In front of another kind of store `operation` returns the operation of a request.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        slow_s: float = 0.5,
        prefix: str = "",
        tls: ssl.SSLContext | None = None,
        operation: Callable[[Message], str] | None = None,
    ) -> None:
        super().__init__(self._answer_all, ahead_bytes=HEAD_BYTES_MAX)
        url = urlsplit(endpoint)
        secure = url.scheme == "https"
        self._host, self._port = url.hostname or "", url.port or (443 if secure else 80)
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._operation_of = operation or (lambda request: operation_of(request.head[0].decode(), prefix))
        self._slow_s = slow_s
        self._planned: list[_Planned] = []
        self._shaking: Shaking | None = None
        self.counts = Counts()

    def spoil(self, operation: str, fault: Fault, *, times: int = 1, skip: int = 0) -> None:
        """Inject a fault into the next requests of an operation, after `skip` of them."""
        if not suits(fault, operation):
            raise ValueError(f"{fault} cannot be done to {operation}")
        self._planned.append(_Planned(operation, fault, times, skip))

    def shake(self, shaking: Shaking | None) -> None:
        """Draw a fault for each request from now on; None ends it."""
        self._shaking = shaking

    def heal(self) -> None:
        """Drop all planned faults."""
        self._planned.clear()
        self._shaking = None

    @property
    def planned(self) -> list[str]:
        """Planned faults that have not happened."""
        return [f"{one.fault} of {one.operation}" for one in self._planned if one.times]

    def _next(self, operation: str) -> Fault | None:
        for one in self._planned:
            if one.operation == operation and one.times:
                if one.skip:
                    one.skip -= 1
                    return None
                one.times -= 1
                return one.fault
        return self._shaking.draw(operation) if self._shaking else None

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until a fault or either side ends it, with a reset."""
        try:
            while (request := await receive_request(reader, writer)) is not None:
                operation = self._operation_of(request)
                self.counts.requests[operation] += 1
                fault = self._next(operation)
                if fault is not None:
                    self.counts.faults[operation, fault] += 1
                elif operation == "upload_part":
                    self.counts.part_bytes += len(request.body)
                if not await self._answer(request, fault, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has closed its side
        finally:
            writer.transport.abort()

    async def _answer(
        self, request: Message, fault: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether the connection stays open."""
        match fault:
            case Fault.ERROR:
                return await refuse(writer, 500, "InternalError", empty=request.head[0].startswith(b"HEAD"))
            case Fault.SLOW_DOWN:
                return await refuse(writer, 503, "SlowDown", empty=request.head[0].startswith(b"HEAD"))
            case Fault.RESET:
                return False
            case Fault.CUT:
                await self._forward_half(request)
                return False
        answer = await self._forward(request)
        match fault:
            case Fault.LOST:
                return False
            case Fault.SILENT:
                await hung_up(reader)
                return False
            case Fault.SLOW:
                await CLOCK.sleep(self._slow_s)
            case Fault.TRUNCATED:
                writer.write(answer.encoded()[: -max(1, (len(answer.body) + 1) // 2)])
                await writer.drain()
                return False
            case Fault.SHORT | Fault.FLIPPED | Fault.WRONG_ETAG:
                answer = changed(answer, fault)
        writer.write(answer.encoded())
        await writer.drain()
        if fault is Fault.TWICE:
            await self._forward(request)
        return True

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _forward(self, request: Message) -> Message:
        async with self._connected() as (reader, writer):
            writer.write(request.encoded([*request.without(b"expect", b"connection"), b"Connection: close"]))
            await writer.drain()
            answer = Message(await head_of(reader))
            return Message(answer.without(b"connection"), await reader.read())

    async def _forward_half(self, request: Message) -> None:
        async with self._connected() as (_, writer):
            sent = request.encoded(request.without(b"expect"))
            writer.write(sent[: len(sent) - (len(request.body) + 1) // 2])
            with contextlib.suppress(OSError):
                await writer.drain()


async def head_of(reader: asyncio.StreamReader) -> list[bytes]:
    """Read the first line and the headers of a message."""
    return (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")


async def receive_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message | None:
    """Read one whole request; None when the client has no more."""
    try:
        request = Message(await head_of(reader))
    except asyncio.IncompleteReadError:
        return None
    if request.header(b"expect") is not None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.body = await reader.readexactly(request.length or 0)
    return request


async def refuse(writer: asyncio.StreamWriter, status: int, code: str, *, empty: bool) -> bool:
    """Answer with an error of S3."""
    body = b"" if empty else _XML.format(code=code).encode()
    lines = [f"HTTP/1.1 {status} {code}", "Content-Type: application/xml", f"Content-Length: {len(body)}", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()
    return True


async def hung_up(reader: asyncio.StreamReader) -> None:
    """Wait until the client has closed its connection."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE_MAX_S):
            await reader.read(1)


def changed(answer: Message, fault: Fault) -> Message:
    """Return the answer with a fault; an error of the server stays unchanged."""
    if not re.match(rb"HTTP/1\.1 20[06] ", answer.head[0]):
        return answer
    if fault is Fault.WRONG_ETAG:
        wrong = re.compile(rb'(etag:? *(?:>|:| )?(?:"|&#34;|&quot;)?)[0-9a-f]{8}', re.IGNORECASE)
        head = [wrong.sub(rb"\g<1>badbadba", line) for line in answer.head]
        return Message(head, wrong.sub(rb"\g<1>badbadba", answer.body))
    if not answer.body:
        return answer
    if fault is Fault.FLIPPED:
        at = len(answer.body) // 2
        return Message(answer.head, answer.body[:at] + bytes([answer.body[at] ^ 4]) + answer.body[at + 1 :])
    body = answer.body[: len(answer.body) // 2]
    return Message([*answer.without(b"content-length"), b"Content-Length: %d" % len(body)], body)


def operation_of(line: str, prefix: str = "") -> str:
    """Return the operation of a request line, by its name in the ports."""
    method, target, _ = line.split(" ", 2)
    path, _, query = target.partition("?")
    names = {part.partition("=")[0] for part in query.split("&")}
    key = path.lstrip("/").partition("/")[2]
    if "uploads" in names:
        return "create_upload" if method == "POST" else "list_uploads"
    if "uploadId" in names:
        return {"PUT": "upload_part", "GET": "list_parts", "POST": "complete_upload", "DELETE": "abort_upload"}[method]
    if not key:
        return "delete" if "delete" in names else "list"
    kind = keys.parse(prefix, unquote(key))
    return f"{method.lower()} {kind.kind.value if kind else 'other'}"
