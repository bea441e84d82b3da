"""A namespace of a real broker that offloads through a daemon, and what a test does with its one topic."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pulsar

from offloaderd.bookkeeper.metadata import Layout
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.standalone.ports import LOOPBACK
from tests.patience import PATIENCE_S
from tests.real.bookies import LEDGERS_ROOT
from tests.real.pulsar_topics import KINDS, OPERATION_S, produce, pulsar_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker

CLOCK = SystemClock()
BUNDLE = "0x00000000_0xffffffff"
RECEIVE_MS = 60_000
"""Longer than any server takes to come back."""


@dataclass
class Driven:
    """The namespace; `address` is that of its daemon, `others` are the cluster's other brokers."""

    broker: PulsarBroker
    cluster: BookKeeperCluster
    address: str
    extra: Mapping[str, str] = field(default_factory=dict)
    others: Sequence[PulsarBroker] = ()
    namespace: str = field(default_factory=lambda: f"d{CLOCK.uuid().hex[:10]}")
    local: str = "t"

    @property
    def topic(self) -> TopicName:
        """Its topic."""
        return TopicName("public", self.namespace, self.local)

    @property
    def path(self) -> str:
        """Its topic in the admin API."""
        return f"persistent/public/{self.namespace}/{self.local}"

    def schemas(self, what: str) -> str:
        """Return a path about its topic's schemas in the admin API."""
        return f"schemas/public/{self.namespace}/{self.local}/{what}"

    async def create(self) -> None:
        """Make the namespace, of one bundle."""
        bundles = {"boundaries": BUNDLE.split("_"), "numBundles": 1}
        assert await self.broker.put(f"namespaces/public/{self.namespace}", {"bundles": bundles}) == 204

    async def offload(self, **values: object) -> None:
        """Have the broker offload every ledger that is closed, and delete it from BookKeeper at once."""
        said = {
            "managedLedgerOffloadDriver": "offloaderd",
            "managedLedgerOffloadBucket": "what-the-daemon-says",
            "managedLedgerOffloadThresholdInBytes": 0,
            "managedLedgerOffloadDeletionLagInMillis": 0,
            "managedLedgerExtraConfigurations": {"Address": self.address, **self.extra},
            **values,
        }
        assert await self.broker.send("POST", f"namespaces/public/{self.namespace}/offloadPolicies", said) == 204

    async def unload(self) -> None:
        """Have the topic closed, so that nothing of it is in the broker's memory."""
        await self.put("unload")

    async def move(self, to: PulsarBroker) -> None:
        """Have another broker own the topic: the leader is told which, and whoever has the bundle lets go of it."""
        path = f"namespaces/public/{self.namespace}/{BUNDLE}/unload"
        async with asyncio.timeout(PATIENCE_S):
            while await to.get(f"{self.path}/internalStats") is None:
                for broker in (self.broker, *self.others):
                    await broker.put(f"{path}?destinationBroker={LOOPBACK}:{to.web}")
                for broker in (self.broker, *self.others):
                    await broker.put(path)
                await asyncio.to_thread(self._load)

    def _load(self) -> None:
        """Have the topic loaded by whoever is to own it."""
        urls = ",".join(broker.service_url.removeprefix("pulsar://") for broker in (self.broker, *self.others))
        with pulsar_client(f"pulsar://{urls}") as client:
            client.create_reader(str(self.topic), pulsar.MessageId.latest)

    async def put(self, what: str) -> None:
        """PUT below the topic, to the broker that has it: the others would send us there."""
        async with asyncio.timeout(PATIENCE_S):
            while 204 not in [await broker.put(f"{self.path}/{what}") for broker in (self.broker, *self.others)]:
                await CLOCK.sleep(0.2)

    async def get(self, what: str) -> Any:  # noqa: ANN401 - any JSON
        """GET below the topic, from the broker that has it; None where none answers."""
        for broker in (self.broker, *self.others):
            if (found := await broker.get(f"{self.path}/{what}")) is not None:
                return found
        return None

    async def opened_in_tier(self) -> list[int]:
        """Return the ledgers that the broker has opened through its offloader since its start, in that order."""
        name = re.escape(self.topic.managed_ledger)
        opened = rf"\[{name}\] Opening ledger (\d+) from offload driver"
        since_5_0 = rf"Opening ledger from offload driver (?=.*[ {{=]{name}[,}}])\{{.*?\bledgerId=(\d+)"
        log = await asyncio.to_thread(lambda: self.broker.log)
        return [int(found) for pattern in (opened, since_5_0) for found in re.findall(pattern, log)]

    async def ledgers(self) -> list[dict[str, Any]]:
        """Return what the broker says of the topic's ledgers, the open one last."""
        stats = await self.get("internalStats")
        return list(stats["ledgers"]) if stats is not None else []

    async def in_bookkeeper(self, ledger_ids: list[int]) -> list[int]:
        """Return those ledgers that BookKeeper has."""

        def look() -> list[int]:
            with self.cluster.zookeeper_client() as client:
                return [one for one in ledger_ids if client.exists(Layout.HIERARCHICAL.path(LEDGERS_ROOT, one))]

        return await asyncio.to_thread(look)

    async def offloaded(self, least: int = 1) -> list[int]:
        """Wait until all closed ledgers are offloaded; returns them."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                *closed, _ = await self.ledgers() or [{}]
                if len(closed) >= least and all(one["offloaded"] for one in closed):
                    return [int(one["ledgerId"]) for one in closed]
                await CLOCK.sleep(0.2)

    async def freed(self, least: int = 1) -> list[int]:
        """Wait until all closed ledgers are offloaded and gone from BookKeeper, of a broker that was not killed.

        One that is killed between writing down that a ledger is deleted and deleting it never comes back to that.
        """
        async with asyncio.timeout(PATIENCE_S):
            while await self.in_bookkeeper(ids := await self.offloaded(least)):
                await CLOCK.sleep(0.2)
        return ids

    async def cleared(self, least: int = 1) -> list[int]:
        """Have every ledger offloaded and deleted from BookKeeper, the last one as well; returns them.

        A topic that is loaded again begins another ledger, and its broker offloads what was left.
        """
        await self.unload()
        await asyncio.to_thread(self._load)
        return await self.freed(least)

    async def write(self, *kinds: str, count: int = 60) -> None:
        """Send messages of each kind, one kind after the other."""

        def send() -> None:
            with pulsar_client(self.broker.service_url) as client:
                for name in kinds:
                    produce(client, str(self.topic), KINDS[name], range(count))

        await asyncio.to_thread(send)

    async def read(self, count: int) -> list[tuple[object, bytes, str]]:
        """Return the first `count` messages as a reader from the earliest one gets them."""

        def receive() -> list[tuple[object, bytes, str]]:
            with self.reader() as reader:
                return [next(reader) for _ in range(count)]

        return await asyncio.to_thread(receive)

    def reader(self) -> Reader:
        """Give a reader from the earliest message, to be used from one thread."""
        return Reader(self.broker.service_url, str(self.topic))


class Reader:
    """A reader of a topic, message by message; a context manager."""

    def __init__(self, service_url: str, topic: str) -> None:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(service_url, logger=logger, operation_timeout_seconds=OPERATION_S)
        self._reader = self._client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=20)

    def __enter__(self) -> Iterator[tuple[object, bytes, str]]:
        """Yield place, data and key of one message after the other."""

        def messages() -> Iterator[tuple[object, bytes, str]]:
            while True:
                message = self._reader.read_next(RECEIVE_MS)
                place = message.message_id()
                at = (place.ledger_id(), place.entry_id(), place.batch_index())
                yield at, message.data(), message.partition_key()

        return messages()

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._client.close()
