"""Tasks as Spark jobs: one of a single partition for each, named in Spark's own pages.

With one job for all, the number of tasks at a time would grow with the cluster, beyond that by which the limits were
divided. A job of its own that fails goes to another executor without ending the others, and the oldest runs first,
which is the order of commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.daemon import components as contexts
from offloaderd.daemon import log
from offloaderd.daemon.settings import Settings
from offloaderd.segment.context import OffloadContext
from offloaderd.spark.errors import gist
from offloaderd.spark.jobs.job import Outcome, RewriteTask, SegmentTask, Written
from offloaderd.spark.jobs.stores import Share, open_context, open_stores
from offloaderd.spark.jobs.write_task import rewrite_segment, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyTask = SegmentTask | RewriteTask
ERROR_CHARS_MAX = 300


class SparkRunner(AbstractContextManager["SparkRunner"]):
    """A Runner over a Spark session; use it as a context manager."""

    def __init__(self, session: SparkSession, settings: Settings, share: Share, *, name: str) -> None:
        """`slots` are those of the share, or else one for each core that Spark has now."""
        self._context = session.sparkContext
        self._settings = settings
        self.slots = share.slots or max(1, self._context.defaultParallelism)
        self._share = replace(share, slots=self.slots)
        self._group = f"{name}-{SystemClock().uuid()}"
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix=name)

    def __exit__(self, *_: object) -> None:
        """Have Spark stop the jobs that still run."""
        self._context.cancelJobGroup(self._group)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def run(self, task: AnyTask) -> Written:
        """See Runner."""
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
