"""Garbage and rebuild as operators meet them: a real ZooKeeper, a real S3 server, the daemon, the commands."""

from __future__ import annotations

import json
import signal
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.core.errors import InvalidInput, NotFound
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects import keys, marker
from offloaderd.protocol.v1 import policy_pb2
from tests.integration.appending import append_to
from tests.integration.command_line import ran
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.audit import bucket_of
from tests.servers import bucket_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from offloaderd.client import DaemonClient
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.buckets import BucketStore
    from offloaderd.objects.port import ObjectReader
    from tests.servers import S3Server

TOPICS = [TopicName.parse(f"public/default/{name}") for name in ("orders", "odd name/with ünicode")]
PREFIX = "pulsar/"


ON_EACH_STORE = pytest.mark.parametrize("site", ["s3", "azure", "gcs"], indirect=True)


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """A site on a kind of store, S3 unless the test names one, with small segments over several ledgers."""
    found: Site = request.getfixturevalue(f"{getattr(request, 'param', 's3')}_site")
    found.settings.setdefault("objects", {})["prefix"] = PREFIX
    found.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    return found


@asynccontextmanager
async def stores(site: Site) -> AsyncIterator[tuple[BucketStore, ZooKeeperStore]]:
    """Open what the daemon uses."""
    async with (
        bucket_of(site) as objects,
        ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as metadata,
    ):
        yield objects, metadata


def entries(count: int, topic: TopicName) -> list[bytes]:
    """Make distinguishable entries."""
    return [f"{topic.local}/{number}/".encode().ljust(100, b"#") for number in range(count)]


async def offload(client: DaemonClient, topic: TopicName) -> None:
    """Offload everything and wait."""
    async for _ in client.offload(topic, wait=True, timeout_s=PATIENCE_S):
        pass


async def read_all(client: DaemonClient, topic: TopicName) -> list[bytes]:
    """Read the topic from its first entry to its last."""
    answers = client.read(topic, timeout_s=PATIENCE_S)
    return [payload async for response in answers for payload in response.batch.payloads]


async def tree(store: MetadataStore, path: str = "/") -> dict[str, bytes]:
    """Return every node below a path with its content."""
    found: dict[str, bytes] = {}
    for name in await store.children(path):
        below = f"{path.rstrip('/')}/{name}"
        found[below] = (await store.get(below)).value
        found.update(await tree(store, below))
    return found


def known(nodes: dict[str, bytes]) -> dict[str, bytes]:
    """Return the nodes of the maps."""
    return {path: value for path, value in nodes.items() if "/ledgers/" in path or "/losses/" in path}


async def wipe(store: MetadataStore) -> None:
    """Delete everything."""
    for path in sorted(await tree(store), reverse=True):
        await store.delete(path)


async def marked(site: Site, objects: ObjectReader, prefix: str = PREFIX) -> None:
    """Wait until a place is the daemon's: it marks it beside its work, and collects no upload that is older."""
    while await marker.read(objects, prefix, site.cluster) is None:
        await CLOCK.sleep(0.02)


async def command(site: Site, *words: str) -> tuple[int, Any]:
    """Run `offloaderd ... --json`; returns the exit code and the document, the last one of several lines."""
    code, out, err = await ran(site, "offloaderd", *words, "--json")
    assert "Traceback" not in err
    return code, json.loads(out if out.startswith("{\n") else out.splitlines()[-1]) if out else err


@ON_EACH_STORE
async def test_the_bucket_alone_restores_the_map(site: Site) -> None:
    """ZooKeeper is wiped; a rebuild brings every context back byte for byte, and the daemon reads and goes on."""
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            for topic in TOPICS:
                await client.enable(topic)
                await append_to(client, topic, entries(2500, topic))
                await offload(client, topic)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    async with stores(site) as (_, metadata):
        before = await tree(metadata)
        assert len(known(before)) == 2 * 4
        code, refused = await command(site, "rebuild", "--apply")
        assert (code, "not empty" in refused) == (1, True)
        await wipe(metadata)
        code, plan = await command(site, "rebuild")
        assert code == 0
        assert [(one["state"], one["entries"]) for one in plan["topics"]] == [("ready", 2500)] * 2
        assert await tree(metadata) == {}
        code, done = await command(site, "rebuild", "--apply", "--enable")
        assert code == 0
        assert [(one["topic"], one["state"]) for one in done["topics"]] == [
            (str(topic), "written") for topic in sorted(TOPICS)
        ]
        after = await tree(metadata)
        assert known(after) == known(before)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        for topic in TOPICS:
            assert await read_all(client, topic) == entries(2500, topic)
            await append_to(client, topic, entries(10, topic))
            await offload(client, topic)
            segments = await client.segments(topic)
            assert sum(one.entries for one in segments) == 2510


@ON_EACH_STORE
async def test_garbage_goes_and_nothing_else(site: Site) -> None:
    """Leftovers and stray uploads are deleted beside a segment that is being written; the rest stays and is read."""
    topic = TOPICS[0]
    ours, theirs = keys.segment_metadata(site.cluster), keys.segment_metadata("other")
    stray, foreign = (UUID(int=number) for number in (1, 2))
    async with DaemonProcess(site) as daemon, daemon.client() as client, stores(site) as (objects, metadata):
        await marked(site, objects)
        await client.enable(topic)
        await append_to(client, topic, entries(1200, topic))
        await offload(client, topic)
        await append_to(client, topic, entries(50, topic))
        while (await client.status(topic)).topics[0].open_segment_entries < 50:
            await CLOCK.sleep(0.02)
        kept = {info.key async for info in objects.list()}
        for key in keys.SegmentKeys(PREFIX, stray).all[:2]:
            await objects.put(key, b"x" * 1000, metadata=ours)
        upload_id = await objects.create_upload(keys.SegmentKeys(PREFIX, UUID(int=3)).data, metadata=ours)
        finds = await gc(client, apply=False)
        assert set(finds.values()) == {("leftover", "delete"), ("upload", "delete")}
        assert len(finds) == 3
        assert set((await gc(client, apply=False, grace_s=3600)).values()) == {("young", "keep")}
        assert set((await gc(client, apply=True)).values()) == {("leftover", "deleted"), ("upload", "deleted")}
        assert {info.key async for info in objects.list()} == kept
        with pytest.raises(NotFound):
            await objects.list_parts(keys.SegmentKeys(PREFIX, UUID(int=3)).data, upload_id)
        await objects.put(keys.SegmentKeys(PREFIX, foreign).data, b"x", metadata=theirs)
        assert await gc(client, apply=True) == {keys.SegmentKeys(PREFIX, foreign).data: ("foreign", "keep")}
        await offload(client, topic)
        assert await read_all(client, topic) == entries(1200, topic) + entries(50, topic)
        lost = keys.SegmentKeys(PREFIX, UUID((await client.segments(topic))[0].segment_id)).manifest
        await objects.delete([lost])
        assert (await gc(client, apply=True))[lost] == ("missing", "alarm")
        await metadata.create(f"{paths.topic(topic)}/unknown", b"")
        with pytest.raises(Exception, match="knows nothing"):
            await gc(client, apply=True)


async def gc(client: DaemonClient, *, apply: bool, grace_s: float = 0) -> dict[str, tuple[str, str]]:
    """Collect; returns kind and verdict of each find."""
    found = {}
    async with aclosing(client.gc(apply=apply, grace_s=grace_s, timeout_s=PATIENCE_S)) as events:
        async for event in events:
            if event.HasField("find"):
                found[event.find.key] = (event.find.kind, event.find.verdict)
    return found


@pytest.fixture
def other_bucket(s3_server: S3Server) -> Iterator[str]:
    """A second bucket of the same service."""
    with bucket_at(s3_server) as name:
        yield name


async def test_a_topic_lives_in_a_place_of_its_own(site: Site, other_bucket: str) -> None:
    """By its policy, among those of the settings: stored, read, collected, verified and rebuilt with the others."""
    topic, away = TOPICS[0], "eu/"
    site.settings["objects"] = {"prefix": PREFIX, "places": f"{other_bucket}/{away}"}
    async with DaemonProcess(site) as daemon, daemon.client() as client, stores(site) as (objects, _):
        for one, policies in (
            (topic, policy_pb2.OffloadPolicies(bucket=other_bucket, prefix=away)),
            (TOPICS[1], policy_pb2.OffloadPolicies()),
        ):
            await client.enable(one, policies=policies)
            await append_to(client, one, entries(1200, one))
            await offload(client, one)
        segments = await client.segments(topic)
        assert {one.bucket for one in segments} == {other_bucket}
        there = {info.key async for info in objects.at(other_bucket).list()}
        assert {one.data_key for one in segments} <= there
        assert all(key.startswith(away) for key in there)
        with pytest.raises(InvalidInput, match=r"objects\.places"):
            await client.enable(topic, policies=policy_pb2.OffloadPolicies(bucket="nobodys"))
        for prefix, store in ((away, objects.at(other_bucket)), (PREFIX, objects)):
            await marked(site, store, prefix)
            await store.create_upload(keys.SegmentKeys(prefix, UUID(int=7)).data)
        assert set((await gc(client, apply=True)).values()) == {("upload", "deleted")}
        for one in TOPICS:
            assert await read_all(client, one) == entries(1200, one)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    code, said = await command(site, "verify", "--against-map", "--level", "metadata")
    assert code == 0, said
    async with stores(site) as (_, metadata):
        before = known(await tree(metadata))
        await wipe(metadata)
        code, _ = await command(site, "rebuild", "--apply", "--enable")
        assert code == 0
        assert known(await tree(metadata)) == before


async def test_a_place_that_does_not_exist_ends_the_start(site: Site) -> None:
    """With the bucket's name and what to do."""
    site.settings["objects"] = {"prefix": PREFIX, "places": "no-such-bucket/p"}
    async with DaemonProcess(site) as daemon:
        assert await daemon.ended() == 2
        assert "no-such-bucket" in daemon.said()
