"""The interceptor of all calls: checks callers, turns errors into statuses, and counts, times and logs each call once.

Calls that change something and calls that were refused are in the audit log as well. A handler is an async generator,
or a coroutine that writes to its context. Generators are closed as soon as the call ends, so that a read's memory is
free when its client has left. gRPC hands over requests as bytes: they are parsed only after the gate knows the caller
and a role of theirs that the call could need, because a few bytes can make many objects.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from offloaderd.access.audit import LOGGER, SCHEMA
from offloaderd.access.roles import Role
from offloaderd.api.calls import Context
from offloaderd.api.gate import CALLER, Caller, Gate, NotAllowed, Withdrawn
from offloaderd.api.roles_needed import PACED_READS, READS
from offloaderd.api.status_details import trailing_metadata
from offloaderd.core.clock import Clock
from offloaderd.core.errors import (
    InvalidInput,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
    Unauthenticated,
)
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.protocol.codes import coded
from offloaderd.protocol.errors import CallTooLong, code_of, detail_of
from offloaderd.protocol.v1 import common_pb2


class TooSlow(Throttled):
    """The caller did not take its answers in time."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of an admitted caller; `parse` makes a message of the service from bytes."""

    caller: Caller
    parse: Callable[[bytes], Any]

    def for_handler(self, request: Any, context: Context) -> tuple[Any, Any]:  # noqa: ANN401 - bytes, or a stream of them
        """Return what a handler gets: the checked request, or a stream whose messages are checked.

        Raises Denied before anything is parsed when the caller has no such role, and as `checked`.
        """
        self.caller.check_role()
        if hasattr(request, "__aiter__"):
            return self._each(request), _Watched(context, self)
        return self.checked(request), context

    def checked(self, data: bytes) -> Any:  # noqa: ANN401 - a message of any service
        """Return the message in the bytes once it is checked. Raises InvalidInput, and Denied with the missing role."""
        need = self.caller.need
        if need is not None and need.bounded is not None:
            need.bounded(data)
        try:
            message = self.parse(data)
        except DecodeError:
            raise InvalidInput(
                f"a request of {len(data)} bytes is no message of {self.caller.path}",
                hint="compare the caller's protos with those of the daemon's version",
            ) from None
        self.caller.check(message)
        return message

    async def _each(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self.checked(data)


class _Watched:
    """Context that checks messages when they are read, and sends answers within the time limit."""

    def __init__(self, context: Context, requests: Requests) -> None:
        self._context = context
        self._requests = requests

    async def read(self) -> Any:  # noqa: ANN401 - a message of any service
        """Return the next checked message."""
        data = await self._context.read()
        return data if data is grpc.aio.EOF else self._requests.checked(data)

    async def write(self, answer: Any) -> None:  # noqa: ANN401
        """Send an answer. Raises as `send`."""
        await send(self._context, answer, self._requests.caller.send_s_max)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the context's own
        return getattr(self._context, name)


async def send_headers(context: Context) -> None:
    """Send the headers before the first answer; even a call that is cut meanwhile has them sent completely.

    If the sending of headers is cancelled, gRPC for asyncio takes them for unsent and sends them again with the status.
    Its core refuses that, and the call would never end. Headers alone wait for no reader.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))  # noqa: TID251 - ends before this does
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending})
        raise


async def send(context: Context, answer: object, seconds_max: float) -> None:
    """Send an answer. Raises TooSlow when the caller has taken nothing for that long (0: no limit)."""
    try:
        async with asyncio.timeout(seconds_max or None):
            await context.write(answer)
    except TimeoutError:
        hint = "read faster, or raise grpc.send_s_max"
        raise TooSlow(f"the answer was not taken within {seconds_max:g} s", hint=hint) from None


log = structlog.get_logger(__name__)
audit = structlog.get_logger(LOGGER)

REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
STATUS_S = 5.0
"""How long a caller may take to receive its status; one that takes no answers takes no status either."""

MESSAGE_BYTES_MAX = 2500
HINT_BYTES_MAX = 500
"""Clients accept 8 KiB of a status with all its parts, and it has the message and the hint twice."""

INTERNAL_DETAIL = common_pb2.ErrorDetail(reason="INTERNAL", hint="the daemon's log says more")

Behaviour: TypeAlias = "Callable[[Any, Any], Any]"
Request = TypeVar("Request")
Response = TypeVar("Response")


class ErrorInterceptor(aio.ServerInterceptor):
    """The only interceptor of the daemon's server."""

    def __init__(self, metrics: Metrics, *, clock: Clock, gate: Gate | None = None) -> None:
        self._clock = clock
        self._metrics = metrics
        self._gate = gate or Gate(metrics, clock)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Request, Response] | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Request, Response] | None":
        """Wrap the handler; gRPC refuses unknown methods itself."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        _, service, method = str(handler_call_details.method).split("/", 2)
        call = _Call(self._clock, self._metrics, self._gate, service, method, handler)
        codec = (None, _unless_bytes(handler.response_serializer))  # requests stay bytes until their caller is known
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(call.answering(handler.unary_unary), *codec)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(call.answering(handler.stream_unary), *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(call.streaming(handler.unary_stream), *codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(call.streaming(handler.stream_stream), *codec)
        return handler


def _kind_of(handler: "grpc.RpcMethodHandler[Any, Any]") -> str:
    """Return the type of a method as go-grpc-prometheus names it."""
    both = handler.request_streaming, handler.response_streaming
    kinds = {(False, False): "unary", (True, False): "client_stream", (False, True): "server_stream"}
    return kinds.get(both, "bidi_stream")


@dataclass(eq=False)
class _Call:
    """One call from its beginning to its status."""

    clock: Clock
    metrics: Metrics
    gate: Gate
    service: str
    method: str
    handler: "grpc.RpcMethodHandler[Any, Any]"
    sent: int = 0
    sent_bytes: int = 0
    caller: Caller | None = None

    def __post_init__(self) -> None:
        self.labels = {"grpc_type": _kind_of(self.handler), "grpc_service": self.service, "grpc_method": self.method}
        self.parse = self.handler.request_deserializer or bytes
        self.started = self.clock.monotonic()

    def answering(self, behaviour: Behaviour) -> Any:  # noqa: ANN401 - as gRPC types it
        """Wrap a handler with one answer."""

        async def answer(request: Any, context: Context) -> Any:  # noqa: ANN401
            async def work(caller: Caller) -> Any:  # noqa: ANN401
                return await behaviour(*Requests(caller, self.parse).for_handler(request, context))

            return await self._guarded(work, context, stream=False)

        return answer

    def streaming(self, behaviour: Behaviour) -> Any:  # noqa: ANN401
        """Wrap a handler with a stream of answers."""

        async def stream(request: Any, context: Context) -> None:  # noqa: ANN401
            async def work(caller: Caller) -> None:
                answers = behaviour(*Requests(caller, self.parse).for_handler(request, context))
                await send_headers(context)
                await (self._send(answers, context, caller) if hasattr(answers, "__aiter__") else answers)

            await self._guarded(work, context, stream=True)

        return stream

    async def _send(self, answers: AsyncGenerator[Any, None], context: Context, caller: Caller) -> None:
        async with aclosing(answers) as stream:
            account = caller.account if caller.path in READS else None
            paced = account if caller.path in PACED_READS else None
            async for answer in stream:
                if paced is not None:
                    await paced.may_read()
                await send(context, answer, caller.send_s_max)
                self.sent += 1
                if account is not None or caller.read is not None:
                    size_bytes = len(answer) if isinstance(answer, bytes) else answer.ByteSize()
                    self.sent_bytes += size_bytes
                    if account is not None:
                        account.sent(size_bytes)

    async def _admitted(self, work: Callable[[Caller], Awaitable[Any]], context: Context, *, stream: bool) -> Any:  # noqa: ANN401
        """Run a handler for an admitted caller, as long as the caller may call."""
        with self.gate.admitted(f"/{self.service}/{self.method}", context, stream=stream) as caller:
            self.caller = caller
            CALLER.set(caller)  # each call is a task of its own
            limit = caller.limit = asyncio.timeout(caller.seconds_max)
            try:
                async with limit:
                    return await work(caller)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise self._cut(caller) from None

    def _cut(self, caller: Caller) -> OffloaderError:
        if caller.withdrawn is Withdrawn.KEY:
            hint = "call again with a new token"
            return Unauthenticated("the key that signed the token was taken away during the call", hint=hint)
        if caller.withdrawn is Withdrawn.GRANT:
            return NotAllowed(
                f"the grant by which {caller.name or 'this call'} was let in was taken back",
                hint="access.grants of the daemon were changed while the call ran",
            )
        if caller.expires_s is not None and self.clock.wall_ms() / 1000 >= caller.expires_s - 1:
            return Unauthenticated("the token has expired during the call", hint="call again with a new token")
        self.metrics.grpc_refused.labels(reason="duration").inc()
        hint = "grpc.call_s_max of the daemon sets the limit"
        return CallTooLong(f"the call took more than {caller.seconds_max:g} s", hint=hint)

    async def _guarded(self, work: Callable[[Caller], Awaitable[Any]], context: Context, *, stream: bool) -> Any:  # noqa: ANN401
        """Run a handler; turn its error into the status of the call, which is counted before the client gets it."""
        peer = context.peer()
        try:
            answer = await self._admitted(work, context, stream=stream)
        except OffloaderError as error:
            detail = detail_of(error)
            detail.hint = shortened(detail.hint, HINT_BYTES_MAX)
            if isinstance(error, TooSlow):
                self.metrics.grpc_refused.labels(reason="slow").inc()
            message = shortened(error.message)
            self._finish(code_of(error), peer, detail.reason, message)
            # after an unknown outcome a client reads back: the same call could do the same twice
            retry = isinstance(error, Transient) and not isinstance(error, OutcomeUnknown)
            await self._abort(context, code_of(error), message, detail, retry=retry)
        except asyncio.CancelledError:
            self._finish(grpc.StatusCode.CANCELLED, peer)
            raise
        except (aio.InternalError, aio.UsageError):
            # gRPC's error for a client that left during an answer; the task may be cancelled later.
            self._finish(grpc.StatusCode.CANCELLED, peer)
            raise asyncio.CancelledError from None
        except aio.AbortError:
            self._finish(status_of(context.code()), peer, message=str(context.details()))
            raise
        except Exception as error:
            log.exception("rpc.failed", service=self.service, method=self.method)
            self._finish(grpc.StatusCode.INTERNAL, peer, "INTERNAL", str(error))
            await self._abort(context, grpc.StatusCode.INTERNAL, "internal error", INTERNAL_DETAIL, retry=False)
        self._finish(grpc.StatusCode.OK, peer)
        return answer

    async def _abort(
        self, context: Context, code: grpc.StatusCode, message: str, detail: common_pb2.ErrorDetail, *, retry: bool
    ) -> NoReturn:
        """End the call with a status; cut a caller that does not take it."""
        try:
            async with asyncio.timeout(STATUS_S):
                await context.abort(code, message, trailing_metadata(code, message, detail, retry=retry))
        except TimeoutError:
            raise asyncio.CancelledError from None

    def _finish(self, code: grpc.StatusCode, peer: str, reason: str = "", message: str = "") -> None:
        seconds = self.clock.monotonic() - self.started
        name = code_name(code)
        self.metrics.grpc_server_handled.labels(**self.labels, grpc_code=name).inc()
        self.metrics.grpc_server_handling_seconds.labels(**self.labels).observe(seconds)
        caller = self.caller
        fields = {
            "service": self.service,
            "method": self.method,
            "code": name,
            "seconds": round(seconds, 6),
            "peer": peer,
            "identity": caller.name if caller is not None else "",
            "error": message,
        }
        role = caller.role if caller is not None else None
        quiet = code is grpc.StatusCode.OK and caller is not None and caller.need and role in {None, Role.READ}
        write = log.debug if quiet else log.info  # brokers read thousands of times a second
        write("rpc.handled", **fields, responses=self.sent, reason=reason)
        if caller is not None and caller.read is not None and code not in REFUSED:
            read_bytes = self.sent_bytes + caller.planned_bytes
            audit.info("audit.read", schema=SCHEMA, **fields, via=caller.via, **caller.read, bytes=read_bytes)
        elif code in REFUSED or (caller.is_audited if caller is not None else self.gate.audits_calls):
            extra = {"via": caller.via, "topics": caller.named, **caller.how} if caller is not None else {}
            audit.info("audit.call", schema=SCHEMA, **fields, role=role, **extra)


_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_PARTIAL = re.compile("%[0-9A-F]?$")


def shortened(text: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """Return an error's message or hint as it is sent and logged: a name in it may be as long as a request.

    `bytes_max` is the length in a header, where gRPC writes each byte that is not printable ASCII as three.
    """
    header = quote(text[: bytes_max + 1], safe=_PLAIN, errors="replace")
    if len(header) <= bytes_max:
        return unquote(header)
    return unquote(_PARTIAL.sub("", header[:bytes_max]), errors="ignore") + "..."


def _unless_bytes(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    """Return a serializer that sets the codes of an answer, and passes on what a handler has serialized itself."""

    def serialized(answer: Any) -> bytes:  # noqa: ANN401 - a message of any service
        return answer if serialize is None or isinstance(answer, bytes) else serialize(coded(answer))

    return serialized


_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def status_of(code: object) -> grpc.StatusCode:
    """Return a code that a handler has set; gRPC keeps it as a number."""
    if isinstance(code, grpc.StatusCode):
        return code
    return _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN) if isinstance(code, int) else grpc.StatusCode.UNKNOWN


def code_name(code: grpc.StatusCode) -> str:
    """Return a code as metrics name it: OK, NotFound, DataLoss."""
    return code.name if code is grpc.StatusCode.OK else code.name.title().replace("_", "")
