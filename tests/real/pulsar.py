"""A real Pulsar standalone on loopback: broker, bookie and ZooKeeper in one JVM.

Every entry carries broker entry metadata (PIP-70). Its ZooKeeper listens on all interfaces: it has no setting for that.
The environment's PULSAR_VERSION may name another version than the usual.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offloaderd.standalone.ports import LOOPBACK, ask, free_ports, http_get
from tests.patience import PATIENCE_S
from tests.real.bookies import LEDGERS_ROOT, SMALL_BOOKIE
from tests.real.jars import broker_jars, server_jars
from tests.real.jvm import Server, java_command, settings_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from offloaderd.core.clock import Clock
    from offloaderd.standalone.process import Command

_INTERCEPTORS = ("AppendIndexMetadataInterceptor", "AppendBrokerTimestampMetadataInterceptor")
SMALL_BROKER: Mapping[str, object] = {
    "brokerEntryMetadataInterceptors": ",".join(f"org.apache.pulsar.common.intercept.{name}" for name in _INTERCEPTORS),
    "exposingBrokerEntryMetadataToClientEnabled": True,
    "brokerDeleteInactiveTopicsEnabled": False,
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerCacheSizeMB": 64,
    "managedLedgerNumWorkerThreads": 2,
    "managedLedgerNumSchedulerThreads": 2,
    "loadBalancerEnabled": False,
    "webSocketServiceEnabled": False,
    "functionsWorkerEnabled": False,
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "numOrderedExecutorThreads": 2,
    "numExecutorThreadPoolSize": 2,
    "numCacheExecutorThreadPoolSize": 2,
    "bookkeeperNumberOfChannelsPerBookie": 2,
    "metadataStoreBatchingMaxDelayMillis": 2,
}
"""A broker for a small machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOptions:
    """Where it keeps its data, broker settings beside ours (or instead of them), and which jars."""

    directory: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    jars: str = field(default_factory=broker_jars)


class Administered(Server):
    """A broker with an admin API on loopback, at the port `web`."""

    def __init__(self, command: Command, clock: Clock, web: int) -> None:
        super().__init__(command, clock)
        self.web = web

    @property
    def admin_url(self) -> str:
        """Where its admin API answers."""
        return f"http://{LOOPBACK}:{self.web}"

    async def start(self) -> None:
        """Start it unless it runs, and wait until topics can be made."""

        async def answers() -> bool:
            status, body = await http_get(self.web, "/admin/v2/namespaces/public")
            return status == 200 and b"public/default" in body

        self.launch()
        await self.child.ready(answers, PATIENCE_S)

    async def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """GET a path of the admin API, such as `persistent/public/default/t/internalStats`; None when it is not 200."""
        status, body = await http_get(self.web, f"/admin/v2/{path}", PATIENCE_S)
        return json.loads(body) if status == 200 else None

    async def put(self, path: str, body: object = None) -> int:
        """PUT JSON (or nothing) to a path of the admin API; returns the HTTP status, 0 when nobody answers."""
        return await self.send("PUT", path, body)

    async def send(self, method: str, path: str, body: object = None) -> int:
        """Call the admin API by another method than GET; returns the HTTP status, 0 when nobody answers."""
        text = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} /admin/v2/{path} HTTP/1.0\r\nHost: {LOOPBACK}:{self.web}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        words = (await ask(self.web, head.encode() + text, PATIENCE_S)).split(None, 2)
        return int(words[1]) if len(words) > 1 else 0


class PulsarServer(Administered):
    """The running standalone. Use `pulsar_standalone` to make one."""

    def __init__(self, options: PulsarOptions, clock: Clock) -> None:
        zookeeper, bookie, broker, web = free_ports(4, clock)
        self.zookeeper = f"{LOOPBACK}:{zookeeper}"
        """host:port of its ZooKeeper."""
        self.metadata_uri = f"zk+hierarchical://{self.zookeeper}{LEDGERS_ROOT}"
        """What BookKeeper's clients are configured with."""
        self.service_url = f"pulsar://{LOOPBACK}:{broker}"
        """What Pulsar's clients are configured with."""
        config = options.directory / "pulsar.conf"
        main = [
            *("org.apache.pulsar.PulsarStandaloneStarter", "--config", str(config), "--advertised-address", LOOPBACK),
            *("--zookeeper-port", str(zookeeper), "--zookeeper-dir", str(options.directory / "zookeeper")),
            *("--num-bookies", "1"),
            *(() if options.jars.startswith("pulsar-5") else ("--bookkeeper-port", str(bookie))),
            *("--bookkeeper-dir", str(options.directory / "bookie")),
            *("--no-functions-worker", "--no-stream-storage"),
        ]
        flags = ["-Xmx384m", "-XX:MaxDirectMemorySize=512m", "-Dzookeeper.forceSync=no"]
        flags.append("-Dzookeeper.4lw.commands.whitelist=srvr")
        environment = {"PULSAR_STANDALONE_USE_ZOOKEEPER": "1"}
        classes = [f"{server_jars(options.jars)}/*"]
        command = java_command("pulsar", options.directory, classes, main, flags=flags, environment=environment)
        super().__init__(command, clock, web)
        settings: dict[str, object] = {
            "clusterName": "standalone",
            "bindAddress": LOOPBACK,
            "advertisedAddress": LOOPBACK,
            "metadataStoreUrl": f"zk:{self.zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{self.zookeeper}",
            "brokerServicePort": broker,
            "webServicePort": web,
            "bookiePort": bookie,  # what 5.0, which has no such option, goes by
            "listeningInterface": "lo",
            **SMALL_BOOKIE,
            **SMALL_BROKER,
            **options.settings,
        }
        config.write_text(settings_text(settings))


@asynccontextmanager
async def pulsar_standalone(options: PulsarOptions, clock: Clock) -> AsyncIterator[PulsarServer]:
    """Run a Pulsar over a directory; topics can be made when the body starts, and it is gone when the body ends.

    Raises FetchFailed (no jars), InvalidConfig (no Java), ServerDied.
    """
    server = PulsarServer(options, clock)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
