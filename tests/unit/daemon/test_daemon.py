"""What a daemon says of itself from its first moment, before anything that it depends on answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.daemon.daemon import Daemon
from offloaderd.daemon.settings import Settings
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "kazoo's threads"


@pytest.mark.parametrize(("servers", "shown"), [("127.0.0.1:1", 0), ("127.0.0.1:1,zookeeper.invalid:1", 1)])
async def test_an_open_zookeeper_elsewhere_is_shown(servers: str, shown: int, tmp_path: Path) -> None:
    """Where other machines reach it, whoever does decides over all that is stored: an alert is made of it."""
    sections = {
        "metadata": {"servers": servers, "connect_timeout_s": 0.2},
        "objects": {"kind": "filesystem", "directory": str(tmp_path)},
        "grpc": {"port": 0},
        "http": {"port": 0},
    }
    daemon = Daemon(Settings.model_validate(sections))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(daemon.run())
        while not daemon.health.view.why:
            await SystemClock().sleep(0.01)
        daemon.stop("that is all")
    assert daemon.metrics.registry.get_sample_value("offloaderd_metadata_world_writable") == shown


def test_memory_in_use_is_that_of_all_budgets(tmp_path: Path) -> None:
    """The budget beside it in `status` counts the cache and what reads unpack, so what is used does as well."""
    daemon = Daemon(Settings.model_validate({"objects": {"kind": "filesystem", "directory": str(tmp_path)}}))
    before = daemon.snapshot().memory_used_bytes
    daemon.reading_bytes = lambda: 34
    assert daemon.snapshot().memory_used_bytes == before + 34
