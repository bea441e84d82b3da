"""Opens what all topics of a daemon work with: the workshop, a disk to spill to, what segments are traced to."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd import wiring
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.records.identity import Deployment
from offloaderd.offload.budget import until_answered
from offloaderd.offload.known_source import KnownSource
from offloaderd.tracing import opened_traces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.clock import Clock
    from offloaderd.config import Settings
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metrics import Metrics
    from offloaderd.objects.port import SegmentStore
    from offloaderd.offload.budget import ByteBudget
    from offloaderd.offload.pool import BufferPool
    from offloaderd.offload.workshop import Workshop
    from offloaderd.sources import Ledgers


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


@asynccontextmanager
async def opened_workshop(
    settings: Settings,
    metadata: MetadataStore,
    objects: SegmentStore,
    ledgers: Ledgers,
    pool: BufferPool,
    uploads: ByteBudget,
    *,
    clock: Clock,
    metrics: Metrics,
) -> AsyncIterator[Workshop]:
    """Yield the workshop. Raises InvalidConfig."""
    shop = wiring.workshop(settings, metadata, objects, ledgers, pool, uploads, clock=clock, metrics=metrics)
    known = known_source(settings, metadata, ledgers, clock)
    if known is not None:
        await until_answered(clock, known.begin)
        shop = replace(shop, known_source=known)
    made = Deployment(deployment_id=clock.uuid(), made_ms=clock.wall_ms(), made_by=settings.daemon.id)
    ours = await until_answered(clock, lambda: ensure_deployment(metadata, made))
    shop = replace(shop, deployment_id=str(ours.deployment_id))
    async with AsyncExitStack() as stack:
        traces = await stack.enter_async_context(opened_traces(settings, metrics))
        if shop.outage.area is not None:
            await stack.enter_async_context(shop.outage.area)
        yield wiring.traced(shop, traces)
