"""A daemon with several services: a topic that began on S3 goes on in Azure while it is written and read.

Azurite comes from npm; without Node the test of it is left out, and says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects import keys
from offloaderd.objects.azure.store import AzureStore
from offloaderd.protocol.v1 import policy_pb2
from tests.azure.service import ACCOUNT, KEY, options
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_upkeep import command, gc, known, offload, read_all, stores, tree, wipe

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.witness("zookeeper")]

TOPIC = TopicName.parse("public/default/moving")
LEVEL = policy_pb2.PolicyLevel(topic=str(TOPIC))
BATCH, MOVES_AT, ENDS_AT = 50, 6, 16


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site on S3, with small segments."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    found.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    return found


class Traffic:
    """A producer and a reader that go on until the end, and what was written."""

    def __init__(self, client: DaemonClient) -> None:
        self._client = client
        self.written: list[bytes] = []
        self.batches = 0
        self.reads = 0
        self.moved = asyncio.Event()

    async def write(self) -> None:
        """Append batches; the move is waited for midway."""
        while self.batches < ENDS_AT:
            first = len(self.written)
            batch = [f"{first + number}/".encode().ljust(1000, b"#") for number in range(BATCH)]
            await append_to(self._client, TOPIC, batch)
            self.written += batch
            self.batches += 1
            if self.batches == MOVES_AT + 4:
                await self.moved.wait()

    async def read(self) -> None:
        """Read the topic from its begin to what was written before, again and again."""
        while self.batches < ENDS_AT:
            before = len(self.written)
            found = await read_all(self._client, TOPIC)
            assert len(found) >= before
            assert found == self.written[: len(found)] or found[: len(self.written)] == self.written
            self.reads += 1


async def move(client: DaemonClient, traffic: Traffic, bucket: str) -> None:
    """Have the topic go on in another bucket after some batches."""
    while traffic.batches < MOVES_AT:
        await CLOCK.sleep(0.02)
    await offload(client, TOPIC)
    await client.set_policies(LEVEL, policy_pb2.OffloadPolicies(bucket=bucket, prefix="moved/"))
    traffic.moved.set()


async def test_a_topic_goes_from_s3_to_azure_while_it_is_written_and_read(site: Site, azurite: str) -> None:
    """Nothing is lost, every byte is equal, both stores have segments, and upkeep knows both."""
    container = f"test-{CLOCK.uuid().hex[:16]}"
    async with AzureStore(options(azurite, container)) as archive:
        await archive.create_bucket()
        site.settings["objects__services__archive"] = {
            "kind": "azure",
            "bucket": container,
            "prefix": "moved/",
            "endpoint": azurite,
            "azure_account": ACCOUNT,
            "azure_key": KEY,
        }
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(TOPIC)
            traffic = Traffic(client)
            await append_to(client, TOPIC, first := [b"first".ljust(1000, b"#")])
            traffic.written += first
            async with asyncio.TaskGroup() as group:
                group.create_task(traffic.write())
                group.create_task(traffic.read())
                group.create_task(move(client, traffic, container))
            await offload(client, TOPIC)
            assert traffic.reads
            assert await read_all(client, TOPIC) == traffic.written
            label = keys.segment_metadata(site.cluster)
            await archive.put(f"moved/{CLOCK.uuid()}", b"left", metadata=label)
            assert set((await gc(client, apply=True)).values()) == {("leftover", "deleted")}
        assert [info.key async for info in archive.list("moved/") if info.key.endswith("-manifest")]
        async with stores(site) as (objects, metadata):
            assert [info.key async for info in objects.list() if info.key.endswith("-manifest")]
            before = known(await tree(metadata))
            code, found = await command(site, "verify", "--level", "full")
            assert code == 0, found
            await wipe(metadata)
            code, plan = await command(site, "rebuild", "--apply", "--enable")
            assert code == 0, plan
            assert known(await tree(metadata)) == before
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            assert await read_all(client, TOPIC) == traffic.written


async def test_a_daemon_starts_without_a_further_service(site: Site, unused_tcp_port: int) -> None:
    """Its log names the service, its health shows it, and a topic of the first one is offloaded."""
    site.settings["objects__services__archive"] = {
        "bucket": "archive",
        "endpoint": f"http://127.0.0.1:{unused_tcp_port}",
        "access_key": "a",
        "secret_key": "b",
    }
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, [b"entry"] * 10)
        await offload(client, TOPIC)
        assert "service.unreachable" in daemon.said()
        assert "objects.services.archive" in daemon.said()
        down: set[str] = set()
        while "objects.services.archive" not in down:
            down = {one.name for one in (await client.status()).dependencies if not one.up}
            await CLOCK.sleep(0.1)
