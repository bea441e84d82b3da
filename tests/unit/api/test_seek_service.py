"""Seek, and Read from a time or a number, over a real gRPC connection and through the client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc import aio

from offloaderd.client.calls import seek_target
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, Position
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.protocol.conversion import to_position
from offloaderd.protocol.v1 import common_pb2, read_pb2, read_pb2_grpc
from tests.patience import PATIENCE_S
from tests.unit.api.serve_reads import served
from tests.unit.read.build import TOPIC, make_read_rig, sample
from tests.unit.read.seek_topics import NOW, noted
from tests.unit.read.shelf import Shelf

if TYPE_CHECKING:
    from tests.unit.read.build import ReadRig

REAL_TIME = "gRPC"


def topic_of(entries: int) -> ReadRig:
    """Return a topic in the source, an entry every 10 ms, two messages each."""
    shelf = Shelf()
    shelf.put(3, [noted(NOW + 10 * number, 2 * number + 1) for number in range(entries)], closed=False)
    return make_read_rig(source=shelf)


def target(kind: SeekKind, value: int) -> read_pb2.SeekTarget:
    """Write a target shortly."""
    return seek_target(Goal(kind, value))


async def seek(stub: read_pb2_grpc.ReadServiceAsyncStub, kind: SeekKind, value: int) -> read_pb2.SeekResponse:
    """Seek in the topic."""
    return await stub.Seek(read_pb2.SeekRequest(topic="orders", target=target(kind, value)))


async def test_an_entry_is_told_with_all_that_is_known_of_it() -> None:
    """Where, when, which numbers, which tier, and what it took; what is not known is unset."""
    async with served(topic_of(10)) as stub:
        found = await seek(stub, SeekKind.TIME, NOW + 41)
        assert found.answer == read_pb2.SEEK_ANSWER_SCAN
        assert found.position == to_position(Position(3, 5))
        assert (found.time_ms, found.index, found.tier) == (NOW + 50, 11, common_pb2.TIER_SOURCE)
        assert not found.HasField("sequence")
        assert found.source_reads > 0
        assert (await seek(stub, SeekKind.INDEX, 10)).position == found.position
        numbered = await seek(stub, SeekKind.SEQUENCE, 5)
        assert (numbered.position, numbered.sequence) == (found.position, 5)
        assert numbered.answer == read_pb2.SEEK_ANSWER_BLOCK


async def test_nothing_yet_is_an_answer() -> None:
    """The position is where the next entry may come; an empty topic has none."""
    rig = topic_of(10)
    empty = make_read_rig()
    empty.map.enabled = True
    async with served(rig) as stub:
        for kind in SeekKind:
            found = await seek(stub, kind, NOW + 91)
            assert found.answer == read_pb2.SEEK_ANSWER_NOTHING
            assert found.position == to_position(Position(3, 10))
            assert not any(found.HasField(name) for name in ("time_ms", "index"))
    async with served(empty) as stub:
        found = await seek(stub, SeekKind.TIME, 0)
        assert found.answer == read_pb2.SEEK_ANSWER_NOTHING
        assert not found.HasField("position")


async def entry_ids(stub: read_pb2_grpc.ReadServiceAsyncStub, **wanted: object) -> list[int]:
    """Read; returns the entries' ids."""
    request = read_pb2.ReadRequest(topic="orders", **wanted)  # type: ignore[arg-type]
    return [
        answer.batch.first_entry_id + at
        async for answer in stub.Read(request)
        for at in range(len(answer.batch.payloads))
    ]


async def test_a_read_begins_where_a_seek_leads() -> None:
    """By each kind, up to a position or a number of entries, and as messages."""
    async with served(topic_of(10)) as stub:
        assert await entry_ids(stub, seek=target(SeekKind.TIME, NOW + 71)) == [8, 9]
        assert await entry_ids(stub, seek=target(SeekKind.INDEX, 14), entries_max=2) == [7, 8]
        last = to_position(Position(3, 7))
        assert await entry_ids(stub, seek=target(SeekKind.SEQUENCE, 6), last=last) == [6, 7]
        assert await entry_ids(stub, seek=target(SeekKind.SEQUENCE, 8), last=last) == []
        assert await entry_ids(stub, seek=target(SeekKind.TIME, NOW + 91)) == []
        request = read_pb2.ReadRequest(topic="orders", seek=target(SeekKind.TIME, NOW + 90))
        messages = [one async for answer in stub.ReadMessages(request) for one in answer.messages]
        assert [(one.position.entry_id, one.broker_ms) for one in messages] == [(9, NOW + 90)]


@pytest.mark.parametrize("entries", [0, 4])
async def test_a_follower_from_a_time_to_come_gets_what_comes(entries: int) -> None:
    """Nothing there yet: following begins behind the newest entry, or with the first of all."""
    rig = topic_of(entries)
    async with served(rig) as stub:
        request = read_pb2.ReadRequest(topic="orders", seek=target(SeekKind.TIME, NOW + 1000), follow=True)
        following = stub.Read(request)
        reading = asyncio.ensure_future(following.read())  # noqa: TID251 - ends with the call
        while not sample(rig.metrics, "offloaderd_seeks_total", {"kind": "time", "outcome": "nothing"}):
            await asyncio.sleep(0.01)  # noqa: TID251 - what is awaited happens in gRPC's own threads
        rig.hot.add(EntryBatch(3, entries, [noted(NOW + 2000)]), Position(3, entries - 1) if entries else None)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reading
        assert isinstance(answer, read_pb2.ReadResponse)
        assert answer.batch.first_entry_id == entries
        following.cancel()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (read_pb2.SeekRequest(topic="nobody", target=target(SeekKind.TIME, 0)), grpc.StatusCode.NOT_FOUND),
        (read_pb2.SeekRequest(topic="a//b", target=target(SeekKind.TIME, 0)), grpc.StatusCode.INVALID_ARGUMENT),
        (read_pb2.SeekRequest(topic="orders"), grpc.StatusCode.INVALID_ARGUMENT),
        (read_pb2.SeekRequest(topic="orders", target=read_pb2.SeekTarget()), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_seeks_that_cannot_be_served(request_: read_pb2.SeekRequest, code: grpc.StatusCode) -> None:
    """Unknown and malformed topics, and a seek that says nothing."""
    async with served(make_read_rig()) as stub:
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Seek(request_)
    assert caught.value.code() is code


async def test_a_read_has_one_begin_and_a_place_among_the_readers() -> None:
    """A position and a seek contradict each other; too many readers are told so."""
    rig = topic_of(3)
    async with served(rig, readers_max=0) as stub:
        with pytest.raises(aio.AioRpcError) as throttled:
            await seek(stub, SeekKind.TIME, 0)
    assert throttled.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    async with served(topic_of(3)) as stub:
        with pytest.raises(aio.AioRpcError, match="from a position and from a seek"):
            await entry_ids(stub, seek=target(SeekKind.TIME, 0), first=to_position(Position(3, 0)))


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_number_that_is_none_is_refused_by_the_client(value: int) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidInput):
        seek_target(Goal(SeekKind.TIME, value))
    assert str(TOPIC).endswith("orders")
