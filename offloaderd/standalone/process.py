"""Supervision of one child process: start, wait until it is ready, notice its death, stop.

Rules: a child never outlives its parent (the kernel ensures it on Linux). It has its own session, so that Ctrl-C in a
terminal reaches only the parent, which drains first and stops its servers last. Its output goes to a log file, and the
end of that file into the error when it fails; or it goes where the parent's does. It has to be started from the main
thread, since the kernel takes the end of the starting thread for the death of the parent.

No loop is bound: the same child may be started under one event loop and stopped under another.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig, NoSpace, OffloaderError
from offloaderd.standalone.state import directory_error

POLL_S = 0.05
DEATH_POLL_S = 0.25
TAIL_LINES = 5
_TAIL_BYTES = 16 * 1024
_GUARD = Path(__file__).with_name("guard.py")
_SILENT = re.compile(r"\s*(at \S+\(.*|\.\.\. \d+ more)?$")
_PORT_TAKEN = re.compile(r"address already in use|BindException", re.IGNORECASE)
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)


class ServerDied(OffloaderError):
    """A child process ended by itself, or never became ready; its last log lines are in the hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command of a child: `name` for users, an absolute program, and the directory of its data and log.

    After a request to stop it gets `stop_grace_s` seconds before it is killed. Without `keeps_log` its output goes to
    where this process's does.
    """

    name: str
    program: Path
    arguments: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_grace_s: float = 10.0
    keeps_log: bool = True

    @property
    def log(self) -> Path:
        """File of the process's output; the previous run's is renamed to `.log.1`."""
        return self.directory / f"{self.name.lower()}.log"


class ChildProcess:
    """One run of one command; a new run needs a new object. Async context manager that stops it."""

    def __init__(self, command: Command, clock: Clock) -> None:
        self._command = command
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def name(self) -> str:
        """The server's name for users."""
        return self._command.name

    @property
    def pid(self) -> int | None:
        """Process id, None before the start."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, without waiting. Raises NoSpace and Denied when its log cannot be written."""
        command = self._command
        try:
            with self._output() as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", _GUARD, str(os.getpid()), command.program, *command.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT if log is not None else None,
                    cwd=command.directory,
                    env={**os.environ, **command.environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise directory_error(error, command.directory) from error

    def _output(self) -> AbstractContextManager[BinaryIO | None]:
        """Open a new log file, if there is to be one."""
        command = self._command
        if not command.keeps_log:
            return contextlib.nullcontext()
        if command.log.exists():
            command.log.replace(command.log.with_suffix(".log.1"))
        return command.log.open("wb")

    async def ready(self, check: Callable[[], Awaitable[bool]], deadline_s: float) -> None:
        """Poll `check` until it returns true.

        Raises ServerDied when the process ends first or `deadline_s` seconds pass (NoSpace, InvalidConfig when its log
        says that the disk is full or the port taken). The process is left as it is: stop it.
        """
        until = self._clock.monotonic() + deadline_s
        while True:
            code = self._poll()
            if code is not None:
                raise self.death(code)
            if await check():
                return
            if self._clock.monotonic() >= until:
                raise ServerDied(f"{self.name} was not ready after {deadline_s:g} s", hint=self._last_words())
            await self._clock.sleep(POLL_S)

    async def wait(self) -> int:
        """Return the exit code once the process has ended (minus the signal's number when one ended it)."""
        while (code := self._poll()) is None:
            await self._clock.sleep(DEATH_POLL_S)
        return code

    async def watch(self) -> None:
        """Run for as long as the process does: returns after stop(), raises ServerDied when it ends by itself."""
        code = await self.wait()
        if not self._stopping:
            raise self.death(code)

    async def stop(self) -> None:
        """Send SIGTERM, and after `stop_grace_s` seconds SIGKILL. Idempotent; cancellation kills it at once."""
        self._stopping = True
        if self._process is None:
            return
        try:
            self.send(signal.SIGTERM)
            until = self._clock.monotonic() + self._command.stop_grace_s
            while self._process.poll() is None and self._clock.monotonic() < until:
                await self._clock.sleep(POLL_S)
        finally:
            self.send(signal.SIGKILL)
            self._process.wait()

    def death(self, code: int) -> OffloaderError:
        """Return the reason of its end, as far as its log shows it."""
        log, words = "\n".join(self.tail(lines=1000)), self._last_words()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if _DISK_FULL.search(log):
            return NoSpace(f"{self.name} {how}: the disk at {self._command.directory} is full", hint="free some space")
        if _PORT_TAKEN.search(log):
            return InvalidConfig(f"{self.name} {how}: its port is in use", hint=words)
        return ServerDied(f"{self.name} {how}", hint=words)

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """Return the last lines of the log without blank lines, and of traces of Java only the heads."""
        try:
            with self._command.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line.strip() for line in text.splitlines() if not _SILENT.match(line)][-lines:]

    def _last_words(self) -> str:
        """Return the last lines of the log as one line, with the path of the log."""
        if not self._command.keeps_log:
            return "its output is in the lines above"
        return f"{' | '.join(self.tail()) or 'it wrote nothing'}; log: {self._command.log}"

    def _poll(self) -> int | None:
        if self._process is None:
            raise ServerDied(f"{self.name} has not been started")
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started; does nothing once it has been reaped."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def __aenter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        await self.stop()
