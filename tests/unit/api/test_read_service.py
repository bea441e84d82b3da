"""ReadService over a real gRPC connection: ranges, slow and vanished clients, limits."""

from __future__ import annotations

import asyncio
import uuid
import zlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import aio

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, Position
from offloaderd.format.pb.pulsar import messages_pb2 as pb
from offloaderd.format.pulsar import broker_entry
from offloaderd.protocol.conversion import BATCH_ENTRIES_MAX, from_batch, from_position, to_batch, to_position
from offloaderd.protocol.errors import from_rpc_error
from offloaderd.protocol.v1 import common_pb2, read_pb2
from tests.patience import PATIENCE_S
from tests.unit.api.serve_reads import entries_of, served
from tests.unit.format.test_pulsar_message import chunks_of
from tests.unit.read.build import TOPIC, Piece, flat, make_read_rig, payloads, put_segment, sample

if TYPE_CHECKING:
    from tests.unit.read.build import ReadRig

REAL_TIME = "gRPC"

MIB = 1024 * 1024


async def big_rig() -> ReadRig:
    """Return a topic of 48 MiB in the bucket, in entries of 64 KiB and blocks of 1 MiB."""
    rig = make_read_rig(cache_bytes=8 * MIB, read_ahead_bytes=4 * MIB)
    data = [bytes([number % 256]) * 65536 for number in range(768)]
    rig.map.segments = [
        await put_segment(rig.store, [Piece(1, 0, data)], segment_id=uuid.UUID(int=1), block_entries=16)
    ]
    return rig


async def until(condition: object) -> None:
    """Wait until a function says yes; at most 10 s."""
    assert callable(condition)
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)  # noqa: TID251 - what is awaited happens in gRPC's own threads


async def test_a_range_arrives_as_asked() -> None:
    """Bounds, limits and tier go over the wire; positions say what is where."""
    rig = make_read_rig()
    rig.map.segments = [await put_segment(rig.store, [Piece(3, 0, payloads(3, 0, 9), 10)], segment_id=uuid.UUID(int=1))]
    rig.hot.add(EntryBatch(4, 0, payloads(4, 0, 5)), follows=Position(3, 9))
    async with served(rig) as stub:
        request = read_pb2.ReadRequest(
            topic="orders",
            first=common_pb2.Position(ledger_id=3, entry_id=7),
            last=common_pb2.Position(ledger_id=4, entry_id=1),
            batch_bytes=8,
            read_priority="tiered-first",
        )
        answers = [answer async for answer in stub.Read(request)]
        found = [
            (answer.tier, answer.batch.ledger_id, answer.batch.first_entry_id + at, data)
            for answer in answers
            for at, data in enumerate(answer.batch.payloads)
        ]
        expected = [(common_pb2.TIER_OBJECTS, 3, 7 + at, data) for at, data in enumerate(payloads(3, 7, 9))]
        expected += [(common_pb2.TIER_BUFFER, 4, at, data) for at, data in enumerate(payloads(4, 0, 1))]
        assert found == expected
        limited = [answer async for answer in stub.Read(read_pb2.ReadRequest(topic=str(TOPIC), entries_max=4))]
        assert sum(len(answer.batch.payloads) for answer in limited) == 4
        positions = await stub.LastPositions(read_pb2.LastPositionsRequest(topic="orders"))
    assert (positions.first.ledger_id, positions.first.entry_id) == (3, 0)
    assert (positions.confirmed.ledger_id, positions.confirmed.entry_id) == (4, 5)
    assert (positions.offloaded.ledger_id, positions.offloaded.entry_id) == (3, 9)
    assert positions.HasField("buffered_first")


@pytest.mark.parametrize("batch_bytes", [0, 1, 60, 200])
async def test_framed_answers_have_the_same_entries(batch_bytes: int) -> None:
    """Frames come for what lies in the bucket, cut to what was asked; the buffer's entries come as payloads."""
    rig = make_read_rig()
    pieces = [Piece(3, 0, payloads(3, 0, 9), 10), Piece(4, 0, payloads(4, 0, 3))]
    rig.map.segments = [await put_segment(rig.store, pieces, segment_id=uuid.UUID(int=1), block_entries=4)]
    rig.hot.add(EntryBatch(4, 4, payloads(4, 4, 5)), follows=Position(4, 3))
    async with served(rig) as stub:
        for first, last in ((0, 13), (2, 2), (3, 9), (0, 15), (5, 14)):
            ends = [Position(3 + number // 10, number % 10) for number in (first, last)]
            request = read_pb2.ReadRequest(
                topic="orders", first=to_position(ends[0]), last=to_position(ends[1]), batch_bytes=batch_bytes
            )
            plain = [entries_of(answer) async for answer in stub.Read(request)]
            request.framed = True
            answers = [answer async for answer in stub.Read(request)]
            assert flat([entries_of(answer) for answer in answers]) == flat(plain)
            assert len(flat(plain)) == last - first + 1
            for answer in answers:
                stored = answer.tier == common_pb2.TIER_OBJECTS
                assert bool(answer.frames) == bool(answer.entries) == stored == (not answer.batch.payloads)
                assert not batch_bytes or answer.entries <= 1 or len(answer.frames) <= batch_bytes
        request = read_pb2.ReadRequest(topic="orders", framed=True, entries_max=3)
        limited = [answer async for answer in stub.Read(request)]
        assert sum(answer.entries for answer in limited) == 3


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (read_pb2.ReadRequest(topic="nobody"), grpc.StatusCode.NOT_FOUND),
        (read_pb2.ReadRequest(topic="a//b"), grpc.StatusCode.INVALID_ARGUMENT),
        (read_pb2.ReadRequest(topic=""), grpc.StatusCode.INVALID_ARGUMENT),
        (read_pb2.ReadRequest(topic="orders", read_priority="fast"), grpc.StatusCode.INVALID_ARGUMENT),
        (read_pb2.ReadRequest(topic="orders", batch_bytes=2**31), grpc.StatusCode.INVALID_ARGUMENT),
        (
            read_pb2.ReadRequest(topic="orders", first=common_pb2.Position(ledger_id=-1, entry_id=0)),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_requests_that_cannot_be_served(request_: read_pb2.ReadRequest, code: grpc.StatusCode) -> None:
    """Unknown and malformed topics, unknown priorities, huge batches and negative positions are refused by status."""
    rig = make_read_rig()
    async with served(rig) as stub:
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Read(request_).read()
    assert caught.value.code() is code
    assert from_rpc_error(caught.value).message
    assert sample(rig.metrics, "offloaderd_readers") == 0


async def test_a_slow_client_blocks_only_itself() -> None:
    """A client that stops reading makes its own stream pause, holding bounded memory; others read on, and so may it."""
    rig = await big_rig()
    async with served(rig) as stub:
        slow = stub.Read(read_pb2.ReadRequest(topic="orders"))
        await slow.read()
        count = 0
        async for answer in stub.Read(read_pb2.ReadRequest(topic="orders")):
            count += len(answer.batch.payloads)
        assert count == 768
        sent = sample(rig.metrics, "offloaderd_read_bytes_total", {"source": "objects"}) - 48 * MIB
        assert sent < 24 * MIB
        assert rig.reader.segments.pinned_bytes <= 6 * MIB
        rest = 0
        while isinstance(more := await slow.read(), read_pb2.ReadResponse):
            rest += len(more.batch.payloads)
        assert rest == 768 - 16
    assert rig.reader.segments.pinned_bytes == 0


async def test_a_client_that_vanishes_frees_everything() -> None:
    """When a client goes away in the middle, or while it follows, its read ends and nothing stays held."""
    rig = await big_rig()
    async with served(rig) as stub:
        calls = [stub.Read(read_pb2.ReadRequest(topic="orders", follow=follow)) for follow in (False, True, True)]
        for call in calls:
            await call.read()
        last = stub.Read(
            read_pb2.ReadRequest(topic="orders", follow=True, first=common_pb2.Position(ledger_id=1, entry_id=768))
        )
        await until(lambda: sample(rig.metrics, "offloaderd_readers") == 4)
        for call in [*calls, last]:
            call.cancel()
        await until(lambda: sample(rig.metrics, "offloaderd_readers") == 0)
        await until(lambda: rig.reader.segments.pinned_bytes == 0)
        await until(lambda: not rig.reader.segments.loader._tasks)
    labels = {"grpc_type": "server_stream", "grpc_service": "offloaderd.v1.ReadService", "grpc_method": "Read"}
    labels["grpc_code"] = "Cancelled"
    assert sample(rig.metrics, "grpc_server_handled_total", labels) == 4


async def test_there_is_a_limit_on_readers() -> None:
    """One reader too many is told to come again; a place that is given back is free."""
    rig = await big_rig()
    async with served(rig, readers_max=1) as stub:
        held = stub.Read(read_pb2.ReadRequest(topic="orders"))
        await held.read()
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Read(read_pb2.ReadRequest(topic="orders")).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        held.cancel()
        await until(lambda: sample(rig.metrics, "offloaderd_readers") == 0)
        answers = [answer async for answer in stub.Read(read_pb2.ReadRequest(topic="orders", entries_max=1))]
        assert len(answers) == 1


async def test_closing_the_reader_ends_its_streams() -> None:
    """When the daemon closes its reader, a follower is not left hanging: its read ends as cancelled by the server."""
    rig = await big_rig()
    async with served(rig) as stub:
        call = stub.Read(read_pb2.ReadRequest(topic="orders", follow=True))
        await call.read()

    async def drain() -> None:
        while isinstance(await call.read(), read_pb2.ReadResponse):
            pass

    with pytest.raises((aio.AioRpcError, asyncio.CancelledError)):
        await drain()


def test_messages_and_values() -> None:
    """Conversions keep everything, and refuse what no entry can be."""
    batch = EntryBatch(3, 4, [b"a", b""])
    assert from_batch(to_batch(batch)) == batch
    assert from_position(common_pb2.Position(ledger_id=1, entry_id=2)) == Position(1, 2)
    assert to_position(None) is None
    for bad in (
        common_pb2.EntryBatch(ledger_id=1, first_entry_id=0),
        common_pb2.EntryBatch(ledger_id=-1, first_entry_id=0, payloads=[b"x"]),
        common_pb2.EntryBatch(ledger_id=1, first_entry_id=-1, payloads=[b"x"]),
        common_pb2.EntryBatch(ledger_id=1, first_entry_id=2**63 - 1, payloads=[b"x", b"y"]),
        common_pb2.EntryBatch(ledger_id=1, first_entry_id=0, payloads=[b"x" * (5 * MIB + 1)]),
        common_pb2.EntryBatch(ledger_id=1, first_entry_id=0, payloads=[b""] * (BATCH_ENTRIES_MAX + 1)),
    ):
        with pytest.raises(InvalidInput):
            from_batch(bad)


def entry(content: bytes, **fields: Any) -> bytes:  # noqa: ANN401 - what protobuf takes
    """Return an entry as a broker stores it: its own metadata, then the producer's, then the content."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields).SerializeToString()
    head = broker_entry.encode_head(broker_timestamp=99, index=4)
    return head + len(metadata).to_bytes(4, "big") + metadata + content


async def rig_of(entries: list[bytes]) -> ReadRig:
    """Return a topic with these entries in the bucket."""
    rig = make_read_rig()
    rig.map.segments = [await put_segment(rig.store, [Piece(1, 0, entries)], segment_id=uuid.UUID(int=1))]
    return rig


async def test_a_range_arrives_as_messages() -> None:
    """Chunks are joined, strange bytes marked; a message that goes on behind the range comes as its chunks."""
    pieces = [
        entry(data, uuid="m", chunk_id=number, num_chunks_from_msg=2) for number, data in enumerate([b"one ", b"two"])
    ]
    rig = await rig_of([*pieces, b"no message", entry(b"alone", partition_key="k"), pieces[0]])
    async with served(rig) as stub:
        request = read_pb2.ReadRequest(topic="orders")
        found = [message async for answer in stub.ReadMessages(request) for message in answer.messages]
    assert [(one.position.entry_id, one.state, one.data) for one in found] == [
        (1, read_pb2.MESSAGE_STATE_PLAIN, b"one two"),
        (2, read_pb2.MESSAGE_STATE_RAW, b"no message"),
        (3, read_pb2.MESSAGE_STATE_PLAIN, b"alone"),
        (4, read_pb2.MESSAGE_STATE_CHUNK, b"one "),
    ]
    assert (found[2].key, found[2].broker_ms, found[2].index, found[2].tier) == (b"k", 99, 4, common_pb2.TIER_OBJECTS)
    assert not found[1].HasField("key")
    assert found[3].reason


async def test_answers_of_messages_are_bounded() -> None:
    """Small entries that hold much come in several answers, and what would be too large stays compressed."""
    data = bytes(MIB // 2)
    small = [entry(zlib.compress(data), compression=2, uncompressed_size=len(data)) for _ in range(5)]
    huge = entry(zlib.compress(bytes(17 * MIB)), compression=2, uncompressed_size=17 * MIB)
    rig = await rig_of([*small, huge])
    async with served(rig) as stub:
        answers = [answer async for answer in stub.ReadMessages(read_pb2.ReadRequest(topic="orders"))]
    assert sum(len(answer.messages) for answer in answers) == 6
    assert max(sum(len(one.data) for one in answer.messages) for answer in answers) <= 2 * MIB
    last = answers[-1].messages[-1]
    assert (last.state, last.data) == (read_pb2.MESSAGE_STATE_RAW, huge)


async def test_a_message_in_chunks_that_no_answer_can_hold() -> None:
    """Its chunks come as they are stored, and what follows is read: with all their fields answers fit."""
    size, fields = 5 * MIB - 100, [pb.MessageProperty(key="k", value="v" * 50_000)]
    parts = chunks_of(bytes(4 * size), 4, properties=fields)
    rig = await rig_of([*parts, *chunks_of(bytes(3 * size), 3, properties=fields), entry(b"after")])
    async with served(rig) as stub:
        request = read_pb2.ReadRequest(topic="orders")
        answers = [answer async for answer in stub.ReadMessages(request)]
    found = [one for answer in answers for one in answer.messages]
    assert [(one.state, len(one.data)) for one in found] == [
        *[(read_pb2.MESSAGE_STATE_CHUNK, size)] * 4,
        (read_pb2.MESSAGE_STATE_PLAIN, 3 * size),
        (read_pb2.MESSAGE_STATE_PLAIN, 5),
    ]
    assert max(answer.ByteSize() for answer in answers) <= 16 * MIB
    assert "is more than the" in found[0].reason


async def test_an_entry_that_no_answer_can_hold_is_left_out_and_told() -> None:
    """Brokers may be told to take entries of any size; reading goes on behind one that is too large."""
    rig = await rig_of([entry(bytes(17 * MIB)), entry(b"after")])
    async with served(rig) as stub:
        request = read_pb2.ReadRequest(topic="orders")
        found = [one async for answer in stub.ReadMessages(request) for one in answer.messages]
    assert [(one.state, one.data) for one in found] == [
        (read_pb2.MESSAGE_STATE_RAW, b""),
        (read_pb2.MESSAGE_STATE_PLAIN, b"after"),
    ]
    assert "grpc.message_bytes_max" in found[0].reason


async def test_the_brokers_metadata_can_be_left_out() -> None:
    """Entries as the client sent them; those without a head stay as they are."""
    rig = await rig_of([entry(b"x"), b"plain"])
    async with served(rig) as stub:
        request = read_pb2.ReadRequest(topic="orders", client_bytes=True, framed=True)
        (answer,) = [answer async for answer in stub.Read(request)]
    head = len(broker_entry.encode_head(broker_timestamp=99, index=4))
    assert list(answer.batch.payloads) == [entry(b"x")[head:], b"plain"]
