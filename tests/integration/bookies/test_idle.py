"""Topics that sleep on real servers: what comes after a silence is offloaded, whatever happened during it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import Position, TopicName
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site
from tests.patience import PATIENCE_S
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.protocol.v1 import admin_pb2
    from tests.real.bookies import BookKeeperCluster
    from tests.real.written_topic import WrittenTopic
    from tests.servers import S3Server

SUSPENDED_SOON = {"segment_age_max_s": 1, "suspend_after_s": 1}
ORDERS = TopicName.parse("public/default/orders")


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A daemon whose topics sleep soon."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["offload"] = dict(SUSPENDED_SOON)
    return site


@pytest.fixture
def beside_bookies(site: Site, bookkeeper: BookKeeperCluster) -> Site:
    """The same, following topics on bookies."""
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper}
    return site


@pytest.fixture
async def written(bookkeeper: BookKeeperCluster) -> AsyncIterator[WrittenTopic]:
    """A topic with an open ledger on two bookies."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        plan = Plan(ensemble=2, bookies=bookkeeper.ids[:2])
        yield await written_topic(writer, f"public/default/s-{CLOCK.uuid().hex}", plan=plan)


async def add(topic: WrittenTopic, count: int) -> Position:
    """Add entries; returns the last one that is confirmed then."""
    await topic.add([b"x" * 100] * count, window=1)
    return Position(topic.ledger.ledger_id, topic.ledger.next_entry_id - 2)


async def status_of(client: DaemonClient, topic: TopicName) -> admin_pb2.TopicStatus:
    """Return a topic's status."""
    return (await client.status(topic)).topics[0]


async def suspended(client: DaemonClient, topic: TopicName, upto: Position) -> admin_pb2.TopicStatus:
    """Wait until everything up to a position is offloaded and the topic sleeps; return its status."""
    while True:
        now = await status_of(client, topic)
        if now.asleep and (now.offloaded.ledger_id, now.offloaded.entry_id) >= upto:
            return now
        await CLOCK.sleep(0.1)


async def count(daemon: DaemonProcess, name: str, **labels: str) -> float:
    """Return a metric of a daemon."""
    said = ",".join(f'{key}="{value}"' for key, value in labels.items())
    series = f"{name}{{{said}}}" if said else name
    _, page = await daemon.http("/metrics")
    return next(float(line.split()[-1]) for line in page.splitlines() if line.rpartition(" ")[0] == series)


async def test_an_entry_after_a_silence_is_offloaded_and_nobody_notices_the_sleep(
    beside_bookies: Site, written: WrittenTopic
) -> None:
    """Status and metrics are those of a topic that is awake; policy and requests by hand find it awake."""
    last = await add(written, 5)
    name = written.name
    async with DaemonProcess(beside_bookies) as daemon, daemon.client() as client:
        await client.enable(name)
        for _ in range(3):
            now = await suspended(client, name, last)
            assert (now.owner, now.epoch, now.lag_entries) == ("one", 1, 0)
            assert now.confirmed == now.offloaded
            assert now.segments_committed >= 1
            assert now.looked_age_s < 30
            await CLOCK.sleep(5.5)  # as long as gauges take
            assert await count(daemon, "offloaderd_topics_suspended") == 1
            assert await count(daemon, "offloaderd_ownership_topics") == 1
            assert await count(daemon, "offloaderd_lag_entries", topic=str(name)) == 0
            assert await count(daemon, "offloaderd_remote_segments", topic=str(name)) == now.segments_committed
            last = await add(written, 1)
        await suspended(client, name, last)
        assert await count(daemon, "offloaderd_topic_wakes_total", cause="source") == 3
        await client.enable(name, segment_age_max_s=3600.0)
        await CLOCK.sleep(0.5)
        last = await add(written, 1)
        async for _ in client.offload(name, wait=True, timeout_s=PATIENCE_S):
            pass
        now = await suspended(client, name, last)
        assert now.epoch == 1
        found = [batch async for batch in client.read(name)]
        assert sum(len(one.batch.payloads) for one in found) == last.entry_id + 1


async def test_a_session_that_is_lost_in_a_sleep(beside_bookies: Site, written: WrittenTopic) -> None:
    """The topic is claimed anew, and what was written meanwhile is offloaded."""
    last = await add(written, 5)
    async with Proxy(beside_bookies.zookeeper) as proxy:
        beside_bookies.settings["metadata"] = {"servers": f"127.0.0.1:{proxy.port}"}
        async with DaemonProcess(beside_bookies) as daemon, daemon.client() as client:
            await client.enable(written.name)
            await suspended(client, written.name, last)
            proxy.cut()
            await daemon.logged("metadata.session_lost")
            last = await add(written, 3)
            await CLOCK.sleep(5)
            proxy.mend()
            now = await suspended(client, written.name, last)
            assert now.epoch == 2


async def test_a_daemon_that_is_killed_while_its_topics_sleep(beside_bookies: Site, written: WrittenTopic) -> None:
    """Its next run takes them up."""
    last = await add(written, 5)
    async with DaemonProcess(beside_bookies) as first, first.client() as client:
        await client.enable(written.name)
        await suspended(client, written.name, last)
        first.signal(signal.SIGKILL)
        await first.ended()
    last = await add(written, 3)
    async with DaemonProcess(beside_bookies) as second, second.client() as client:
        assert (await suspended(client, written.name, last)).epoch == 2
        second.signal(signal.SIGTERM)
        assert await second.ended() == 0
        assert "segment.failed" not in second.said()


async def test_a_topic_of_the_daemons_own_store_wakes_for_what_is_appended(site: Site) -> None:
    """Change is told in the process; a ledger that is closed is granted and deleted as ever."""
    site.settings["grants"] = {"deletion_lag_s": 0, "interval_s": 1}
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(ORDERS)
        for number in range(3):
            await append_to(client, ORDERS, [b"y" * 50] * 10)
            await suspended(client, ORDERS, Position(0, 10 * number + 9))
        await client.roll(ORDERS)
        await append_to(client, ORDERS, [b"y" * 50] * 10)
        await daemon.logged("ledger.deleted_at_source")
        await suspended(client, ORDERS, Position(1, 9))
