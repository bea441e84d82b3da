"""What tests of `offloaderd mount` share: clusters of their own, the command, and the daemon that goes on."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from tests.integration.command_line import ran
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real import killable
from tests.real.bookies import ClusterOptions, bookkeeper_cluster
from tests.real.broker import BrokerOptions, offloaders, pulsar_broker
from tests.real.jars import bookie_jars, broker_jars
from tests.real.pulsar_topics import TOPIC_SETTINGS
from tests.real.pulsar_transactions import TRANSACTION_SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from kazoo.client import KazooClient

    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName
    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.real.pulsar_transactions import TransactionalClient
    from tests.servers import S3Server

CLOCK = SystemClock()
ROOT = Path(__file__).resolve().parents[2]
COORDINATED: Mapping[str, object] = {
    **TOPIC_SETTINGS,
    **TRANSACTION_SETTINGS,
    "topicLevelPoliciesEnabled": True,
    "transactionBufferSnapshotMaxTransactionCount": 1,
    "transactionBufferSnapshotMinTimeInMillis": 100,
}
OWN = ("__change_events", "__transaction_buffer_snapshot")
"""Topics of Pulsar itself that a mount writes where they are named."""
UNKNOWN = "unknown-source"
SHORT_IDS_END = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many servers a cluster has, of which jars, with which settings of the brokers."""

    bookies: int = 2
    brokers: Sequence[str] = ("new",)
    jars: str = field(default_factory=broker_jars)
    settings: Mapping[str, object] = field(default_factory=lambda: TOPIC_SETTINGS)


async def nothing(_: BookKeeperCluster) -> None:
    """Do nothing before the brokers start."""


@asynccontextmanager
async def cluster_of_its_own(
    directory: Path, shape: Shape, before_brokers: Callable[[BookKeeperCluster], Awaitable[None]] = nothing
) -> AsyncIterator[tuple[BookKeeperCluster, Sequence[PulsarBroker]]]:
    """Run a ZooKeeper, bookies and brokers that know no topic; do something before the brokers start."""
    (directory / "bookies").mkdir(parents=True)
    for name in shape.brokers:
        await asyncio.to_thread(offloaders, directory / name, shape.jars)
    options = ClusterOptions(directory=directory / "bookies", bookies=shape.bookies, jars=bookie_jars(shape.jars))
    async with bookkeeper_cluster(options, CLOCK) as cluster, AsyncExitStack() as stack:
        await before_brokers(cluster)
        async with asyncio.TaskGroup() as group:
            starting = [
                group.create_task(stack.enter_async_context(pulsar_broker(one, CLOCK)), name=f"start of {one.name}")
                for one in _options(directory, cluster, shape)
            ]
        yield cluster, [one.result() for one in starting]


def _options(directory: Path, cluster: BookKeeperCluster, shape: Shape) -> list[BrokerOptions]:
    return [
        BrokerOptions(directory=directory / name, cluster=cluster, name=name, jars=shape.jars, settings=shape.settings)
        for name in shape.brokers
    ]


@asynccontextmanager
async def empty_cluster(
    directory: Path, site: Site, shape: Shape | None = None
) -> AsyncIterator[tuple[BookKeeperCluster, Sequence[PulsarBroker]]]:
    """Run a cluster whose ledgers have ids above those of the bucket."""

    async def raised(cluster: BookKeeperCluster) -> None:
        site.settings["bookkeeper"] = {"servers": cluster.zookeeper}
        code, said, _ = await ran(site, "offloaderd", "mount", "raise-ids")
        assert code == 0, said

    async with cluster_of_its_own(directory, shape or Shape(), raised) as found:
        yield found


def follower(directory: Path, cluster: BookKeeperCluster, s3: S3Server, bucket: str, name: str) -> Site:
    """Return a daemon of a cluster that offloads each entry within a second; its own metadata lie there as well."""
    site = Site.at(directory, cluster.zookeeper, s3, bucket)
    site.cluster = name
    site.settings |= {"ledgers": {"kind": "bookkeeper"}, "offload": {"segment_age_max_s": 1}}
    return site


def reading(directory: Path, s3: S3Server, bucket: str, name: str) -> Site:
    """Return a daemon that serves the bucket of a cluster and has nothing else."""
    site = Site.at(directory, "127.0.0.1:1", s3, bucket)
    site.cluster, site.daemon_id = name, "reader"
    site.settings["daemon"] = {"read_only": True}
    return site


async def mount(site: Site, command: str, *words: str) -> tuple[int, str]:
    """Run a command of `offloaderd mount`; returns the exit code and its answer."""
    code, said, _ = await ran(site, "offloaderd", "mount", command, *words)
    return code, said


async def applied(environment: Mapping[str, str], *words: str, kill_at: str = "") -> int:
    """Run `mount apply` to its end or to a kill point; returns the exit code."""
    program = ["-m", "tests.real.killable"] if kill_at else ["-m", "offloaderd.cli.offloaderd"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "mount", "apply", *words),
        env={**environment, killable.VARIABLE: kill_at, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


def nodes(client: KazooClient, root: str, below: str = "") -> dict[str, bytes]:
    """Return all nodes below one, by their paths there."""
    found = {below: client.get(f"{root}{below}")[0]}
    for name in client.get_children(f"{root}{below}"):
        found |= nodes(client, root, f"{below}/{name}")
    return found


async def accept_source(client: DaemonClient, topic: TopicName) -> None:
    """Accept the new cluster as the source of a topic, once the topic is refused for it."""
    async with asyncio.timeout(PATIENCE_S):
        while UNKNOWN not in [one.kind for one in (await client.identity(topic)).refusals]:
            await CLOCK.sleep(0.2)
    await client.accept_identity(topic, kind=UNKNOWN, dry_run=False)


async def offloaded(daemon: DaemonProcess, topic: TopicName, least: tuple[int, int]) -> tuple[int, int]:
    """Wait until the bucket has a position; returns the newest that it has."""
    async with daemon.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            (status,) = (await client.status(topic)).topics
            end = status.offloaded.ledger_id, status.offloaded.entry_id
            if end >= least:
                return end
            await CLOCK.sleep(0.2)


async def all_offloaded(daemon: DaemonProcess, topics: Sequence[TopicName]) -> None:
    """Wait until the bucket has all of topics that were unloaded."""
    async with daemon.client() as client, asyncio.timeout(PATIENCE_S):
        for topic in topics:
            while True:
                found = (await client.status(topic)).topics
                if found and found[0].offloaded.entry_id >= 0 and not found[0].lag_entries:
                    break
                await CLOCK.sleep(0.2)


async def coordinated(broker: PulsarBroker, bookkeeper: BookKeeperCluster) -> None:
    """Make what `pulsar initialize-transaction-coordinator-metadata` makes, with one coordinator."""
    (cluster,) = await broker.get("clusters")
    tenant = {"allowedClusters": [cluster], "adminRoles": []}
    assert await broker.put("tenants/pulsar", tenant) in {204, 409}
    assert await broker.put("namespaces/pulsar/system", {"replication_clusters": [cluster]}) in {204, 409}
    path = "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign"

    def make() -> None:
        with bookkeeper.zookeeper_client() as client:
            client.create(path, b'{"partitions": 1}', makepath=True)

    await asyncio.to_thread(make)


def in_transactions(client: TransactionalClient, topic: str, kept: Sequence[bytes], gone: Sequence[bytes]) -> None:
    """Send messages of a transaction that is aborted before and behind those of one that is committed."""
    half = len(gone) // 2
    with client.producer(topic) as producer:
        for contents, end in ((gone[:half], client.abort), (kept, client.commit), (gone[half:], client.abort)):
            transaction = client.begin()
            producer.send(contents, transaction)
            end(transaction)
