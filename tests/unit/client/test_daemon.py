"""The client over a real channel: connecting, sizes, deadlines, streams that end early, errors."""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import aio

from offloaderd.client import DaemonClient, TimedOut, Unreachable, checked_address
from offloaderd.client.calls import PAGE_SIZE
from offloaderd.core.errors import CorruptData, InvalidInput, NoSpace, NotFound, OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import ReadPriority
from offloaderd.protocol.errors import DETAIL_KEY
from offloaderd.protocol.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    ledgers_pb2,
    ledgers_pb2_grpc,
    read_pb2,
    read_pb2_grpc,
)
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REAL_TIME = "gRPC"

TOPIC = TopicName.parse("orders")
MIB = 1024 * 1024


class Server(
    admin_pb2_grpc.AdminServiceServicer, read_pb2_grpc.ReadServiceServicer, ledgers_pb2_grpc.LedgerServiceServicer
):
    """Answers as a test wants; `gone` is set when a read's client has left."""

    def __init__(self) -> None:
        self.payload = b"x"
        self.error: tuple[grpc.StatusCode, str, str] | None = None
        self.never = False
        self.appends_max = 1_000
        self.gone = asyncio.Event()
        self.requests: list[Any] = []

    async def _seen(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        if self.never:
            await asyncio.Event().wait()
        if self.error is not None:
            code, reason, text = self.error
            detail = common_pb2.ErrorDetail(reason=reason, hint="the hint")
            await context.abort(code, text, ((DETAIL_KEY, detail.SerializeToString()),))

    async def ListTopics(self, request: Any, context: Any) -> Any:
        """Answer, fail or hang."""
        await self._seen(request, context)
        return admin_pb2.ListTopicsResponse(topics=[admin_pb2.TopicSummary(topic="t")])

    async def ListSelections(self, request: Any, context: Any) -> Any:
        """One."""
        await self._seen(request, context)
        return admin_pb2.ListSelectionsResponse(selections=[admin_pb2.Selection(pattern="a/*")])

    async def EnableTopic(self, request: Any, context: Any) -> Any:
        """Agree."""
        await self._seen(request, context)
        return admin_pb2.EnableTopicResponse(pattern="a/*")

    async def DisableTopic(self, request: Any, context: Any) -> Any:
        """Agree."""
        await self._seen(request, context)
        return admin_pb2.DisableTopicResponse()

    async def ListSegments(self, request: Any, context: Any) -> Any:
        """Two segments."""
        await self._seen(request, context)
        for name in ("a", "b"):
            yield admin_pb2.Segment(segment_id=name)

    async def Offload(self, request: Any, context: Any) -> Any:
        """Done."""
        await self._seen(request, context)
        yield admin_pb2.OffloadProgress(done=True)

    async def OffloadStatus(self, request: Any, context: Any) -> Any:
        """Done."""
        await self._seen(request, context)
        yield admin_pb2.OffloadProgress(done=True)

    async def Status(self, request: Any, context: Any) -> Any:
        """Nothing."""
        await self._seen(request, context)
        return admin_pb2.StatusResponse(daemon_id="d")

    async def Read(self, request: Any, context: Any) -> Any:
        """Go on for ever, until the client is gone."""
        await self._seen(request, context)
        try:
            while True:
                batch = common_pb2.EntryBatch(ledger_id=1, payloads=[self.payload])
                yield read_pb2.ReadResponse(batch=batch, tier=common_pb2.TIER_OBJECTS)
        finally:
            self.gone.set()

    async def ReadMessages(self, request: Any, context: Any) -> Any:
        """Two answers of a message each."""
        await self._seen(request, context)
        for data in (b"a", b"b"):
            yield read_pb2.ReadMessagesResponse(messages=[read_pb2.Message(data=data)])

    async def PlanRead(self, request: Any, context: Any) -> Any:
        """Nothing."""
        await self._seen(request, context)
        return read_pb2.PlanReadResponse()

    async def LastPositions(self, request: Any, context: Any) -> Any:
        """Nothing."""
        await self._seen(request, context)
        return read_pb2.LastPositionsResponse()

    async def Seek(self, request: Any, context: Any) -> Any:
        """Nothing."""
        await self._seen(request, context)
        return read_pb2.SeekResponse()

    async def Append(self, request_iterator: Any, context: Any) -> Any:
        """Take batches."""
        async for request in request_iterator:
            await self._seen(request, context)
            self.appends_max -= 1
            if self.appends_max < 0:
                return
            yield ledgers_pb2.AppendResponse(entry_count=len(request.payloads))

    async def Roll(self, request: Any, context: Any) -> Any:
        """Agree."""
        await self._seen(request, context)
        return ledgers_pb2.RollResponse()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, str]]:
    """Serve on a free port."""
    server, answers = aio.server(options=[("grpc.max_receive_message_length", 64 * MIB)]), Server()
    admin_pb2_grpc.add_AdminServiceServicer_to_server(answers, server)
    read_pb2_grpc.add_ReadServiceServicer_to_server(answers, server)
    ledgers_pb2_grpc.add_LedgerServiceServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield answers, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        async with asyncio.timeout(PATIENCE_S):
            while handlers():
                await asyncio.wait(handlers(), timeout=0.1)


def handlers() -> list[asyncio.Task[Any]]:
    """Return gRPC's own tasks for calls that were cut off: stopping a server does not wait for them."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(("rpc_task", "HandleExceptions"))]


async def test_every_call_reaches_the_daemon() -> None:
    """Each method sends its request with the full topic name."""
    async with serving() as (server, address), DaemonClient(address) as client:
        assert [topic.topic for topic in await client.topics("public")] == ["t"]
        assert server.requests[-1].page_size == PAGE_SIZE
        await client.enable(TOPIC, segment_age_max_s=1.5, read_priority=ReadPriority.BOOKKEEPER_FIRST)
        await client.disable(TOPIC)
        assert [one.pattern for one in await client.selections()] == ["a/*"]
        assert server.requests[-1].page_size == PAGE_SIZE
        assert (await client.enable(TopicPattern.parse("a/*"), dry_run=True)).pattern == "a/*"
        assert [segment.segment_id for segment in await client.segments(TOPIC)] == ["a", "b"]
        assert [progress.done async for progress in client.offload(TOPIC, wait=True)] == [True]
        assert [progress.done async for progress in client.offload_status(TOPIC, wait=True)] == [True]
        assert (await client.status()).daemon_id == "d"
        await client.status(TOPIC)
        await client.last_positions(TOPIC)
        await client.roll(TOPIC)
        names = [type(request).__name__ for request in server.requests]
        assert names == [
            "ListTopicsRequest", "EnableTopicRequest", "DisableTopicRequest", "ListSelectionsRequest",
            "EnableTopicRequest", "ListSegmentsRequest", "OffloadRequest", "OffloadStatusRequest",
            "StatusRequest", "StatusRequest",
            "LastPositionsRequest", "RollRequest",
        ]  # fmt: skip
        assert server.requests[1].topic == "persistent://public/default/orders"
        assert server.requests[1].segment_age_max_s == 1.5
        assert not server.requests[1].HasField("segment_bytes_max")
        assert (server.requests[4].topic, server.requests[4].dry_run) == ("a/*", True)
        assert (server.requests[8].topic, server.requests[9].topic) == ("", str(TOPIC))


async def test_a_read_that_is_left_is_cancelled_at_the_server() -> None:
    """Leaving the loop early leaves nothing running on the other side."""
    async with serving() as (server, address), DaemonClient(address) as client:
        answers = client.read(TOPIC, first=Position(1, 2), entries_max=3, read_priority=ReadPriority.BOOKKEEPER_FIRST)
        async for answer in answers:
            assert answer.tier == common_pb2.TIER_OBJECTS
            break
        await answers.aclose()
        async with asyncio.timeout(PATIENCE_S):
            await server.gone.wait()
        [request] = [one for one in server.requests if isinstance(one, read_pb2.ReadRequest)]
        assert (request.first.entry_id, request.entries_max, request.read_priority) == (2, 3, "bookkeeper-first")
        assert not request.HasField("last")


async def test_messages_up_to_the_limit_pass_both_ways() -> None:
    """A full batch and one more entry of 5 MiB fit; more than the limit is an error, not a hang."""
    async with serving() as (server, address), DaemonClient(address, message_bytes_max=8 * MIB) as client:
        server.payload = b"x" * (7 * MIB)
        answers = client.read(TOPIC)
        assert len((await anext(aiter(answers))).batch.payloads[0]) == 7 * MIB
        await answers.aclose()
        server.payload = b"x" * (9 * MIB)
        with pytest.raises(Exception, match="larger than max"):
            async for _ in client.read(TOPIC):
                pass


async def test_a_daemon_that_does_not_answer_is_timed_out() -> None:
    """The deadline ends the call."""
    async with serving() as (server, address), DaemonClient(address, timeout_s=0.2) as client:
        server.never = True
        with pytest.raises(TimedOut):
            await client.topics()


async def test_a_call_with_a_deadline_of_its_own_has_not_the_clients() -> None:
    """Disabling seals segments first, which may take longer than all else."""
    async with serving() as (server, address), DaemonClient(address, timeout_s=PATIENCE_S) as client:
        server.never = True
        with pytest.raises(TimedOut):
            await client.disable(TOPIC, timeout_s=0.1)


async def test_errors_come_back_as_they_were_raised() -> None:
    """The daemon's own detail decides the class, and brings the hint."""
    async with serving() as (server, address), DaemonClient(address) as client:
        server.error = (grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "no such topic")
        with pytest.raises(NotFound) as caught:
            await client.segments(TOPIC)
        assert (caught.value.message, caught.value.hint) == ("no such topic", "the hint")
        server.error = (grpc.StatusCode.DATA_LOSS, "CORRUPT_DATA", "bad bytes")
        with pytest.raises(CorruptData, match="bad bytes"):
            async for _ in client.read(TOPIC):
                pass


async def test_unavailable_is_only_unreachable_when_the_transport_says_it() -> None:
    """A daemon that answers "the bucket is away" has been reached."""
    async with serving() as (server, address), DaemonClient(address) as client:
        server.error = (grpc.StatusCode.UNAVAILABLE, "TRANSIENT", "the bucket is away")
        with pytest.raises(Exception, match="the bucket is away") as caught:
            await client.topics()
        assert not isinstance(caught.value, Unreachable)


async def test_nobody_at_the_address_is_unreachable_at_once() -> None:
    """A refused connection is not waited for."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        async with asyncio.timeout(PATIENCE_S), DaemonClient("127.0.0.1:1"):
            pytest.fail("there is nobody there")


async def test_an_address_that_never_answers_is_unreachable_in_time() -> None:
    """A port that takes connections and says nothing does not hang the user."""

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unreachable, match=r"within 0\.3 s"):
        async with DaemonClient(f"127.0.0.1:{silent.getsockname()[1]}", connect_s=0.3):
            pytest.fail("nobody speaks gRPC there")


async def test_appends_are_answered_in_order() -> None:
    """One answer a batch, empty streams included."""

    async def batches(*sizes: int) -> AsyncIterator[list[bytes]]:
        for size in sizes:
            yield [b"x"] * size

    async with serving() as (_, address), DaemonClient(address) as client:
        answers: list[int] = []
        await client.append(TOPIC, batches(), lambda answer: answers.append(answer.entry_count))
        assert answers == []
        sizes = [3, 1, 2, *range(1, 30)]
        await client.append(TOPIC, batches(*sizes), lambda answer: answers.append(answer.entry_count))
        assert answers == sizes


async def test_what_the_source_of_an_append_raises_is_raised() -> None:
    """A file that cannot be read ends the append with its own error, not with gRPC's."""

    async def broken() -> AsyncIterator[list[bytes]]:
        yield [b"one"]
        raise InvalidInput("line 2 is too long")

    async with serving() as (_, address), DaemonClient(address) as client:
        with pytest.raises(InvalidInput, match="line 2"):
            await client.append(TOPIC, broken(), ignored)


async def test_entries_in_place_of_a_batch_are_refused_by_name() -> None:
    """The usual slip, one list too few, is told with what a batch looks like."""

    async def entries() -> AsyncIterator[Any]:
        yield b"abc"

    async with serving() as (_, address), DaemonClient(address) as client:
        with pytest.raises(InvalidInput, match="a batch is a sequence of entries, not bytes") as caught:
            await client.append(TOPIC, entries(), ignored)
        assert '[b"entry"]' in caught.value.hint


async def test_an_error_in_the_middle_of_an_append_is_raised() -> None:
    """The daemon's refusal ends the call although there is more to send."""

    async def endless() -> AsyncIterator[list[bytes]]:
        while True:
            yield [b"x" * 1000]

    async with serving() as (server, address), DaemonClient(address) as client:
        server.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE", "the disk is full")
        with pytest.raises(NoSpace, match="the disk is full"):
            await client.append(TOPIC, endless(), ignored)


async def test_a_refusal_after_many_batches_is_raised_as_it_was_said() -> None:
    """A write that fails in the middle of a full window does not hide what the daemon said."""

    async def endless() -> AsyncIterator[list[bytes]]:
        while True:
            yield [b"x" * 1000]

    async with serving() as (server, address), DaemonClient(address) as client:
        count = 0

        def fail_later(_: ledgers_pb2.AppendResponse) -> None:
            nonlocal count
            count += 1
            if count == 50:
                server.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_SPACE", "the disk is full")

        with pytest.raises(NoSpace, match="the disk is full"):
            await client.append(TOPIC, endless(), fail_later)


async def test_appending_where_nothing_can_be_appended_to_is_always_told() -> None:
    """A daemon without a store of its own: whether a write or the reader of answers notices first, it is said."""

    async def one() -> AsyncIterator[list[bytes]]:
        yield [b"x"]

    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        for _ in range(20):
            async with DaemonClient(f"127.0.0.1:{port}") as client:
                with pytest.raises(InvalidInput, match="does not offer this call"):
                    await client.append(TOPIC, one(), ignored)
    finally:
        await server.stop(0)


async def test_an_append_that_the_daemon_ends_early_is_an_error() -> None:
    """A stream that closes well, but without an answer to each batch, has not appended everything."""

    async def batches() -> AsyncIterator[list[bytes]]:
        for _ in range(5):
            yield [b"x"]

    async with serving() as (server, address), DaemonClient(address) as client:
        server.appends_max = 2
        with pytest.raises(OffloaderError, match="before everything was acknowledged"):
            await client.append(TOPIC, batches(), ignored)


async def test_what_answered_raises_ends_the_append() -> None:
    """The caller's own error gets out, and nothing is left running."""

    async def endless() -> AsyncIterator[list[bytes]]:
        while True:
            yield [b"x"]

    def refuse(_: ledgers_pb2.AppendResponse) -> None:
        raise InvalidInput("enough")

    async with serving() as (_, address), DaemonClient(address) as client:
        with pytest.raises(InvalidInput, match="enough"):
            await client.append(TOPIC, endless(), refuse)


def ignored(_: ledgers_pb2.AppendResponse) -> None:
    """Take an answer for granted."""


@pytest.mark.parametrize("address", ["127.0.0.1:7650", "host.example:1", "[::1]:7650", "localhost:65535"])
def test_addresses_that_can_be(address: str) -> None:
    """Names, IPv4 and bracketed IPv6 with a port are taken as they are."""
    assert checked_address(address) == address
