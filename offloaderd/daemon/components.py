"""What a daemon serves, put together from its opened stores: topic context, engine, readers, upkeep, services.

The context is opened here; nothing else is opened or started. The daemon does that, and has all of it follow its
settings by `Components.prepare`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from offloaderd.api.admin import AdminService, DaemonSnapshot
from offloaderd.api.broker import BrokerService
from offloaderd.api.daemon import ControlService, DoctorService, PlacementService, UpkeepService
from offloaderd.api.history import HistoryService, RollbackService
from offloaderd.api.identity import IdentityService
from offloaderd.api.inspect import InspectService, held
from offloaderd.api.policy import PolicyService
from offloaderd.api.push import LedgerService, OffloadService
from offloaderd.api.read import ReadService
from offloaderd.api.retention import RetentionService
from offloaderd.api.server import Services
from offloaderd.core.clock import Clock
from offloaderd.core.limits import ByteBudget, Pace
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.retry import until_answered
from offloaderd.core.traces import NO_TRACES, Traces
from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.guard import Guard
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.reload import Reloader
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.status_page.board import Board
from offloaderd.daemon.stores import Ledgers, sites
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.hot_tier import HotBuffers, ReadableMaps, ReadablePolicies
from offloaderd.fleet.registration import registration_of
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.identity import Deployment
from offloaderd.objects.port import SegmentStore
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.policies import Level, OffloadPolicies, Origin
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.rules import Surroundings
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.read.segments.reader import SegmentOptions
from offloaderd.segment.builders.builder import SegmentLayout
from offloaderd.segment.builders.ledger_builder import LedgerCut, WholeLedgers
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import UploadContext, UploadLimits
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.context import OutageRules, TopicContext
from offloaderd.topic.idle import IdleOptions
from offloaderd.topic.spill import SpillArea
from offloaderd.upkeep.explain import Explainer
from offloaderd.upkeep.gc import lost_metadata
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.grants.revoke_on_damage import GrantRevoker
from offloaderd.upkeep.retention.retention import Retention
from offloaderd.upkeep.verify.cluster import CALLS_BYTES, TopicVerifier
from offloaderd.upkeep.verify.scrub import Scrubber


class Components:
    """The parts of a serving daemon; `snapshot` describes it, `reloader` reads its settings again.

    `prepare` applies the settings that `daemon.settings.change.LIVE` lists.
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
        self.retention = retention = Retention(context, ledgers.register, settings.retention, book)
        self.grants = Grants(context, ledgers.store, settings.grants, book, daemon_id=settings.daemon.id)
        self.scrubber = _scrubber(settings, context, keeper)
        self.engine = engine = Engine(
            context,
            book,
            placement=settings.placement,
            sleep=IdleOptions(after_s=settings.offload.suspend_after_s),
            duties={"retention": retention.run, "grants": self.grants.run, "scrub": self.scrubber.run},
        )
        self.reader = reader = _reader(settings, engine, ledgers, clock, keeper)
        self.gc = _collector(settings, context, ledgers)
        around, session_s = surroundings(settings), settings.metadata.session_timeout_s
        self.registration = registration = registration_of(
            settings.daemon.id, engine, metadata, clock, session_timeout_s=session_s
        )
        self.reads = reads = _reads(settings, reader, metrics)
        self.upkeep = UpkeepService(self.gc, grace_s=settings.gc.grace_s)
        self.broker = BrokerService(engine, reader, reads, retention, ledgers.register, keeper.keep)
        _bound_tenants(engine, self.broker, settings)
        lost = partial(lost_metadata.alarm, metadata, objects, sites(settings))
        admin = AdminService(
            engine=engine,
            metadata=metadata,
            source=ledgers.source,
            snapshot=snapshot,
            places=around.places,
            lost=lost,
        )
        self.services = Services(
            offload=OffloadService(engine, clock=clock, metrics=metrics),
            read=reads,
            broker=self.broker,
            admin=admin,
            doctor=DoctorService(lambda: examine(reloader.settings, clock, serving=True)),
            upkeep=self.upkeep,
            placement=PlacementService(engine, registration),
            retention=RetentionService(engine, retention, metadata, ledgers.source, clock),
            history=HistoryService(engine),
            rollback=RollbackService(engine, metadata),
            identity=IdentityService(engine.context, daemon_id=settings.daemon.id),
            inspect=inspection(settings, engine, reader, metadata, objects, clock, keeper),
            policy=PolicyService(engine.levels, metadata, around, retained=ledgers.retained),
            control=_control(settings, metadata, clock, reloader, levels),
            ledgers=LedgerService(ledgers.store) if ledgers.store is not None else None,
        )
        self.board = Board(admin, engine.statuses, metrics, clock)

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
        context.upload_context.pace.follow(settings.upload.concurrency_max)
        context.upload_context.limits.follow(upload_limits(settings))
        if self.ledgers.limits is not None:
            self.ledgers.limits.follow(settings.bookkeeper)
        _bound_tenants(self.engine, self.broker, settings)
        self.reads.readers_max = settings.read.readers_max
        self.reader.options = replace(self.reader.options, batch_bytes=settings.read.batch_bytes)
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
        self.upkeep.grace_s = settings.gc.grace_s


def _control(
    settings: Settings, metadata: MetadataStore, clock: Clock, reloader: Reloader, levels: LogLevels
) -> ControlService:
    return ControlService(
        metadata,
        clock,
        daemon_id=settings.daemon.id,
        reload=lambda by, dry_run: reloader.reload(by=by, dry_run=dry_run).changes,
        shown=levels.shown,
        raised=levels.raised,
        fallen=levels.fallen,
    )


def surroundings(settings: Settings) -> Surroundings:
    """Return the properties of this daemon that policies depend on."""
    kind = settings.ledgers.kind
    return Surroundings(
        places=tuple((place.bucket, place.prefix) for place in settings.objects.all_places),
        has_source=kind != "none",
        has_brokers=kind == "bookkeeper",
    )


def _scrubber(settings: Settings, context: TopicContext, keeper: GrantRevoker) -> Scrubber:
    """Return the scrub; it uses the memory that uploads leave free."""
    upload_context = context.upload_context
    return Scrubber(
        upload_context.objects,
        context.metadata,
        sites(settings),
        settings.scrub,
        clock=upload_context.clock,
        metrics=upload_context.metrics,
        budget=upload_context.budget,
        damaged=keeper.keep,
    )


def inspection(
    settings: Settings,
    engine: Engine,
    reader: TopicReader,
    metadata: MetadataStore,
    objects: SegmentStore,
    clock: Clock,
    keeper: GrantRevoker,
) -> InspectService:
    """Return the service that explains entries and verifies segments."""
    found, budget = sites(settings), ByteBudget(CALLS_BYTES)
    retrying_reader = partial(RetryingReader, objects, clock=clock, budget=budget)
    explainer = Explainer(engine, partial(held, reader), metadata, retrying_reader(), found)
    verifier = TopicVerifier(engine, retrying_reader, found, keeper.found)
    return InspectService(explainer, verifier, engine, metadata, keeper.found, reader.priority)


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


def _reads(settings: Settings, reader: TopicReader, metrics: Metrics) -> ReadService:
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


def _reader(settings: Settings, engine: Engine, ledgers: Ledgers, clock: Clock, keeper: GrantRevoker) -> TopicReader:
    maps, cache_bytes = ReadableMaps(engine), settings.memory.cache_bytes
    tables_bytes = cache_bytes // 8  # of segments
    reader = TopicReader(
        maps=maps,
        policies=ReadablePolicies(engine),
        objects=engine.context.upload_context.objects,
        source=ledgers.source,
        hot=HotBuffers(engine),
        clock=clock,
        metrics=engine.context.upload_context.metrics,
        options=ReadOptions(
            batch_bytes=settings.read.batch_bytes,
            segments=SegmentOptions(
                cache_bytes=cache_bytes - tables_bytes,
                tables_bytes=tables_bytes,
                read_ahead_bytes=settings.read.read_ahead_bytes,
            ),
        ),
    )
    reader.source_refused = maps.source_refused
    reader.segments.damaged = keeper.found
    return reader


Context = TypeVar("Context", bound=OffloadContext)


def known_source(settings: Settings, metadata: MetadataStore, ledgers: Ledgers, clock: Clock) -> KnownSource | None:
    """Return the check that the ledger source is that of the deployment; None without a source."""
    if ledgers.origin is None:
        return None
    return KnownSource(
        metadata,
        ledgers.origin,
        ledgers.register,
        kind=settings.ledgers.kind,
        cluster=settings.daemon.cluster,
        daemon_id=settings.daemon.id,
        clock=clock,
    )


def topic_context(
    settings: Settings,
    metadata: MetadataStore,
    objects: SegmentStore,
    ledgers: Ledgers,
    pool: BufferPool,
    uploads: ByteBudget,
    *,
    clock: Clock,
    metrics: Metrics,
) -> TopicContext:
    """Return the context of all topics of a daemon."""
    offload, whole = settings.offload, settings.ledger_based
    cut = LedgerCut(
        block_bytes=whole.block_bytes,
        part_bytes=offload.part_bytes,
        run_bytes=offload.block_bytes,
        dense_index=whole.dense_index,
    )
    return TopicContext(
        metadata=metadata,
        source=ledgers.source,
        upload_context=UploadContext(
            objects=objects,
            budget=uploads,
            limits=upload_limits(settings),
            clock=clock,
            metrics=metrics,
            pace=Pace(settings.upload.concurrency_max, changed=metrics.upload_concurrency.set),
        ),
        pool=pool,
        layout=SegmentLayout(block_bytes=offload.block_bytes, part_bytes=offload.part_bytes, preamble=offload.preamble),
        cluster=settings.daemon.cluster,
        places=settings.objects.all_places,
        outage=OutageRules(policy=settings.outage.policy, area=spill_area(settings, metrics)),
        history_bytes_max=settings.history.daemon_bytes_max,
        offloads=ledgers.offloads,
        ledgers=None if ledgers.describer is None else WholeLedgers(describer=ledgers.describer, **asdict(cut)),
        cut=cut,
        reader_grace_s=settings.retention.reader_grace_s,
    )


def traced(context: Context, traces: Traces) -> Context:
    """Return the context with traces of segments."""
    return replace(context, upload_context=replace(context.upload_context, traces=traces))


def spill_area(settings: Settings, metrics: Metrics) -> SpillArea | None:
    """Return the directory to spill to, None without one."""
    spill = settings.spill
    if spill.directory is None:
        return None
    metrics.spill_limit_bytes.set(spill.bytes_max)
    return SpillArea(Path(spill.directory), spill.bytes_max)


def upload_limits(settings: Settings) -> UploadLimits:
    """Return how a topic's segment is sent and checked."""
    return UploadLimits(parts_in_flight_max=parts_of_topic(settings), readback=settings.offload.verify == "readback")


def parts_of_topic(settings: Settings) -> int:
    """Return how many parts a topic may hold: never all that fit into memory, so that one topic stops no other."""
    fitting = settings.memory.upload_bytes // settings.offload.part_bytes
    return min(settings.offload.parts_in_flight_max, max(1, fitting - 1))


@asynccontextmanager
async def opened_context(
    settings: Settings,
    metadata: MetadataStore,
    objects: SegmentStore,
    ledgers: Ledgers,
    pool: BufferPool,
    uploads: ByteBudget,
    *,
    clock: Clock,
    metrics: Metrics,
) -> AsyncIterator[TopicContext]:
    """Yield the context of all topics, and close it. Raises InvalidConfig."""
    context = topic_context(settings, metadata, objects, ledgers, pool, uploads, clock=clock, metrics=metrics)
    known = known_source(settings, metadata, ledgers, clock)
    if known is not None:
        await until_answered(clock, known.begin)
        context = replace(context, known_source=known)
    made = Deployment(deployment_id=clock.uuid(), made_ms=clock.wall_ms(), made_by=settings.daemon.id)
    ours = await until_answered(clock, lambda: ensure_deployment(metadata, made))
    context = replace(context, deployment_id=str(ours.deployment_id))
    async with AsyncExitStack() as stack:
        traces = await stack.enter_async_context(opened_traces(settings, metrics))
        if context.outage.area is not None:
            await stack.enter_async_context(context.outage.area)
        yield traced(context, traces)


@asynccontextmanager
async def opened_traces(settings: Settings, metrics: Metrics) -> AsyncIterator[Traces]:
    """Yield the traces of segments; waiting spans are sent at the end. Raises InvalidConfig.

    OpenTelemetry is imported only if tracing is enabled; the settings have checked that it is installed.
    """
    tracing = settings.tracing
    if not tracing.enabled or tracing.endpoint is None:
        yield NO_TRACES
        return
    from offloaderd.daemon.telemetry import Telemetry  # noqa: PLC0415 - an extra that need not be installed

    telemetry = Telemetry(tracing, settings.daemon, metrics.spans)
    try:
        yield telemetry
    finally:
        await asyncio.to_thread(telemetry.close)


def policy_levels(settings: Settings) -> list[Level]:
    """Return the policy levels of the settings: the values that are set, and the defaults."""
    where = {
        "segment_bytes_max": (settings.offload, "segment_bytes_max"),
        "segment_age_max_s": (settings.offload, "segment_age_max_s"),
        "segment_age_min_s": (settings.offload, "segment_age_min_s"),
        "deletion_lag_s": (settings.grants, "deletion_lag_s"),
        "read_priority": (settings.read, "priority"),
        "bucket": (settings.objects, "bucket"),
        "prefix": (settings.objects, "prefix"),
        "outage": (settings.outage, "policy"),
        "retention": (settings.retention, "kind"),
    }
    values: dict[str, Any] = {name: getattr(section, key) for name, (section, key) in where.items()}
    values["bucket"] = settings.objects.all_places.home.bucket  # a directory has none
    given = {name for name, (section, key) in where.items() if key in section.model_fields_set}
    limits = {"retention_age_s": settings.retention.age_s, "retention_bytes": settings.retention.size_bytes}
    values |= {name: value or None for name, value in limits.items()}
    given |= {"retention_age_s", "retention_bytes"} if "retention" in given else set()
    return [
        Level(Origin.SETTINGS, OffloadPolicies(**{name: value for name, value in values.items() if name in given})),
        Level(Origin.DEFAULT, OffloadPolicies(**values)),
    ]
