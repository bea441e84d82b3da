"""The store takes a tenth of what is written: memory stays below its limit, nothing is lost, the lag goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.topic.spill import SpillArea
from tests.integration.processes import DaemonProcess, Site
from tests.real.squeeze import BUDGETS, KINDS, MIB, squeeze

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server

SECONDS = 10
BYTES_PER_S = 10 * MIB


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tenth_of_the_line(
    kind: str, tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Ten seconds of what `python -m tests.real.squeeze` does for ten minutes."""
    seen = await squeeze(
        Site.at(tmp_path, zookeeper, s3_server, s3_bucket), kind, seconds=SECONDS, bytes_per_s=BYTES_PER_S
    )
    assert seen.carried_bytes < seen.written_bytes / 5, "it was squeezed"
    assert seen.lag_bytes > BUDGETS["buffer_bytes"], "it fell behind by more than memory holds"
    assert (seen.spilled_bytes > MIB) == (kind == "spill")
    assert seen.peak_bytes < seen.limit_bytes


async def test_a_spill_directory_in_use_ends_the_start(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str
) -> None:
    """Two daemons must not throw each other's entries away: the second ends with code 2 and names the setting."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings = {"spill": {"directory": str(tmp_path / "spill")}}
    async with SpillArea(tmp_path / "spill", 1 << 20), DaemonProcess(site) as daemon:
        assert await daemon.ended() == 2
        assert "spill.directory" in daemon.said()
        assert "in use by another daemon" in daemon.said()
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
