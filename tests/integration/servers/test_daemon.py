"""The daemon as operators run it: real ZooKeeper, real S3 server, a process, signals, crashes, cut connections."""

from __future__ import annotations

import itertools
import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Proxy, Site
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

TOPIC = TopicName.parse("public/default/orders")


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site on the test's servers."""
    return Site.at(tmp_path, zookeeper, s3_server, s3_bucket)


def entries(count: int, *, seed: int = 0, size: int = 200) -> list[bytes]:
    """Make distinguishable entries."""
    return [f"{seed}/{number}/".encode().ljust(size, b"#") for number in range(count)]


async def append(client: DaemonClient, payloads: Sequence[bytes]) -> None:
    """Append entries in batches of 100."""
    await append_to(client, TOPIC, payloads)


async def taken(client: DaemonClient, count: int) -> None:
    """Wait until the open segment holds that many entries."""
    while (await client.status(TOPIC)).topics[0].open_segment_entries < count:
        await CLOCK.sleep(0.02)


async def offload(client: DaemonClient) -> None:
    """Offload everything and wait."""
    async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
        pass


async def read_all(client: DaemonClient) -> list[bytes]:
    """Read the topic from its first entry to its last."""
    answers = client.read(TOPIC, timeout_s=PATIENCE_S)
    return [payload async for response in answers for payload in response.batch.payloads]


async def check_segments(client: DaemonClient, count: int) -> None:
    """The committed segments are contiguous and hold exactly `count` entries."""
    segments = [segment for segment in await client.segments(TOPIC) if segment.status == "Offloaded"]
    assert sum(segment.entries for segment in segments) == count
    for before, after in itertools.pairwise(segments):
        follows = (before.end.ledger_id, before.end.entry_id + 1)
        assert (after.begin.ledger_id, after.begin.entry_id) == follows or after.begin.entry_id == 0


async def test_entries_go_to_the_bucket_and_come_back(site: Site) -> None:
    """Append, offload, read: bit for bit, over several segments, with metrics and probes telling the same."""
    site.settings["offload"] = {"segment_bytes_max": 100_000, "block_bytes": 8192}
    sent = entries(2500)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append(client, sent)
        await offload(client)
        await check_segments(client, 2500)
        assert await read_all(client) == sent
        status = (await client.status(TOPIC)).topics[0]
        assert (status.state, status.lag_entries, status.lag_bytes) == ("offloading", 0, 0)
        code, body = await daemon.http("/readyz")
        assert (code, json.loads(body)["state"]) == (200, "serving")
        _, metrics = await daemon.http("/metrics")
        assert 'offloaderd_segments_total{state="offloaded"} 5.0' in metrics
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    events = [json.loads(line)["event"] for line in daemon.said().splitlines()]
    assert events.count("segment.committed") == 5
    assert events[-1] == "daemon.stopped"


async def test_sigterm_commits_the_open_segment(site: Site) -> None:
    """What was appended and not yet rolled is in the bucket when the process has ended with code 0."""
    sent = entries(300)
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            await client.enable(TOPIC)
            await append(client, sent)
            await taken(client, 300)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await check_segments(client, 300)
        assert await read_all(client) == sent


@pytest.mark.parametrize("pause_s", [0.0, pytest.param(0.15, marks=pytest.mark.witness("zookeeper", "s3")), 0.4])
async def test_after_kill_9_every_entry_is_committed_once(site: Site, pause_s: float) -> None:
    """Killed again and again while it offloads, the daemon ends with all entries, no gap, no overlap, no leftover."""
    site.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    sent: list[bytes] = []
    for run in range(3):
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            await client.enable(TOPIC)
            batch = entries(1000, seed=run)
            await append(client, batch)
            sent += batch
            await CLOCK.sleep(pause_s)
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await offload(client)
        await check_segments(client, len(sent))
        assert await read_all(client) == sent


async def test_a_store_that_comes_back_lets_the_drain_finish(site: Site, s3_server: S3Server) -> None:
    """The bucket is away when SIGTERM arrives and returns within the deadline: exit code 0 and all is committed."""
    async with Proxy(s3_server.endpoint) as proxy:
        away = replace(site, endpoint=f"http://{proxy.address}")
        async with DaemonProcess(away) as daemon, daemon.client() as client:
            await client.enable(TOPIC)
            await append(client, entries(200))
            await taken(client, 200)
            proxy.cut()
            daemon.signal(signal.SIGTERM)
            await daemon.logged('"upload.retried"')
            proxy.mend()
            assert await daemon.ended() == 0
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await check_segments(client, 200)


async def test_a_store_that_stays_away_ends_the_drain_at_its_deadline(site: Site, s3_server: S3Server) -> None:
    """Exit code 1 after drain_s, the reason in the log, and the next start commits what was left."""
    sent = entries(200)
    async with Proxy(s3_server.endpoint) as proxy:
        away = replace(site, endpoint=f"http://{proxy.address}", settings={"shutdown": {"drain_s": 1}})
        async with DaemonProcess(away) as daemon:
            async with daemon.client() as client:
                await client.enable(TOPIC)
                await append(client, sent)
                await taken(client, 200)
                proxy.cut()
                daemon.signal(signal.SIGTERM)
                assert await daemon.ended(10) == 1
            assert '"daemon.drain_incomplete"' in daemon.said()
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await offload(client)
        await check_segments(client, 200)
        assert await read_all(client) == sent


async def test_a_second_signal_cuts_the_drain_short(site: Site, s3_server: S3Server) -> None:
    """With the bucket away and a long deadline, the second SIGTERM ends the process at once."""
    async with Proxy(s3_server.endpoint) as proxy:
        away = replace(site, endpoint=f"http://{proxy.address}", settings={"shutdown": {"drain_s": 3000}})
        async with DaemonProcess(away) as daemon:
            async with daemon.client() as client:
                await client.enable(TOPIC)
                await append(client, entries(200))
                await taken(client, 200)
                proxy.cut()
                daemon.signal(signal.SIGTERM)
                await daemon.logged('"upload.retried"')
                daemon.signal(signal.SIGTERM)
                assert await daemon.ended(10) not in {0, None}
            assert "Traceback" not in daemon.said()


async def test_the_daemon_waits_for_servers_that_are_down_at_the_start(
    site: Site, zookeeper: str, s3_server: S3Server
) -> None:
    """ZooKeeper, then S3 away at the start: not ready, with the reason; both back: serving."""
    async with Proxy(zookeeper) as zk, Proxy(s3_server.endpoint) as s3:
        zk.cut()
        s3.cut()
        away = replace(site, zookeeper=zk.address, endpoint=f"http://{s3.address}")
        async with DaemonProcess(away) as daemon:
            await daemon.logged('"dependency.awaited"')
            code, body = await daemon.http("/readyz")
            assert code == 503
            assert "ZooKeeper" in body
            zk.mend()
            await daemon.logged('"dependency": "objects"')
            code, body = await daemon.http("/readyz")
            assert code == 503
            assert site.bucket in body
            s3.mend()
            await daemon.serving()
            assert (await daemon.http("/readyz"))[0] == 200


async def test_servers_that_go_away_later_cost_time_and_nothing_else(
    site: Site, zookeeper: str, s3_server: S3Server
) -> None:
    """Both connections are cut in the middle of offloading, longer than the session lasts; all is committed once."""
    sent: list[bytes] = []
    async with Proxy(zookeeper) as zk, Proxy(s3_server.endpoint) as s3:
        away = replace(site, zookeeper=zk.address, endpoint=f"http://{s3.address}")
        away.settings["offload"] = {"segment_bytes_max": 50_000, "block_bytes": 8192}
        async with DaemonProcess(away) as daemon, daemon.client() as client:
            await client.enable(TOPIC)
            for proxy, outage_s in ((s3, 1.0), (zk, 1.0), (zk, 7.0)):
                batch = entries(1000, seed=len(sent))
                await append(client, batch)
                sent += batch
                proxy.cut()
                await CLOCK.sleep(outage_s)
                proxy.mend()
            await offload(client)
            await check_segments(client, len(sent))
            assert await read_all(client) == sent


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"secret_key": "wrong"}, ["objects.secret_key", "access"]),
        ({"bucket": "no-such-bucket"}, ["no-such-bucket"]),
    ],
)
async def test_what_cannot_work_ends_the_start_with_one_line(
    site: Site, broken: dict[str, str], words: list[str]
) -> None:
    """Wrong credentials and a missing bucket: exit code 2, what to do, no traceback."""
    async with DaemonProcess(replace(site, **broken)) as daemon:  # type: ignore[arg-type]
        assert await daemon.ended() == 2
        said = daemon.said()
        assert "Traceback" not in said
        assert "error:" in said
        for word in words:
            assert word in said


async def test_a_second_daemon_with_the_same_id_does_not_start(site: Site, tmp_path: Path) -> None:
    """The id is taken: one line with the other's address, a non-zero code, and the first one goes on."""
    async with DaemonProcess(site) as first:
        await first.serving()
        (tmp_path / "second").mkdir()
        async with DaemonProcess(replace(site, directory=tmp_path / "second")) as second:
            assert await second.ended() == 1
            assert first.address in second.said()
            assert "Traceback" not in second.said()
        async with first.client() as client:
            await client.enable(TOPIC)
