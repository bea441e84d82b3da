"""Every way in which Pulsar's producers write: what we read from its bookie is what a consumer receives."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from offloaderd.clock import SystemClock
from offloaderd.format import broker_entry
from offloaderd.ledgers.bookkeeper.bookie_options import BookieOptions
from offloaderd.ledgers.bookkeeper.bookies import BookiePool
from offloaderd.ledgers.bookkeeper.options import SourceOptions
from offloaderd.ledgers.bookkeeper.source import BookKeeperLedgers
from offloaderd.metadata.zookeeper import ZooKeeperStore
from offloaderd.metrics import Metrics
from offloaderd.model import TopicName
from tests.bookkeeper_servers import started
from tests.real.gateway import java_gateway
from tests.real.message_keys import make_keys
from tests.real.pulsar import PulsarOptions, PulsarServer, pulsar_standalone
from tests.real.pulsar_messages import Assembly, Content, Place
from tests.real.pulsar_topics import KINDS, TOPIC_SETTINGS, consume, produce, pulsar_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.real.message_keys import MessageKeys

pytestmark = [pytest.mark.bookies, pytest.mark.timeout(180, func_only=True)]
CLOCK = SystemClock()
PARTITIONS = 3
EACH = 60
PLAIN = {"brokerEntryMetadataInterceptors": "", "exposingBrokerEntryMetadataToClientEnabled": False}


@pytest.fixture(scope="module", params=[True, False], ids=["pip70", "plain"])
def pulsar_rolling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    """A Pulsar whose topics roll over often, with and without broker entry metadata."""
    settings = {**TOPIC_SETTINGS, **({} if request.param else PLAIN)}
    options = PulsarOptions(directory=tmp_path_factory.mktemp("pulsar"), settings=settings)
    yield from started(lambda: pulsar_standalone(options, CLOCK))


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[MessageKeys]:
    """Keys for encrypted messages."""
    async with java_gateway(tmp_path / "java", CLOCK) as gateway:
        yield make_keys(gateway, tmp_path)


@pytest.fixture
async def source(pulsar_rolling: PulsarServer) -> AsyncIterator[BookKeeperLedgers]:
    """The ledgers of that Pulsar, as the daemon reads them."""
    metrics = Metrics(CollectorRegistry())
    async with AsyncExitStack() as stack:
        znodes = await stack.enter_async_context(ZooKeeperStore(pulsar_rolling.zookeeper, "/"))
        pool = BookiePool(znodes, clock=CLOCK, metrics=metrics, options=BookieOptions())
        bookies = await stack.enter_async_context(pool)
        ledgers = BookKeeperLedgers(znodes, bookies, clock=CLOCK, metrics=metrics, options=SourceOptions())
        yield await stack.enter_async_context(ledgers)


async def partitioned(server: PulsarServer) -> str:
    """Make a partitioned topic and return its local name."""
    topic = f"t-{CLOCK.uuid().hex}"
    assert await server.put(f"persistent/public/default/{topic}/partitions", PARTITIONS) == 204
    return topic


def partition_names(topic: str) -> list[TopicName]:
    """Return the topics that its partitions are."""
    return [TopicName.parse(f"{topic}-partition-{number}") for number in range(PARTITIONS)]


async def test_all_kinds(
    pulsar_rolling: PulsarServer, keys: MessageKeys, source: BookKeeperLedgers, request: pytest.FixtureRequest
) -> None:
    """Batched, chunked, compressed, encrypted and keyed messages over many ledgers come to the last byte."""
    topic = await partitioned(pulsar_rolling)
    with pulsar_client(pulsar_rolling.service_url) as client:
        for kind in KINDS.values():
            produce(client, topic, kind, range(EACH), keys)
        expected = consume(client, topic, EACH * len(KINDS), keys)
    for name in partition_names(topic):
        await pulsar_rolling.put(f"persistent/public/default/{name.local}/unload")
    found: dict[Place, Content] = {}
    ledger_count = heads = entries = 0
    for name in partition_names(topic):
        assembly = Assembly(decrypt=keys.decrypt)
        for ledger in await source.ledgers(name):
            ledger_count += 1
            confirmed = await source.confirmed(name, ledger.ledger_id)
            assert confirmed.closed
            if confirmed.last_entry_id < 0:
                continue
            async for batch in source.read(name, ledger.ledger_id, 0, confirmed.last_entry_id, batch_bytes=1 << 20):
                for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
                    found.update(assembly.messages(batch.ledger_id, entry_id, payload))
                    heads += broker_entry.read_head(payload) is not None
                    entries += 1
    assert sorted(found) == sorted(expected)
    assert found == expected
    assert ledger_count > 2 * PARTITIONS
    assert heads == (entries if request.node.callspec.params["pulsar_rolling"] else 0)
