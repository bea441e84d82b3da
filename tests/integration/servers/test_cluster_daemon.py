"""A daemon that follows a cluster: it waits for it, says so, serves no appends, and shows when it goes away."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName
from tests.integration.commands.test_doctor import administrator
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.servers import S3Server


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site that follows a cluster below a root of its own, which does not exist yet."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    home = f"/cluster-{site.cluster}"
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["bookkeeper"] = {
        "ledgers_root": f"{home}/ledgers",
        "managed_ledgers_root": f"{home}/managed-ledgers",
    }
    return site


def initialise(site: Site) -> None:
    """Do what the cluster's administrator does first."""
    with administrator(site.zookeeper) as client:
        client.create(f"/cluster-{site.cluster}/ledgers/available", b"", makepath=True)


async def ready(daemon: DaemonProcess) -> Any:  # noqa: ANN401 - JSON
    """What /readyz says."""
    code, body = await daemon.http("/readyz")
    return code, json.loads(body)


async def test_it_waits_for_its_cluster_and_says_so(site: Site) -> None:
    """Not ready, with the setting to look at, until the cluster is there; then it serves without its topics."""
    async with DaemonProcess(site) as daemon:
        await daemon.logged("dependency.awaited")
        code, body = await ready(daemon)
        assert code == 503
        assert "no BookKeeper cluster" in json.dumps(body)
        assert "bookkeeper.servers" in json.dumps(body)
        initialise(site)
        async with daemon.client() as client:
            status = await client.status()
            assert {one.name: one.up for one in status.dependencies} == {
                "ledgers": True,
                "metadata": True,
                "objects": True,
            }
            assert await client.topics() is not None

            async def one() -> AsyncIterator[list[bytes]]:
                yield [b"x"]

            with pytest.raises(InvalidInput, match="does not offer this call"):
                await client.append(TopicName("public", "default", "t"), one(), lambda _: None)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    with administrator(site.zookeeper) as client:
        assert client.get_children(f"/cluster-{site.cluster}") == ["ledgers"]
        assert client.get_children(f"/cluster-{site.cluster}/ledgers") == ["available"]


async def test_it_shows_when_the_clusters_zookeeper_goes_away(site: Site) -> None:
    """Its own metadata lies elsewhere and stays up; the cluster's dependency goes down and comes back."""
    initialise(site)
    async with Proxy(site.zookeeper) as proxy:
        site.settings["bookkeeper"]["servers"] = proxy.address
        async with DaemonProcess(site) as daemon, daemon.client() as client:

            async def shows(*, up: bool) -> None:
                while {one.name: one.up for one in (await client.status()).dependencies}["ledgers"] is not up:
                    await CLOCK.sleep(0.2)

            await shows(up=True)
            proxy.cut()
            await shows(up=False)
            assert {one.name: one.up for one in (await client.status()).dependencies}["metadata"]
            proxy.mend()
            await shows(up=True)


async def test_it_can_be_stopped_while_it_waits(site: Site) -> None:
    """SIGTERM ends the waiting, in order."""
    async with DaemonProcess(site) as daemon:
        await daemon.logged("dependency.awaited")
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
