"""A topic that has history and is written all the while, on real servers: both sides become one, whoever dies."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, NotFound, Transient
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.protocol.v1 import policy_pb2
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.audit import audit
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.metadata.topic_map.map import TopicMap
    from tests.real.bookies import BookKeeperCluster
    from tests.servers import S3Server


TOPIC = TopicName.parse("public/default/old")
ENTRY_BYTES = 50_000
LEDGER_ENTRIES = 150
OLD = 1000
BATCH = 20


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site with ledgers of 7.5 MB and segments of 12 MiB in parts of 5 MiB."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["ledgers"] = {"ledger_entries_max": LEDGER_ENTRIES}
    site.settings["offload"] = {
        "segment_bytes_max": 12 << 20,
        "segment_age_max_s": 3600,
        "block_bytes": 1 << 20,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


def entries(first: int, count: int) -> list[bytes]:
    """Make distinguishable entries."""
    return [f"{number}/".encode().ljust(ENTRY_BYTES, b"#") for number in range(first, first + count)]


async def append(client: DaemonClient, payloads: Sequence[bytes]) -> None:
    """Append entries in batches that fit into a message."""
    await append_to(client, TOPIC, payloads, at_once=BATCH)


async def look(site: Site) -> tuple[TopicMap, int]:
    """Return the map, and how many parts of an open segment of history are recorded."""
    async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as store:
        topic_map, path = await catalog.load(store, TOPIC), paths.history_attempt(TOPIC)
        try:
            stored = await store.get(path)
        except NotFound:  # committed, and the next one has not begun
            return topic_map, 0
        return topic_map, len(attempt_record.decode(stored.value, path=path).parts)


async def digest(client: DaemonClient) -> tuple[int, str]:
    """Read everything from the first position on; returns the number of entries and their hash."""
    count, found = 0, hashlib.sha256()
    async for response in client.read(TOPIC):
        for payload in response.batch.payloads:
            count += 1
            found.update(payload)
    return count, found.hexdigest()


def expected(count: int) -> tuple[int, str]:
    """What `digest` has to find."""
    found = hashlib.sha256()
    for payload in entries(0, count):
        found.update(payload)
    return count, found.hexdigest()


async def enable(client: DaemonClient) -> None:
    """Have live segments begin at once."""
    await client.enable(TOPIC, policies=policy_pb2.OffloadPolicies(history_order="alongside"))


async def until_done(site: Site, client: DaemonClient, newest: int) -> TopicMap:
    """Wait until history is done and everything else is offloaded; returns the map."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Conflict, Transient):  # a killed owner's session lasts a moment longer than it
                async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
                    pass
            topic_map, _ = await look(site)
            held = sum(one.entries for one in topic_map.segments)
            if topic_map.history is not None and topic_map.unfinished is None and held == newest:
                return topic_map
            await CLOCK.sleep(0.2)


async def test_history_and_live_edge_become_one_topic(site: Site) -> None:
    """Enabled alongside while somebody writes: one gap-free map, equal hashes before, meanwhile and afterwards."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, entries(0, OLD))
        plan = await client.plan_history(TOPIC)
        assert len(plan.ranges) == 4
        assert plan.probes <= 3 * 9
        await enable(client)
        for first in range(OLD, OLD + 200, 50):
            await append(client, entries(first, 50))
            assert await digest(client) == expected(first + 50)
        topic_map = await until_done(site, client, OLD + 200)
        assert await digest(client) == expected(OLD + 200)
        found = await client.history(TOPIC, ranges_max=10)
        assert {one.state for one in found.ranges} == {"done"}
        status = await client.status(TOPIC)
        assert not status.topics[0].HasField("history")
    assert topic_map.history is not None
    assert topic_map.history.live_begin in [one.begin for one in topic_map.segments]
    proof = await audit(site, [TOPIC])
    assert proof.problems == []
    assert list(proof.stored[TOPIC].values()) == entries(0, OLD + 200)


async def test_a_daemon_that_is_killed_beside_its_history_leaves_nothing_undone(site: Site) -> None:
    """SIGKILL twice with segments of both sides open: the successor goes on with each, and sends no part again."""
    written = OLD
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, entries(0, OLD))
    for number in range(2):
        life = replace(site, daemon_id=f"life-{number}")
        async with DaemonProcess(life) as daemon, daemon.client() as client:
            await enable(client)
            await append(client, entries(written, 60))
            written += 60
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    topic_map, parts = await look(site)
                    old = [one for one in topic_map.segments if topic_map.awaits(topic_map.history_end or one.begin)]
                    if topic_map.unfinished is None or (parts and len(topic_map.segments) >= number) or old:
                        break
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
    async with DaemonProcess(replace(site, daemon_id="last")) as daemon, daemon.client() as client:
        await append(client, entries(written, 40))
        topic_map = await until_done(site, client, written + 40)
        assert await digest(client) == expected(written + 40)
    proof = await audit(site, [TOPIC])
    assert proof.problems == []
    assert list(proof.stored[TOPIC].values()) == entries(0, written + 40)
    for before, after in zip(topic_map.segments, topic_map.segments[1:], strict=False):
        assert topic_map.joined(before.end, after.begin)


async def test_history_on_bookies_is_split_and_offloaded(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster
) -> None:
    """Lengths come from entry headers of real bookies; live edge and history meet at the open ledger."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper, "request_timeout_s": 2, "hedge_s": 0.5}
    site.settings["offload"] = {"segment_bytes_max": 70_000, "segment_age_max_s": 3600}
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        plan = replace(Plan(ensemble=2), bookies=bookkeeper.ids[:2])
        topic = await written_topic(writer, f"public/default/d-{CLOCK.uuid().hex}", plan=plan)
        made: list[bytes] = []

        async def add(count: int) -> None:
            some = [f"{len(made) + number}/".encode().ljust(300, b"#") for number in range(count)]
            await topic.add(some)
            made.extend(some)

        for _ in range(3):
            await add(200)
            await topic.roll()
        await add(50)
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(topic.name, policies=policy_pb2.OffloadPolicies(history_order="alongside"))
            async with asyncio.timeout(PATIENCE_S):
                while not (await client.history(topic.name)).HasField("plan"):
                    await CLOCK.sleep(0.1)
                await add(50)
                await topic.roll()
                while not (found := await client.history(topic.name, ranges_max=10)).plan.done_ms:
                    await CLOCK.sleep(0.1)
            async for _ in client.offload(topic.name, wait=True, timeout_s=PATIENCE_S):
                pass
            assert [one.entries for one in found.ranges] == [234, 233, 133]
            assert 0 < found.plan.probes <= 2 * 9
            assert found.plan.doubtful_ledgers == 0
            read: list[bytes] = []
            async for response in client.read(topic.name):
                read += response.batch.payloads
            assert read == made
            segments = [one for one in await client.segments(topic.name) if one.status == "Offloaded"]
            assert len(segments) >= 4
