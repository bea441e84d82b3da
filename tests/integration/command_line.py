"""Our commands as processes of their own, with a site's settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.processes import CLOCK, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Command:
    """One command that runs."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    async def ended(self) -> tuple[int, str]:
        """Wait for its end; returns the exit code and its answer."""
        said, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()

    async def answer(self) -> tuple[int, Any]:
        """Wait for its end; returns the exit code and what it answered in JSON, None for nothing."""
        code, said = await self.ended()
        return code, json.loads(said) if said else None

    async def kill(self) -> None:
        """Kill it by SIGKILL, with all its children if it has a session of its own, and wait for its end."""
        number = self.process.pid
        if os.getpgid(number) == number:
            os.killpg(number, signal.SIGKILL)
        else:
            self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL

    def told(self) -> str:
        """Return what it has told people beside the answer: progress and errors."""
        return self._log.read_text()


@asynccontextmanager
async def started(site: Site, program: str, *words: str, own_session: bool = False) -> AsyncIterator[Command]:
    """Start one of our programs, in a session of its own if asked to; what still runs at the end is killed."""
    log = site.directory / f"{program}-{CLOCK.uuid()}.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name(program)),
            *words,
            env=site.process_environment(1, 2),
            stdout=asyncio.subprocess.PIPE,
            stderr=stream,
            start_new_session=own_session,
        )
    command = Command(process, log)
    try:
        yield command
    except Exception as error:
        error.add_note(command.told()[-3000:])
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ran(site: Site, program: str, *words: str) -> tuple[int, str, str]:
    """Run one of our programs to its end; returns the exit code, its answer, and what it told people beside it."""
    async with started(site, program, *words) as command:
        code, said = await command.ended()
        return code, said, command.told()
