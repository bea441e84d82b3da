"""Pulsar brokers on a BookKeeper cluster, each a process of its own, with our LedgerOffloader and Pulsar's own.

The environment's PULSAR_VERSION may name another version than that of the other tests.

    async with pulsar_broker(BrokerOptions(directory=..., cluster=cluster), clock) as broker: ...

`built_driver` has Maven build and test ours (deploy/pulsar-offloader) once for a state of its sources; what comes of
it is kept beside the servers' jars. Pulsar's own, which is no archive in its registry, is put together from its jars.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.standalone.ports import LOOPBACK, free_ports
from offloaderd.standalone.process import ServerDied
from tests.patience import PATIENCE_S
from tests.real.jars import BUILD_S, broker_jars, cache_directory, server_jars
from tests.real.jvm import java_command, settings_text
from tests.real.pulsar import SMALL_BROKER, Administered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from offloaderd.core.clock import Clock
    from tests.real.bookies import BookKeeperCluster

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "deploy" / "pulsar-offloader"
PROTOS = ROOT / "protos" / "offloaderd" / "v1"
CLUSTER = "tests"
STOCK_DRIVER = """name: jcloud
description: Pulsar's own
offloaderFactoryClass: org.apache.bookkeeper.mledger.offload.jcloud.JCloudLedgerOffloaderFactory
"""


class CannotBuild(Exception):
    """The driver cannot be built here: Maven or a JDK is missing, or Maven failed."""


def missing_tools() -> str:
    """Say what building the driver lacks; empty: nothing."""
    lacking = [name for name in ("mvn", "javac") if shutil.which(name) is None]
    return f"building the broker's driver needs Maven and a JDK: no {' and no '.join(lacking)}" if lacking else ""


ARCHIVE, COMPACTION = "offloaderd.nar", "compaction.jar"
COMPACTION_FACTORY = "offloaderd.pulsar.compaction.TieredCompactionFactory"


def built_driver() -> Path:
    """Return the folder of our driver's archive and of the jar for compacted topics, built and tested once.

    Raises CannotBuild.
    """
    sources = [path for path in sorted(SOURCES.rglob("*")) if path.is_file() and "target" not in path.parts]
    digest = hashlib.sha256()
    for path in [*sources, *sorted(PROTOS.glob("*.proto"))]:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    kept = cache_directory() / f"offloaderd-driver-{digest.hexdigest()[:12]}"
    if kept.exists():
        return kept
    if lacking := missing_tools():
        raise CannotBuild(lacking)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".driver-", dir=kept.parent) as draft:
        home = Path(draft, SOURCES.relative_to(ROOT))
        shutil.copytree(SOURCES, home, ignore=shutil.ignore_patterns("target"))
        shutil.copytree(PROTOS, Path(draft, PROTOS.relative_to(ROOT)))
        command = ["mvn", "-q", "-B", "-ntp", "package"]
        try:
            done = subprocess.run(
                command,
                cwd=home,
                capture_output=True,
                text=True,
                timeout=BUILD_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"Maven did not build the broker's driver in {BUILD_S:g} s") from None
        if done.returncode:
            raise CannotBuild(f"Maven could not build the broker's driver:\n{(done.stdout + done.stderr)[-3000:]}")
        both = Path(draft, "built")
        both.mkdir()
        next((home / "nar" / "target").glob("*.nar")).rename(both / ARCHIVE)
        next((home / "compaction" / "target").glob("*.jar")).rename(both / COMPACTION)
        both.rename(kept)
    return kept


def offloaders(home: Path, jars: str | None = None) -> None:
    """Put both drivers and the jar for compacted topics into the directory of a broker of these jars.

    Raises CannotBuild, FetchFailed.
    """
    directory, library = home / "offloaders", home / "lib"
    directory.mkdir(parents=True, exist_ok=True)
    library.mkdir(exist_ok=True)
    built = built_driver()
    shutil.copy(built / ARCHIVE, directory)
    shutil.copy(built / COMPACTION, library)
    known = {path.name for path in server_jars(jars or broker_jars()).iterdir()}
    with zipfile.ZipFile(directory / "stock.nar", "w") as archive:
        archive.writestr("META-INF/services/pulsar-offloader.yaml", STOCK_DRIVER)
        for jar in server_jars("offloader").glob("*.jar"):
            if jar.name not in known:
                archive.write(jar, f"META-INF/bundled-dependencies/{jar.name}")


LEADER_GONE = "NoNode for /loadbalance/leader"
"""What a broker says that cannot start since the session of one that was killed has just ended; the next start can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Where it keeps its files, and on which cluster; more settings, variables and flags of the JVM; which jars.

    Its drivers have to be in `offloaders` below its directory: a namespace's policies say `./offloaders`, always. Jars
    in `lib` are on its class path.
    """

    directory: Path
    cluster: BookKeeperCluster
    name: str = "broker"
    settings: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    jars: str = field(default_factory=broker_jars)


class PulsarBroker(Administered):
    """The running broker. Use `pulsar_broker` to make one."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        broker, web = free_ports(2, clock)
        self.service_url = f"pulsar://{LOOPBACK}:{broker}"
        """What Pulsar's clients are configured with."""
        config = options.directory / f"{options.name}.conf"
        main = ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(config)]
        flags = [
            "-Xmx384m",
            "-XX:MaxDirectMemorySize=384m",
            "-Dpulsar.extra.offload.drivers=offloaderd",
            "-Doffloaderd.NamespaceAddresses=true",  # each test has daemons of its own
            *options.flags,
        ]
        classes = [f"{server_jars(options.jars)}/*", f"{options.directory}/lib/*"]
        command = java_command(
            options.name, options.directory, classes, main, flags=flags, environment=options.environment
        )
        super().__init__(command, clock, web)
        settings: dict[str, object] = {
            "clusterName": CLUSTER,
            "bindAddress": LOOPBACK,
            "advertisedAddress": LOOPBACK,
            "metadataStoreUrl": f"zk:{options.cluster.zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{options.cluster.zookeeper}",
            "metadataStoreSessionTimeoutMillis": 10_000,
            "brokerServicePort": broker,
            "webServicePort": web,
            **SMALL_BROKER,
            "managedLedgerDefaultEnsembleSize": 2,
            "managedLedgerDefaultWriteQuorum": 2,
            "managedLedgerDefaultAckQuorum": 2,
            "offloadersDirectory": "./offloaders",
            "narExtractionDirectory": options.directory / "tmp",
            "retentionCheckIntervalInSeconds": 1,
            "triggerOffloadOnTopicLoad": True,
            **options.settings,
        }
        config.write_text(settings_text(settings))

    async def start(self) -> None:
        """Start it unless it runs, and wait until topics can be made, on a cluster that knows itself."""

        async def answers() -> bool:
            return await self.get("clusters") is not None

        self.launch()
        try:
            await self.child.ready(answers, PATIENCE_S)
        except ServerDied:
            if LEADER_GONE not in self.log:
                raise
            self.launch()
            await self.child.ready(answers, PATIENCE_S)
        if CLUSTER not in (await self.get("clusters") or []):
            await self.put(f"clusters/{CLUSTER}", {"serviceUrl": self.admin_url, "brokerServiceUrl": self.service_url})
            await self.put("tenants/public", {"allowedClusters": [CLUSTER]})
            await self.put("namespaces/public/default")
        await super().start()


@asynccontextmanager
async def pulsar_broker(options: BrokerOptions, clock: Clock) -> AsyncIterator[PulsarBroker]:
    """Run a broker; topics can be made when the body starts, and it is gone when the body ends.

    Raises FetchFailed (no jars), InvalidConfig (no Java), ServerDied.
    """
    broker = PulsarBroker(options, clock)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
