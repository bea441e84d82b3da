"""The metadata store and the ledger source that the settings name, for the daemon, for commands and for jobs; probes of
all stores. The bucket is opened by `bucket_store` of the package objects.

The cluster's ZooKeeper is reached by a session of its own from its root, which nothing here can write with: the source
and the bookies are handed the reading half alone. Only the embedded store can be written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import KW_ONLY, dataclass
from functools import partial
from types import MappingProxyType

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.rate_limits import Limits
from offloaderd.capture.cluster import PulsarMetadata
from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.health import Health
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Retained
from offloaderd.daemon.settings import Settings
from offloaderd.ledgers.book import RollLimits
from offloaderd.ledgers.embedded.store import EmbeddedLedgers
from offloaderd.ledgers.port import (
    BrokerOffloads,
    LedgerDescriber,
    LedgerOrigin,
    LedgerRegister,
    LedgerSource,
    LedgerStore,
)
from offloaderd.ledgers.pulsar.admin import PulsarAdmin
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.port import MetadataStore, SessionObserver
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.kinds import broker_drivers
from offloaderd.objects.port import SegmentStore
from offloaderd.upkeep.stored import Site


def metadata_store(settings: Settings, observer: SessionObserver = lambda _: None) -> ZooKeeperStore:
    """Return the metadata store; entering it raises Transient when no server answers.

    `observer` is called for every change of the state of the session.
    """
    options = settings.metadata
    return ZooKeeperStore(options.servers, f"{options.root}/{settings.daemon.cluster}", options, observer=observer)


def sites(settings: Settings) -> list[Site]:
    """Return the places of this deployment; the places in committed segments have to agree with them."""
    cluster, places = settings.daemon.cluster, settings.objects.all_places
    return [
        Site(
            cluster=cluster,
            bucket=one.bucket,
            prefix=one.prefix,
            broker_driver=broker_drivers(one.driver["driver"])[0],
        )
        for one in places
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """The ledger source: none (all fields None), a cluster, or a store that clients may append to.

    `origin` identifies the source. `probe` is a small request that raises what the source would. `register` lists the
    ledgers that were not deleted at the source; the embedded store deletes only what this daemon deletes. `describer`
    returns what BookKeeper records of a ledger, `retained` the retention of Pulsar for a tenant and namespace, `limits`
    bounds the reads from bookies. `pulsar` reads what else Pulsar keeps of topics.
    """

    source: LedgerSource | None = None
    origin: LedgerOrigin | None = None
    store: LedgerStore | None = None
    probe: Callable[[], Awaitable[object]] | None = None
    register: LedgerRegister | None = None
    describer: LedgerDescriber | None = None
    offloads: BrokerOffloads | None = None
    retained: Callable[[str, str], Awaitable[Retained]] | None = None
    limits: Limits | None = None
    pulsar: PulsarMetadata | None = None


async def open_ledgers(stack: AsyncExitStack, settings: Settings, *, clock: Clock, metrics: Metrics) -> Ledgers:
    """Open what ledgers.kind names; it is closed with `stack`, and at once when this fails half-way.

    Raises Transient while the cluster cannot be reached, Denied, and InvalidConfig for settings that cannot work.
    """
    if settings.ledgers.kind == "none":
        return Ledgers()
    async with AsyncExitStack() as opening:
        if settings.ledgers.kind == "embedded":
            store = await opening.enter_async_context(_embedded(settings, clock))
            found = Ledgers(source=store, origin=store, store=store, describer=store, probe=store.probe)
        else:
            found = await _open_cluster(opening, settings, clock=clock, metrics=metrics)
        stack.push_async_exit(opening.pop_all())
    return found


def _embedded(settings: Settings, clock: Clock) -> EmbeddedLedgers:
    options = settings.ledgers
    limits = RollLimits(
        entries_max=options.ledger_entries_max, bytes_max=options.ledger_bytes_max, age_max_s=options.ledger_age_max_s
    )
    return EmbeddedLedgers(options.directory, clock=clock, limits=limits)


async def _open_cluster(opening: AsyncExitStack, settings: Settings, *, clock: Clock, metrics: Metrics) -> Ledgers:
    servers = settings.cluster_servers
    znodes = await opening.enter_async_context(ZooKeeperStore(servers, "/", settings.metadata))

    async def probe() -> None:
        await znodes.get(settings.bookkeeper.ledgers_root)
        await znodes.children(settings.bookkeeper.managed_ledgers_root)  # not there before the first topic is made

    try:
        await probe()
    except NotFound as error:
        raise Transient(
            f"no BookKeeper cluster in the ZooKeeper at {servers}: {error.message}",
            hint="correct bookkeeper.servers and ledgers_root, or initialise the cluster",
        ) from error
    bookies = await opening.enter_async_context(
        BookiePool(znodes, clock=clock, metrics=metrics, options=settings.bookkeeper)
    )
    admin = None
    if settings.pulsar.admin_url is not None:
        admin = await opening.enter_async_context(PulsarAdmin(settings.pulsar.admin_url, settings.pulsar))
    source = await opening.enter_async_context(
        BookKeeperLedgers(
            znodes,
            bookies,
            clock=clock,
            metrics=metrics,
            options=settings.bookkeeper,
            admin=admin,
            quiet_s=settings.pulsar.admin_quiet_s,
        )
    )
    return Ledgers(
        source=source,
        origin=source,
        probe=probe,
        register=source,
        offloads=source,
        describer=source,
        retained=admin.retained if admin is not None else None,
        limits=source.limits,
        pulsar=PulsarMetadata(znodes, source.internal, lists_root=settings.bookkeeper.managed_ledgers_root),
    )


PROBE_S = 3.0
"""Pause between two probes of a dependency."""
ANSWERS_S = 5.0
"""Longest time for an answer before the dependency counts as down."""


@dataclass(frozen=True, slots=True)
class Prober:
    """Probes each dependency in a task of its own; reports each to `health`, and services to `probed` as well.

    A failure is reported within PROBE_S and ANSWERS_S, whatever the other dependencies do. `refused` returns why a
    service refuses writes although it answers; empty: no reason is known. `probed` gets None for one that answers.
    Services have the names of their tables in the settings.
    """

    health: Health
    clock: Clock
    _: KW_ONLY
    probed: Callable[[str, OffloaderError | None], None]
    refused: Callable[[str], str]

    async def run(
        self,
        metadata: MetadataStore | None,
        objects: SegmentStore,
        ledgers: Ledgers,
        services: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Probe until cancelled; `services` are the further ones of `objects`, each with one of its buckets."""
        probes: dict[str, Callable[[], Awaitable[object]]] = {"objects": lambda: reach(objects)}
        if metadata is not None:
            probes["metadata"] = lambda: metadata.children("/")
        if ledgers.probe is not None:
            probes["ledgers"] = ledgers.probe
        for section, bucket in services.items():
            probes[section] = partial(reach, objects.at(bucket))
        async with Group() as group:
            for name, probe in probes.items():
                group.create_task(self._probe(name, probe), name=f"probe of {name}")

    async def _probe(self, name: str, probe: Callable[[], Awaitable[object]]) -> None:
        while True:
            error = await self._request(name, probe())
            if _is_service(name):
                self.probed(name, error)
            await self.clock.sleep(PROBE_S)

    async def _request(self, name: str, request: Awaitable[object]) -> OffloaderError | None:
        """Await a request to a dependency and report the result to health; returns the error."""
        try:
            async with asyncio.timeout(ANSWERS_S):
                await request
        except TimeoutError:
            silent = Transient(f"no answer within {ANSWERS_S:g} s")
            self.health.down(name, str(silent))
            return silent
        except OffloaderError as error:
            self.health.down(name, str(error))
            return error
        if _is_service(name) and (why := self.refused(name)):
            self.health.down(name, why)
        else:
            self.health.up(name)
        return None


def _is_service(name: str) -> bool:
    """Whether a dependency is a service where segments are stored."""
    return name.partition(".")[0] == "objects"


async def reach(objects: SegmentStore) -> None:
    """List a prefix of the bucket that has no objects."""
    async with aclosing(objects.list("offloaderd-probe/")) as found:
        async for _ in found:
            return
