"""OffloadService over a real gRPC channel: answers, flow control, acknowledgements, bad input."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from grpc import aio

from offloaderd.api.interceptor import ErrorInterceptor
from offloaderd.api.push import OffloadService
from offloaderd.core.errors import Throttled, Transient
from offloaderd.core.model import ENTRY_BYTES_MAX, OutagePolicy, Position
from offloaderd.policy.records import TopicPolicy
from offloaderd.protocol.errors import DETAIL_KEY
from offloaderd.protocol.v1 import common_pb2, offload_pb2, offload_pb2_grpc
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic import handle
from offloaderd.topic.outage import OutageRules
from offloaderd.topic.spill import SpillArea
from tests.unit.rigs.rig import SHORT_PARTS, Rig, enabled, memory_ledgers, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from offloaderd.fleet.engine import Engine

REAL_TIME = "gRPC"

Request = offload_pb2.StreamingOffloadRequest
Response = offload_pb2.StreamingOffloadResponse
TOPIC = "public/default/orders"
MESSAGE_BYTES_MAX = 16 << 20


def opening(topic: str = TOPIC) -> Request:
    """Make the first request."""
    return Request(open=Request.Open(topic=topic))


def batch(first: int, entries: Sequence[bytes], *, ledger_id: int = 1) -> Request:
    """Make a batch."""
    return Request(batch=common_pb2.EntryBatch(ledger_id=ledger_id, first_entry_id=first, payloads=entries))


@asynccontextmanager
async def serving(rig: Rig, engine: Engine) -> AsyncIterator[offload_pb2_grpc.OffloadServiceStub]:
    """Serve the engine on loopback."""
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
    server = aio.server(interceptors=[ErrorInterceptor(rig.metrics, clock=rig.clock)], options=options)
    service = OffloadService(engine, clock=rig.clock, metrics=rig.metrics)
    offload_pb2_grpc.add_OffloadServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield offload_pb2_grpc.OffloadServiceStub(channel)
    finally:
        await server.stop(2)  # calls that are just ending may do so


def stream(stub: offload_pb2_grpc.OffloadServiceStub, requests: Iterable[Request] | None = None) -> Any:  # noqa: ANN401 - the stubs know only iterators
    """Open a stream: of these requests, or one that is written by hand."""
    return cast("Any", stub).StreamingOffload(requests)


def small(*, buffer_bytes: int = 4 << 20) -> Rig:
    """A rig whose segments are sealed every 2,000 bytes or half second."""
    policy = RollPolicy(segment_bytes_max=2_000, segment_age_max_s=0.5)
    return Rig(policy=policy, buffer_bytes=buffer_bytes, layout=SHORT_PARTS)


async def test_batches_are_answered_in_order_and_progress_is_told() -> None:
    """Opened, then an answer a batch, then the offloaded position with its segment; half-close waits for all."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=2_000, segment_age_max_s=0.2))
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        await enabled(engine)
        call = stream(stub, iter([opening(), batch(5, payloads(20)), batch(25, payloads(3))]))
        answers = [answer async for answer in call]
    opened, first, second = [one for one in answers if one.WhichOneof("response") != "offloaded"]
    assert opened.opened.push_only
    assert not opened.opened.HasField("offloaded")
    assert first.offered.result == second.offered.result == offload_pb2.OFFER_RESULT_ACCEPTED
    assert (second.offered.last_offered.ledger_id, second.offered.last_offered.entry_id) == (1, 27)
    told = [one.offloaded for one in answers if one.WhichOneof("response") == "offloaded"]
    assert told[-1].position.entry_id == 27
    assert len(told[-1].segment_id) == 36
    assert [position.entry_id for position, _ in await rig.committed()] == list(range(5, 28))


async def test_a_broker_that_only_waits_hears_that_the_topic_is_given_up() -> None:
    """It has nothing more to send and waits for what it sent to be offloaded: here that will never be."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=100_000, segment_age_max_s=3600.0))
    store = rig.tree.connect()
    async with rig.engine(push_only=True, metadata=store) as engine, serving(rig, engine) as stub:
        await enabled(engine)
        call = stream(stub)
        await call.write(opening())
        await call.write(batch(0, payloads(5)))
        assert (await call.read()).WhichOneof("response") == "opened"
        assert (await call.read()).offered.result == offload_pb2.OFFER_RESULT_ACCEPTED
        store.expire()
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_end_of_a_ledger_that_was_declared_closed_is_sealed_at_once() -> None:
    """However young its segment is; and a close that is told again later has nothing sealed."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=100_000, segment_age_max_s=3600.0))
    closed = Request(ledger_closed=Request.LedgerClosed(ledger_id=1, last_entry_id=4))
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        call = stream(stub)
        for request in (opening(), batch(0, payloads(5)), closed):
            await call.write(request)
        await until_offloaded(topic, Position(1, 4))
        assert topic.map.ends[1].entries == 5
        for request in (closed, batch(0, payloads(1), ledger_id=2)):
            await call.write(request)
        await until(lambda: topic.progress is not None and topic.progress.entries == 1)
        assert topic.requests.now().seal_to is None
        assert topic.offloaded == Position(1, 4)
        call.cancel()


async def test_a_second_stream_learns_where_to_go_on() -> None:
    """After a broken connection the opening answer says what is offloaded and what was taken."""
    rig = small()
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        call = stream(stub)
        await call.write(opening())
        await call.write(batch(0, payloads(25)))
        await until(lambda: topic.offloaded is not None)
        call.cancel()
        await until(lambda: topic.pushers == 0)
        again = stream(stub)
        await again.write(opening())
        opened = (await again.read()).opened
        assert (opened.offloaded.ledger_id, opened.offloaded.entry_id) == topic.offloaded
        assert opened.last_offered.entry_id == 24
        again.cancel()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (batch(7, payloads(1)), "1:7 does not follow 1:2"),
        (batch(2, payloads(1)), "1:2 does not follow 1:2"),
        (batch(0, payloads(1), ledger_id=0), "0:0 does not follow 1:2"),
        (batch(1, payloads(1), ledger_id=2), "2:1 does not follow 1:2"),
    ],
    ids=["gap", "duplicate", "older ledger", "not from the start"],
)
async def test_what_does_not_follow_is_declined_and_the_stream_goes_on(bad: Request, message: str) -> None:
    """NOT_CONSECUTIVE names both positions; the next right batch is taken."""
    rig = small()
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        await enabled(engine)
        call = stream(stub)
        for request in (opening(), batch(0, payloads(3)), bad, batch(3, payloads(1))):
            await call.write(request)
        answers = [await call.read() for _ in range(4)]
        assert answers[2].offered.result == offload_pb2.OFFER_RESULT_NOT_CONSECUTIVE
        assert answers[2].offered.message == message
        assert answers[3].offered.result == offload_pb2.OFFER_RESULT_ACCEPTED
        call.cancel()


@pytest.mark.parametrize(
    ("requests", "code", "words"),
    [
        ([batch(0, [b"x"])], grpc.StatusCode.INVALID_ARGUMENT, "must be `open`"),
        ([], grpc.StatusCode.INVALID_ARGUMENT, "empty stream"),
        ([opening("a/b")], grpc.StatusCode.INVALID_ARGUMENT, "malformed topic name"),
        ([opening("never-enabled")], grpc.StatusCode.NOT_FOUND, "not enabled"),
        ([opening(), opening()], grpc.StatusCode.INVALID_ARGUMENT, "unexpected request open"),
        ([opening(), Request()], grpc.StatusCode.INVALID_ARGUMENT, "without content"),
        ([opening(), batch(0, [])], grpc.StatusCode.INVALID_ARGUMENT, "without entries"),
        ([opening(), batch(-1, [b"x"])], grpc.StatusCode.INVALID_ARGUMENT, "out of range"),
        ([opening(), batch(0, [b"x"], ledger_id=-4)], grpc.StatusCode.INVALID_ARGUMENT, "out of range"),
        ([opening(), batch(2**63 - 1, [b"x", b"y"])], grpc.StatusCode.INVALID_ARGUMENT, "out of range"),
        ([opening(), batch(0, [bytes(ENTRY_BYTES_MAX + 1)])], grpc.StatusCode.INVALID_ARGUMENT, str(ENTRY_BYTES_MAX)),
    ],
)
async def test_bad_input_ends_the_stream_with_a_reason(
    requests: list[Request], code: grpc.StatusCode, words: str
) -> None:
    """What can never be right is an INVALID_ARGUMENT or NOT_FOUND with the fact and what to do; nothing is taken."""
    rig = small()
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        call = stream(stub, iter(requests))
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() == code
        assert words in f"{caught.value.details()} {caught.value.trailing_metadata()}"
        assert topic.buffer.used_bytes == 0
        assert topic.pushers == 0


async def test_the_largest_entry_is_taken() -> None:
    """5 MiB exactly is an entry like any other."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1, segment_age_max_s=3600), buffer_bytes=16 << 20)
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        await enabled(engine)
        entry = bytes(range(256)) * (ENTRY_BYTES_MAX // 256)
        async for _ in stream(stub, iter([opening(), batch(0, [entry])])):
            pass
    assert await rig.committed() == [((1, 0), entry)]


async def test_a_push_only_topic_holds_the_broker_back_instead_of_losing() -> None:
    """More than the buffer holds is pushed at once: no FULL, every batch accepted, back-pressure is counted."""
    rig = small(buffer_bytes=20_000)
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        await enabled(engine)
        requests = [opening(), *(batch(first, payloads(10, 300, seed=first)) for first in range(0, 1000, 10))]
        answers = [answer async for answer in stream(stub, iter(requests)) if answer.HasField("offered")]
        assert {answer.offered.result for answer in answers} == {offload_pb2.OFFER_RESULT_ACCEPTED}
        assert len(answers) == 100
        assert rig.metrics.backpressure_seconds._value.get() > 0
    assert len(await rig.committed()) == 1000


async def test_a_topic_with_a_source_declines_and_reads_for_itself() -> None:
    """The broker is never held back: FULL says that the entries will be read from the source, and they are."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=60_000, segment_age_max_s=3600), buffer_bytes=40_000)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=100_000)
    async with rig.engine() as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        call = stream(stub)
        await call.write(opening())
        assert not (await call.read()).opened.push_only
        results = []
        for seed in range(40):
            entries = payloads(50, seed=seed)
            last = await rig.ledgers.append(topic.topic, entries)
            await call.write(batch(last.entry_id - 49, entries, ledger_id=last.ledger_id))
            while (answer := await call.read()).WhichOneof("response") != "offered":
                pass
            results.append(answer.offered.result)
        assert offload_pb2.OFFER_RESULT_FULL in results
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)  # a drain leaves to the next owner what only the source has
        await call.done_writing()
        while await call.read() is not aio.EOF:
            pass
    assert len(await rig.committed()) == 2000


@pytest.mark.parametrize("listed", [False, True])
async def test_what_the_source_does_not_know_is_refused_with_the_reason(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken, it would wait in memory for good, and nobody would know: of an unknown ledger, or behind its last."""
    monkeypatch.setattr(handle, "APPEARS_S", 0.05)
    rig = small()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        if listed:
            await rig.ledgers.append(topic.topic, payloads(1))
        beyond = batch(1, payloads(1), ledger_id=0) if listed else batch(0, payloads(3), ledger_id=7)
        call = stream(stub, iter([opening(), beyond]))
        with pytest.raises(aio.AioRpcError) as caught:
            _ = [answer async for answer in call]
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        detail = dict(caught.value.trailing_metadata() or ())[DETAIL_KEY]
        assert common_pb2.ErrorDetail.FromString(cast("bytes", detail)).reason == "LEDGER_UNKNOWN"
        assert "ledgers.kind = none" in common_pb2.ErrorDetail.FromString(cast("bytes", detail)).hint
        assert topic.buffer.span() in {None, ((0, 0), (0, 0))}


async def test_a_ledger_that_its_list_does_not_show_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker pushes in the moment in which it made the ledger; the source's next change announces it."""
    monkeypatch.setattr(handle, "APPEARS_S", 600.0)
    rig = small()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        call = stream(stub)
        await call.write(opening())
        await call.read()
        await call.write(batch(0, payloads(3), ledger_id=0))
        assert topic.tailer is not None
        refreshed_s = topic.tailer.refreshed_s
        await until(lambda: topic.tailer is not None and topic.tailer.refreshed_s not in {None, refreshed_s})
        assert (await rig.ledgers.append(topic.topic, payloads(3))).ledger_id == 0
        answer = await call.read()
        while answer.WhichOneof("response") != "offered":
            answer = await call.read()
        assert answer.offered.result in {offload_pb2.OFFER_RESULT_ACCEPTED, offload_pb2.OFFER_RESULT_NOT_CONSECUTIVE}
        call.cancel()


async def test_a_vanished_client_leaves_nothing_behind() -> None:
    """Cancelled in mid-stream, even while held back: the pusher is counted out and the topic drains."""
    rig = small(buffer_bytes=4_000)
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        requests = [opening(), *(batch(first, payloads(10, 300)) for first in range(0, 200, 10))]
        call = stream(stub, iter(requests))
        await until(lambda: topic.buffer.used_bytes > 0)
        assert topic.pushers == 1
        call.cancel()
        await until(lambda: topic.pushers == 0)


async def test_a_draining_daemon_sends_the_broker_away() -> None:
    """While the topic is given up a push is answered CLOSED, and the stream ends with UNAVAILABLE and a hint."""
    rig = small()
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        topic = await enabled(engine)
        call = stream(stub)
        await call.write(opening())
        await call.read()
        topic.buffer.refuse()
        await call.write(batch(0, payloads(1)))
        answer = await call.read()
        assert answer.offered.result == offload_pb2.OFFER_RESULT_CLOSED
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_blocked_topic_gives_no_more_credit_until_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `block`, what is sent in an outage stays unread but for the batch that was already awaited."""
    rig, faults = small(), Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
        topic = await enabled(engine, TopicPolicy(outage=OutagePolicy.BLOCK))
        faults.fail("upload_part", Throttled("no"), times=-1)
        waits, may_take = asyncio.Event(), topic.outage.may_take

        async def told() -> None:
            waits.set()
            await may_take()

        monkeypatch.setattr(topic.outage, "may_take", told)
        call = stream(stub)
        await call.write(opening())
        await call.write(batch(0, payloads(30)))
        await until(lambda: topic.outage.blocked)
        for first in range(30, 60, 10):
            await call.write(batch(first, payloads(10)))
        assert [(await call.read()).WhichOneof("response") for _ in range(3)] == ["opened", "offered", "offered"]
        await waits.wait()
        began = rig.clock.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answer := asyncio.ensure_future(call.read())), 0.3)  # noqa: TID251
        waited_s = rig.clock.monotonic() - began
        assert topic.handle.last_offered() == Position(1, 39)
        faults.heal()
        assert (await answer).WhichOneof("response") in {"offered", "offloaded"}
        await until_offloaded(topic, Position(1, 59))
        assert rig.metrics.backpressure_seconds._value.get() > waited_s > 0.2
        call.cancel()


async def test_a_topic_that_spills_takes_more_than_memory_holds(tmp_path: Path) -> None:
    """The broker is answered ACCEPTED beyond the buffer; `offloaded` comes only once the store is back."""
    faults = Faults()
    async with SpillArea(tmp_path, 1 << 20) as area:
        rig = small(buffer_bytes=16_000)
        rig.outage = OutageRules(policy=OutagePolicy.SPILL, area=area)
        rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
        async with rig.engine(push_only=True) as engine, serving(rig, engine) as stub:
            topic = await enabled(engine)
            faults.fail("upload_part", Transient("away"), times=-1)
            call = stream(stub)
            await call.write(opening())
            for first in range(0, 500, 20):
                await call.write(batch(first, payloads(20)))
            answers = [await call.read() for _ in range(26)]
            assert {one.offered.result for one in answers[1:]} == {offload_pb2.OFFER_RESULT_ACCEPTED}
            assert answers[-1].offered.last_offered.entry_id == 499
            assert topic.offloaded is None
            faults.heal()
            await call.done_writing()
            told = -1
            while isinstance(answer := await call.read(), Response):
                told = answer.offloaded.position.entry_id
            assert told == 499
        assert [payload for _, payload in await rig.committed()] == payloads(20) * 25
