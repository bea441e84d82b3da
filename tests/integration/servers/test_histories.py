"""Histories over several processes: an owner that is paused past its session, a ZooKeeper that restarts."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.standalone import zookeeper as servers
from offloaderd.standalone.ports import free_ports
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.real.ground import Chance, Ground
from tests.real.proof import check, ends_well
from tests.real.pusher import Pusher
from tests.real.soak_rounds import brokers, crashes
from tests.real.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server


TOPIC = TopicName.parse("public/default/history")


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site without a ledger source: brokers push."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["ledgers"] = {"kind": "none"}
    site.settings["placement"] = {"settle_s": 1, "grace_s": 2}
    site.settings["offload"] = {
        "segment_bytes_max": 12 << 20,
        "segment_age_max_s": 1.5,
        "block_bytes": 256 << 10,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


async def test_an_owner_that_is_paused_past_its_session_changes_nothing(site: Site) -> None:
    """Stopped in the middle of pushes and continued when another owns the topic: one history, nothing twice."""
    workload = Workload(TOPIC, entry_bytes=10_000)
    daemons = [DaemonProcess(replace(site, daemon_id=name)) for name in ("one", "two")]
    async with daemons[0], daemons[1], daemons[0].client() as first, daemons[1].client() as second:
        await first.enable(TOPIC)
        pusher = Pusher(workload, lambda: [daemon.address for daemon in daemons])
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(pusher.run(), name="broker")
            for _ in range(2):
                before = await pusher.progress(beyond=pusher.durable)
                paused = next(daemon for daemon in daemons if daemon.address == pusher.owner)
                paused.signal(signal.SIGSTOP)
                while pusher.owner == paused.address:
                    await CLOCK.sleep(0.05)
                await pusher.progress(beyond=before)
                paused.signal(signal.SIGCONT)
                await CLOCK.sleep(1.0)
            pusher.end()
            await pushing
        await workload.read(first)
        await workload.read(second)
        await check(site, second, workload)
    assert pusher.streams >= 3
    assert workload.history.acked == workload.history.offered > 100


@pytest.mark.parametrize("away_s", [0.0, 6.0])
async def test_a_zookeeper_that_restarts_costs_time_and_nothing_else(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str, away_s: float
) -> None:
    """It goes down in the middle of commits, for a moment or longer than a session; then the daemon dies as well."""
    workload = Workload(TOPIC, entry_bytes=2_000)
    options = servers.ZooKeeperOptions(directory=tmp_path / "zookeeper", port=free_ports(1, CLOCK)[0])
    site = Site.at(tmp_path, f"127.0.0.1:{options.port}", s3_server, s3_bucket)
    site.settings["offload"] = {"segment_bytes_max": 100_000, "block_bytes": 16384}
    async with DaemonProcess(site) as daemon:
        async with servers.zookeeper(options, CLOCK), daemon.client() as client:
            await client.enable(TOPIC)
            await workload.append(client, 300)
        await CLOCK.sleep(away_s)
        async with servers.zookeeper(options, CLOCK), daemon.client() as client:
            await workload.append(client, 300)
            await workload.offload(client)
            await workload.read(client)
            await workload.append(client, 300)
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    async with servers.zookeeper(options, CLOCK):
        await ends_well(site, workload)
    assert workload.history.acked == workload.history.offered == 960


async def test_a_short_random_run_ends_with_everything_in_place(
    tmp_path: Path, zookeeper: str, s3_server: S3Server
) -> None:
    """What `make soak` does for as long as it is told, done once: crashes, and brokers whose daemons come and go."""
    ground = Ground(tmp_path, zookeeper, s3_server)
    total = await crashes(ground, Chance(1), lives=2)
    total.add(await brokers(ground, Chance(4), fault_s=6))
    assert total.deaths >= 3
    assert total.segments >= 2
    assert total.faults.total()
