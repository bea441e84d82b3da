"""What a quiet topic of a real Pulsar hides, and that the broker's admin API shows it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pulsar

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Edge, TopicName
from offloaderd.ledgers.pulsar.admin import PulsarAdmin
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.pulsar import PulsarServer

CLOCK = SystemClock()
MESSAGES = 2000


@asynccontextmanager
async def source_on(server: PulsarServer, admin: PulsarAdmin | None) -> AsyncIterator[BookKeeperLedgers]:
    """Give a source on the Pulsar's own ZooKeeper and bookie."""
    metrics = Metrics()
    async with (
        ZooKeeperStore(server.zookeeper, "/") as znodes,
        BookiePool(znodes, clock=CLOCK, metrics=metrics) as bookies,
        BookKeeperLedgers(
            znodes, bookies, clock=CLOCK, metrics=metrics, options=BookkeeperSettings(), admin=admin
        ) as source,
    ):
        yield source


def produce(server: PulsarServer, topic: TopicName) -> None:
    """Send a burst and leave the producer open, as a quiet application does."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(str(topic), batching_enabled=True, batching_max_messages=20)
        for number in range(MESSAGES):
            producer.send_async(b"%d" % number, None)
        producer.flush()
    finally:
        client.close()


async def test_the_end_of_a_burst_shows_by_the_admin_api(pulsar_server: PulsarServer) -> None:
    """Without it some entries stay hidden; with it all are there within seconds, and all can be read."""
    topic = TopicName("public", "default", f"edge {CLOCK.uuid()}")
    await asyncio.to_thread(produce, pulsar_server, topic)
    async with source_on(pulsar_server, None) as blind:
        assert topic in await blind.topics(tenant="public", namespace="default")
        assert await blind.reserved(topic) is None
        ledger_id = (await blind.ledgers(topic))[-1].ledger_id
        await CLOCK.sleep(1)
        known = await blind.confirmed(topic, ledger_id)
        assert known.edge is Edge.NEXT_WRITE
        assert known.hidden > 0
    async with PulsarAdmin(pulsar_server.admin_url) as admin, source_on(pulsar_server, admin) as source:
        async with asyncio.timeout(PATIENCE_S), aclosing(source.watch(topic)) as changes:
            async for _ in changes:
                if (await source.confirmed(topic, ledger_id)).edge is Edge.ADMIN:
                    break
        now = await source.confirmed(topic, ledger_id)
        assert (now.last_entry_id, now.hidden) == (known.last_entry_id + known.hidden, 0)
        found = 0
        async with aclosing(source.read(topic, ledger_id, 0, now.last_entry_id, batch_bytes=1 << 20)) as batches:
            async for batch in batches:
                found += len(batch.payloads)
        assert found == now.last_entry_id + 1
        assert await pulsar_server.put(f"persistent/public/default/{topic.local.replace(' ', '%20')}/unload") == 204
        async with asyncio.timeout(PATIENCE_S):
            while not (await source.ledgers(topic))[-1].closed:
                await CLOCK.sleep(0.1)
        assert (await source.ledgers(topic))[-1].entries == found
