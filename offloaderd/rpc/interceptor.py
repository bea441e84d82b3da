"""What surrounds every call, of all services: errors become statuses, calls are counted, timed and logged once.

A handler may be an async generator, or a coroutine that writes to its context. Generators are closed here as soon as
a call ends, however it ends, so that what a read holds is free when its client is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import grpc
import structlog
from grpc import aio

from offloaderd.errors import OffloaderError
from offloaderd.rpc.errors import DETAIL_KEY, code_of, detail_of
from offloaderd.rpc.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from offloaderd.clock import Clock
    from offloaderd.metrics import Metrics

log = structlog.get_logger(__name__)

QUIET = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
"""Services whose calls are not worth a line at the normal level."""

INTERNAL_DETAIL = common_pb2.ErrorDetail(reason="INTERNAL", hint="the daemon's log says more").SerializeToString()

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Behaviour: TypeAlias = "Callable[[Any, Any], Any]"
Request = TypeVar("Request")
Response = TypeVar("Response")


class ErrorInterceptor(aio.ServerInterceptor):
    """The one interceptor of the daemon's server."""

    def __init__(self, metrics: Metrics, *, clock: Clock) -> None:
        self._clock = clock
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        """Wrap the handler; an unknown method stays gRPC's to refuse."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        _, service, method = str(handler_call_details.method).split("/", 2)
        call = _Call(self._clock, self._metrics, service, method)
        codec = (handler.request_deserializer, unless_bytes(handler.response_serializer))
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(call.answering(handler.unary_unary), *codec)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(call.answering(handler.stream_unary), *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(call.streaming(handler.unary_stream), *codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(call.streaming(handler.stream_stream), *codec)
        return handler


class _Call:
    """One call from its begin to its status."""

    def __init__(self, clock: Clock, metrics: Metrics, service: str, method: str) -> None:
        self._clock = clock
        self._metrics = metrics
        self._service = service
        self._method = method
        self._started = clock.monotonic()
        self._sent = 0

    def answering(self, behaviour: Behaviour) -> Any:  # noqa: ANN401 - as gRPC types it
        """Wrap a handler that answers once."""

        async def answer(request: Any, context: Context) -> Any:  # noqa: ANN401
            return await self._guarded(behaviour(request, context), context)

        return answer

    def streaming(self, behaviour: Behaviour) -> Any:  # noqa: ANN401
        """Wrap a handler that answers with a stream."""

        async def stream(request: Any, context: Context) -> None:  # noqa: ANN401
            answers = behaviour(request, context)
            await self._guarded(self._send(answers, context) if hasattr(answers, "__aiter__") else answers, context)

        return stream

    async def _send(self, answers: AsyncGenerator[Any, None], context: Context) -> None:
        async with aclosing(answers) as stream:
            async for answer in stream:
                await context.write(answer)
                self._sent += 1

    async def _guarded(self, work: Awaitable[Any], context: Context) -> Any:  # noqa: ANN401
        """Run a handler; its error becomes the status of the call, which is counted before the client knows it."""
        peer = context.peer()
        try:
            answer = await work
        except OffloaderError as error:
            detail = detail_of(error)
            self._finish(code_of(error), peer, detail.reason, error.message)
            await context.abort(code_of(error), error.message, ((DETAIL_KEY, detail.SerializeToString()),))
        except asyncio.CancelledError:
            self._finish(grpc.StatusCode.CANCELLED, peer)
            raise
        except (aio.InternalError, aio.UsageError):
            # gRPC's word for a client that vanished while an answer was on its way; the task's own cancellation may
            # come later.
            self._finish(grpc.StatusCode.CANCELLED, peer)
            raise asyncio.CancelledError from None
        except aio.AbortError:
            self._finish(status_of(context.code()), peer, message=str(context.details()))
            raise
        except Exception as error:
            log.exception("rpc.failed", service=self._service, method=self._method)
            self._finish(grpc.StatusCode.INTERNAL, peer, "INTERNAL", str(error))
            await context.abort(grpc.StatusCode.INTERNAL, "internal error", ((DETAIL_KEY, INTERNAL_DETAIL),))
        self._finish(grpc.StatusCode.OK, peer)
        return answer

    def _finish(self, code: grpc.StatusCode, peer: str, reason: str = "", message: str = "") -> None:
        seconds = self._clock.monotonic() - self._started
        name = code_name(code)
        self._metrics.grpc_server_handled.labels(service=self._service, method=self._method, code=name).inc()
        self._metrics.grpc_server_handling_seconds.labels(service=self._service, method=self._method).observe(seconds)
        write = log.debug if self._service in QUIET and code is grpc.StatusCode.OK else log.info
        write(
            "rpc.handled",
            service=self._service,
            method=self._method,
            code=name,
            seconds=round(seconds, 6),
            peer=peer,
            responses=self._sent,
            reason=reason,
            error=message,
        )


def unless_bytes(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    """Return a serializer that lets through what a handler has serialized itself."""

    def serialized(answer: Any) -> bytes:  # noqa: ANN401 - a message of any service
        return answer if serialize is None or isinstance(answer, bytes) else serialize(answer)

    return serialized


_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def status_of(code: object) -> grpc.StatusCode:
    """Return a code that a handler has set, which gRPC keeps as a number."""
    if isinstance(code, grpc.StatusCode):
        return code
    return _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN) if isinstance(code, int) else grpc.StatusCode.UNKNOWN


def code_name(code: grpc.StatusCode) -> str:
    """Return a code as metrics name it everywhere: OK, NotFound, DataLoss."""
    return code.name if code is grpc.StatusCode.OK else code.name.title().replace("_", "")
