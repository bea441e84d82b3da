"""A real ZooKeeper from PySpark's jars, on loopback, with a directory that outlives it."""

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig
from offloaderd.spark.java import find_java
from offloaderd.standalone.ports import LOOPBACK, ask, require_free
from offloaderd.standalone.process import ChildProcess, Command
from offloaderd.standalone.state import directory_error, prepare_directory

START_DEADLINE_S = 60.0
_MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JARS = (
    *("zookeeper", "netty", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "metrics-core"),
    *("audience-annotations", "snappy-java", "commons-io", "commons-cli", "jackson"),
)
# Quick to start and small: serial collector, first compiler only. The log is allocated in steps of 4 MiB, not 64.
_JVM_FLAGS = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=4096",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """Directory, port and limits. `tick_ms` bounds sessions: they last at least two ticks.

    `settings` are further lines of zoo.cfg, for TLS and users.
    """

    directory: Path
    port: int
    tick_ms: int = 500
    session_timeout_max_s: int = 120
    connections_max: int = 200
    settings: tuple[tuple[str, str], ...] = ()
    jvm_flags: tuple[str, ...] = ()


def zookeeper_jars() -> list[Path]:
    """Return the jars of the server. Raises InvalidConfig when PySpark, or its ZooKeeper, is missing."""
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else None
    jars = [jar for name in _JARS for jar in sorted(folder.glob(f"{name}-*.jar"))] if folder else []
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise InvalidConfig(
            f"no ZooKeeper among the jars of PySpark ({folder or 'PySpark is not installed'})",
            hint="pip install 'offloaderd[standalone]'",
        )
    return jars


class ZooKeeperServer:
    """One running server."""

    def __init__(self, options: ZooKeeperOptions, child: ChildProcess) -> None:
        self.child = child
        self.address = f"{LOOPBACK}:{options.port}"


@asynccontextmanager
async def zookeeper(options: ZooKeeperOptions, clock: Clock) -> AsyncIterator[ZooKeeperServer]:
    """Run ZooKeeper; it answers when the body starts and has ended when the context ends. The data stays.

    Raises InvalidConfig (no Java, no jars, port in use), NoSpace and Denied (directory), ServerDied.
    """
    command = _command(options)
    async with ChildProcess(command, clock) as child:

        async def answers() -> bool:
            return (await ask(options.port, b"srvr")).startswith(b"Zookeeper version")

        await child.ready(answers, START_DEADLINE_S)
        yield ZooKeeperServer(options, child)


def _command(options: ZooKeeperOptions) -> Command:
    """Check the preconditions of the start, write zoo.cfg, and return the command."""
    jars = zookeeper_jars()
    java = find_java()
    directory = options.directory.absolute()
    prepare_directory(directory)
    require_free([options.port], "ZooKeeper")
    config = directory / "zoo.cfg"
    try:
        config.write_text(_config(options, directory), encoding="utf-8")
    except OSError as error:
        raise directory_error(error, directory) from error
    class_path = ":".join(map(str, jars))
    return Command(
        name="ZooKeeper",
        program=java,
        arguments=(*_JVM_FLAGS, *options.jvm_flags, "-cp", class_path, _MAIN_CLASS, str(config)),
        directory=directory,
    )


def _config(options: ZooKeeperOptions, directory: Path) -> str:
    """Return zoo.cfg; a backslash would be an escape in it."""
    settings = {
        "tickTime": options.tick_ms,
        "dataDir": str(directory / "data").replace("\\", "\\\\"),
        "clientPort": options.port,
        "clientPortAddress": LOOPBACK,
        "admin.enableServer": "false",
        "maxClientCnxns": options.connections_max,
        "minSessionTimeout": 2 * options.tick_ms,
        "maxSessionTimeout": 1000 * options.session_timeout_max_s,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        "4lw.commands.whitelist": "srvr",
        **dict(options.settings),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
