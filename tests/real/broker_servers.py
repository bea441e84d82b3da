"""The servers of `broker_run`: three bookies, two brokers with both drivers, two daemons and an S3 server."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.clock import SystemClock
from offloaderd.drill.tcp_proxy import Listener
from offloaderd.standalone.ports import free_ports
from offloaderd.standalone.seaweed import PORT_COUNT, SeaweedOptions, seaweed
from tests.integration.processes import DaemonProcess, Site
from tests.real.bookies import ClusterOptions, bookkeeper_cluster
from tests.real.broker import COMPACTION_FACTORY, BrokerOptions, offloaders, pulsar_broker
from tests.real.driven import Driven
from tests.real.relay import relay
from tests.servers import S3Server, bucket_at

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Mapping, Sequence

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker

CLOCK = SystemClock()
NAMES = "broker-1", "broker-2"
OURS, THEIRS = "offloaderd", "S3"
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 1_000_000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "brokerServiceCompactionThresholdInBytes": 0,
    "compactionServiceFactoryClassName": COMPACTION_FACTORY,
}
CACHE_BYTES = 32 << 20
"""Of each daemon's blocks: less than any topic has, so that nothing is left of one read when the next one begins."""
COMPILED = "-XX:TieredStopAtLevel=4"
"""A JVM that compiles as it does by itself; the other tests' are quick to start instead."""


class FarStore(Listener):
    """The S3 server as from a distance: whatever is sent to it takes so long to get there, once `latency_s` is set."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(self._pass_on)
        self._target = endpoint
        self.latency_s = 0.0

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay(reader, writer, self._target, self._travel)

    async def _travel(self, _: int) -> None:
        if self.latency_s:
            await CLOCK.sleep(self.latency_s)


class Spent(NamedTuple):
    """CPU seconds that processes have used."""

    brokers: float
    daemons: float
    store: float

    def since(self, before: Spent) -> dict[str, float]:
        """Return what was used in between."""
        return {name: round(now - then, 2) for name, now, then in zip(self._fields, self, before, strict=True)}


@dataclass
class Servers:
    """All of them; can kill a broker or a daemon and bring it back."""

    stack: AsyncExitStack
    cluster: BookKeeperCluster
    store: S3Server
    store_pid: int
    far: FarStore
    bucket: str
    sites: list[Site]
    daemons: list[DaemonProcess]
    brokers: Sequence[PulsarBroker]

    @property
    def url(self) -> str:
        """Where clients find any of the brokers."""
        return "pulsar://" + ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers)

    @property
    def secrets(self) -> Mapping[str, str]:
        """What Pulsar's own driver reads from its environment."""
        return {"ACCESS_KEY_ID": self.store.access_key, "ACCESS_KEY_SECRET": self.store.secret_key}

    def policies(self, driver: str) -> dict[str, object]:
        """Return what a namespace says to have a driver, beside what `Driven.offload` says for ours."""
        if driver == OURS:
            return {}
        return {
            "managedLedgerOffloadDriver": driver,
            "managedLedgerOffloadBucket": self.bucket,
            "managedLedgerOffloadServiceEndpoint": self.store.endpoint,
            "managedLedgerOffloadMaxBlockSizeInBytes": 64 << 20,
            "managedLedgerExtraConfigurations": {},
        }

    async def driven(self, driver: str) -> Driven:
        """Make a namespace that offloads by a driver; its topic streams before anything is written, if it is ours."""
        driven = Driven(self.brokers[0], self.cluster, self.daemons[0].address, others=self.brokers[1:])
        await driven.create()
        await driven.offload(**self.policies(driver))
        if driver == OURS:
            async with self.daemons[0].client() as client:
                await client.enable(driven.topic)
        return driven

    def spent(self) -> Spent:
        """Return what they have used so far; a daemon that was replaced has taken its own with it."""
        return Spent(
            sum(cpu_s(broker.child.pid) for broker in self.brokers),
            sum(cpu_s(daemon.process.pid) for daemon in self.daemons),
            cpu_s(self.store_pid),
        )

    async def kill_a_daemon(self) -> None:
        """The first daemon dies in the middle of something, and comes back at its address."""
        await CLOCK.sleep(3)
        old = self.daemons[0]
        old.signal(signal.SIGKILL)
        await old.ended()
        self.daemons[0] = new = DaemonProcess(self.sites[0])
        new.grpc_port, new.http_port = old.grpc_port, old.http_port
        await self.stack.enter_async_context(new)
        await new.serving()

    async def kill_a_broker(self) -> None:
        """The first broker, which has the topic, dies and comes back."""
        await self.brokers[0].kill()
        await self.brokers[0].start()


def cpu_s(pid: int | None) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def broker_servers(
    directory: Path, *, ledger_mib: int, is_far: bool, flags: Sequence[str] = ()
) -> AsyncIterator[Servers]:
    """Run them all below a directory, the store behind a proxy if it is to be far; `flags` are of the brokers' JVMs.

    Raises what each of them raises.
    """
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            bookkeeper_cluster(ClusterOptions(directory=directory / "cluster"), CLOCK)
        )
        master, volume, filer, s3 = free_ports(PORT_COUNT, CLOCK, grpc=True)
        options = SeaweedOptions(
            directory=directory / "seaweed", ports=(master, volume, filer, s3), access_key="a" * 20, secret_key="s" * 40
        )
        seaweeds = await stack.enter_async_context(seaweed(options, CLOCK))
        store = S3Server(seaweeds.endpoint, options.access_key, options.secret_key)
        bucket = stack.enter_context(bucket_at(store))
        far = await stack.enter_async_context(FarStore(store.endpoint))
        if is_far:
            store = store._replace(endpoint=far.endpoint)
        servers = Servers(stack, cluster, store, seaweeds.child.pid or 0, far, bucket, [], [], [])
        for name in NAMES:
            offloaders(directory / name)
        servers.brokers = [
            await stack.enter_async_context(
                pulsar_broker(
                    BrokerOptions(
                        directory=directory / name,
                        cluster=cluster,
                        name=name,
                        settings={**SETTINGS, "managedLedgerMaxSizePerLedgerMbytes": ledger_mib},
                        environment=servers.secrets,
                        flags=[COMPILED, *flags],
                    ),
                    CLOCK,
                )
            )
            for name in NAMES
        ]
        for name in ("one", "two"):
            site = Site.at(directory, cluster.zookeeper, store, bucket)
            site.cluster, site.daemon_id = "loop", name
            site.settings["ledgers"] = {"kind": "bookkeeper"}
            site.settings["memory"] = {"cache_bytes": CACHE_BYTES}
            servers.sites.append(site)
            servers.daemons.append(await stack.enter_async_context(DaemonProcess(site)))
            await servers.daemons[-1].serving()
        yield servers
