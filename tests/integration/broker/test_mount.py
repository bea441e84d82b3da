"""Everything but the bucket is gone: an empty cluster gets its topics back, under their message ids."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from offloaderd.core.clock import SystemClock
from offloaderd.core.names import managed_ledgers
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.mount.lists import INDEX
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

    from offloaderd.client import DaemonClient
    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.servers import S3Server

CLOCK = SystemClock()
KINDS = ("unbatched", "batched", "batched zstd", "keyed", "chunked")
COUNT = 60
UNKNOWN = "unknown-source"
SHORT_IDS_END = 2**31


Message = tuple[object, bytes, str]
"""Place, data and key, as a reader gets them."""


def place_of(message: Message) -> tuple[int, int]:
    """Return the ledger and the entry of a message."""
    ledger_id, entry_id, _ = cast("tuple[int, int, int]", message[0])
    return ledger_id, entry_id


@asynccontextmanager
async def empty_cluster(directory: Path, site: Site) -> AsyncIterator[tuple[BookKeeperCluster, PulsarBroker]]:
    """Run a ZooKeeper, two bookies and a broker that know no topic; its ledgers have ids above those of the bucket."""
    for name in ("bookies", "broker"):
        (directory / name).mkdir(parents=True)
    await asyncio.to_thread(offloaders, directory / "broker")
    async with bookkeeper_cluster(ClusterOptions(directory=directory / "bookies", bookies=2), CLOCK) as cluster:
        site.settings["bookkeeper"] = {"servers": cluster.zookeeper}
        code, said, _ = await ran(site, "offloaderd", "mount", "raise-ids")
        assert code == 0, said
        options = BrokerOptions(directory=directory / "broker", cluster=cluster, name="new", settings=TOPIC_SETTINGS)
        async with pulsar_broker(options, CLOCK) as broker:
            yield cluster, broker


def follower(directory: Path, cluster: BookKeeperCluster, s3: S3Server, bucket: str, name: str) -> Site:
    """Return a daemon of a cluster that offloads each entry within a second; its own metadata lie there as well."""
    site = Site.at(directory, cluster.zookeeper, s3, bucket)
    site.cluster = name
    site.settings |= {"ledgers": {"kind": "bookkeeper"}, "offload": {"segment_age_max_s": 1}}
    return site


async def accept_source(client: DaemonClient, driven: Driven) -> None:
    """Accept the new cluster as the source of the topic, once the topic is refused for it."""
    async with asyncio.timeout(PATIENCE_S):
        while UNKNOWN not in [one.kind for one in (await client.identity(driven.topic)).refusals]:
            await CLOCK.sleep(0.2)
    await client.accept_identity(driven.topic, kind=UNKNOWN, dry_run=False)


async def offloaded(daemon: DaemonProcess, driven: Driven, least: tuple[int, int]) -> tuple[int, int]:
    """Wait until the bucket has a position; returns the newest that it has."""
    async with daemon.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            (topic,) = (await client.status(driven.topic)).topics
            end = topic.offloaded.ledger_id, topic.offloaded.entry_id
            if end >= least:
                return end
            await CLOCK.sleep(0.2)


async def written_and_offloaded(driven: Driven, site: Site) -> list[Message]:
    """Write messages of all kinds, and return those that the bucket has when the daemon ends."""
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven.address = daemon.address
        await driven.create()
        await driven.offload()
        await driven.write(*KINDS, count=COUNT)
        for _ in range(2):  # what was sent before the last time is known as confirmed, and so offloaded
            await driven.write("unbatched", count=3)
        written = await driven.read(COUNT * len(KINDS) + 6)
        end = await offloaded(daemon, driven, place_of(written[-4]))
        return [one for one in written if place_of(one) <= end]


async def mount(site: Site, command: str, driven: Driven, *words: str) -> tuple[int, str]:
    """Run a command of `offloaderd mount` for the topic; returns the exit code and its answer."""
    code, said, _ = await ran(site, "offloaderd", "mount", command, f"public/{driven.namespace}/*", *words)
    return code, said


async def continued(driven: Driven, site: Site, written: list[Message]) -> None:
    """Offload what producers wrote after the mount, have it deleted from BookKeeper, and read everything."""
    code, said, _ = await ran(site, "offloaderd", "rebuild", "--apply", "--enable")
    assert code == 0, said
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            await accept_source(client, driven)
        await driven.unload()
        await offloaded(daemon, driven, place_of(written[-1]))
        driven.address = daemon.address
        await driven.offload()
        await driven.freed()
        await driven.unload()
        assert await driven.read(len(written)) == written
        assert max(await driven.opened_in_tier()) > SHORT_IDS_END


async def test_a_cluster_that_lost_everything_reads_on_under_the_old_ids(
    tmp_path: Path,
    s3_server: S3Server,
    s3_bucket: str,
    bookkeeper: BookKeeperCluster,
    driven_broker: PulsarBroker,
) -> None:
    """Every message of the old cluster, its open ledger included; producers go on above, and join the same history."""
    old_site = follower(tmp_path, bookkeeper, s3_server, s3_bucket, CLOCK.uuid().hex)
    old = Driven(driven_broker, bookkeeper, "")
    written = await written_and_offloaded(old, old_site)

    site = Site.at(tmp_path, "127.0.0.1:1", s3_server, s3_bucket)
    site.cluster, site.daemon_id = old_site.cluster, "reader"
    site.settings["daemon"] = {"read_only": True}
    async with empty_cluster(tmp_path / "new", site) as (cluster, broker), DaemonProcess(site) as reader:
        await reader.serving()
        new = Driven(broker, cluster, reader.address, namespace=old.namespace)
        await new.create()
        await new.offload()
        code, said = await mount(site, "plan", new)
        assert (code, "set-retention" in said) == (1, True)
        unlimited = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert await broker.send("POST", f"namespaces/public/{new.namespace}/retention", unlimited) == 204
        code, said = await mount(site, "apply", new)
        assert code == 0, said

        path = managed_ledgers.topic_path(new.topic)
        with cluster.zookeeper_client() as client:
            listed = decode(client.get(path)[0], key=path)
        assert int(listed.properties[INDEX]) >= len(written) - 1, "brokers count on from the last message"
        assert await new.read(len(written)) == written
        await new.unload()
        await new.write("keyed", count=COUNT)
        everything = await new.read(len(written) + COUNT)
        assert everything[: len(written)] == written
        assert all(place_of(one)[0] > SHORT_IDS_END for one in everything[len(written) :])
        await broker.kill()
        await broker.start()
        assert await new.read(len(everything)) == everything
        await continued(new, follower(tmp_path, cluster, s3_server, s3_bucket, old_site.cluster), everything)

        code, said = await mount(site, "undo", new, "--yes")
        assert (code, "producers have written to it" in said) == (1, True)
