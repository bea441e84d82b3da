"""A daemon with several services: a topic that began on one goes on in another, or moves there, while it is used.

Azurite comes from npm; without Node the tests of it are left out, and say so.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects import keys
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.protocol.v1 import policy_pb2
from tests.integration.appending import append_to
from tests.integration.command_line import ran
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site
from tests.integration.servers.test_upkeep import command, gc, known, offload, read_all, stores, tree, wipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from offloaderd.client import DaemonClient
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.buckets import BucketStore
    from offloaderd.objects.port import ObjectReader

TOPIC = TopicName.parse("public/default/moving")
LEVEL = policy_pb2.PolicyLevel(topic=str(TOPIC))
BATCH, MOVES_AT, ENDS_AT = 50, 6, 16


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """A site on a kind of store, S3 unless the test names one, with small segments."""
    found: Site = request.getfixturevalue(f"{getattr(request, 'param', 's3')}_site")
    found.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    return found


class Traffic:
    """A producer and a reader that go on until the end, and what was written."""

    def __init__(self, client: DaemonClient) -> None:
        self._client = client
        self.written: list[bytes] = []
        self.batches = 0
        self.reads = 0
        self.reads_before = 0
        """Reads that had ended when the move began."""
        self.moved = asyncio.Event()

    async def append(self, count: int) -> None:
        """Append entries that differ."""
        first = len(self.written)
        batch = [f"{first + number}/".encode().ljust(1000, b"#") for number in range(count)]
        await append_to(self._client, TOPIC, batch)
        self.written += batch

    async def write(self) -> None:
        """Append batches until the topic has moved, and some more."""
        while self.batches < ENDS_AT or not self.moved.is_set():
            await self.append(BATCH)
            self.batches += 1
            if self.batches > MOVES_AT:
                await CLOCK.sleep(1.0)  # a move takes some seconds, and readers read all that is written meanwhile
        for _ in range(4):
            await self.append(BATCH)

    async def read(self) -> None:
        """Read the topic from its begin to what was written before, again and again."""
        while not self.moved.is_set() or not self.reads > self.reads_before:
            before = len(self.written)
            found = await read_all(self._client, TOPIC)
            assert len(found) >= before
            assert found == self.written[: len(found)] or found[: len(self.written)] == self.written
            self.reads += 1

    async def move(self, by: Callable[[], Awaitable[object]]) -> None:
        """Have the topic moved after some batches and a read."""
        while self.batches < MOVES_AT or not self.reads:
            await CLOCK.sleep(0.02)
        await offload(self._client, TOPIC)
        self.reads_before = self.reads
        await by()
        self.moved.set()

    async def run(self, by: Callable[[], Awaitable[object]]) -> None:
        """Write and read, and have the topic moved meanwhile; everything is offloaded at the end."""
        await self.append(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.write())
            group.create_task(self.read())
            group.create_task(self.move(by))
        await offload(self._client, TOPIC)
        assert await read_all(self._client, TOPIC) == self.written


@asynccontextmanager
async def archive_of(site: Site, elsewhere: Mapping[str, str]) -> AsyncIterator[BucketStore]:
    """Give a site a further service with a new bucket, whose place is `moved/` in it."""
    async with bucket_store(ObjectsSettings.model_validate(elsewhere), CLOCK) as archive:
        await archive.create_bucket()  # type: ignore[attr-defined] # of Azure's store and Google's
        site.settings["objects__services__archive"] = {**elsewhere, "prefix": "moved/"}
        yield archive


def between(*witnesses: tuple[str, str]) -> pytest.MarkDecorator:
    """Return the parameters of a test that runs with a first and a further service of several kinds."""
    mark = pytest.mark.witness("zookeeper")
    pairs = (("s3", "azure"), ("s3", "gcs"), ("gcs", "azure"))
    found = [pytest.param(*pair, marks=[mark] if pair in witnesses else []) for pair in pairs]
    return pytest.mark.parametrize(("site", "elsewhere"), found, indirect=True)


async def segment_objects(store: ObjectReader, prefix: str = "") -> list[str]:
    """Return the keys of the objects of segments in a place."""
    return [info.key async for info in store.list(prefix) if keys.parse(prefix, info.key) is not None]


async def verified_and_rebuilt(site: Site, metadata: MetadataStore) -> None:
    """Verify every byte, then rebuild the map from the stores alone: it comes back as it was."""
    before = known(await tree(metadata))
    code, found = await command(site, "verify", "--level", "full", "--against-map")
    assert code == 0, found
    await wipe(metadata)
    code, plan = await command(site, "rebuild", "--apply", "--enable")
    assert code == 0, plan
    assert known(await tree(metadata)) == before


@between()
async def test_a_topic_goes_on_at_another_provider_while_it_is_written_and_read(
    site: Site, elsewhere: dict[str, str]
) -> None:
    """Nothing is lost, every byte is equal, both stores have segments, and upkeep knows both."""
    async with archive_of(site, elsewhere) as archive, stores(site) as (objects, metadata):
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(TOPIC)
            traffic = Traffic(client)
            policies = policy_pb2.OffloadPolicies(bucket=elsewhere["bucket"], prefix="moved/")
            await traffic.run(lambda: client.set_policies(LEVEL, policies))
            label = keys.segment_metadata(site.cluster)
            await archive.put(f"moved/{CLOCK.uuid()}", b"left", metadata=label)
            assert set((await gc(client, apply=True)).values()) == {("leftover", "deleted")}
        assert await segment_objects(archive, "moved/")
        assert await segment_objects(objects)
        await verified_and_rebuilt(site, metadata)
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            assert await read_all(client, TOPIC) == traffic.written


@between(("s3", "azure"))
async def test_a_topic_moves_to_another_provider_while_it_is_written_and_read(
    site: Site, elsewhere: dict[str, str]
) -> None:
    """By `offloadctl places move --delete-old`: every byte is equal, nothing stays, and the first is not needed."""
    async with (
        Proxy(site.endpoint) as line,
        archive_of(site, elsewhere),
        stores(site) as (objects, metadata),
    ):
        site.endpoint, to = line.endpoint, f"{elsewhere['bucket']}/moved/"
        async with DaemonProcess(site) as daemon, daemon.client() as client:

            async def by_command() -> None:
                assert await segment_objects(objects)
                words = ("places", "move", str(TOPIC), "--to", to, "--delete-old", "--yes", "--json")
                code, said, told = await ran(site, "offloadctl", *words, "--address", daemon.address)
                assert code == 0, told
                document = json.loads(said)
                assert document["deleted_in"] == [f"{site.bucket}/"]
                assert document["copies_deleted"] > 0

            await client.enable(TOPIC)
            traffic = Traffic(client)
            await traffic.run(by_command)
            assert {one.bucket for one in await client.segments(TOPIC)} == {elsewhere["bucket"]}
            rows = {one.bucket: one for one in (await client.places(TOPIC)).places}
            assert {name: (one.role, one.segments > 0, one.copies) for name, one in rows.items()} == {
                site.bucket: ("", False, 0),
                elsewhere["bucket"]: ("first", True, 0),
            }
            while await segment_objects(objects):  # until the trash is empty
                await CLOCK.sleep(0.1)
            assert await gc(client, apply=True) == {}
        await verified_and_rebuilt(site, metadata)
        line.cut()
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            assert await read_all(client, TOPIC) == traffic.written
            _, page = await daemon.http("/metrics")
            assert f'offloaderd_read_entries_total{{source="objects"}} {len(traffic.written)}.0' in page


@pytest.mark.witness("zookeeper")
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
