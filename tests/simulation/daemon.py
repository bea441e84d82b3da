"""One simulated daemon: the real engine and the real reader on simulated stores, as daemon.py puts them together."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING
from uuid import UUID

from offloaderd.core.aio import race
from offloaderd.core.errors import Conflict, IdentityRefused, OffloaderError, first_of
from offloaderd.core.limits import ByteBudget, Pace
from offloaderd.core.quotas import Accounts
from offloaderd.core.retry import until_answered
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.fleet.registration import Registration
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.format.head import PlaceMarker
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.metadata import paths
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.records.copy import SeenRemovals
from offloaderd.metadata.records.identity import Deployment
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.objects import marker
from offloaderd.objects.places import Place, Places
from offloaderd.policy.policies import Level, Origin
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.segment.builder import WholeLedgers
from offloaderd.segment.upload import ServiceContext, UploadContext, UploadLimits
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.idle import IdleOptions
from offloaderd.topic.outage import TopicContext
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.gc.findings import Finding, Kind, Summary
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.mirror import Mirror
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GcSettings, GrantSettings, MirrorSettings, RetentionSettings, ScrubSettings
from offloaderd.upkeep.verify.scrub import Scrubber
from tests.simulation.bookies import Source
from tests.simulation.bucket import FAR, BucketClient
from tests.simulation.loop import Process
from tests.simulation.old_release import OldBucket, OldSource, OldZooKeeper
from tests.simulation.tailing import BookKeeper, OldBookKeeper
from tests.simulation.zookeeper import SESSION_TIMEOUT_S, ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.core.clock import Timer
    from offloaderd.fleet.supervisor import Duty
    from tests.simulation.world import World
    from tests.simulation.zookeeper import Tree

CLUSTER = "simulated"
DEPLOYMENT, ANOTHER_DEPLOYMENT = UUID(int=1), UUID(int=2)
PROBE_S = 5.0
IMPAIRED_S = 8.0
PLACEMENT = PlacementSettings(settle_s=2.0, grace_s=3.0, handovers_max=2, handover_s=10.0, cooldown_s=20.0)


class SimClock:
    """The clock of one process: the loop's time, a wall clock that may be wrong, chance from the seed."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._rng = world.chance.stream(f"clock of {name}")
        self.offset_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as this machine believes."""
        return self._world.wall_ms() + self.offset_ms

    def monotonic(self) -> float:
        """Seconds of the loop."""
        return self._world.loop.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await asyncio.sleep(seconds)  # noqa: TID251 - the loop's time is the simulation's

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call something by the loop."""
        return asyncio.get_running_loop().call_later(seconds, call)

    def uuid(self) -> uuid.UUID:
        """Return the next id of the seed."""
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

    def jitter(self, seconds: float) -> float:
        """Return the next duration of the seed."""
        return self._rng.uniform(seconds / 2, seconds)


class SimDaemon:
    """A daemon under one id, through all its runs; with a tree of its own it is another deployment's."""

    engine: Engine

    def __init__(self, world: World, name: str, *, tree: Tree | None = None) -> None:
        self.name = name
        self.old = tree is None and world.faults.upgrade
        """Whether it is of a release without ids from its next start on."""
        self.runs = 0
        self._tree = tree
        self._deployment = ANOTHER_DEPLOYMENT if tree is not None else DEPLOYMENT
        self._world = world
        self.process: Process | None = None
        self.offset_ms = 0
        self.misled = ""
        """What its source reads instead of the topics' own ledgers, from its next start on."""
        self._dead: list[Process] = []
        self.finds: list[str] = []
        """What was found by the collections that it was asked for."""

    @property
    def zookeepers(self) -> list[ZooKeeper]:
        """Its connections to ZooKeeper, while it lives."""
        if self.process is None:
            return []
        return [self.zookeeper, *([self.source.znodes] if isinstance(self.source, BookKeeper) else [])]

    @property
    def up(self) -> bool:
        """Whether it runs at the moment."""
        return self.process is not None and self.process.runs()

    def _connect(self, world: World, process: Process) -> None:
        """Give the process its stores, as its release sees them."""
        self._has_ids = not self.old
        self.zookeeper = (OldZooKeeper if self.old else ZooKeeper)(world, process, self._tree)
        self.source: Source | BookKeeper
        if world.cluster is not None:
            kind = OldBookKeeper if self.old else BookKeeper
            self.source = kind(world, process, world.cluster, self.clock)
        else:
            self.source = (OldSource if self.old else Source)(world, process, self.misled)
        self.bucket = (OldBucket if self.old else BucketClient)(world, process)

    def start(self) -> None:
        """Start the process."""
        world, options = self._world, self._world.options
        self.runs += 1
        process = self.process = Process(world.loop, f"{self.name}{self.runs}")
        self.clock = SimClock(world, f"{self.name}/{self.runs}")
        self.clock.offset_ms = self.offset_ms
        self._connect(world, process)
        upload_context = UploadContext(
            objects=self.bucket,
            budget=ByteBudget(options.upload_bytes),
            limits=UploadLimits(parts_in_flight_max=options.parts_in_flight_max, readback=options.readback),
            clock=self.clock,
            metrics=world.metrics,
            pace=Pace(4),
            further={FAR: ServiceContext(Pace(4))} if options.apart == "service" else {},
        )
        source = None if options.push == "only" else self.source
        said = {"kind": "bookkeeper", "cluster": CLUSTER, "daemon_id": self.name}
        self.known = KnownSource(self.zookeeper, self.source, self.source, clock=self.clock, **said)
        context = TopicContext(
            metadata=self.zookeeper,
            source=source,
            known_source=self.known if source is not None and self._has_ids else None,
            deployment_id=str(self._deployment) if self._has_ids else "",
            upload_context=upload_context,
            pool=BufferPool(options.buffer_bytes),
            accounts=Accounts(self.clock, world.metrics),
            layout=options.layout,
            cluster=CLUSTER,
            places=self._places(),
            ledgers=WholeLedgers(
                describer=self.source,
                block_bytes=3 * options.layout.block_bytes,
                part_bytes=options.layout.part_bytes,
                run_bytes=options.layout.block_bytes,
            ),
            chunk_bytes=options.layout.block_bytes // 6,
            removals=SeenRemovals(100.0),
        )
        book = PolicyResolver(self.zookeeper, [Level(Origin.SETTINGS, options.policies)])
        self.retention = Retention(context, source, RetentionSettings(follow_lag_s=2.0, interval_s=2.0), book)
        self.engine = Engine(
            context,
            book,
            placement=PLACEMENT,
            duties=self._duties(context, book),
            sleep=IdleOptions(after_s=options.sleep_s, again_s=options.again_s),
        )
        node = DaemonNode(daemon_id=self.name, address=f"{self.name}:1", version="0", started_ms=self.clock.wall_ms())
        self.registration = Registration(
            self.zookeeper,
            node,
            clock=self.clock,
            patience_s=SESSION_TIMEOUT_S * 3,
            changed=self.engine.placement.become,
        )
        self.reader = TopicReader(
            maps=self.engine,
            policies=book,
            objects=self.bucket,
            source=source,
            hot=HotBuffers(self.engine),
            clock=self.clock,
            metrics=world.metrics,
            options=ReadOptions(batch_bytes=500),
        )
        self.collector = Collector(self.bucket, self.zookeeper, world.sites, clock=self.clock, metrics=world.metrics)
        self.main = process.start(self._main(process), name=f"main of {self.name}")
        world.trace(self.name, "started")

    def _places(self) -> Places:
        """Return the places; those of another service have another endpoint."""
        options = self._world.options
        endpoints = {FAR: "far:1"} if options.apart == "service" else {}
        drivers = (
            {"driver": "s3", "bucket": bucket, "prefix": prefix, "endpoint": endpoints.get(bucket, "near:1")}
            for bucket, prefix in options.places
        )
        return Places(*(Place(driver=driver) for driver in drivers))

    def _duties(self, context: TopicContext, book: PolicyResolver) -> dict[str, Duty]:
        """Return what daemon.py has a daemon do beside offloading."""
        options = self._world.options
        store = self.source if isinstance(self.source, Source) and options.retention == "granted" else None
        grants = Grants(
            context,
            store,
            GrantSettings(enabled=options.grants, readback=options.readback, interval_s=2.0),
            book,
            daemon_id=self.name,
        )
        scrubber = Scrubber(
            self.bucket,
            self.zookeeper,
            self._world.sites,
            ScrubSettings.model_construct(
                interval_s=5.0, first_after_s=1.0, bytes_per_s=100_000, enabled=options.scrub
            ),
            budget=ByteBudget(5000),
            clock=self.clock,
            metrics=self._world.metrics,
        )
        mirror = Mirror(context, MirrorSettings(), again_s=100.0)
        beside = {"mirror": mirror.run} if options.mirror and not self.old else {}
        return {"retention": self.retention.run, "grants": grants.run, "scrub": scrubber.run, **beside}

    def crash(self) -> None:
        """Kill the process."""
        if self.process is None or not self.process.alive:
            return
        self._world.trace(self.name, "killed")
        self._bury()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        if self.up and self.process is not None:
            self._world.trace(self.name, "stopped")
            self.process.stop()
            for zookeeper in self.zookeepers:
                zookeeper.process_stopped()

    def resume(self) -> None:
        """Continue a stopped process."""
        if self.process is not None and self.process.alive and self.process.stopped:
            self._world.trace(self.name, "goes on")
            for zookeeper in self.zookeepers:
                zookeeper.process_goes_on()
            self.process.resume()

    def expire(self) -> None:
        """Have the servers end its sessions."""
        for zookeeper in self.zookeepers:
            zookeeper.expire()

    def cut_zookeeper(self) -> None:
        """Cut its lines to ZooKeeper."""
        for zookeeper in self.zookeepers:
            zookeeper.cut()

    async def drain(self) -> None:
        """End it as SIGTERM does; within a time."""
        process = self.process
        if process is None or not self.up:
            return
        self._world.trace(self.name, "drains")
        process.start(self._drain(), name=f"drain {self.name}")
        deadline = self._world.loop.time() + 30.0
        while process.alive and not self.main.done() and self._world.loop.time() < deadline:
            await asyncio.sleep(0.1)  # noqa: TID251 - the loop's own time
        if process is self.process and process.alive:
            self._world.trace(self.name, "ended" if self.main.done() else "cut short")
            if self.main.done():
                for zookeeper in self.zookeepers:
                    zookeeper.close()
            self._bury()

    def reap(self) -> None:
        """Cancel what killed processes left."""
        for process in self._dead:
            process.reap()

    def tasks(self) -> list[asyncio.Task[object]]:
        """Return what killed processes still have."""
        return [task for process in self._dead for task in process.tasks if not task.done()]

    def _bury(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.zookeeper.gone()
        self.source.gone()
        self._dead.append(self.process)
        self.process = None

    async def _main(self, process: Process) -> None:
        try:
            async with AsyncExitStack() as stack:
                if isinstance(self.source, BookKeeper):
                    await stack.enter_async_context(self.source)
                await self._serve()
        except asyncio.CancelledError:
            raise
        except BaseExceptionGroup as errors:
            if process.alive:
                self._world.oracle.fail("run", f"{self.name} ended: {first_of(errors)!r}")
                raise
        except Exception as error:
            if process.alive:
                self._world.oracle.fail("run", f"{self.name} ended: {error!r}")
                raise

    async def _serve(self) -> None:
        """Do what daemon.py does: register, follow the topics, keep the registration true."""
        await self.zookeeper.session()
        while True:
            try:
                await self.registration.open()
                break
            except Conflict as error:
                self._world.trace(self.name, f"not registered: {error}")
        if self._has_ids:
            made = Deployment(deployment_id=self._deployment, made_ms=self.clock.wall_ms(), made_by=self.name)
            await until_answered(self.clock, lambda: ensure_deployment(self.zookeeper, made))
            await until_answered(self.clock, self.known.begin)
        async with self.reader, asyncio.TaskGroup() as group:
            collecting = GcSettings.model_construct(
                interval_s=self._world.options.collect_s, grace_s=self._world.options.grace_s
            )
            loops = [
                group.create_task(self.registration.run()),
                group.create_task(self._probe()),
                group.create_task(self.collector.keep(lambda: collecting, lambda: self.engine.placement.leads("gc"))),
            ]
            await self.engine.run(self.registration.node)
            for loop in loops:
                loop.cancel()

    async def collect(self, *, grace_s: float) -> None:
        """Collect garbage once, if it answers calls by now. Raises what a collection raises."""
        # Before its first answer a daemon with ids makes the deployment known (daemon/topic_context.py).
        if self._has_ids and paths.IDENTITY not in (self._tree or self._world.tree).nodes:
            return
        async with aclosing(self.collector.collect(grace_s=grace_s, apply=True)) as finds:
            async for find in finds:
                if isinstance(find, Summary):
                    self._world.trace(self.name, f"collected {dict(find.finds)}")
                elif find.kind in {Kind.MISSING, Kind.WRONG_SIZE}:
                    self._world.oracle.fail("P1", f"the collector finds {_told(find)}")
                else:
                    self._world.trace(self.name, f"found {_told(find)}")
                    self.finds.append(_told(find))

    async def collects_nothing(self) -> None:
        """See that it collects nothing, and says whose the place is: it is another deployment's."""
        if self._tree is None or paths.IDENTITY not in self._tree.nodes:
            return
        try:
            await self.collect(grace_s=0.0)
        except IdentityRefused as error:
            if str(DEPLOYMENT) not in str(error):
                self._world.oracle.fail("P5", f"{self.name} does not say who is there: {error}")
            return
        self._world.oracle.fail("P5", f"{self.name} collects in a place of another deployment")

    async def mark_again(self) -> None:
        """Take all places over, as `offloadctl identity accept --place` does."""
        context = self.engine.context
        ours = PlaceMarker(deployment_id=str(DEPLOYMENT), cluster=CLUSTER, daemon_id=self.name, since_ms=1)
        for place in context.places:
            await marker.put(context.upload_context.objects.at(place.bucket), place.prefix, ours)

    async def _probe(self) -> None:
        while True:
            try:
                async with aclosing(self.bucket.list("offloaderd-probe/")) as found:
                    async for _ in found:
                        break
            except OffloaderError:
                self.registration.probed(reached=False, patience_s=IMPAIRED_S)
            else:
                self.registration.probed(reached=True, patience_s=IMPAIRED_S)
            await self.clock.sleep(PROBE_S)

    async def _drain(self) -> None:
        self.registration.announce(draining=True)
        await race(self.registration.announced(), self.clock.sleep(1.0))
        self.engine.drain()


def _told(find: Finding) -> str:
    return f"{find.kind} {find.key}: {find.reason} ({find.verdict})"
