"""LedgerService over a real gRPC connection: appends in order, refusals, rolls."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc import aio

from offloaderd.api.push import LedgerService
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import ENTRY_BYTES_MAX
from offloaderd.protocol.v1 import ledgers_pb2, ledgers_pb2_grpc
from offloaderd.testing.memory.ledgers import MemoryLedgers
from tests.unit.api.serve import serving
from tests.unit.read.build import TOPIC, FastClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

REAL_TIME = "gRPC"


@asynccontextmanager
async def served() -> AsyncIterator[tuple[ledgers_pb2_grpc.LedgerServiceAsyncStub, MemoryLedgers]]:
    """Serve a store in memory."""
    async with MemoryLedgers(clock=FastClock()) as store:

        def register(server: aio.Server) -> None:
            ledgers_pb2_grpc.add_LedgerServiceServicer_to_server(LedgerService(store), server)

        async with serving(Metrics(), register) as channel:
            yield ledgers_pb2_grpc.LedgerServiceStub(channel), store


async def requests(
    batches: Sequence[Sequence[bytes]], topic: str = "orders"
) -> AsyncIterator[ledgers_pb2.AppendRequest]:
    """Make a request of each batch."""
    for batch in batches:
        yield ledgers_pb2.AppendRequest(topic=topic, payloads=batch)


async def test_appends_are_answered_in_order_and_a_roll_opens_a_new_ledger() -> None:
    """Each answer carries the last entry's position; after a roll, entries go on in another ledger from 0."""
    async with served() as (stub, store):
        answers = [answer async for answer in stub.Append(requests([[b"a", b"b"], [b"c"]]))]
        assert [(answer.last.entry_id, answer.entry_count) for answer in answers] == [(1, 2), (2, 1)]
        await stub.Roll(ledgers_pb2.RollRequest(topic="orders"))
        after = [answer async for answer in stub.Append(requests([[b"d"]]))]
        assert after[0].last.entry_id == 0
        assert after[0].last.ledger_id > answers[0].last.ledger_id
        assert [info.closed for info in await store.ledgers(TOPIC)] == [True, False]


@pytest.mark.parametrize(
    ("batch", "topic"), [([], "orders"), ([b"x" * (ENTRY_BYTES_MAX + 1)], "orders"), ([b"x"], "a//b")]
)
async def test_what_cannot_be_appended_is_refused(batch: list[bytes], topic: str) -> None:
    """Empty batches, oversized entries and malformed topics end the stream; what was answered before is stored."""
    async with served() as (stub, store):
        call = stub.Append(requests([[b"a"]]))
        assert [answer.entry_count async for answer in call] == [1]
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Append(requests([batch], topic)).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await store.confirmed(TOPIC, (await store.ledgers(TOPIC))[0].ledger_id)).last_entry_id == 0


async def test_rolling_an_unknown_topic() -> None:
    """There is nothing to roll in a topic that nobody created."""
    async with served() as (stub, _):
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Roll(ledgers_pb2.RollRequest(topic="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
