"""The real servers of tests/bookkeeper_servers.py do what the tests that build on them take for granted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pulsar
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import topic_path
from offloaderd.ledgers.pulsar.managed_ledger import decode
from tests.real.bookies import LEDGERS_ROOT, SESSION_MS, zookeeper_client
from tests.real.java_client import Ensemble, java_client, payload

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.bookies import BookKeeperCluster
    from tests.real.java_client import DigestType, JavaClient
    from tests.real.pulsar import PulsarServer

CLOCK = SystemClock()


def ledger_node(cluster: BookKeeperCluster, ledger_id: int) -> bytes:
    """Return the metadata of a ledger as ZooKeeper has it."""
    digits = f"{ledger_id:010d}"
    with cluster.zookeeper_client() as client:
        data, _ = client.get(f"{LEDGERS_ROOT}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}")
    assert isinstance(data, bytes)
    return data


def test_bookies_register(bookkeeper: BookKeeperCluster) -> None:
    """All bookies that were asked for are registered under their addresses."""
    assert bookkeeper.available() == {bookie.bookie_id for bookie in bookkeeper.bookies}
    assert len(bookkeeper.bookies) == 3


@pytest.mark.parametrize("digest", ["CRC32C", "CRC32", "MAC", "DUMMY"])
def test_java_ledger(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient, digest: DigestType) -> None:
    """A ledger of the Java client is in ZooKeeper and reads back, whichever digest it has."""
    how = Ensemble(digest=digest, password=b"pw")
    ledger = java_ledgers.create(how)
    written = ledger.add(200, 100)
    assert written[7] == payload(ledger.ledger_id, 7, 100)
    assert ledger.last_add_confirmed == 199
    assert ledger.length_bytes == 20_000
    ledger.close()
    assert ledger_node(bookkeeper, ledger.ledger_id).startswith(b"BookieMetadataFormatVersion\t3\n")
    assert java_ledgers.read(ledger.ledger_id, how) == written
    java_ledgers.delete(ledger.ledger_id)
    with pytest.raises(Py4JJavaError, match="NoSuchLedger"):
        java_ledgers.confirmed(ledger.ledger_id, how)


def test_recovery_fences(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """Who recovers a ledger closes it with every acknowledged entry, and its writer is refused from then on."""
    ledger = java_ledgers.create()
    ledger.add(10, window=1)
    assert java_ledgers.confirmed(ledger.ledger_id) == 8
    assert java_ledgers.recover(ledger.ledger_id) == 9
    with pytest.raises(Py4JJavaError):
        ledger.add(1)
    assert java_ledgers.confirmed(ledger.ledger_id) == 9


async def test_writer_crash(bookkeeper: BookKeeperCluster, tmp_path: Path, java_ledgers: JavaClient) -> None:
    """A ledger whose writer was killed stays open, its last entry hidden until somebody recovers it."""
    async with java_client(bookkeeper.metadata_uri, tmp_path / "writer", CLOCK) as writer:
        ledger = writer.create()
        written = ledger.add(5, window=1)
        await writer.server.kill()
    assert java_ledgers.read(ledger.ledger_id) == written[:4]
    assert java_ledgers.recover(ledger.ledger_id) == 4
    assert java_ledgers.read(ledger.ledger_id) == written


async def test_bookie_failures(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """A bookie is killed, frozen and restarted without harm to the others, and keeps what it had."""
    ledger = java_ledgers.create(Ensemble(size=3, write_quorum=3, ack_quorum=2))
    written = ledger.add(50)
    ledger.close()
    first, second, third = bookkeeper.bookies
    await first.kill()
    assert not first.running
    assert java_ledgers.read(ledger.ledger_id) == written
    await second.restart()
    third.freeze()
    await CLOCK.sleep(SESSION_MS / 1000 + 2)
    assert third.running
    assert bookkeeper.available() == {second.bookie_id}
    await bookkeeper.heal()
    assert bookkeeper.available() == {first.bookie_id, second.bookie_id, third.bookie_id}
    assert java_ledgers.read(ledger.ledger_id) == written


async def test_zookeeper_restart(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """ZooKeeper may be gone for a while: ledgers are there afterwards and new ones can be made."""
    before = java_ledgers.create()
    before.add(3)
    before.close()
    await bookkeeper.zookeeper_server.kill()
    await bookkeeper.heal()
    assert len(ledger_node(bookkeeper, before.ledger_id)) > 50
    after = java_ledgers.create()
    assert after.add(3, 10) == [payload(after.ledger_id, number, 10) for number in range(3)]


def test_pulsar_answers(pulsar_server: PulsarServer) -> None:
    """The admin API knows the cluster and its one broker."""
    with urlopen(f"{pulsar_server.admin_url}/admin/v2/clusters") as answer:  # noqa: S310 - our own server
        assert json.load(answer) == ["standalone"]


async def test_pulsar_topic(pulsar_server: PulsarServer) -> None:
    """A topic that was produced to has its list of ledgers in ZooKeeper, and the admin API tells the last entry."""
    topic = f"t-{CLOCK.uuid().hex}"
    client = pulsar.Client(pulsar_server.service_url)
    try:
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"message %d" % number)
    finally:
        client.close()
    with zookeeper_client(pulsar_server.zookeeper) as zookeeper:
        data, _ = zookeeper.get(topic_path(TopicName.parse(topic)))
    (ledger,) = decode(data, key=topic).ledgers
    assert not ledger.closed
    stats = await pulsar_server.get(f"persistent/public/default/{topic}/internalStats")
    assert stats["lastConfirmedEntry"] == f"{ledger.ledger_id}:19"
    assert await pulsar_server.put(f"persistent/public/default/{topic}/unload") == 204
