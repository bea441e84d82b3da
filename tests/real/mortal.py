"""Daemons that die at a kill point, as processes (see killable.py)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.core.errors import OffloaderError
from tests.integration.processes import DaemonProcess
from tests.patience import PATIENCE_S
from tests.real import killable

if TYPE_CHECKING:
    from tests.integration.processes import Site
    from tests.real.workload import Workload

ROOT = Path(__file__).resolve().parents[2]


def killed_at(site: Site, point: str) -> DaemonProcess:
    """Return a daemon that dies at a kill point; ZooKeeper forgets it as soon as it can."""
    brief = {**site.settings, "metadata": {**site.settings.get("metadata", {}), "session_timeout_s": 1}}
    return DaemonProcess(
        replace(site, settings=brief),
        environment={killable.VARIABLE: point, "PYTHONPATH": str(ROOT)},
        program=[sys.executable, "-m", "tests.real.killable"],
    )


async def dies(daemon: DaemonProcess, workload: Workload, *, entries: int) -> None:
    """Work with a daemon until it dies at its kill point."""
    async with daemon:
        if await daemon.serves():
            async with asyncio.TaskGroup() as group:
                ended = group.create_task(daemon.ended(PATIENCE_S), name="the daemon's end")
                with contextlib.suppress(OffloaderError):  # it may die before it is asked for anything
                    async with daemon.client() as client:
                        await client.enable(workload.topic)
                        await workload.until_it_dies(client, ended, entries)
        assert await daemon.ended() == -signal.SIGKILL, "the kill point was never reached"
