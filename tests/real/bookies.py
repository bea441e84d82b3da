"""A BookKeeper cluster on loopback: a ZooKeeper and bookies, each a process of its own that can fail on its own.

Without fsync and with small caches: these bookies are for what a client sees, not for durability or speed.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient

from offloaderd.standalone.ports import LOOPBACK, ask, free_ports
from offloaderd.standalone.process import ServerDied
from offloaderd.standalone.zookeeper import zookeeper_jars
from tests.patience import PATIENCE_S
from tests.real.jars import server_jars
from tests.real.jvm import Server, java_command, settings_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from offloaderd.core.clock import Clock

LEDGERS_ROOT = "/ledgers"
REGISTER_S = 60.0
"""A bookie that is not registered then is started again."""
FINDS_OUT_S = 5.0
"""So long after ZooKeeper is back a bookie knows what became of its session."""
SESSION_MS = 2000
"""A bookie that was killed stays registered, and cannot come back, until its session of this length has ended."""

_READY = re.compile(r"ComponentStarter: Started component ({component=)?bookie-server\b")
"""As BookKeeper 4.17 says it, and 4.18."""
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How many bookies, of which jars, and settings of theirs beside ours (or instead of them)."""

    directory: Path
    bookies: int = 3
    jars: str = "bookkeeper"
    settings: Mapping[str, object] = field(default_factory=dict)


class ZooKeeper(Server):
    """The cluster's ZooKeeper, from PySpark's jars."""

    def __init__(self, directory: Path, port: int, clock: Clock) -> None:
        config = directory / "zoo.cfg"
        main = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        flags = ["-Xmx128m", "-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true"]
        super().__init__(java_command("zookeeper", directory, zookeeper_jars(), main, flags=flags), clock)
        settings = {
            "tickTime": 500,
            "dataDir": directory / "data",
            "clientPort": port,
            "clientPortAddress": LOOPBACK,
            "admin.enableServer": False,
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "srvr",
        }
        config.write_text(settings_text(settings))
        self._port = port

    async def start(self) -> None:
        """Start it unless it runs, and wait until it answers. Raises what ChildProcess.ready does."""

        async def answers() -> bool:
            return (await ask(self._port, b"srvr")).startswith(b"Zookeeper version")

        self.launch()
        await self.child.ready(answers, PATIENCE_S)


class Bookie(Server):
    """One bookie; its id is its address."""

    def __init__(
        self, name: str, port: int, directory: Path, settings: Mapping[str, object], clock: Clock, jars: str
    ) -> None:
        config = directory / "bookie.conf"
        main = ["org.apache.bookkeeper.server.Main", "--conf", str(config)]
        flags = ["-Xmx96m", "-XX:MaxDirectMemorySize=160m"]
        classes = [f"{server_jars(jars)}/*"]
        super().__init__(java_command(name, directory, classes, main, flags=flags), clock)
        config.write_text(settings_text(settings))
        self.config = config
        self.port = port
        self.bookie_id = f"{LOOPBACK}:{port}"

    async def ready(self) -> None:
        """Wait until it is registered and serves. Raises what ChildProcess.ready does."""

        async def said_so() -> bool:
            return _READY.search(self.log) is not None

        await self.child.ready(said_so, PATIENCE_S)

    async def start(self) -> None:
        """Start it unless it runs, and wait until it serves."""
        self.launch()
        await self.ready()

    async def restart(self) -> None:
        """End it in order and start it over its data."""
        await self.stop()
        await self.start()


class BookKeeperCluster:
    """The running servers. Use `bookkeeper_cluster` to make one."""

    def __init__(self, options: ClusterOptions, clock: Clock) -> None:
        zookeeper_port, *ports = free_ports(1 + options.bookies, clock)
        self._clock = clock
        self.zookeeper_server = ZooKeeper(options.directory / "zookeeper", zookeeper_port, clock)
        self.zookeeper = f"{LOOPBACK}:{zookeeper_port}"
        """host:port of ZooKeeper."""
        self.metadata_uri = f"zk+hierarchical://{self.zookeeper}{LEDGERS_ROOT}"
        """What BookKeeper's clients are configured with."""
        self.bookies: Sequence[Bookie] = tuple(self._bookie(options, number, port) for number, port in enumerate(ports))

    def bookie(self, bookie_id: str) -> Bookie:
        """Return the bookie of this id; raises StopIteration when there is none."""
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    @property
    def ids(self) -> list[str]:
        """Ids of all bookies, in order; on a busy machine one that runs may not be registered for a moment."""
        return sorted(bookie.bookie_id for bookie in self.bookies)

    @contextmanager
    def zookeeper_client(self) -> Iterator[Any]:
        """Give a kazoo client (blocking, untyped) for as long as the body runs."""
        with zookeeper_client(self.zookeeper) as client:
            yield client

    def available(self) -> set[str]:
        """Ids of the bookies that are registered as writable now."""
        with self.zookeeper_client() as client:
            return set(client.get_children(f"{LEDGERS_ROOT}/available")) - {"readonly"}

    async def heal(self) -> None:
        """Bring back everything that a test has ended or frozen: ZooKeeper first, then all bookies at once."""
        was_away = self.zookeeper_server.away
        self.zookeeper_server.thaw()
        await self.zookeeper_server.start()
        for bookie in self.bookies:
            bookie.thaw()
        if was_away:  # a bookie may end that finds its session over, and until then it is registered by it
            await self._clock.sleep(FINDS_OUT_S)
        for bookie in self.bookies:
            bookie.launch()
        for bookie in self.bookies:
            try:
                await bookie.ready()
            except ServerDied:  # it was frozen for longer than its session, and ends when it finds out
                await bookie.start()
        await self._registered()

    async def _registered(self) -> None:
        """Wait for the bookies that have to open a new session; one that does not is started again, once."""
        until = self._clock.monotonic() + REGISTER_S
        while missing := [bookie for bookie in self.bookies if bookie.bookie_id not in self.available()]:
            if self._clock.monotonic() < until:
                await self._clock.sleep(0.2)
                continue
            for bookie in missing:
                await bookie.restart()
            return

    async def format(self) -> None:
        """Make the nodes that bookies and clients expect: a new cluster, once."""
        await self.shell("initnewcluster")

    async def shell(self, *words: str) -> None:
        """Run a command of BookKeeper's own shell. Raises ServerDied when it fails."""
        first = self.bookies[0]
        directory = first.command.directory.with_name(f"shell-{words[0]}")
        main = ["org.apache.bookkeeper.bookie.BookieShell", "-conf", str(first.config), *words]
        command = java_command(words[0], directory, [f"{server_jars('bookkeeper')}/*"], main, flags=["-Xmx96m"])
        shell = Server(command, self._clock)
        shell.launch()
        try:
            async with asyncio.timeout(PATIENCE_S):
                code = await shell.child.wait()
        finally:
            await shell.stop()
        if code != 0:
            raise shell.child.death(code)

    async def stop(self) -> None:
        """Stop everything, bookies first."""
        async with asyncio.TaskGroup() as group:
            for bookie in self.bookies:
                group.create_task(bookie.stop())
        await self.zookeeper_server.stop()

    def _bookie(self, options: ClusterOptions, number: int, port: int) -> Bookie:
        name = f"bookie{number}"
        directory = options.directory / name
        settings: dict[str, object] = {
            "bookiePort": port,
            "metadataServiceUri": self.metadata_uri,
            "zkTimeout": SESSION_MS,
            "advertisedAddress": LOOPBACK,
            "listeningInterface": "lo",
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            **SMALL_BOOKIE,
            **options.settings,
        }
        return Bookie(name, port, directory, settings, self._clock, options.jars)


SMALL_BOOKIE: Mapping[str, object] = {
    "allowLoopback": True,
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": 32,
    "dbStorage_readAheadCacheMaxSizeMb": 16,
    "dbStorage_rocksDB_blockCacheSize": 8 * _MEBIBYTE,
    "journalSyncData": False,
    "journalPreAllocSizeMB": 1,
    "journalMaxSizeMB": 16,
    "journalWriteBufferSizeKB": 256,
    "entryLogFilePreallocationEnabled": False,
    "minUsableSizeForEntryLogCreation": _MEBIBYTE,
    "minUsableSizeForIndexFileCreation": _MEBIBYTE,
    "minUsableSizeForHighPriorityWrites": _MEBIBYTE,
    "numReadWorkerThreads": 2,
    "numAddWorkerThreads": 1,
    "numJournalCallbackThreads": 1,
    "numHighPriorityWorkerThreads": 1,
    "serverNumIOThreads": 2,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
    "httpServerEnabled": False,
    "autoRecoveryDaemonEnabled": False,
}
"""A bookie for a small machine with a well-filled disk; Pulsar's standalone has the same one inside."""


@contextmanager
def zookeeper_client(address: str) -> Iterator[Any]:
    """Give a kazoo client (blocking, untyped) for as long as the body runs."""
    client = KazooClient(address)
    client.start(timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@asynccontextmanager
async def bookkeeper_cluster(options: ClusterOptions, clock: Clock) -> AsyncIterator[BookKeeperCluster]:
    """Run a new cluster; all bookies are registered and serve when the body starts, and all is gone when it ends.

    Raises FetchFailed (no jars), InvalidConfig (no Java), ServerDied.
    """
    cluster = BookKeeperCluster(options, clock)
    try:
        await cluster.zookeeper_server.start()
        await cluster.format()
        await cluster.heal()
        yield cluster
    finally:
        await cluster.stop()
