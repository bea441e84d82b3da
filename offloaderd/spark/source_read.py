"""Reading one share: block ranges fetched ahead, every block checked, what is damaged named or told as a row.

Spark asks for batches by plain iteration; the store is read in an event loop that goes on while Spark waits for the
next one. One task fills a short queue, so requests of what comes next are on their way meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from offloaderd.errors import BucketMissing, CorruptData, NotFound
from offloaderd.model import Position
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.s3 import S3Store
from offloaderd.read.segment import Pace
from offloaderd.spark.source_columns import Columns, Skip
from offloaderd.spark.source_extents import extents_of, segment_reader
from offloaderd.spark.source_messages import Messages
from offloaderd.spark.source_share import BrokenSegment, Missing, broken

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from offloaderd.errors import OffloaderError
    from offloaderd.model import EntryBatch
    from offloaderd.objects.s3 import S3Options
    from offloaderd.read.segment import SegmentReader
    from offloaderd.spark.source_share import Piece, Share, Task
    from offloaderd.spark.source_wanted import Extent, Wanted

T = TypeVar("T")

AHEAD = 2
"""Batches that wait for Spark."""


class ShareReader:
    """What tasks get of a reader: nothing that plans, so they import less and know neither settings nor ZooKeeper."""

    def __init__(self, task: Task, wanted: Wanted) -> None:
        self._task = task
        self._wanted = wanted

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one share. Raises as `rows`."""
        return rows(self._task, partition.value, self._wanted)


def store_at(place: S3Options | str) -> FilesystemStore | S3Store:
    """Return the store of a task's place: a directory's path, or what S3 needs to know."""
    return FilesystemStore(Path(place)) if isinstance(place, str) else S3Store(place)


def rows(task: Task, share: Share | None, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a share; Spark gives None where there is none. Raises BrokenSegment, Transient, Denied."""

    async def opened() -> AsyncGenerator[pa.RecordBatch, None]:
        columns = Columns(task.schema, values=task.values, skips=task.skips)
        async with store_at(task.place) as objects, segment_reader(objects) as reader:
            async for batch in record_batches(reader, share or (), wanted, columns, task):
                yield batch

    return iterate(opened())


async def record_batches(
    reader: SegmentReader, share: Share, wanted: Wanted, columns: Columns, task: Task
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the rows of a share, in order.

    Raises BrokenSegment, BrokenValue and OutcomeUnknown unless the task `skips`, and what the store raises.
    """
    async with AsyncExitStack() as stack:
        messages = None
        if task.messages:
            messages = Messages(reader, skips=task.skips, transactions=task.transactions, step=task.step)
            stack.push_async_callback(messages.close)
        for one in share:
            if isinstance(one, Missing):
                hole = one.hole
                first = Position(hole.after.ledger_id, hole.after.entry_id + 1)
                yield columns.skipped(one.topic, Skip(first, hole.entries, hole.reason))
                continue
            here = replace(wanted, first=one.first, last=one.last)
            async with aclosing(_entries(reader, one, here, skips=task.skips)) as found:
                async for batch in found:
                    if isinstance(batch, Skip):
                        yield columns.skipped(one.topic, batch)
                    elif messages is None:
                        if made := columns.entries(one.topic, batch, wanted.in_time(batch)):
                            yield made
                    else:
                        async with aclosing(messages.rows(one, batch, wanted.in_time(batch))) as unpacked:
                            async for rows in unpacked:
                                yield columns.messages(one.topic, batch.ledger_id, rows)


async def _entries(
    reader: SegmentReader, piece: Piece, wanted: Wanted, *, skips: bool
) -> AsyncGenerator[EntryBatch | Skip, None]:
    """Yield what is wanted of a piece."""
    try:
        extents = await extents_of(reader, piece.topic, piece.segment)
    except (CorruptData, NotFound) as error:
        if not skips or isinstance(error, BucketMissing):
            raise _named(piece, str(piece.segment.range), error) from error
        if piece.leads:
            for skip in _all_of(piece, wanted, error):
                yield skip
        return
    chosen = [
        number
        for number, one in enumerate(extents)
        if piece.first_byte <= one.at < piece.end_byte and wanted.may_hold(one)
    ]
    pace = Pace()
    for run in _runs(chosen):
        async with aclosing(_run(reader, piece, [extents[at] for at in run], wanted, pace, skips=skips)) as found:
            async for batch in found:
                yield batch


async def _run(
    reader: SegmentReader, piece: Piece, run: Sequence[Extent], wanted: Wanted, pace: Pace, *, skips: bool
) -> AsyncGenerator[EntryBatch | Skip, None]:
    """Yield what is wanted of extents that lie next to each other; goes on behind one that is damaged."""
    left = deque(run)
    while left:
        first = Position(left[0].ledger_id, wanted.bounds(left[0])[0])
        last = Position(left[-1].ledger_id, wanted.bounds(left[-1])[1])
        at = first
        try:
            async with aclosing(reader.read(piece.topic, piece.segment, first, last, pace)) as batches:
                async for batch in batches:
                    yield batch
                    at = Position(batch.ledger_id, batch.last_entry_id + 1)
            return
        except (CorruptData, NotFound) as error:
            while (left[0].ledger_id, left[0].last_entry_id) < at:
                left.popleft()
            damaged = left.popleft()
            low, high = wanted.bounds(damaged)
            low = max(low, at.entry_id) if at.ledger_id == damaged.ledger_id else low
            where = f"{damaged.ledger_id}:{low}..{damaged.ledger_id}:{high}"
            if not skips or isinstance(error, BucketMissing):
                raise _named(piece, where, error) from error
            yield Skip(Position(damaged.ledger_id, low), high - low + 1, _named(piece, where, error).message)


def _all_of(piece: Piece, wanted: Wanted, error: OffloaderError) -> Iterator[Skip]:
    """Yield what cannot be read of a segment without its tables, ledger by ledger."""
    for one in wanted.slices(piece.segment):
        low, high = wanted.bounds(one)
        where = f"{one.ledger_id}:{low}..{one.ledger_id}:{high}"
        yield Skip(Position(one.ledger_id, low), high - low + 1, _named(piece, where, error).message)


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the runs of consecutive numbers."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _named(piece: Piece, where: str, error: OffloaderError) -> BrokenSegment:
    return broken(piece.topic, piece.segment, where, error)


class _End:
    """Nothing comes any more, because of an error perhaps."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def iterate(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what an asynchronous stream yields, in a loop of its own, which ends with the iteration."""
    with asyncio.Runner() as runner:
        queue: asyncio.Queue[T | _End] = asyncio.Queue(AHEAD)
        filling = runner.get_loop().create_task(_fill(stream, queue), name="what Spark reads next")
        while not isinstance(one := runner.run(queue.get()), _End):
            yield one
        filling.cancel()
        if one.error is not None:
            raise one.error


async def _fill(stream: AsyncGenerator[T, None], queue: asyncio.Queue[T | _End]) -> None:
    end = _End()
    try:
        async with aclosing(stream):
            async for one in stream:
                await queue.put(one)
    except Exception as error:  # noqa: BLE001 - it is raised where the stream is read
        end = _End(error)
    await queue.put(end)
