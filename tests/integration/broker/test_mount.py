"""Everything but the bucket is gone: an empty cluster gets its topics back, under their message ids."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from tests.integration.command_line import ran
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.bookies import ClusterOptions, bookkeeper_cluster
from tests.real.broker import BrokerOptions, offloaders, pulsar_broker
from tests.real.driven import Driven
from tests.real.pulsar_topics import TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.servers import S3Server

CLOCK = SystemClock()
KINDS = ("unbatched", "batched", "batched zstd", "keyed", "chunked")
COUNT = 60
SHORT_IDS_END = 2**31


@asynccontextmanager
async def empty_cluster(directory: Path) -> AsyncIterator[tuple[BookKeeperCluster, PulsarBroker]]:
    """Run a ZooKeeper, two bookies and a broker that know no topic."""
    for name in ("bookies", "broker"):
        (directory / name).mkdir(parents=True)
    await asyncio.to_thread(offloaders, directory / "broker")
    async with bookkeeper_cluster(ClusterOptions(directory=directory / "bookies", bookies=2), CLOCK) as cluster:
        options = BrokerOptions(directory=directory / "broker", cluster=cluster, name="new", settings=TOPIC_SETTINGS)
        async with pulsar_broker(options, CLOCK) as broker:
            yield cluster, broker


async def offloaded(daemon: DaemonProcess, driven: Driven, least: tuple[int, int]) -> tuple[int, int]:
    """Wait until the bucket has a position; returns the newest that it has."""
    async with daemon.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            (topic,) = (await client.status(driven.topic)).topics
            end = topic.offloaded.ledger_id, topic.offloaded.entry_id
            if end >= least:
                return end
            await CLOCK.sleep(0.2)


async def test_a_cluster_that_lost_everything_reads_on_under_the_old_ids(
    tmp_path: Path,
    zookeeper: str,
    s3_server: S3Server,
    s3_bucket: str,
    bookkeeper: BookKeeperCluster,
    driven_broker: PulsarBroker,
) -> None:
    """Every message of the old cluster, its open ledger included; producers go on above; undo knows of both."""
    old_site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    old_site.settings |= {
        "ledgers": {"kind": "bookkeeper"},
        "bookkeeper": {"servers": bookkeeper.zookeeper},
        "offload": {"segment_age_max_s": 1},
    }
    async with DaemonProcess(old_site) as daemon:
        await daemon.serving()
        old = Driven(driven_broker, bookkeeper, daemon.address)
        await old.create()
        await old.offload()
        await old.write(*KINDS, count=COUNT)
        for _ in range(2):  # what was sent before the last time is known as confirmed, and so offloaded
            await old.write("unbatched", count=3)
        everything = await old.read(COUNT * len(KINDS) + 6)
        end = await offloaded(daemon, old, everything[-4][0][:2])  # type: ignore[index]
        written = [one for one in everything if one[0][:2] <= end]  # type: ignore[index]

    new_site = Site.at(tmp_path, "127.0.0.1:1", s3_server, s3_bucket)
    new_site.cluster, new_site.daemon_id = old_site.cluster, "reader"
    new_site.settings["daemon"] = {"read_only": True}
    async with empty_cluster(tmp_path / "new") as (cluster, broker), DaemonProcess(new_site) as reader:
        await reader.serving()
        new_site.settings["bookkeeper"] = {"servers": cluster.zookeeper}
        new = Driven(broker, cluster, reader.address, namespace=old.namespace)
        await new.create()
        code, said, _ = await ran(new_site, "offloaderd", "mount", "plan", f"public/{new.namespace}/*")
        assert (code, "set-retention" in said) == (1, True)
        unlimited = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert await broker.send("POST", f"namespaces/public/{new.namespace}/retention", unlimited) == 204
        await new.offload()
        code, said, _ = await ran(new_site, "offloaderd", "mount", "apply", f"public/{new.namespace}/*")
        assert code == 0, said

        assert await new.read(len(written)) == written
        await new.unload()
        await new.write("keyed", count=COUNT)
        everything = await new.read(len(written) + COUNT)
        assert everything[: len(written)] == written
        later = [place for place, _, _ in everything[len(written) :]]
        assert min(later)[0] > SHORT_IDS_END  # type: ignore[index]
        await broker.kill()
        await broker.start()
        assert await new.read(len(everything)) == everything

        code, said, _ = await ran(new_site, "offloaderd", "mount", "undo", f"public/{new.namespace}/*", "--yes")
        assert (code, "producers have written to it" in said) == (1, True)
