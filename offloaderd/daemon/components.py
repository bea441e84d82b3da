"""What a daemon serves, put together from its opened stores: engine, readers, upkeep, and the services over them.

Nothing here is opened or started; the daemon does that, and has all of it follow its settings by `Components.prepare`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from offloaderd.api.admin import AdminService, DaemonSnapshot
from offloaderd.api.broker import BrokerService
from offloaderd.api.cache import CacheService
from offloaderd.api.daemon import ControlService, DoctorService, PlacementService, UpkeepService
from offloaderd.api.history import HistoryService, RollbackService
from offloaderd.api.identity import IdentityService
from offloaderd.api.inspect import InspectService, Layouts, held
from offloaderd.api.places import PlacesService
from offloaderd.api.policy import PolicyService
from offloaderd.api.push import LedgerService, OffloadService
from offloaderd.api.quota import QuotaService
from offloaderd.api.read import ReadService
from offloaderd.api.retention import RetentionService
from offloaderd.capture.keeper import Keeper
from offloaderd.core.clock import Clock
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.guard import Guard
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.reload import Reloader
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.status_page.board import Board
from offloaderd.daemon.stores import Ledgers, sites
from offloaderd.daemon.topic_context import policy_levels, upload_limits
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.hot_tier import HotBuffers, ReadableMaps, ReadablePolicies
from offloaderd.fleet.registration import registration_of
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects.port import SegmentStore
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.settings import SERVICES
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.rules import Surroundings
from offloaderd.read.disk.cache import WAITING_BYTES_MAX, DiskCache, DiskOptions
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.read.segments import SegmentOptions
from offloaderd.tables.reporter import TablesReporter
from offloaderd.topic.idle import IdleOptions
from offloaderd.topic.outage import TopicContext
from offloaderd.upkeep.explain import Explainer
from offloaderd.upkeep.gc import lost_metadata
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.grants.revoke_on_damage import GrantRevoker
from offloaderd.upkeep.mirror import Mirror
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.verify.cluster import CALLS_BYTES, TopicVerifier
from offloaderd.upkeep.verify.scrub import Scrubber


class Components:
    """The parts of a serving daemon; `snapshot` describes it, `reloader` reads its settings again.

    `prepare` applies the settings that `daemon.reload.LIVE` lists.
    """

    def __init__(
        self,
        settings: Settings,
        context: TopicContext,
        ledgers: Ledgers,
        guard: Guard,
        levels: LogLevels,
        reloader: Reloader,
        *,
        snapshot: Callable[[], DaemonSnapshot],
        clock: Clock,
    ) -> None:
        self.guard, self.levels, self.ledgers = guard, levels, ledgers
        metadata, objects, metrics = context.metadata, context.upload_context.objects, context.upload_context.metrics
        book = PolicyResolver(metadata, policy_levels(settings))
        self.keeper = keeper = GrantRevoker(metadata, objects, clock, metrics)
        guard.gate.accounts = context.accounts
        self.retention = retention = Retention(context, ledgers.register, settings.retention, book)
        self.grants = Grants(context, ledgers.store, settings.grants, book, daemon_id=settings.daemon.id)
        self.scrubber, self.mirror = scrubber, mirror = _upkeep(settings, context, keeper)
        self.engine = engine = Engine(
            context,
            book,
            placement=settings.placement,
            sleep=IdleOptions(after_s=settings.offload.suspend_after_s),
            duties={"retention": retention.run, "grants": self.grants.run, "scrub": scrubber.run, "mirror": mirror.run},
        )
        self.reader = reader = _reader(settings, engine, ledgers, clock, keeper)
        self.gc = _collector(settings, context, ledgers)
        self.captures = Keeper(
            objects, metadata, ledgers.pulsar, sites(settings)[0], clock=clock, registry=metrics.registry
        )
        self.tables = TablesReporter(metadata, clock=clock, registry=metrics.registry)
        around, session_s = surroundings(settings), settings.metadata.session_timeout_s
        self.registration = registration_of(settings.daemon.id, engine, metadata, clock, session_timeout_s=session_s)
        self.reads = reads = read_service(settings, reader, metrics)
        self.upkeep = UpkeepService(self.gc, grace_s=settings.gc.grace_s)
        self.broker = BrokerService(engine, reader, reads, retention, ledgers.register, keeper.keep)
        _bound_tenants(engine, self.broker, settings)
        lost = partial(lost_metadata.alarm, metadata, objects, sites(settings))
        admin = AdminService(
            engine=engine, metadata=metadata, source=ledgers.source, snapshot=snapshot, places=around.places, lost=lost
        )
        admin.tables = self.tables.summaries
        kind = settings.ledgers.kind if ledgers.source is not None else ""
        buckets = frozenset(bucket for bucket, _ in services_of(settings))
        layouts = Layouts(reader, engine, metadata, clock, settings.daemon.id, kind, buckets)
        self.services: dict[str, object] = {
            "offload": OffloadService(engine, clock=clock, metrics=metrics),
            "read": reads,
            "broker": self.broker,
            "admin": admin,
            "doctor": DoctorService(lambda: examine(reloader.settings, clock, serving=True, unnamed=engine.unnamed)),
            "upkeep": self.upkeep,
            "placement": PlacementService(engine, self.registration),
            "cache": CacheService(settings.daemon.id, reader, metrics),
            "places": PlacesService(engine, metadata, around, services_of(settings)),
            "retention": RetentionService(engine, retention, metadata, ledgers.source, clock),
            "history": HistoryService(engine),
            "rollback": RollbackService(engine, metadata),
            "identity": IdentityService(engine.context, daemon_id=settings.daemon.id),
            "inspect": inspection(settings, engine, layouts, objects, keeper),
            "quota": QuotaService(engine, settings.daemon.id),
            "policy": PolicyService(engine.levels, metadata, around, retained=ledgers.retained),
            "control": control_service(metadata, clock, settings.daemon.id, reloader, levels),
        }
        if ledgers.store is not None:
            self.services["ledgers"] = LedgerService(ledgers.store)
        self.board = Board(admin, engine.each_status, engine.each_measured, layouts.of, metrics, clock)

    @property
    def disk(self) -> DiskCache | None:
        """The disk cache of the reader, if it is set; the daemon opens it."""
        return self.reader.segments.fetcher.disk

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Return a function that applies settings to all parts. Raises InvalidConfig; then nothing has changed."""
        steps = [self.guard.prepare(settings), self.levels.prepare(settings.log)]

        def follow() -> None:
            for step in steps:
                step()
            self._follow_budgets(settings)
            self._follow_rhythms(settings)
            self.engine.book.follow(policy_levels(settings))
            self.engine.policies_changed()

        return follow

    def _follow_budgets(self, settings: Settings) -> None:
        context, memory = self.engine.context, settings.memory
        context.pool.follow(memory.buffer_bytes)
        context.upload_context.budget.follow(memory.upload_bytes)
        context.upload_context.follow_pace(settings.upload.concurrency_max)
        context.upload_context.limits.follow(upload_limits(settings))
        if self.ledgers.limits is not None:
            self.ledgers.limits.follow(settings.bookkeeper)
        _bound_tenants(self.engine, self.broker, settings)
        follow_reads(settings, self.reader, self.reads)
        metrics = context.upload_context.metrics
        metrics.buffer_limit_bytes.set(memory.buffer_bytes)
        metrics.memory_budget_bytes.set(memory.budget_bytes)

    def _follow_rhythms(self, settings: Settings) -> None:
        """Apply intervals; garbage collection and drain read the settings themselves."""
        self.engine.placement.options = settings.placement
        self.engine.idle_topics.options = IdleOptions(after_s=settings.offload.suspend_after_s)
        self.retention.options = settings.retention
        self.grants.follow(settings.grants)
        self.scrubber.follow(settings.scrub)
        self.mirror.follow(settings.mirror)
        self.upkeep.grace_s = settings.gc.grace_s


def surroundings(settings: Settings) -> Surroundings:
    """Return the properties of this daemon that policies depend on."""
    kind = settings.ledgers.kind
    return Surroundings(
        places=tuple((place.bucket, place.prefix) for place in settings.objects.all_places),
        has_source=kind != "none",
        has_brokers=kind == "bookkeeper",
        services={place.bucket: service.service for place, service in settings.objects.each_place()},
    )


def _upkeep(settings: Settings, context: TopicContext, keeper: GrantRevoker) -> tuple[Scrubber, Mirror]:
    """Return the scrub and the mirror; both use the memory that uploads leave free."""
    upload_context = context.upload_context
    scrubber = Scrubber(
        upload_context.objects,
        context.metadata,
        sites(settings),
        settings.scrub,
        clock=upload_context.clock,
        metrics=upload_context.metrics,
        budget=upload_context.budget,
        damaged=keeper.keep,
    )
    return scrubber, Mirror(context, settings.mirror)


def inspection(
    settings: Settings, engine: Engine, layouts: Layouts, objects: SegmentStore, keeper: GrantRevoker
) -> InspectService:
    """Return the service that explains entries and topics, and verifies segments."""
    found, budget = sites(settings), ByteBudget(CALLS_BYTES)
    reader, metadata, clock = layouts.reader, layouts.metadata, layouts.clock
    retrying_reader = partial(RetryingReader, objects, clock=clock, budget=budget)
    explainer = Explainer(engine, partial(held, reader), metadata, retrying_reader(), found, engine.book.of)
    verifier = TopicVerifier(engine, retrying_reader, found, keeper.found)
    return InspectService(explainer, verifier, engine, metadata, keeper.found, reader.priority, layouts.of)


def services_of(settings: Settings) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the name and the kind of the service of each place, the daemon's own first."""
    return {
        (place.bucket, place.prefix): (service.section.removeprefix(f"{SERVICES}."), service.kind)
        for service in settings.objects.every_service
        for place in service.own_places
    }


def _collector(settings: Settings, context: TopicContext, ledgers: Ledgers) -> Collector:
    return Collector(
        context.upload_context.objects,
        context.metadata,
        sites(settings),
        clock=context.upload_context.clock,
        metrics=context.upload_context.metrics,
        source=ledgers.source,
        reader_grace_s=context.reader_grace_s,
    )


def control_service(
    metadata: MetadataStore | None, clock: Clock, daemon_id: str, reloader: Reloader, levels: LogLevels
) -> ControlService:
    """Return the service of reloads, log levels and pauses; without `metadata` no topic can be paused."""
    return ControlService(
        metadata,
        clock,
        daemon_id=daemon_id,
        reload=lambda by, dry_run: reloader.reload(by=by, dry_run=dry_run).changes,
        shown=levels.shown,
        raised=levels.raised,
        fallen=levels.fallen,
        pass_level_on=levels.pass_on,
    )


def reading_bytes(reader: TopicReader, reads: ReadService) -> int:
    """Return the memory of reads: cached and unpacked bytes."""
    return reader.segments.used_bytes + reads.unpacking.used_bytes


def follow_reads(settings: Settings, reader: TopicReader, reads: ReadService) -> None:
    """Apply the settings of reads that a running daemon follows."""
    reads.readers_max = settings.read.readers_max
    reader.options = replace(reader.options, batch_bytes=settings.read.batch_bytes)


def read_service(settings: Settings, reader: TopicReader, metrics: Metrics) -> ReadService:
    """Return the service of reads."""
    return ReadService(
        reader,
        settings.read.readers_max,
        metrics=metrics,
        message_bytes_max=settings.grpc.message_bytes_max,
        unpack_bytes=settings.memory.unpack_bytes,
    )


def _bound_tenants(engine: Engine, broker: BrokerService, settings: Settings) -> None:
    """Set the bounds for callers that are no administrators of the cluster."""
    engine.bound_expressions(settings.access.namespace_expressions_max)
    broker.topics.namespace_topics_max = settings.access.namespace_topics_max
    broker.topics.tenant_namespaces_max = settings.access.tenant_namespaces_max


def disk_cache(settings: Settings, clock: Clock, metrics: Metrics) -> DiskCache | None:
    """Return the disk cache, which is not opened yet; None without a directory."""
    cache = settings.cache
    if cache.directory is None:
        return None
    options = DiskOptions(
        directory=Path(cache.directory),
        limit_bytes=cache.disk_bytes,
        free_bytes=cache.free_bytes,
        waiting_bytes=min(WAITING_BYTES_MAX, settings.memory.cache_bytes // 4),
        get_price=settings.prices.get_1000 / 1000,
    )
    return DiskCache(options, clock=clock, metrics=metrics)


def reader_options(settings: Settings) -> ReadOptions:
    """Return the options of reading."""
    cache_bytes = settings.memory.cache_bytes
    tables_bytes = cache_bytes // 8  # of segments
    return ReadOptions(
        batch_bytes=settings.read.batch_bytes,
        segments=SegmentOptions(
            cache_bytes=cache_bytes - tables_bytes,
            tables_bytes=tables_bytes,
            read_ahead_bytes=settings.read.read_ahead_bytes,
            gets_max=settings.objects.connections_max,
        ),
    )


def _reader(settings: Settings, engine: Engine, ledgers: Ledgers, clock: Clock, keeper: GrantRevoker) -> TopicReader:
    maps = ReadableMaps(engine)
    reader = TopicReader(
        maps=maps,
        policies=ReadablePolicies(engine),
        objects=engine.context.upload_context.objects,
        source=ledgers.source,
        hot=HotBuffers(engine),
        clock=clock,
        metrics=engine.context.upload_context.metrics,
        options=reader_options(settings),
    )
    reader.source_refused = maps.source_refused
    reader.accounts = engine.context.accounts
    reader.segments.damaged = keeper.found
    reader.segments.fetcher.disk = disk_cache(settings, clock, engine.context.upload_context.metrics)
    return reader
