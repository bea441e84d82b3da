"""`offloaderd serve --read-only` beside a daemon that offloads, on a real S3 server: the bucket and nothing else."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from offloaderd.core.errors import Conflict, EntriesMissing, MapUnknown, TopicNotFound
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.daemon.settings import load
from offloaderd.drill.s3_proxy import S3Proxy
from offloaderd.objects.opening import bucket_store
from offloaderd.protocol.errors import from_rpc_error
from offloaderd.protocol.v1 import broker_pb2, broker_pb2_grpc
from tests.integration.appending import append_to
from tests.integration.command_line import ran
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

TOPIC = TopicName.parse("public/default/orders")
OTHER = TopicName.parse("public/default/returns")
PAYLOADS = [b"entry %d " % number * (number % 50 + 1) for number in range(1500)]
READS = ("list", "get", "head")
NOWHERE = "127.0.0.1:1"


@asynccontextmanager
async def reader_of(site: Site, proxy: S3Proxy) -> AsyncIterator[DaemonProcess]:
    """Start a daemon that only reads: its settings have no ZooKeeper, no source, and the bucket behind a proxy."""
    alone = replace(
        site,
        zookeeper=NOWHERE,
        endpoint=proxy.endpoint,
        daemon_id="reader",
        settings={"read": {"head_s": 0.5, "listing_s": 10}, "ledgers": {"kind": "none"}},
    )
    async with DaemonProcess(alone, environment={"OFFLOADERD__DAEMON__READ_ONLY": "true"}) as reader:
        await reader.serving()
        yield reader


async def offload(client: DaemonClient, topic: TopicName) -> None:
    """Have everything offloaded, as a segment of its own."""
    async for _ in client.offload(topic, wait=True, timeout_s=PATIENCE_S):
        pass


async def entries(client: DaemonClient, topic: TopicName, first: Position | None = None) -> list[bytes]:
    """Return all entries from a position on."""
    return [payload async for answer in client.read(topic, first=first) for payload in answer.batch.payloads]


async def test_it_needs_the_bucket_and_nothing_else(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Every byte, as it is committed, by position and number, for a broker too; and it writes nothing."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    async with S3Proxy(s3_server.endpoint) as proxy, DaemonProcess(site) as daemon, daemon.client() as writer:
        await writer.enable(str(TOPIC))
        await append_to(writer, TOPIC, PAYLOADS[:1000])
        await offload(writer, TOPIC)
        async with reader_of(site, proxy) as reader, reader.client() as client:
            assert await entries(client, TOPIC) == PAYLOADS[:1000]
            assert [one.topic for one in await client.topics()] == [str(TOPIC)]
            segments = await client.segments(TOPIC)
            assert [one.segment_id for one in segments] == [
                one.segment_id for one in await writer.segments(TOPIC) if one.status == "Offloaded"
            ]
            await _follows(client, writer)
            await _seeks(client, writer)
            await _opens_ledgers(reader, segments[0].begin.ledger_id)
            await _refuses(client)
            await _shows_its_state(client, reader)
            reader.signal(signal.SIGTERM)
            assert await reader.ended() == 0
    assert proxy.counts.requests
    assert {name.split()[0] for name in proxy.counts.requests} <= set(READS), proxy.counts.requests


async def _follows(client: DaemonClient, writer: DaemonClient) -> None:
    """A reader gets what is committed while it waits; a topic that is new shows after the next listing."""
    await append_to(writer, TOPIC, PAYLOADS[1000:])
    await writer.enable(str(OTHER))
    await append_to(writer, OTHER, PAYLOADS[:10])
    for topic in (TOPIC, OTHER):
        await offload(writer, topic)
    got: list[bytes] = []
    async for answer in client.read(TOPIC, follow=True, timeout_s=PATIENCE_S):
        got += answer.batch.payloads
        if len(got) == len(PAYLOADS):
            break
    assert got == PAYLOADS
    while len(await client.topics()) < 2:
        await CLOCK.sleep(0.2)
    assert await entries(client, OTHER) == PAYLOADS[:10]


async def _seeks(client: DaemonClient, writer: DaemonClient) -> None:
    """The answer is that of the daemon that offloads."""
    for number in (0, 999, 1000, 1499):
        goal = Goal(SeekKind.SEQUENCE, number)
        found, wanted = await client.seek(TOPIC, goal), await writer.seek(TOPIC, goal)
        assert (found.position, found.sequence) == (wanted.position, wanted.sequence)


async def _opens_ledgers(reader: DaemonProcess, ledger_id: int) -> None:
    """The calls of a broker's driver; a ledger that the bucket lacks is unknown, never deleted."""
    async with grpc.aio.insecure_channel(reader.address) as channel:
        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        ledger = broker_pb2.OffloadedLedger(topic=str(TOPIC), ledger_id=ledger_id, object_id=str(CLOCK.uuid()))
        opened = await stub.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=ledger))
        assert opened.last_entry_id == 699
        asked = broker_pb2.ReadLedgerRequest(ledger=ledger, first_entry_id=5, last_entry_id=opened.last_entry_id)
        got = [one.batch async for one in stub.ReadLedger(asked)]
        assert b"".join(b"".join(one.payloads) for one in got) == b"".join(PAYLOADS[5:700])
        ledger.ledger_id = 987_654
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=ledger))
        assert isinstance(from_rpc_error(refused.value), MapUnknown)


async def _refuses(client: DaemonClient) -> None:
    """What would change something has the reason for its refusal, and an unknown topic is one."""
    with pytest.raises(Conflict, match="EnableTopic is not possible here: this daemon only reads"):
        await client.enable(str(TOPIC))
    with pytest.raises(Conflict, match="only reads"):
        await client.roll(TOPIC)
    with pytest.raises(TopicNotFound):
        await client.status("public/default/nothing")
    with pytest.raises(TopicNotFound):
        await entries(client, TopicName.parse("public/default/nothing"))


async def _shows_its_state(client: DaemonClient, reader: DaemonProcess) -> None:
    """How old its knowledge is, for people and as metrics."""
    found = await client.status(TOPIC)
    assert (found.bucket.topics, found.bucket.gaps, found.bucket.failure) == (2, 0, "")
    assert 0 < found.bucket.listed_ms <= CLOCK.wall_ms()
    assert [one.name for one in found.dependencies] == ["objects"]
    assert found.topics[0].state == "read-only"
    assert await reader.metric("offloaderd_bucket_topics") == 2
    assert await reader.metric("offloaderd_bucket_listed_timestamp_seconds") > 0
    code, said, _ = await ran(reader.site, "offloadctl", "--address", reader.address, "status", str(TOPIC))
    assert code == 0
    assert "2 topics, " in said
    assert ", 0 gaps, listed " in said
    code, said, _ = await ran(reader.site, "offloadctl", "--address", reader.address, "topics", "list", "-o", "name")
    assert (code, said.split()) == (0, [str(TOPIC), str(OTHER)])
    assert (await reader.http("/readyz"))[0] == 200


async def test_one_bad_segment_costs_its_own_entries_alone(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Nothing else is there any more but the bucket; what is missing is named, and the rest is read."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    async with DaemonProcess(site) as daemon, daemon.client() as writer:
        await writer.enable(str(TOPIC))
        for number in range(3):
            await append_to(writer, TOPIC, PAYLOADS[100 * number : 100 * number + 100])
            await offload(writer, TOPIC)
        segments = await writer.segments(TOPIC)
    async with bucket_store(load(None, site.environment(1, 2)).objects, CLOCK) as store:
        await store.delete([f"{segments[1].data_key}-manifest"])
    async with S3Proxy(s3_server.endpoint) as proxy, reader_of(site, proxy) as reader, reader.client() as client:
        with pytest.raises(EntriesMissing, match="no segment in the bucket holds them"):
            await entries(client, TOPIC)
        behind = segments[2].begin
        found = await entries(client, TOPIC, Position(behind.ledger_id, behind.entry_id))
        assert found == PAYLOADS[200:300]
        gaps = (await client.status(TOPIC)).topics[0].gaps
        assert [(one.after, one.before) for one in gaps] == [(segments[0].end, behind)]
        _, said, _ = await ran(reader.site, "offloadctl", "--address", reader.address, "status", str(TOPIC))
        assert "GAP" in said
