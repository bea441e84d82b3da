"""What all topics of a daemon work with: stores, limits, a disk to spill to, traces."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.byte_budget import until_answered
from offloaderd.core.pace import Pace
from offloaderd.daemon.adapters import options as wiring
from offloaderd.daemon.tracing import opened_traces
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.records.identity import Deployment
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.context import HistoryRules, OffloadContext
from offloaderd.segment.ledger_layout import LedgerCut, WholeLedgers
from offloaderd.segment.upload import UploadContext, UploadLimits
from offloaderd.topic.context import OutageRules, TopicContext
from offloaderd.topic.outage.spill_files import SpillArea

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.core.byte_budget import ByteBudget
    from offloaderd.core.clock import Clock
    from offloaderd.core.metrics.metrics import Metrics
    from offloaderd.core.traces import Traces
    from offloaderd.daemon.adapters.sources import Ledgers
    from offloaderd.daemon.settings import Settings
    from offloaderd.ledgers.port import LedgerDescriber
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.port import SegmentStore
    from offloaderd.topic.pool import BufferPool

Context = TypeVar("Context", bound=OffloadContext)


def known_source(settings: Settings, metadata: MetadataStore, ledgers: Ledgers, clock: Clock) -> KnownSource | None:
    """Return what tells whether the ledger source is the one that the deployment offloads; None without a source."""
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
    """Return what all topics of a daemon work with."""
    offload = settings.offload
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
        places=wiring.places(settings),
        outage=OutageRules(policy=settings.outage.policy, area=spill_area(settings, metrics)),
        history=HistoryRules(daemon_bytes_max=settings.history.daemon_bytes_max),
        offloads=ledgers.offloads,
        ledgers=None if ledgers.describer is None else whole_ledgers(settings, ledgers.describer),
        cut=LedgerCut(
            block_bytes=settings.ledger_based.block_bytes,
            part_bytes=offload.part_bytes,
            run_bytes=offload.block_bytes,
            dense_index=settings.ledger_based.dense_index,
        ),
        readers_s=settings.retention.readers_s,
    )


def traced(context: Context, traces: Traces) -> Context:
    """Return the same, with segments traced."""
    return replace(context, upload_context=replace(context.upload_context, traces=traces))


def whole_ledgers(settings: Settings, describer: LedgerDescriber) -> WholeLedgers:
    """Return how ledgers are written as a whole."""
    return WholeLedgers(
        describer=describer,
        block_bytes=settings.ledger_based.block_bytes,
        part_bytes=settings.offload.part_bytes,
        run_bytes=settings.offload.block_bytes,
        dense_index=settings.ledger_based.dense_index,
    )


def spill_area(settings: Settings, metrics: Metrics) -> SpillArea | None:
    """Return where topics may spill, None for nowhere."""
    spill = settings.spill
    if spill.directory is None:
        return None
    metrics.spill_limit_bytes.set(spill.bytes_max)
    return SpillArea(Path(spill.directory), spill.bytes_max)


def upload_limits(settings: Settings) -> UploadLimits:
    """Return how a topic's segment is sent and checked."""
    return UploadLimits(parts_in_flight_max=parts_of_topic(settings), readback=settings.offload.verify == "readback")


def parts_of_topic(settings: Settings) -> int:
    """Return how many parts one topic may hold: never all that there is memory for, lest one that fails stops all."""
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
    """Yield what all topics work with, and end it. Raises InvalidConfig."""
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
