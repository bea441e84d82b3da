"""fake-gcs-server, an emulator of Google Cloud Storage, as a child process on loopback.

It is built from the Go module proxy by `make stores`, so a machine without Go does without it. It keeps objects in
memory of its own, checks CRC-32C on upload, and composes. It does not look at the generations of composed objects'
sources, gives composed objects an MD5, and knows no rights: `tests/gcs_server.py` does.
"""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.standalone.ports import LOOPBACK, free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command
from tests.patience import PATIENCE_S
from tests.real.stores import FOLDER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.core.clock import Clock

PROGRAM = FOLDER / "fake-gcs-server"


def lacking() -> str:
    """Return why the emulator cannot run; empty if it can."""
    if PROGRAM.exists():
        return ""
    go = "" if shutil.which("go") else ", which needs Go"
    return f"no {PROGRAM.name} in build/stores: `make stores`{go}"


@asynccontextmanager
async def gcs_emulator(directory: Path, clock: Clock) -> AsyncIterator[str]:
    """Run it, and return its endpoint. Raises ServerDied when it does not come up."""
    port = free_ports(1, clock)[0]
    endpoint = f"http://{LOOPBACK}:{port}"
    options = {
        "scheme": "http",
        "host": LOOPBACK,
        "port": str(port),
        "backend": "memory",
        "external-url": endpoint,
        "public-host": f"{LOOPBACK}:{port}",
        "log-level": "error",
    }
    command = Command(
        name=PROGRAM.name,
        program=PROGRAM,
        arguments=tuple(word for name, value in options.items() for word in (f"-{name}", value)),
        directory=directory,
        environment={},
    )
    async with ChildProcess(command, clock) as child:

        async def answers() -> bool:
            return (await http_get(port, "/_internal/healthcheck"))[0] == 200

        await child.ready(answers, PATIENCE_S)
        yield endpoint
