"""Reading over gRPC from a real S3 server, with the map in a metadata store: right bytes, or a status that says why."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc import aio

from offloaderd.api.read import ReadService
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.protocol.errors import from_rpc_error
from offloaderd.protocol.v1 import common_pb2, read_pb2, read_pb2_grpc
from offloaderd.read.reader import TopicReader
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.metadata import MemoryTree
from tests.unit.api.serve import serving
from tests.unit.api.serve_reads import entries_of
from tests.unit.read.build import PREFIX, TOPIC, Hot, Piece, put_segment, sample
from tests.unit.rigs.stored_maps import StoredMaps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.ledgers.port import LedgerSource
    from tests.servers import S3Server

ID = uuid.UUID(int=1)
ENTRIES = [f"flight {number} ".encode() * (number % 200) for number in range(3000)]


@asynccontextmanager
async def s3(server: S3Server, bucket: str) -> AsyncIterator[S3Store]:
    """Open the bucket."""
    options = ObjectsSettings(
        bucket=bucket, endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key
    )
    async with S3Store(options) as store:
        yield store


@asynccontextmanager
async def topic(
    store: S3Store, source: LedgerSource | None, ledger_id: int
) -> AsyncIterator[tuple[read_pb2_grpc.ReadServiceAsyncStub, Metrics]]:
    """Store and commit all entries as one segment, and serve them."""
    clock, metrics = SystemClock(), Metrics()
    segment = await put_segment(store, [Piece(ledger_id, 0, ENTRIES, len(ENTRIES))], segment_id=ID, block_entries=100)
    segment = replace(segment, bucket=store.bucket)
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(MemoryTree().connect())
        await metadata.create(paths.policy(TOPIC), encode_policy(TopicPolicy()))
        await metadata.create(paths.ledgers(TOPIC), b"")
        steps, _ = catalog.TopicMap(TOPIC).with_commit(segment)
        await metadata.transact(steps)
        stored, book = StoredMaps(metadata), PolicyResolver(metadata)
        reader = await stack.enter_async_context(
            TopicReader(
                maps=stored, policies=book, objects=store, source=source, hot=Hot(), clock=clock, metrics=metrics
            )
        )

        def register(server: aio.Server) -> None:
            read_pb2_grpc.add_ReadServiceServicer_to_server(ReadService(reader, 8, metrics=metrics), server)

        channel = await stack.enter_async_context(serving(metrics, register))
        yield read_pb2_grpc.ReadServiceStub(channel), metrics


async def read(
    stub: read_pb2_grpc.ReadServiceAsyncStub, request: read_pb2.ReadRequest
) -> tuple[list[bytes], set[common_pb2.Tier.ValueType]]:
    """Return the entries and the tiers they came from."""
    found: list[bytes] = []
    tiers = set()
    async for answer in stub.Read(request):
        assert answer.batch.first_entry_id == request.first.entry_id + len(found)
        found += entries_of(answer).payloads
        tiers.add(answer.tier)
    return found, tiers


async def test_what_was_offloaded_comes_back(s3_server: S3Server, s3_bucket: str) -> None:
    """All entries, and any range of them, come back bit for bit from S3, framed or not; the second time from memory."""
    async with s3(s3_server, s3_bucket) as store, topic(store, None, 12) as (stub, metrics):
        for framed in (False, True):
            found, tiers = await read(stub, read_pb2.ReadRequest(topic="orders", framed=framed))
            assert sha256(b"".join(found)).digest() == sha256(b"".join(ENTRIES)).digest()
            assert tiers == {common_pb2.TIER_OBJECTS}
        assert sample(metrics, "offloaderd_cache_requests_total", {"cache": "blocks", "result": "hit"}) >= 30
        first = common_pb2.Position(ledger_id=12, entry_id=1234)
        last = common_pb2.Position(ledger_id=12, entry_id=1999)
        for framed in (False, True):
            request = read_pb2.ReadRequest(topic="orders", first=first, last=last, batch_bytes=5000, framed=framed)
            found, _ = await read(stub, request)
            assert found == ENTRIES[1234:2000]
        beyond = common_pb2.Position(ledger_id=12, entry_id=3000)
        with pytest.raises(aio.AioRpcError) as caught:
            await read(stub, read_pb2.ReadRequest(topic="orders", first=first, last=beyond))
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
        assert "12:0 to 12:2999" in from_rpc_error(caught.value).hint


@pytest.mark.parametrize("what", ["data", "index", "manifest"])
@pytest.mark.parametrize("how", ["deleted", "cut", "flipped"])
async def test_damage_in_the_bucket(s3_server: S3Server, s3_bucket: str, what: str, how: str) -> None:
    """Without another copy the call ends in an error that names the object, never NOT_FOUND; with one it succeeds."""
    key = keys.SegmentKeys(PREFIX, ID).of(ObjectKind(what))
    async with s3(s3_server, s3_bucket) as store, MemoryLedgers(clock=SystemClock()) as ledgers:
        ledger_id = (await ledgers.append(TOPIC, ENTRIES)).ledger_id
        for source in (None, ledgers):
            async with topic(store, source, ledger_id) as (stub, metrics):
                stored = bytearray(await store.get(key))
                if how == "deleted":
                    await store.delete([key])
                elif how == "cut":
                    await store.put(key, stored[:-1])
                else:
                    stored[len(stored) // 2] ^= 4
                    await store.put(key, stored)
                if source is not None:
                    found, tiers = await read(stub, read_pb2.ReadRequest(topic="orders", framed=True))
                    assert found == ENTRIES
                    assert common_pb2.TIER_SOURCE in tiers
                    continue
                with pytest.raises(aio.AioRpcError, match=key) as caught:
                    await read(stub, read_pb2.ReadRequest(topic="orders"))
                expected = grpc.StatusCode.FAILED_PRECONDITION if how == "deleted" else grpc.StatusCode.DATA_LOSS
                assert caught.value.code() is expected
                failures = sample(metrics, "offloaderd_checksum_failures_total", {"where": "read"})
                assert failures == (0 if how == "deleted" else 1)
