"""How the servers' Java runs: quick to start and small, with the doors open that Netty and RocksDB ask for."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.spark.java import find_java
from offloaderd.standalone.process import ChildProcess, Command, ServerDied
from tests.real import freezing
from tests.real.jar_lock import DESCRIPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.clock import Clock

_OPENED = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.nio.ch",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.numDirectArenas=1",
    "-Dio.netty.allocator.numHeapArenas=1",
    "-Dlog4j2.disable.jmx=true",
    f"-Dlog4j.configurationFile={DESCRIPTIONS / 'log4j2.properties'}",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
)


def pyspark_jars() -> Path:
    """Return the folder of PySpark's jars. Raises ServerDied when it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerDied("there is no PySpark, whose jars servers of the tests run with", hint="run `make setup`")
    return Path(spec.origin).parent / "jars"


def java_command(
    name: str,
    directory: Path,
    class_path: Sequence[Path | str],
    main: Sequence[str],
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Command:
    """Describe a JVM: `main` is the class and its arguments. Its directory is made, with one for temporary files."""
    (directory / "tmp").mkdir(parents=True, exist_ok=True)
    return Command(
        name=name,
        program=find_java(),
        arguments=(
            *JVM_FLAGS,
            f"-Djava.io.tmpdir={directory / 'tmp'}",
            *flags,
            "-cp",
            ":".join(map(str, class_path)),
            *main,
        ),
        directory=directory,
        environment=environment or {},
    )


def settings_text(settings: Mapping[str, object]) -> str:
    """Return a properties file; true and false are written as Java does."""
    return "".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in settings.items()
    )


class Server:
    """A server that can be killed, frozen and started again over the data that it left.

    Start it from the main thread. Every method may be called in any state; what is already so stays so.
    """

    def __init__(self, command: Command, clock: Clock) -> None:
        self.command = command
        self._clock = clock
        self._frozen = False
        self.child = ChildProcess(command, clock)

    @property
    def running(self) -> bool:
        """Whether its process exists, frozen or not."""
        return self.child.running

    @property
    def away(self) -> bool:
        """Whether it does not run, or is frozen."""
        return self._frozen or not self.running

    @property
    def log(self) -> str:
        """What it has said since its last start."""
        return self.command.log.read_text(errors="replace") if self.command.log.exists() else ""

    def launch(self) -> None:
        """Start a new process unless one runs, without waiting for it."""
        if not self.running:
            self.child = ChildProcess(self.command, self._clock)
            self._frozen = False
            self.child.start()

    async def kill(self) -> None:
        """End it by SIGKILL, as a crash does; returns when it is gone."""
        self._signal(signal.SIGKILL)
        if self.child.pid is not None:
            await self.child.wait()

    def freeze(self) -> None:
        """Stop it from running; returns when none of its threads does."""
        if self.running and self.child.pid is not None:
            freezing.freeze(self.child.pid, self._clock)
        self._frozen = True

    def thaw(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)
        self._frozen = False

    async def stop(self) -> None:
        """End it in order."""
        if self._frozen:
            self.thaw()
        await self.child.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self.child.pid is not None:
            os.kill(self.child.pid, number)
