"""A stock Pulsar broker with our LedgerOffloader, real bookies, a real S3 server and a daemon: PIP-76's loop, closed.

Every test has a namespace, a daemon and a bucket of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.clock import SystemClock
from offloaderd.model import TopicName
from tests.integration.processes import DaemonProcess, Site
from tests.real.pulsar_topics import KINDS, consume, produce, pulsar_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.servers import S3Server

pytestmark = [pytest.mark.bookies, pytest.mark.timeout(180, func_only=True)]
CLOCK = SystemClock()
WAIT_S = 60.0


@dataclass
class Driven:
    """A namespace that its broker offloads through a daemon, with one topic."""

    broker: PulsarBroker
    cluster: BookKeeperCluster
    namespace: str
    daemon: DaemonProcess

    @property
    def topic(self) -> TopicName:
        """Its topic."""
        return TopicName("public", self.namespace, "t")

    @property
    def path(self) -> str:
        """Its topic in the admin API."""
        return f"persistent/public/{self.namespace}/t"

    async def create(self) -> None:
        """Make the namespace and have its broker offload every closed ledger, and free BookKeeper at once."""
        assert await self.broker.put(f"namespaces/public/{self.namespace}") == 204
        await self.policies(managedLedgerOffloadDriver="offloaderd")

    async def policies(self, **values: object) -> None:
        """Set the namespace's offload policies."""
        said = {
            "managedLedgerOffloadBucket": "as-the-daemon-says",
            "managedLedgerOffloadThresholdInBytes": 0,
            "managedLedgerOffloadDeletionLagInMillis": 0,
            "managedLedgerExtraConfigurations": {"Address": self.daemon.address},
            **values,
        }
        assert await self.broker.send("POST", f"namespaces/public/{self.namespace}/offloadPolicies", said) == 204

    async def ledgers(self) -> list[dict[str, Any]]:
        """Return what the broker says of the topic's ledgers, the open one last."""
        stats = await self.broker.get(f"{self.path}/internalStats")
        return list(stats["ledgers"])

    def kept(self, ledger_ids: list[int]) -> list[int]:
        """Return those ledgers that BookKeeper still has."""
        with self.cluster.zookeeper_client() as client:
            return [one for one in ledger_ids if client.exists(ledger_path(one))]

    async def freed(self) -> list[int]:
        """Wait until all closed ledgers are offloaded and gone from BookKeeper; returns their ids."""
        async with asyncio.timeout(WAIT_S):
            while True:
                ledgers = await self.ledgers()
                closed = [one["ledgerId"] for one in ledgers[:-1]]
                if all(one["offloaded"] for one in ledgers[:-1]) and not await asyncio.to_thread(self.kept, closed):
                    return closed
                await CLOCK.sleep(0.2)


def ledger_path(ledger_id: int) -> str:
    """Return a ledger's node, by BookKeeper's hierarchical layout."""
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


@pytest.fixture
async def driven(
    tmp_path: Path,
    zookeeper: str,
    s3_server: S3Server,
    s3_bucket: str,
    bookkeeper: BookKeeperCluster,
    driven_broker: PulsarBroker,
) -> AsyncIterator[Driven]:
    """A namespace of its own, and a daemon that follows the cluster."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper}
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        made = Driven(driven_broker, bookkeeper, f"d{CLOCK.uuid().hex[:10]}", daemon)
        await made.create()
        yield made


async def test_consumers_read_what_was_offloaded_and_bookkeeper_is_freed(driven: Driven) -> None:
    """Messages of many kinds over many ledgers are the same before and after BookKeeper's copies are gone."""
    topic, kinds = str(driven.topic), ("unbatched", "batched", "batched zstd", "keyed", "chunked")

    def write() -> int:
        with pulsar_client(driven.broker.service_url) as client:
            for name in kinds:
                produce(client, topic, KINDS[name], range(60))
        return 60 * len(kinds)

    def read(count: int) -> object:
        with pulsar_client(driven.broker.service_url) as client:
            return consume(client, topic, count)

    count = await asyncio.to_thread(write)
    written = await asyncio.to_thread(read, count)
    closed = await driven.freed()
    assert len(closed) >= 5
    assert await driven.broker.put(f"{driven.path}/unload") == 204
    assert await driven.broker.send("DELETE", f"{driven.path}/subscription/reference-{count}") == 204
    assert await asyncio.to_thread(read, count) == written
