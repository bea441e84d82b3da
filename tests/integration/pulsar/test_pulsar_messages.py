"""Every way in which Pulsar's producers write: what we serve, from any tier, is what a consumer receives."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.format.pulsar import broker_entry
from offloaderd.protocol.v1 import common_pb2, read_pb2
from tests.bookkeeper_servers import started
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.gateway import java_gateway
from tests.real.message_keys import make_keys
from tests.real.pulsar import PulsarOptions, PulsarServer, pulsar_standalone
from tests.real.pulsar_messages import Assembly, Content, Place
from tests.real.pulsar_topics import KINDS, TOPIC_SETTINGS, consume, produce, pulsar_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.real.message_keys import MessageKeys
    from tests.servers import S3Server

CLOCK = SystemClock()
PARTITIONS = 3
EACH = 60
PLAIN = {"brokerEntryMetadataInterceptors": "", "exposingBrokerEntryMetadataToClientEnabled": False}


@pytest.fixture(
    scope="module",
    params=[pytest.param(True, id="pip70", marks=pytest.mark.witness("pulsar")), pytest.param(False, id="plain")],
)
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


async def partitioned(server: PulsarServer) -> str:
    """Make a partitioned topic and return its local name."""
    topic = f"t-{CLOCK.uuid().hex}"
    assert await server.put(f"persistent/public/default/{topic}/partitions", PARTITIONS) == 204
    return topic


def partition_names(topic: str) -> list[TopicName]:
    """Return the topics that its partitions are."""
    return [TopicName.parse(f"{topic}-partition-{number}") for number in range(PARTITIONS)]


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, pulsar_rolling: PulsarServer) -> Site:
    """A daemon's surroundings: that Pulsar, and a ZooKeeper and a bucket of its own."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": pulsar_rolling.zookeeper}
    site.settings["pulsar"] = {"admin_url": pulsar_rolling.admin_url}
    site.settings["offload"] = {"segment_bytes_max": 1_000_000, "segment_age_max_s": 2, "segment_age_min_s": 0}
    return site


class Served:
    """What a daemon gives of a topic, partition by partition, as messages."""

    def __init__(self, keys: MessageKeys) -> None:
        self._keys = keys
        self.messages: dict[Place, Content] = {}
        self.heads = 0
        """Entries with broker entry metadata."""
        self.ledgers: set[int] = set()
        self.tiers: Counter[int] = Counter()

    async def read(self, client: DaemonClient, topic: str, *, follow: bool) -> None:
        """Read all partitions, to their ends or until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in partition_names(topic):
                group.create_task(self._partition(client, name, follow=follow))

    async def holds(self, count: int) -> None:
        """Wait until that many messages have come."""
        while len(self.messages) < count:
            await CLOCK.sleep(0.05)

    async def _partition(self, client: DaemonClient, name: TopicName, *, follow: bool) -> None:
        assembly = Assembly(decrypt=self._keys.decrypt)
        last = (-1, -1)
        async for response in client.read(name, follow=follow):
            batch = response.batch
            self.ledgers.add(batch.ledger_id)
            self.tiers[response.tier] += len(batch.payloads)
            for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
                assert (batch.ledger_id, entry_id) > last, "entries come once, in order"
                last = (batch.ledger_id, entry_id)
                self.heads += broker_entry.read_head(payload) is not None
                self.messages.update(assembly.messages(batch.ledger_id, entry_id, payload))


async def test_served_while_producing(
    site: Site, pulsar_rolling: PulsarServer, keys: MessageKeys, request: pytest.FixtureRequest
) -> None:
    """A daemon gives followers every message while producers go on, and all of it from the bucket afterwards.

    Batched, chunked, compressed, encrypted and keyed, over partitions and many ledgers, to the last byte.
    """
    topic = await partitioned(pulsar_rolling)
    followed, offloaded = Served(keys), Served(keys)
    total = EACH * len(KINDS)
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(DaemonProcess(site))
        client = await stack.enter_async_context(daemon.client())
        pool = stack.enter_context(ThreadPoolExecutor(2))
        pulsar = stack.enter_context(pulsar_client(pulsar_rolling.service_url))
        await client.enable(TopicPattern.parse(topic))
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            following = group.create_task(followed.read(client, topic, follow=True))
            for first in range(0, EACH, EACH // 2):
                for kind in KINDS.values():
                    numbers = range(first, first + EACH // 2)
                    await loop.run_in_executor(pool, produce, pulsar, topic, kind, numbers, keys)
            expected = await loop.run_in_executor(pool, consume, pulsar, topic, total, keys)
            await followed.holds(total)
            following.cancel()
        assert followed.messages == expected
        for name in partition_names(topic):
            async for _ in client.offload(name, wait=True, timeout_s=PATIENCE_S):
                pass
        await offloaded.read(client, topic, follow=False)
        unpacked, states = await unpacked_by_the_daemon(client, topic)
    assert offloaded.messages == expected
    # All but the encrypted messages, for which the daemon has no key, are what the consumer received.
    secret = {place: content for place, content in expected.items() if place not in unpacked}
    assert unpacked == {place: content for place, content in expected.items() if place not in secret}
    assert len(secret) == EACH * sum(kind.encrypted for kind in KINDS.values())
    assert set(states) == {read_pb2.MESSAGE_STATE_PLAIN, read_pb2.MESSAGE_STATE_ENCRYPTED}
    assert set(offloaded.tiers) == {common_pb2.TIER_OBJECTS}
    assert offloaded.ledgers == {place.ledger_id for place in expected}
    assert len(offloaded.ledgers) > 2 * PARTITIONS
    entries = offloaded.tiers.total()
    assert offloaded.heads == (entries if request.node.callspec.params["pulsar_rolling"] else 0)


async def unpacked_by_the_daemon(client: DaemonClient, topic: str) -> tuple[dict[Place, Content], Counter[int]]:
    """Return the plain messages of all partitions as the daemon unpacks them, and how many there are in each state."""
    unpacked: dict[Place, Content] = {}
    states: Counter[int] = Counter()
    for name in partition_names(topic):
        async for answer in client.read_messages(name):
            for message in answer.messages:
                states[message.state] += 1
                if message.state == read_pb2.MESSAGE_STATE_PLAIN:
                    place = Place(message.position.ledger_id, message.position.entry_id, message.batch_index)
                    properties = tuple(sorted((one.key, one.value) for one in message.properties))
                    unpacked[place] = Content(message.data, message.key.decode(), properties)
    return unpacked, states
