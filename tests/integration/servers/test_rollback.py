"""Going back to a stock broker on real servers: segments become whole ledgers while somebody writes, whoever dies."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import OffloadMethod
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.stored import Site as Place
from tests.integration.bookies.test_history import TOPIC, append, digest, entries, expected
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.audit import bucket_of

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.protocol.v1 import rollback_pb2
    from tests.servers import S3Server


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site with ledgers of 15 MB and segments of 8 MiB in parts of 5 MiB."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["ledgers"] = {"ledger_entries_max": 300}
    site.settings["offload"] = {
        "segment_bytes_max": 8 << 20,
        "segment_age_max_s": 3600,
        "block_bytes": 1 << 20,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


async def stored(site: Site) -> TopicMap:
    """Return the map as it is stored."""
    async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as store:
        return await catalog.load(store, TOPIC)


async def offloaded(client: DaemonClient) -> None:
    """Wait until everything is offloaded."""
    async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
        pass


async def ordered(client: DaemonClient) -> None:
    """Order the conversion as soon as the topic is owned."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.convert_topic(TOPIC)
            except OffloaderError:
                await CLOCK.sleep(0.1)
            else:
                return


async def followed(client: DaemonClient) -> rollback_pb2.RollbackProgress:
    """Wait until the order has ended; returns the last word."""
    async with aclosing(client.follow_rollback(TOPIC, timeout_s=PATIENCE_S)) as reports:
        return [one async for one in reports][-1]


async def test_a_streamed_topic_becomes_whole_ledgers_while_it_is_written_and_its_owners_die(site: Site) -> None:
    """SIGKILL in the middle of ledgers: equal hashes all the while, nothing left over, and the plan says it is done."""
    written = 1500
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await append(client, entries(0, written))
        await client.enable(TOPIC)
        await offloaded(client)
        (plan,) = [one async for one in client.plan_rollback(str(TOPIC))]
        assert [one.standing for one in plan.ledgers][:4] == ["convertible"] * 4
    for number in range(2):
        async with DaemonProcess(replace(site, daemon_id=f"life-{number}")) as daemon, daemon.client() as client:
            await ordered(client)
            await append(client, entries(written, 40))
            written += 40
            async with aclosing(client.follow_rollback(TOPIC, timeout_s=PATIENCE_S)) as reports:
                async for report in reports:
                    if report.done > number or not report.left:
                        break
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
    async with DaemonProcess(replace(site, daemon_id="last")) as daemon, daemon.client() as client:
        await ordered(client)
        assert await digest(client) == expected(written)
        last = await followed(client)
        assert (last.left, list(last.order.failures)) == (0, [])
        await append(client, entries(written, 40))
        written += 40
        await offloaded(client)
        assert await digest(client) == expected(written)
        (plan,) = [one async for one in client.plan_rollback(str(TOPIC))]
        standings = [one.standing for one in plan.ledgers]
        assert standings[:4] == ["whole"] * 4
        topic_map = await stored(site)
        wholes = [one for one in topic_map.segments if one.method is OffloadMethod.LEDGER_BASED]
        assert [str(one.segment_id) for one in wholes] == [one.segment_id for one in plan.ledgers if one.segment_id]
        async with aclosing(client.gc(apply=False, grace_s=0.0, timeout_s=PATIENCE_S)) as events:
            finds = [one.find for one in [event async for event in events] if one.HasField("find")]
        assert [(one.kind, one.key) for one in finds] == []
    where = Place(cluster=site.cluster, bucket=site.bucket, prefix="")
    async with bucket_of(site) as bucket:
        (again,) = rebuild.make_plan(await rebuild.read_buckets(bucket, [where], lambda _: None)).topics
    assert not again.blocked
    assert again.map.segments == (await stored(site)).segments
