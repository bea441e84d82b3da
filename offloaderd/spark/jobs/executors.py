"""Executors: the share of each in all limits, the stores that it opens, and tasks as Spark jobs.

Drivers and executors open the stores by the daemon's settings; each has sessions of its own. Limits hold for all
executors together: each has its share of the rates for bookies and bucket, and a fixed amount of memory for parts in
flight, whatever the size of its segment.

A task is a Spark job of a single partition, named in Spark's own pages. With one job for all, the number of tasks at a
time would grow with the cluster, beyond that by which the limits were divided. A job of its own that fails goes to
another executor without ending the others, and the oldest runs first, which is the order of commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import BucketMissing, Denied, InvalidConfig, OffloaderError, Transient
from offloaderd.core.limits import ByteBudget, Pace, TokenBucket
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.retry import until_answered
from offloaderd.daemon import log
from offloaderd.daemon import topic_context as contexts
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import Ledgers, metadata_store, open_ledgers
from offloaderd.ledgers.embedded.store import EmbeddedReader
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.identity import deployment
from offloaderd.objects.opening import bucket_store, check_places
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.context import OffloadContext
from offloaderd.spark.errors import gist
from offloaderd.spark.jobs.task import (
    PATIENCE_S,
    Outcome,
    RewriteTask,
    SegmentTask,
    Written,
    rewrite_segment,
    write_segment,
)
from offloaderd.topic.buffer import BufferPool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PARTS_HELD = 8
"""Parts for which an executor has memory: those in flight, and the one that is being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of one of `slots` executors in limits that hold for all; rates in a second, 0 for none.

    0 slots: with Spark one for each core that it has when the job starts.
    """

    slots: int = 0
    source_bytes_per_s: float = 0
    source_requests_per_s: float = 0
    upload_bytes_per_s: float = 0

    def of_one(self, settings: Settings) -> Settings:
        """Return the settings of one executor."""
        bookkeeper, part_bytes = settings.bookkeeper, settings.offload.part_bytes
        limits = {
            "bytes_per_s": share(self.source_bytes_per_s or bookkeeper.bytes_per_s, self.slots),
            "requests_per_s": share(self.source_requests_per_s or bookkeeper.requests_per_s, self.slots),
            "topic_bytes_per_s": 0,
            "topic_requests_per_s": 0,
        }
        return settings.model_copy(
            update={
                "bookkeeper": bookkeeper.model_copy(update=limits),
                "memory": settings.memory.model_copy(update={"upload_bytes": PARTS_HELD * part_bytes}),
                "spill": settings.spill.model_copy(update={"directory": None}),
            }
        )


def share(limit: float, slots: int) -> int:
    """Return one executor's part of a limit, at least 1; 0 for no limit."""
    return max(1, int(limit / slots)) if limit else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a job is run. `segment_bytes` 0: by each topic's policy."""

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

    async def acquire(self, wanted: int = 1, holder: Hashable = None, *, size: int | None = None) -> None:
        """Take slots as soon as the rate allows it."""
        if wait_s := self._bucket.take(self._part_bytes):
            await self._clock.sleep(wait_s)
        await super().acquire(wanted, holder, size=size)


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


AnyTask = SegmentTask | RewriteTask
ERROR_CHARS_MAX = 300


class SparkRunner(AbstractContextManager["SparkRunner"]):
    """Executors of a Spark session; use it as a context manager."""

    def __init__(self, session: SparkSession, settings: Settings, share: Share, *, name: str) -> None:
        """`slots` are those of the share or, if these are 0, one for each core that Spark has now."""
        self._context = session.sparkContext
        self._settings = settings
        self.slots = share.slots or self._context.defaultParallelism
        self._share = replace(share, slots=self.slots)
        self._group = f"{name}-{SystemClock().uuid()}"
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix=name)

    def __exit__(self, *_: object) -> None:
        """Have Spark stop the jobs that still run."""
        self._context.cancelJobGroup(self._group)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def run(self, task: AnyTask) -> Written:
        """Have an object written; see Driver."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._job, task)

    def _job(self, task: AnyTask) -> Written:
        """Run a job of one partition; blocks."""
        context = self._context
        context.setJobGroup(self._group, f"{task.claim.topic} {task.begin} to {task.end}", interruptOnCancel=True)
        try:
            found: list[Written] = (
                context.parallelize([(self._settings, self._share, task)], 1).mapPartitions(on_executor).collect()
            )
        except Exception as error:
            message = gist(str(error) or type(error).__name__)[:ERROR_CHARS_MAX]
            raise Transient(f"the executor failed: {message}") from error
        return found[0]


def on_executor(tasks: Iterable[tuple[Settings, Share, AnyTask]]) -> Iterator[Written]:
    """Write the segments of a partition; runs in an executor's Python."""
    from pyspark import TaskContext  # noqa: PLC0415 - optional, and takes a second

    log.configure("warning")
    context = TaskContext.get()
    tried_before = context is not None and context.attemptNumber() > 0
    for settings, share, task in tasks:
        yield asyncio.run(execute(settings, share, task, again=tried_before))


async def execute(settings: Settings, share: Share, task: AnyTask, *, again: bool = False) -> Written:
    """Write one segment with an executor's share of all limits; `again`: Spark has tried it before."""
    own, rate = share.of_one(settings), share.upload_bytes_per_s / share.slots
    task, clock = replace(task, again=task.again or again), SystemClock()
    try:
        if isinstance(task, RewriteTask):
            async with (
                open_context(own, clock, upload_bytes_per_s=rate, rewriting=True) as (context, _),
                traced(own, context) as to,
            ):
                return await rewrite_segment(to, task)
        async with open_stores(own, clock, upload_bytes_per_s=rate) as stores, traced(own, stores.context) as to:
            return await write_segment(to, stores.source, task)
    except OffloaderError as error:
        return Written(outcome=Outcome.UNFINISHED, error=str(error))


@asynccontextmanager
async def traced(settings: Settings, context: OffloadContext) -> AsyncIterator[OffloadContext]:
    """Yield a context whose segments are traced by the settings; waiting spans are sent at the end."""
    async with contexts.opened_traces(settings, context.upload_context.metrics) as traces:
        yield contexts.traced(context, traces)
