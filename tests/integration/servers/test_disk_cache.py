"""The disk cache of a real daemon: killed, damaged and taken away below it, on a real S3 server."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_chunks import MIB, TOPIC, read_from_bucket
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from tests.servers import S3Server

pytestmark = pytest.mark.witness("s3")

SENT = [f"{number}/".encode().ljust(10 * 1024, b"#") for number in range(1200)]


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site whose daemon has little memory for blocks, and a disk cache."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    found.settings["offload"] = {"block_bytes": MIB}
    found.settings["ledgers"] = {"ledger_entries_max": 2 * len(SENT)}
    found.settings["memory"], found.settings["read"] = {"cache_bytes": 4 * MIB}, {"read_ahead_bytes": 2 * MIB}
    found.settings["cache"] = {"directory": str(tmp_path / "cache"), "disk_bytes": 64 * MIB, "free_bytes": 0}
    return found


async def whole(client: DaemonClient, ledger_id: int) -> bool:
    """Return whether the topic is read from the bucket as it was written."""
    return await read_from_bucket(client, ledger_id, 0, len(SENT)) == SENT


async def ledger(client: DaemonClient) -> int:
    """Return the topic's ledger."""
    return (await client.segments(TOPIC))[0].begin.ledger_id


async def test_a_daemon_that_was_killed_reads_from_its_disk_and_what_is_damaged_there_from_the_store(
    site: Site, tmp_path: Path
) -> None:
    """Files survive kill -9; damage and a directory that is removed are errors for no reader."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, SENT)
        async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
            pass
        while await daemon.metric("offloaderd_cache_bytes", 'cache="disk"') < len(SENT) * len(SENT[0]):
            assert await whole(client, await ledger(client))  # again: on a busy machine some are not written at once
            await CLOCK.sleep(0.05)
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    damaged = max(
        (path for path in (tmp_path / "cache").rglob("*") if path.is_file()), key=lambda one: one.stat().st_size
    )
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        assert await whole(client, await ledger(client))
        assert await daemon.metric("offloaderd_disk_cache_read_bytes_total") > 0
        assert await daemon.metric("offloaderd_disk_cache_failures_total", 'cause="damaged"') == 1
        shutil.rmtree(tmp_path / "cache")
        assert await whole(client, await ledger(client))
