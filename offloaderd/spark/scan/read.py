"""Reading of one share: blocks are fetched ahead and checked; a damaged one is an error, or a row.

Spark gets batches by plain iteration; the store is read in an event loop that runs while Spark waits for the next one.
One asyncio task fills a short queue, so the next requests are in flight meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, OffloaderError
from offloaderd.core.model import EntryBatch, Position
from offloaderd.daemon.log import quieted
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.opening import bucket_store
from offloaderd.read.cache import ReadAhead
from offloaderd.read.segments import SegmentReader
from offloaderd.spark.errors import brief
from offloaderd.spark.scan.columns import Columns, Skip
from offloaderd.spark.scan.live import LiveReader
from offloaderd.spark.scan.messages import Messages
from offloaderd.spark.scan.query import EntryQuery, Extent
from offloaderd.spark.scan.segments import LateReader, Run, current_snapshot, extents_of, segment_reader
from offloaderd.spark.scan.share import Condition, LiveSegment, Missing, Part, Piece, Share, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

T = TypeVar("T")

AHEAD = 2
"""Batches that wait for Spark."""

UNCOUNTED = "how many entries it stands for is not known"
"""The addition to the reason of a row whose `skipped` is null."""


class ShareReader:
    """A task's part of a reader: it does not plan, so it imports less and has no ZooKeeper."""

    def __init__(self, task: Task, query: EntryQuery) -> None:
        self._task = task
        self._wanted = query

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one share. Raises as `rows`."""
        return rows(self._task, partition.value, self._wanted)


def rows(task: Task, share: Share | None, query: EntryQuery) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a share; Spark gives None where there is none. Raises Unread, Transient, Denied."""

    quieted(logging.CRITICAL)  # problems are in the error, or in a row

    async def opened() -> AsyncGenerator[pa.RecordBatch, None]:
        columns = Columns(task.schema, values=task.values, skip=task.skip)
        async with (
            bucket_store(task.objects, SystemClock()) as objects,
            segment_reader(objects) as reader,
            LiveReader(task.daemon) as live,
        ):
            late = LateReader(reader, partial(current_snapshot, task.origin, objects), live)
            async for batch in record_batches(late, share or (), query, columns, task):
                yield batch

    return iterate(opened())


async def record_batches(
    reader: LateReader, share: Share, query: EntryQuery, columns: Columns, task: Task
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the rows of a share, in order.

    Raises BrokenSegment, BrokenValue and OutcomeUnknown unless the task skips the condition, and as the store does.
    """
    async with AsyncExitStack() as stack:
        messages = None
        if task.messages:
            messages = Messages(reader, skip=task.skip, transactions=task.transactions, step=task.step)
            stack.push_async_callback(messages.close)
        for one in share:
            if isinstance(one, Missing):
                hole = one.hole
                first = hole.after.next()
                reason = hole.reason if hole.entries is not None else f"{hole.reason}; {UNCOUNTED}"
                yield columns.skipped(one.topic, Skip(first, hole.entries, reason))
                continue
            async with aclosing(_entries(reader, one, query, task.skip)) as found:
                async for batch in found:
                    if isinstance(batch, Skip):
                        yield columns.skipped(one.topic, batch)
                    elif messages is None:
                        if made := columns.entries(one.topic, batch, query.in_time(batch)):
                            yield made
                    else:
                        async with aclosing(messages.rows(one, batch, query.in_time(batch))) as unpacked:
                            async for rows in unpacked:
                                yield columns.messages(one.topic, batch.ledger_id, rows)


async def _entries(
    reader: LateReader, piece: Piece, query: EntryQuery, skip: frozenset[Condition]
) -> AsyncGenerator[EntryBatch | Skip, None]:
    """Yield the entries of a piece, each as it is or in the Skip that counts it."""
    todo = deque([Run(piece.segment, piece.first, piece.last)])
    pace = ReadAhead()
    while todo:
        run = todo.popleft()
        here = replace(query, first=run.first, last=run.last)
        if run.problem is not None:
            for skipped in _skips_of(piece, run, here, run.problem, skip):
                yield skipped
            continue
        at = run.first
        try:
            async with aclosing(_given(reader, piece, run, here, pace, skip)) as found:
                async for batch in found:
                    yield batch
                    at = _following(batch)
        except BucketMissing:
            raise
        except (NotFound, CorruptData) as error:
            if isinstance(error, CorruptData) and isinstance(run.segment, CommittedSegment):
                for skipped in _skips_of(piece, run, here, error, skip):
                    yield skipped
                continue
            todo.extendleft(reversed(await reader.locate(piece.topic, Run(run.segment, at, run.last), error)))


async def _given(
    reader: LateReader, piece: Piece, run: Run, query: EntryQuery, pace: ReadAhead, skip: frozenset[Condition]
) -> AsyncGenerator[EntryBatch | Skip, None]:
    """Yield what the segment of a run has. Raises as reading it does."""
    if isinstance(run.segment, LiveSegment):
        async with aclosing(reader.read_segment(piece.topic, run.segment, run.first, run.last)) as batches:
            async for batch in batches:
                yield batch
        return
    extents = [one for one in await extents_of(reader.segments, piece.topic, run.segment) if query.may_hold(one)]
    for row in _rows_of(extents):
        async with aclosing(_row(reader.segments, piece, run, run.segment, row, query, pace, skip)) as found:
            async for one in found:
                yield one


async def _row(
    reader: SegmentReader,
    piece: Piece,
    run: Run,
    segment: CommittedSegment,
    row: Sequence[Extent],
    query: EntryQuery,
    pace: ReadAhead,
    skip: frozenset[Condition],
) -> AsyncGenerator[EntryBatch | Skip, None]:
    """Yield the entries of consecutive extents; continue after one that is damaged."""
    left = deque(row)
    while left:
        at = Position(left[0].ledger_id, query.bounds(left[0])[0])
        last = Position(left[-1].ledger_id, query.bounds(left[-1])[1])
        try:
            async with aclosing(reader.read(piece.topic, segment, at, last, pace)) as batches:
                async for batch in batches:
                    yield batch
                    at = _following(batch)
            return
        except CorruptData as error:
            while (left[0].ledger_id, left[0].last_entry_id) < at:
                left.popleft()
            damaged = left.popleft()
            low, high = query.bounds(damaged)
            low = max(low, at.entry_id) if at.ledger_id == damaged.ledger_id else low
            part = Part(damaged.ledger_id, low, high)
            yield _skipped(piece, run, part, error, skip)


def _skips_of(
    piece: Piece, run: Run, query: EntryQuery, error: OffloaderError, skip: frozenset[Condition]
) -> Iterator[Skip]:
    """Yield the skips of a run that cannot be read, by ledger. Raises BrokenSegment."""
    for part in run.parts:
        if query.may_hold(Extent(*part, 0)):
            yield _skipped(piece, run, part, error, skip)


def _skipped(piece: Piece, run: Run, part: Part, error: OffloaderError, skip: frozenset[Condition]) -> Skip:
    """Return the skip of entries that cannot be read. Raises BrokenSegment if that ends the query."""
    broken = run.broken(piece.topic, part, error)
    if broken.condition not in skip:
        raise broken from error
    return Skip(Position(part.ledger_id, part.first_entry_id), part.entries, broken.message)


def _following(batch: EntryBatch | Skip) -> Position:
    if isinstance(batch, Skip):
        return Position(batch.first.ledger_id, batch.first.entry_id + (batch.entries or 0))
    return batch.last.next()


def _rows_of(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """Yield lists of consecutive extents, which are read together."""
    row: list[Extent] = []
    for one in extents:
        if row and one.number != row[-1].number + 1:
            yield row
            row = []
        row.append(one)
    if row:
        yield row


@brief
def iterate(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous stream, in a loop of its own that ends with the iteration.

    The runner itself would write each item as a text: it looks for handlers of signals at each call, by an Enum whose
    error says what the last call returned.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(AHEAD)
        filling = loop.create_task(_fill(stream, queue), name="what Spark reads next")
        while (one := loop.run_until_complete(queue.get())) is not None:
            if isinstance(one, Exception):
                raise one
            yield one
        filling.cancel()


async def _fill(stream: AsyncGenerator[T, None], queue: asyncio.Queue[T | Exception | None]) -> None:
    """Put the items into the queue, at the end None or the error that ended the stream."""
    end: Exception | None = None
    try:
        async with aclosing(stream):
            async for one in stream:
                await queue.put(one)
    except Exception as error:  # noqa: BLE001 - it is raised where the stream is read
        end = error
    await queue.put(end)
