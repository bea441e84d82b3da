"""A daemon is killed with a segment open; its successor goes on with it, on a real ZooKeeper and a real S3 server."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects import keys
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.audit import audit, bucket_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.metadata.records.attempt import Attempt
    from tests.servers import S3Server

TOPIC = TopicName.parse("public/default/orders")
ENTRY_BYTES = 50_000
BATCH = 20


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site whose segments end when asked to."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["offload"] = {
        "segment_bytes_max": 1 << 30,
        "segment_age_max_s": 3600,
        "block_bytes": 1 << 20,
        "part_bytes": PART_BYTES_MIN,
    }
    return site


def entries(first: int, count: int) -> list[bytes]:
    """Make distinguishable entries."""
    return [f"{number}/".encode().ljust(ENTRY_BYTES, b"#") for number in range(first, first + count)]


async def append(client: DaemonClient, payloads: Sequence[bytes]) -> None:
    """Append entries in batches that fit into a message."""
    await append_to(client, TOPIC, payloads, at_once=BATCH)


async def record(site: Site) -> Attempt:
    """Return the open segment's record."""
    async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as store:
        path = paths.attempt(TOPIC)
        return attempt_record.decode((await store.get(path)).value, path=path)


async def metric(daemon: DaemonProcess, name: str) -> float:
    """Return the value of a series."""
    _, page = await daemon.http("/metrics")
    return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} "))


async def progress(daemon: DaemonProcess) -> float:
    """Wait for the successor's first progress; returns its seconds after it had the topic."""
    while await metric(daemon, "offloaderd_recovery_seconds_count") < 1:
        await CLOCK.sleep(0.02)
    return await metric(daemon, "offloaderd_recovery_seconds_sum")


async def test_a_killed_daemon_costs_no_part_twice(site: Site) -> None:
    """SIGKILL in mid-segment: the successor makes progress without a wait, and what is stored is not sent again."""
    async with DaemonProcess(site) as one, one.client() as client:
        await client.enable(TOPIC)
        await append(client, entries(0, 700))
        while len((left := await record(site)).parts) < 4:
            await CLOCK.sleep(0.05)
        one.signal(signal.SIGKILL)
        await one.ended()
    left = await record(site)
    async with bucket_of(site) as bucket:
        stored = await bucket.list_parts(keys.SegmentKeys("", left.segment_id).data, left.upload_id)
    async with DaemonProcess(replace(site, daemon_id="two")) as two, two.client() as client:
        await append(client, entries(700, 50))
        took_s = await progress(two)
        assert took_s < 30  # a fraction of a second, and whatever a busy machine adds
        async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
            pass
        (segment,) = [one for one in await client.segments(TOPIC) if one.status == "Offloaded"]
        assert segment.segment_id == str(left.segment_id)
        sent = await metric(two, "offloaderd_upload_bytes_total")
        kept = await metric(two, 'offloaderd_upload_parts_total{outcome="kept"}')
        again = await metric(two, 'offloaderd_upload_parts_total{outcome="replaced"}')
        assert await metric(two, "offloaderd_segments_resumed_total") == 1
    found = await audit(site, [TOPIC])
    assert found.problems == []
    (size,) = {found.object_bytes}
    full = [part for part in stored if part.part_number <= len(left.parts) + kept]
    assert (sent, again) == (size - sum(part.size_bytes for part in full), 0)
    assert len(full) == len(stored)
    assert list(found.stored[TOPIC].values()) == entries(0, 750)
