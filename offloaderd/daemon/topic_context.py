"""The context of all topics of a daemon: stores, limits, a directory to spill to, traces; its levels of policy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from offloaderd.core.clock import Clock
from offloaderd.core.limits import ByteBudget, Pace
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import MirrorRequired
from offloaderd.core.quotas import Accounts
from offloaderd.core.retry import until_answered
from offloaderd.core.traces import NO_TRACES, Traces
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import Ledgers
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.identity import Deployment
from offloaderd.objects.port import SegmentStore
from offloaderd.policy.policies import Level, OffloadPolicies, Origin
from offloaderd.segment.builder import LedgerCut, SegmentLayout, WholeLedgers
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.upload import ServiceContext, UploadContext, UploadLimits
from offloaderd.topic.buffer import BufferPool
from offloaderd.topic.outage import OutageRules, TopicContext
from offloaderd.topic.spill import SpillArea

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
            further=further_services(settings),
        ),
        pool=pool,
        accounts=Accounts(clock, metrics),
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


def further_services(settings: Settings) -> dict[str, ServiceContext]:
    """Return what uploads to each further service share, by the names of its buckets."""
    found: dict[str, ServiceContext] = {}
    for service in settings.objects.services.values():
        shared = ServiceContext(Pace(settings.upload.concurrency_max))
        found |= dict.fromkeys((place.bucket for place in service.own_places), shared)
    return found


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
async def opened_context(settings: Settings, context: TopicContext, ledgers: Ledgers) -> AsyncIterator[TopicContext]:
    """Yield a context with the identities of deployment and source, and with traces; close it. Raises InvalidConfig."""
    metadata, clock, metrics = context.metadata, context.upload_context.clock, context.upload_context.metrics
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
        "storage_class": (settings.objects, "storage_class"),
        "tags": (settings.objects, "tags"),
        "mirror": (settings.mirror, "place"),
        "mirror_required": (settings.mirror, "required"),
        "outage": (settings.outage, "policy"),
        "retention": (settings.retention, "kind"),
    }
    values: dict[str, Any] = {name: getattr(section, key) for name, (section, key) in where.items()}
    values["mirror_required"] = MirrorRequired.YES if settings.mirror.required else MirrorRequired.NO
    values["bucket"] = settings.objects.all_places.home.bucket  # a directory has none
    given = {name for name, (section, key) in where.items() if key in section.model_fields_set}
    limits = {"retention_age_s": settings.retention.age_s, "retention_bytes": settings.retention.size_bytes}
    values |= {name: value or None for name, value in limits.items()}
    given |= {"retention_age_s", "retention_bytes"} if "retention" in given else set()
    return [
        Level(Origin.SETTINGS, OffloadPolicies(**{name: value for name, value in values.items() if name in given})),
        Level(Origin.DEFAULT, OffloadPolicies(**values)),
    ]
