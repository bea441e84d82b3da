"""The stores of a driver and of executors, opened by the daemon's settings; each has sessions of its own.

Limits hold for all executors together: each has its share of the rates for bookies and bucket, and a fixed amount of
memory for parts in flight, whatever the size of its segment.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, Denied, InvalidConfig
from offloaderd.core.limits import ByteBudget, TokenBucket
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.pace import Pace
from offloaderd.core.retry import until_answered
from offloaderd.daemon import components as contexts
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import Ledgers, metadata_store, open_ledgers
from offloaderd.ledgers.embedded.store import EmbeddedReader
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.identity import deployment
from offloaderd.objects.bucket import bucket_store, check_places
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.context import OffloadContext
from offloaderd.spark.jobs.job import PATIENCE_S
from offloaderd.topic.buffer import BufferPool

PARTS_HELD = 8
"""Parts for which an executor has memory: those in flight, and the one that is being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of one of `slots` executors in limits that hold for all; rates in a second, 0 for none."""

    slots: int = 0
    source_bytes_per_s: float = 0
    source_requests_per_s: float = 0
    upload_bytes_per_s: float = 0

    def of_one(self, settings: Settings) -> Settings:
        """Return the settings of one executor."""
        bookkeeper, part_bytes = settings.bookkeeper, settings.offload.part_bytes
        bytes_per_s = self.source_bytes_per_s or bookkeeper.bytes_per_s
        requests_per_s = self.source_requests_per_s or bookkeeper.requests_per_s
        return settings.model_copy(
            update={
                "bookkeeper": bookkeeper.model_copy(
                    update={
                        "bytes_per_s": share(bytes_per_s, self.slots),
                        "requests_per_s": share(requests_per_s, self.slots),
                        "topic_bytes_per_s": 0,
                        "topic_requests_per_s": 0,
                    }
                ),
                "memory": settings.memory.model_copy(update={"upload_bytes": PARTS_HELD * part_bytes}),
                "spill": settings.spill.model_copy(update={"directory": None}),
            }
        )


def share(limit: float, slots: int) -> int:
    """Return one executor's part of a limit, at least 1; 0 for no limit."""
    return max(1, int(limit / slots)) if limit else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a job is run. `segment_bytes` 0: by each topic's policy; `share.slots` 0: one for each core of Spark."""

    segment_bytes: int = 0
    share: Share = field(default_factory=Share)
    patience_s: float = PATIENCE_S


class RatedPace(Pace):
    """Slots for parts that are taken at a rate: each counts as a whole part."""

    def __init__(self, ceiling: int, *, bytes_per_s: float, part_bytes: int, clock: Clock) -> None:
        super().__init__(ceiling)
        self._bucket = TokenBucket(bytes_per_s, clock)
        self._part_bytes = part_bytes
        self._clock = clock

    async def acquire(self, wanted: int = 1, holder: Hashable = None) -> None:
        """Take slots as soon as the rate allows it."""
        if wait_s := self._bucket.take(self._part_bytes):
            await self._clock.sleep(wait_s)
        await super().acquire(wanted, holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The open stores."""

    context: OffloadContext
    source: LedgerSource
    book: PolicyResolver


@asynccontextmanager
async def open_stores(settings: Settings, clock: Clock, *, upload_bytes_per_s: float = 0) -> AsyncIterator[Stores]:
    """Open metadata, bucket and ledgers, in this order. Raises InvalidConfig, Transient."""
    async with open_context(settings, clock, upload_bytes_per_s=upload_bytes_per_s) as (context, book):
        if context.source is None:
            raise InvalidConfig(
                "ledgers.kind is none: there is nothing to read history from", hint="set it to bookkeeper or embedded"
            )
        yield Stores(context=context, source=context.source, book=book)


@asynccontextmanager
async def open_context(
    settings: Settings, clock: Clock, *, upload_bytes_per_s: float = 0, rewriting: bool = False
) -> AsyncIterator[tuple[OffloadContext, PolicyResolver]]:
    """Open metadata, bucket and, if there are any, ledgers. Raises InvalidConfig, Transient.

    For `rewriting` stored segments the embedded store is not opened, since it has only the entries of a ledger.
    """
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(metadata_store(settings))
        objects = bucket_store(settings.objects, clock, metrics)
        await stack.enter_async_context(objects)
        try:
            await check_places(settings.objects, objects)
        except (Denied, BucketMissing) as error:
            raise InvalidConfig(error.message, hint=error.hint) from error
        ledgers = await _ledgers(stack, settings, clock, metrics, rewriting=rewriting)
        memory = settings.memory
        context = contexts.topic_context(
            settings,
            metadata,
            objects,
            ledgers,
            BufferPool(memory.buffer_bytes),
            ByteBudget(memory.upload_bytes),
            clock=clock,
            metrics=metrics,
        )
        ours = await until_answered(clock, lambda: deployment(metadata))
        context = replace(
            context,
            deployment_id=str(ours.deployment_id) if ours is not None else "",
            known_source=contexts.known_source(settings, metadata, ledgers, clock),
        )
        if upload_bytes_per_s:
            pace = RatedPace(
                settings.upload.concurrency_max,
                bytes_per_s=upload_bytes_per_s,
                part_bytes=settings.offload.part_bytes,
                clock=clock,
            )
            context = replace(context, upload_context=replace(context.upload_context, pace=pace))
        yield context, PolicyResolver(metadata, contexts.policy_levels(settings))


async def _ledgers(
    stack: AsyncExitStack, settings: Settings, clock: Clock, metrics: Metrics, *, rewriting: bool
) -> Ledgers:
    """Open the ledgers for reading: the daemon stays the owner of the embedded store."""
    if settings.ledgers.kind == "embedded" and rewriting:
        return Ledgers()
    if settings.ledgers.kind != "embedded":
        return await open_ledgers(stack, settings, clock=clock, metrics=metrics)
    reader = await stack.enter_async_context(EmbeddedReader(settings.ledgers.directory, clock=clock))
    return Ledgers(source=reader, origin=reader, describer=reader)
