"""Our errors over the wire and back, and what the interceptor counts and logs."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from string import punctuation
from typing import TYPE_CHECKING
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from structlog.testing import capture_logs

from offloaderd.api.interceptor import code_name, status_of
from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Closed,
    Conflict,
    CorruptData,
    Denied,
    DomainNotCovered,
    EntriesDeleted,
    EntriesLost,
    EntriesMissing,
    Fenced,
    InvalidConfig,
    InvalidInput,
    MapUnknown,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    OutOfRange,
    Throttled,
    TopicNotFound,
    TopicUnknown,
    Transient,
)
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.protocol.errors import CODES, DETAIL_KEY, code_of, detail_of, from_rpc_error, reason_of
from offloaderd.protocol.v1 import common_pb2, ledgers_pb2, ledgers_pb2_grpc, read_pb2, read_pb2_grpc
from tests.patience import PATIENCE_S
from tests.unit.api.serve import serving
from tests.unit.read.build import sample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REAL_TIME = "gRPC"

EXPECTED = [
    (NotFound("a", hint="b"), grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    (TopicNotFound("a"), grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND"),
    (BucketMissing("a"), grpc.StatusCode.FAILED_PRECONDITION, "BUCKET_MISSING"),
    (EntriesMissing("a"), grpc.StatusCode.FAILED_PRECONDITION, "ENTRIES_MISSING"),
    (EntriesDeleted("a"), grpc.StatusCode.NOT_FOUND, "ENTRIES_DELETED"),
    (EntriesLost("a"), grpc.StatusCode.DATA_LOSS, "ENTRIES_LOST"),
    (MapUnknown("a", hint="d"), grpc.StatusCode.FAILED_PRECONDITION, "MAP_UNKNOWN"),
    (TopicUnknown("a"), grpc.StatusCode.FAILED_PRECONDITION, "TOPIC_UNKNOWN"),
    (DomainNotCovered("a", hint="b"), grpc.StatusCode.FAILED_PRECONDITION, "DOMAIN_NOT_COVERED"),
    (InvalidInput("a"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT"),
    (OutOfRange("a", hint="c"), grpc.StatusCode.OUT_OF_RANGE, "OUT_OF_RANGE"),
    (Conflict("a"), grpc.StatusCode.FAILED_PRECONDITION, "CONFLICT"),
    (Fenced("a"), grpc.StatusCode.FAILED_PRECONDITION, "FENCED"),
    (InvalidConfig("a"), grpc.StatusCode.FAILED_PRECONDITION, "INVALID_CONFIG"),
    (CorruptData(key="k", offset=7, expected=1, found=2), grpc.StatusCode.DATA_LOSS, "CORRUPT_DATA"),
    (Transient("a"), grpc.StatusCode.UNAVAILABLE, "TRANSIENT"),
    (OutcomeUnknown("a"), grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN"),
    (Throttled("a"), grpc.StatusCode.RESOURCE_EXHAUSTED, "THROTTLED"),
    (NoSpace("a"), grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE"),
    (Denied("a"), grpc.StatusCode.PERMISSION_DENIED, "DENIED"),
    (Archived("a"), grpc.StatusCode.FAILED_PRECONDITION, "ARCHIVED"),
    (Closed("a"), grpc.StatusCode.UNAVAILABLE, "CLOSED"),
]


class Failing(read_pb2_grpc.ReadServiceServicer, ledgers_pb2_grpc.LedgerServiceServicer):
    """Each kind of handler, all of which do what a test says."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.closed = asyncio.Event()
        self.entered = asyncio.Event()

    def act(self) -> None:
        """Raise what the test wants."""
        self.entered.set()
        if self.error is not None:
            raise self.error

    async def Read(self, request, context) -> AsyncIterator[read_pb2.ReadResponse]:  # type: ignore[no-untyped-def] # noqa: ANN001, N802
        """An async generator."""
        try:
            yield read_pb2.ReadResponse(tier=common_pb2.TIER_BUFFER)
            self.act()
            if request.follow:
                await asyncio.Event().wait()
        finally:
            self.closed.set()

    async def ReadMessages(self, request, context) -> AsyncIterator[read_pb2.ReadMessagesResponse]:  # type: ignore[no-untyped-def] # noqa: ANN001, N802
        """Another async generator."""
        self.act()
        yield read_pb2.ReadMessagesResponse()

    async def PlanRead(self, request, context) -> read_pb2.PlanReadResponse:  # type: ignore[no-untyped-def] # noqa: ANN001, N802
        """Another coroutine with one answer."""
        self.act()
        return read_pb2.PlanReadResponse()

    async def LastPositions(self, request, context) -> read_pb2.LastPositionsResponse:  # type: ignore[no-untyped-def] # noqa: ANN001, N802
        """A coroutine with one answer."""
        self.act()
        if request.topic:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "chosen by the handler")
        return read_pb2.LastPositionsResponse()

    async def Seek(self, request, context) -> read_pb2.SeekResponse:  # type: ignore[no-untyped-def] # noqa: ANN001, N802
        """Not called here."""
        raise NotImplementedError

    async def Append(self, request_iterator, context) -> None:  # type: ignore[no-untyped-def,override] # noqa: ANN001, N802
        """A coroutine that reads and writes through its context."""
        while isinstance(request := await context.read(), ledgers_pb2.AppendRequest):
            await context.write(ledgers_pb2.AppendResponse(entry_count=len(request.payloads)))
        self.act()

    async def Roll(self, request, context) -> ledgers_pb2.RollResponse:  # type: ignore[no-untyped-def] # noqa: ANN001, N802
        """Another one."""
        self.act()
        return ledgers_pb2.RollResponse()

    def register(self, server: aio.Server) -> None:
        """Serve it."""
        read_pb2_grpc.add_ReadServiceServicer_to_server(self, server)
        ledgers_pb2_grpc.add_LedgerServiceServicer_to_server(self, server)


@pytest.mark.parametrize(("error", "code", "reason"), EXPECTED, ids=[reason for _, _, reason in EXPECTED])
async def test_errors_survive_the_way(error: OffloaderError, code: grpc.StatusCode, reason: str) -> None:
    """A client gets the class, the message and the hint that the daemon raised; the call is counted and logged."""
    metrics, service = Metrics(), Failing()
    service.error = error
    async with serving(metrics, service.register) as channel:
        with capture_logs() as logs, pytest.raises(aio.AioRpcError) as caught:
            await read_pb2_grpc.ReadServiceStub(channel).LastPositions(read_pb2.LastPositionsRequest())
    assert caught.value.code() is code
    assert (code_of(error), reason_of(type(error))) == (code, reason)
    found = from_rpc_error(caught.value)
    assert isinstance(found, type(error))
    assert (found.message, found.hint) == (error.message, error.hint)
    labels = {"grpc_type": "unary", "grpc_service": "offloaderd.v1.ReadService", "grpc_method": "LastPositions"}
    labels["grpc_code"] = code_name(code)
    assert sample(metrics, "grpc_server_handled_total", labels) == 1
    del labels["grpc_code"]
    assert sample(metrics, "grpc_server_handling_seconds_count", labels) == 1
    event = next(log for log in logs if log["event"] == "rpc.handled")
    assert (event["code"], event["reason"], event["error"]) == (code_name(code), reason, error.message)


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (Throttled("slow down", hint="wait"), True),
        (NotFound("none"), False),
        (OutcomeUnknown("it may be done"), False),
    ],
)
async def test_statuses_have_the_details_of_the_ecosystem(error: OffloaderError, retry: bool) -> None:
    """A client in any language gets the reason, what to do, and whether another try is worth it (AIP-193)."""
    service = Failing()
    service.error = error
    async with serving(Metrics(), service.register) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await read_pb2_grpc.ReadServiceStub(channel).LastPositions(read_pb2.LastPositionsRequest())
    trailing = dict(caught.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    assert (status.code, status.message) == (caught.value.code().value[0], error.message)
    info, delay, links = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), error_details_pb2.Help()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason_of(type(error)), "offloaderd")
    if retry:
        assert status.details[1].Unpack(delay)
        assert delay.retry_delay.ToSeconds() == 1
        assert status.details[2].Unpack(links)
        assert [(one.description, one.url) for one in links.links] == [("wait", "")]
    else:
        assert len(status.details) == 1


@pytest.mark.parametrize("letter", ["a", "%", "\n", "é", "漢", "\U0001f600"])
async def test_long_texts_leave_room_for_the_status(letter: str) -> None:
    """Clients refuse headers of more than 8 KiB, and would know neither code nor reason."""
    service = Failing()
    service.error = Conflict("m" + letter * 10_000, hint="h" + letter * 10_000)
    async with serving(Metrics(), service.register) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await read_pb2_grpc.ReadServiceStub(channel).LastPositions(read_pb2.LastPositionsRequest())
    trailing = dict(caught.value.trailing_metadata() or ())
    found = from_rpc_error(caught.value)
    assert type(found) is Conflict
    for text in (found.message, found.hint):
        assert text.strip("mh" + letter) == "..."
        assert len(text) > 40
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    assert status.message == found.message
    details = sum(len(b64encode(value)) for value in trailing.values() if isinstance(value, bytes))
    others = 8 * 32  # what HTTP/2 counts beside the value of each header
    assert len(quote(found.message, safe=punctuation.replace("%", "") + " ")) + details + others < 8192


async def test_what_only_reads_and_succeeds_is_worth_no_line_at_the_normal_level() -> None:
    """Brokers read thousands of times a second; a call that changes something has its line, and so has a failure."""
    metrics, service = Metrics(), Failing()
    async with serving(metrics, service.register) as channel:
        with capture_logs() as logs:
            await read_pb2_grpc.ReadServiceStub(channel).LastPositions(read_pb2.LastPositionsRequest())
            await ledgers_pb2_grpc.LedgerServiceStub(channel).Roll(ledgers_pb2.RollRequest())
    levels = {event["method"]: event["log_level"] for event in logs if event["event"] == "rpc.handled"}
    assert levels == {"LastPositions": "debug", "Roll": "info"}
    assert (
        sample(
            metrics,
            "grpc_server_handled_total",
            {"grpc_method": "LastPositions", "grpc_code": "OK", "grpc_type": "unary"}
            | {"grpc_service": "offloaderd.v1.ReadService"},
        )
        == 1
    )


async def test_a_stream_that_fails_says_why_after_what_it_gave() -> None:
    """Answers that were sent arrive before the error; a streaming handler may also write through its context."""
    metrics, service = Metrics(), Failing()
    service.error = OutOfRange("beyond", hint="0:0 to 0:9")
    async with serving(metrics, service.register) as channel:
        call = read_pb2_grpc.ReadServiceStub(channel).Read(read_pb2.ReadRequest())
        answer = await call.read()
        assert isinstance(answer, read_pb2.ReadResponse)
        assert answer.tier == common_pb2.TIER_BUFFER
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert from_rpc_error(caught.value).hint == "0:0 to 0:9"

        async def requests() -> AsyncIterator[ledgers_pb2.AppendRequest]:
            for count in (1, 2):
                yield ledgers_pb2.AppendRequest(payloads=[b"x"] * count)

        append = ledgers_pb2_grpc.LedgerServiceStub(channel).Append(requests())
        for expected in (1, 2):
            counted = await append.read()
            assert isinstance(counted, ledgers_pb2.AppendResponse)
            assert counted.entry_count == expected
        with pytest.raises(aio.AioRpcError, match="beyond"):
            await append.read()


async def test_what_is_not_ours_stays_inside() -> None:
    """An unexpected exception is logged with its traceback, and the client learns nothing but INTERNAL."""
    metrics, service = Metrics(), Failing()
    service.error = ZeroDivisionError("a secret of the inside")
    async with serving(metrics, service.register) as channel:
        with capture_logs() as logs, pytest.raises(aio.AioRpcError) as caught:
            await ledgers_pb2_grpc.LedgerServiceStub(channel).Roll(ledgers_pb2.RollRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value)
    assert type(from_rpc_error(caught.value)) is OffloaderError
    assert "log" in from_rpc_error(caught.value).hint
    assert next(log for log in logs if log["event"] == "rpc.failed")["exc_info"]


async def test_successes_choices_and_cancellations_are_counted() -> None:
    """OK, a status that the handler chose itself, and a client that went away each have their code."""
    metrics, service = Metrics(), Failing()
    async with serving(metrics, service.register) as channel:
        stub = read_pb2_grpc.ReadServiceStub(channel)
        await stub.LastPositions(read_pb2.LastPositionsRequest())
        with pytest.raises(aio.AioRpcError, match="chosen by the handler"):
            await stub.LastPositions(read_pb2.LastPositionsRequest(topic="x"))
        call = stub.Read(read_pb2.ReadRequest(follow=True))
        await call.read()
        await service.entered.wait()
        call.cancel()
        await asyncio.wait_for(service.closed.wait(), PATIENCE_S)
        with pytest.raises(aio.AioRpcError):
            await channel.unary_unary("/offloaderd.v1.ReadService/NoSuchMethod")(b"")  # type: ignore[arg-type]

    def count(method: str, code: str) -> float:
        kind = "server_stream" if method == "Read" else "unary"
        labels = {"grpc_type": kind, "grpc_service": "offloaderd.v1.ReadService", "grpc_method": method}
        labels["grpc_code"] = code
        return sample(metrics, "grpc_server_handled_total", labels)

    assert [count("LastPositions", code) for code in ("OK", "AlreadyExists")] == [1, 1]
    assert count("Read", "Cancelled") == 1
    assert count("NoSuchMethod", "Unimplemented") == 0


def test_statuses_without_our_detail() -> None:
    """What a transport or another server says is understood by its code; a damaged detail is ignored."""

    def made(code: grpc.StatusCode, *trailing: tuple[str, bytes]) -> OffloaderError:
        return from_rpc_error(aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing), "said"))

    assert type(made(grpc.StatusCode.UNAVAILABLE)) is Transient
    assert type(made(grpc.StatusCode.NOT_FOUND, (DETAIL_KEY, b"\xff\xff"))) is NotFound
    assert type(made(grpc.StatusCode.UNKNOWN)) is OffloaderError
    assert isinstance(made(grpc.StatusCode.NOT_FOUND, (DETAIL_KEY, detail_of(TopicNotFound("x")).SerializeToString())),
                      TopicNotFound)  # fmt: skip
    unknown = common_pb2.ErrorDetail(reason="FROM_THE_FUTURE", hint="upgrade").SerializeToString()
    found = made(grpc.StatusCode.FAILED_PRECONDITION, (DETAIL_KEY, unknown))
    assert (type(found), found.hint) == (Conflict, "upgrade")


def test_every_error_has_a_code() -> None:
    """No class of errors falls to INTERNAL, and classes that clients do not know go by their ancestor."""

    def descendants(kind: type[OffloaderError]) -> set[type[OffloaderError]]:
        return {kind, *(one for child in kind.__subclasses__() for one in descendants(child))}

    ours = {kind for kind in descendants(OffloaderError) if kind.__module__ == "offloaderd.core.errors"} - {
        OffloaderError
    }
    assert len(ours) > 10
    assert all(any(base in CODES for base in kind.__mro__) for kind in ours)

    class Special(NotFound):
        """Something new."""

    assert detail_of(Special("x")).reason == "NOT_FOUND"
    assert status_of(5) is grpc.StatusCode.NOT_FOUND
    assert status_of(None) is status_of(99) is grpc.StatusCode.UNKNOWN
