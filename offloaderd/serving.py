"""What a daemon serves, put together from its opened stores: engine, readers, upkeep, and the services over them.

Nothing here is opened or started; the daemon does that, and has all of it follow its settings by `Crew.prepare`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from offloaderd import wiring, workshops
from offloaderd.doctor.examination import examine
from offloaderd.metadata.policy_book import PolicyBook
from offloaderd.offload.damage import SourceKeeper
from offloaderd.offload.engine import Engine
from offloaderd.offload.grants import Grants
from offloaderd.offload.hot import HotBuffers, ReadableMaps, ReadablePolicies
from offloaderd.offload.retention import Retention
from offloaderd.offload.sleep import SleepOptions
from offloaderd.pages.board import Board
from offloaderd.presence import registration_of
from offloaderd.read.reader import TopicReader
from offloaderd.rpc.admin import AdminService
from offloaderd.rpc.broker import BrokerService
from offloaderd.rpc.control import ControlService
from offloaderd.rpc.doctor import DoctorService
from offloaderd.rpc.history import HistoryService
from offloaderd.rpc.identity import IdentityService
from offloaderd.rpc.ledgers import LedgerService
from offloaderd.rpc.offload import OffloadService
from offloaderd.rpc.placement import PlacementService
from offloaderd.rpc.policy import PolicyService
from offloaderd.rpc.read import ReadService
from offloaderd.rpc.retention import RetentionService
from offloaderd.rpc.rollback import RollbackService
from offloaderd.rpc.server import Services
from offloaderd.rpc.upkeep import UpkeepService
from offloaderd.upkeep import lost_metadata
from offloaderd.upkeep.gc import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.clock import Clock
    from offloaderd.config import Settings
    from offloaderd.guard import Guard
    from offloaderd.log_levels import LogLevels
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metrics import Metrics
    from offloaderd.offload.registration import Registration
    from offloaderd.offload.topic_context import TopicContext
    from offloaderd.reload import Reloader
    from offloaderd.rpc.admin import DaemonSnapshot
    from offloaderd.sources import Ledgers
    from offloaderd.upkeep.scrub import Scrubber


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The parts of a serving daemon. What is told here of new settings is what `config.change.LIVE` lists."""

    guard: Guard
    levels: LogLevels
    ledgers: Ledgers
    engine: Engine
    reader: TopicReader
    retention: Retention
    grants: Grants
    scrubber: Scrubber
    keeper: SourceKeeper
    gc: Collector
    registration: Registration
    reads: ReadService
    broker: BrokerService
    upkeep: UpkeepService
    board: Board
    services: Services

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Return what has all parts follow these settings. Raises InvalidConfig, and then nothing has changed."""
        steps = [self.guard.prepare(settings), self.levels.prepare(settings.log)]

        def follow() -> None:
            for step in steps:
                step()
            self._follow_budgets(settings)
            self._follow_rhythms(settings)
            self.engine.book.follow(wiring.policy_levels(settings))
            self.engine.policies_changed()

        return follow

    def _follow_budgets(self, settings: Settings) -> None:
        shop, memory = self.engine.shop, settings.memory
        shop.pool.follow(memory.buffer_bytes)
        shop.uplink.budget.follow(memory.upload_bytes)
        shop.uplink.pace.follow(settings.upload.concurrency_max)
        shop.uplink.limits.follow(workshops.upload_limits(settings))
        if self.ledgers.limits is not None:
            self.ledgers.limits.follow(wiring.source_options(settings))
        _bound_tenants(self.engine, self.broker, settings)
        self.reads.readers_max = settings.read.readers_max
        self.reader.options = replace(self.reader.options, batch_bytes=settings.read.batch_bytes)
        metrics = shop.uplink.metrics
        metrics.buffer_limit_bytes.set(memory.buffer_bytes)
        metrics.memory_budget_bytes.set(memory.budget_bytes)

    def _follow_rhythms(self, settings: Settings) -> None:
        """Collection of garbage and the deadline of a drain ask for the settings themselves."""
        self.engine.placement.options = settings.placement
        self.engine.dormitory.options = SleepOptions(after_s=settings.offload.sleep_after_s)
        self.retention.options = settings.retention
        self.grants.follow(settings.grants)
        self.scrubber.follow(settings.scrub)
        self.upkeep.grace_s = settings.gc.grace_s


def assemble(
    settings: Settings,
    shop: TopicContext,
    ledgers: Ledgers,
    guard: Guard,
    levels: LogLevels,
    reloader: Reloader,
    *,
    snapshot: Callable[[], DaemonSnapshot],
    clock: Clock,
) -> Crew:
    """Make all parts; `snapshot` describes the daemon, `reloader` reads its settings again."""
    metadata, objects, metrics = shop.metadata, shop.uplink.objects, shop.uplink.metrics
    book, keeper = PolicyBook(metadata, wiring.policy_levels(settings)), SourceKeeper(metadata, objects, clock, metrics)
    retention = Retention(shop, ledgers.register, settings.retention, book)
    grants = Grants(shop, ledgers.store, settings.grants, book, daemon_id=settings.daemon.id)
    scrubber = wiring.scrubber(settings, shop, keeper)
    engine = Engine(
        shop,
        book,
        placement=settings.placement,
        sleep=SleepOptions(after_s=settings.offload.sleep_after_s),
        duties={"retention": retention.run, "grants": grants.run, "scrub": scrubber.run},
    )
    reader, gc = _reader(settings, engine, ledgers, clock, keeper), _collector(settings, shop, ledgers)
    session_s, around = settings.metadata.session_timeout_s, wiring.surroundings(settings)
    registration = registration_of(settings.daemon.id, engine, metadata, clock, session_timeout_s=session_s)
    reads = _reads(settings, reader, metrics)
    broker = BrokerService(engine, reader, reads, retention, ledgers.register, keeper.keep)
    _bound_tenants(engine, broker, settings)
    upkeep = UpkeepService(gc, grace_s=settings.gc.grace_s)
    lost = partial(lost_metadata.alarm, metadata, objects, wiring.sites(settings))
    admin = AdminService(
        engine=engine, metadata=metadata, source=ledgers.source, snapshot=snapshot, places=around.places, lost=lost
    )
    services = Services(
        offload=OffloadService(engine, clock=clock, metrics=metrics),
        read=reads,
        broker=broker,
        admin=admin,
        doctor=DoctorService(lambda: examine(reloader.settings, clock, serving=True)),
        upkeep=upkeep,
        placement=PlacementService(engine, registration),
        retention=RetentionService(engine, retention, metadata, ledgers.source, clock),
        history=HistoryService(engine),
        rollback=RollbackService(engine, metadata),
        identity=IdentityService(engine.shop, daemon_id=settings.daemon.id),
        inspect=wiring.inspection(settings, engine, reader, metadata, objects, clock, keeper),
        policy=PolicyService(engine.levels, metadata, around, retained=ledgers.retained),
        control=_control(settings, metadata, clock, reloader, levels),
        ledgers=LedgerService(ledgers.store) if ledgers.store is not None else None,
    )
    return Crew(
        guard=guard,
        levels=levels,
        ledgers=ledgers,
        engine=engine,
        reader=reader,
        retention=retention,
        grants=grants,
        scrubber=scrubber,
        keeper=keeper,
        gc=gc,
        registration=registration,
        reads=reads,
        broker=broker,
        upkeep=upkeep,
        board=Board(admin, engine.statuses, metrics, clock),
        services=services,
    )


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


def _collector(settings: Settings, shop: TopicContext, ledgers: Ledgers) -> Collector:
    return Collector(
        shop.uplink.objects,
        shop.metadata,
        wiring.sites(settings),
        clock=shop.uplink.clock,
        metrics=shop.uplink.metrics,
        source=ledgers.source,
        readers_s=shop.readers_s,
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
    """Set what callers who are not the cluster's administrators may store."""
    engine.bound_expressions(settings.access.namespace_expressions_max)
    broker.topics.namespace_topics_max = settings.access.namespace_topics_max
    broker.topics.tenant_namespaces_max = settings.access.tenant_namespaces_max


def _reader(settings: Settings, engine: Engine, ledgers: Ledgers, clock: Clock, keeper: SourceKeeper) -> TopicReader:
    maps = ReadableMaps(engine)
    reader = TopicReader(
        maps=maps,
        policies=ReadablePolicies(engine),
        objects=engine.shop.uplink.objects,
        source=ledgers.source,
        hot=HotBuffers(engine),
        clock=clock,
        metrics=engine.shop.uplink.metrics,
        options=wiring.read_options(settings),
    )
    reader.source_refused = maps.source_refused
    reader.segments.damaged = keeper.found
    return reader
