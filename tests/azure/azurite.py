"""Azurite, Microsoft's emulator of Azure Storage, as a real server of tests: its files survive the kill of its process.

It comes from npm, by package-lock.json beside this file, into build/azurite, when the first test asks for it. Where
Node or npm are missing, or npm cannot fetch it, the tests are left out with that reason.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.standalone.ports import LOOPBACK, free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "azurite"
PROGRAM = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
INSTALLED = FOLDER / "installed"
"""Made last: an installation that was cut short is none."""


def lacking() -> str:
    """Install Azurite if it is not; returns why it cannot run, empty if it can."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        return "no Node with npm here, which Azurite needs: apt install nodejs npm"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not INSTALLED.exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, FOLDER)
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            if done.returncode:
                return f"npm cannot install Azurite: {done.stderr.strip()[-300:]}"
            INSTALLED.touch()
    return ""


@asynccontextmanager
async def azurite_in(directory: Path) -> AsyncIterator[str]:
    """Run Azurite, which is not lacking, over a directory; yields the endpoint of its Blob service."""
    clock = SystemClock()
    port = free_ports(1, clock)[0]
    arguments = ("--blobHost", LOOPBACK, "--blobPort", str(port), "--location", str(directory), "--silent")
    command = Command(
        name="azurite",
        program=Path(shutil.which("node") or "node"),
        arguments=(str(PROGRAM), *arguments, "--disableTelemetry", "--skipApiVersionCheck"),
        directory=directory,
    )
    async with ChildProcess(command, clock) as child:

        async def answers() -> bool:
            status, _ = await http_get(port, "/")
            return status > 0

        await child.ready(answers, PATIENCE_S)
        yield f"http://{LOOPBACK}:{port}"
