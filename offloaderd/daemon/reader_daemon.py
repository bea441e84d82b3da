"""The daemon that only reads (`offloaderd serve --read-only`): a bucket, and nothing else.

It has no ZooKeeper, source, topics of its own or duties, and writes nothing. It serves what `BucketTopics` knows, once
the bucket was listed. The life cycle, the settings and the access control are those of the other daemon.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from offloaderd.api.bucket import BucketAdminService, BucketBrokerService
from offloaderd.api.cache import CacheService
from offloaderd.api.daemon import DoctorService
from offloaderd.api.read import ReadService
from offloaderd.api.refusing import ReadOnly
from offloaderd.core.aio import Group, race
from offloaderd.core.metrics.metrics import watch_loop
from offloaderd.core.model import TopicName
from offloaderd.core.quotas import Accounts
from offloaderd.daemon.components import (
    control_service,
    disk_cache,
    follow_reads,
    read_service,
    reader_options,
    reading_bytes,
)
from offloaderd.daemon.daemon import Addresses, Daemon
from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.guard import Guard
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import Ledgers, Prober, sites
from offloaderd.daemon.topic_context import policy_levels
from offloaderd.policy.policies import Effective, effective
from offloaderd.read.disk.sweep import keep_swept
from offloaderd.read.reader import TopicReader
from offloaderd.read.stream import NoBuffers
from offloaderd.upkeep.bucket_topics import BucketTopics

NONE_OF = (
    *("offload", "upkeep", "placement", "places", "retention", "history", "rollback", "identity"),
    *("inspect", "quota", "policy", "ledgers"),
)
"""Services without a call here."""


class SettingsPolicies:
    """The policy of every topic: that of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._found = effective(policy_levels(settings), known=False)

    async def of(self, topic: TopicName) -> Effective:
        """Return the policy."""
        return self._found


class ReaderDaemon(Daemon):
    """The reading daemon of one process."""

    async def open_and_serve(self, stack: AsyncExitStack, http: HttpServer, guard: Guard) -> None:
        """Open the bucket, list it, serve, drain. Raises InvalidConfig, or what crashed."""
        objects = await self._open_objects(stack)
        if objects is None:
            return
        settings, clock, metrics = self._settings, self._clock, self.metrics
        topics = BucketTopics(
            objects,
            sites(settings),
            listing_s=settings.read.listing_s,
            head_s=settings.read.head_s,
            clock=clock,
            metrics=metrics,
        )
        reader = TopicReader(
            maps=topics,
            policies=SettingsPolicies(settings),
            objects=objects,
            source=None,
            hot=NoBuffers(),
            clock=clock,
            metrics=metrics,
            options=reader_options(settings),
        )
        reader.accounts = guard.gate.accounts = Accounts(clock, metrics)
        reader.segments.fetcher.disk = disk = disk_cache(settings, clock, metrics)
        if disk is not None:
            await stack.enter_async_context(disk)
        await stack.enter_async_context(reader)
        reads = read_service(settings, reader, metrics)
        self.reading_bytes = partial(reading_bytes, reader, reads)
        rpc = await self._open_rpc(stack, guard, self._services(topics, reader, reads))
        self.reloader.connect(partial(self._prepared, guard, reader, reads))
        self.health.starting("listing the bucket")
        further = {one.section: one.own_places[0].bucket for one in settings.objects.services.values()}
        prober = Prober(self.health, clock, probed=self._probed, refused=lambda _: "")
        async with Group() as group:
            loops = [
                group.create_task(watch_loop(clock, metrics), name="event-loop lag"),
                group.create_task(prober.run(None, objects, Ledgers(), further), name="dependency probe"),
                group.create_task(topics.run(self._progress), name="listings of the bucket"),
                group.create_task(guard.keep(), name="certificates"),
                group.create_task(self._levels.keep(), name="log levels"),
            ]
            if disk is not None:
                sweeping = keep_swept(disk, clock, topics.every_topic, topics.topic_map)
                loops.append(group.create_task(sweeping, name="disk cache sweep"))
            await race(topics.ready.wait(), self.stopping.wait())
            if topics.ready.is_set():
                addresses = Addresses(grpc=self._reached_at(rpc.port), http=http.address)
                await self._announce(rpc, addresses, read_only=True)
                await self.stopping.wait()
            self.health.draining(self._why_stopping)
            await rpc.show(serving=False)
            await rpc.stop(grace_s=settings.shutdown.drain_s if topics.ready.is_set() else 0)
            for loop in loops:
                loop.cancel()

    def _services(self, topics: BucketTopics, reader: TopicReader, reads: ReadService) -> dict[str, object]:
        daemon_id = self._settings.daemon.id
        control = control_service(None, self._clock, daemon_id, self.reloader, self._levels)
        admin, broker = BucketAdminService(topics, self.snapshot), BucketBrokerService(topics, reader, reads)
        return {
            "read": reads,
            "cache": CacheService(daemon_id, reader, self.metrics),
            "admin": ReadOnly(admin, ("ListTopics", "ListSelections", "ListSegments", "Status")),
            "broker": ReadOnly(broker, ("OpenLedger", "ReadLedger")),
            "doctor": DoctorService(lambda: examine(self.reloader.settings, self._clock, serving=True)),
            "control": ReadOnly(control, ("Reload", "ListLogLevels", "SetLogLevel")),
            **{name: ReadOnly() for name in NONE_OF},
        }

    def _prepared(
        self, guard: Guard, reader: TopicReader, reads: ReadService, settings: Settings
    ) -> Callable[[], None]:
        """Return a function that applies settings. Raises InvalidConfig; then nothing has changed."""
        steps = [guard.prepare(settings), self._levels.prepare(settings.log)]

        def follow() -> None:
            for step in steps:
                step()
            follow_reads(settings, reader, reads)

        return follow

    def _progress(self, segments: int) -> None:
        self.health.starting(f"listing the bucket: {segments} segments read")

    def _probed(self, name: str, error: object) -> None:
        if name == "objects":
            self.metrics.bucket_accessible.set(error is None)
