"""Reading of segments by a task: their extents, and entries whose segment was deleted after the planning.

Entries that no segment had at the planning are a LiveSegment, which is read from a daemon.

Extents are the blocks of a segment's manifest, or the entries between two places of a broker's index. Such an index
(PIP-17) has entries at which reading can begin, without all lengths between them. These are estimated in proportion:
shares are even enough, and each entry is in exactly one.

A segment that was merged, converted or rolled back is deleted a while after others have replaced it, and retention
deletes segments too. Neither is damage, since a query is for positions: the task reads the map again, and finds the
entries elsewhere. A segment that the map still names and the bucket lacks is damage. If the map cannot be read, the
query fails, even if it skips conditions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import (
    BucketMissing,
    CorruptData,
    EntriesDeleted,
    EntriesMissing,
    MapUnknown,
    NotFound,
    OffloaderError,
    TopicNotFound,
)
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.port import SegmentStore
from offloaderd.read.cache import ReadAhead
from offloaderd.read.segments import SegmentOptions, SegmentReader
from offloaderd.spark.scan.live import LiveReader, NotGiven
from offloaderd.spark.scan.query import Extent
from offloaderd.spark.scan.share import (
    BrokenSegment,
    Condition,
    LiveSegment,
    Part,
    Segment,
    broken,
    parts_of,
    unpacked,
)

if TYPE_CHECKING:
    from offloaderd.spark.scan.snapshot import Snapshot

    Current = Callable[[TopicName], Awaitable[Snapshot | None]]
    """Returns a topic's present snapshot, None if it does not exist. Raises as the stores do."""

MIB = 1024 * 1024
READ_AHEAD_BYTES = 8 * MIB
CACHE_BYTES = 16 * MIB
TABLES_BYTES = 16 * MIB
"""Memory of a task, independent of the size of segments; one block that is read ahead may be added."""


@asynccontextmanager
async def segment_reader(objects: SegmentStore) -> AsyncIterator[SegmentReader]:
    """Yield a reader with the memory that one task may take."""
    options = SegmentOptions(cache_bytes=CACHE_BYTES, tables_bytes=TABLES_BYTES, read_ahead_bytes=READ_AHEAD_BYTES)
    async with SegmentReader(objects, clock=SystemClock(), metrics=Metrics(), options=options) as reader:
        yield reader


LIVE_EXTENT_BYTES = MIB
"""Size of the extents of a live segment, as it is estimated."""


def entries_of(
    reader: SegmentReader,
    live: LiveReader | None,
    topic: TopicName,
    segment: Segment,
    first: Position,
    last: Position,
    pace: ReadAhead | None = None,
) -> AsyncGenerator[EntryBatch, None]:
    """Yield every entry of [first, last] from a segment of any kind, once and in order. Raises as its reader does."""
    if isinstance(segment, CommittedSegment):
        return reader.read(topic, segment, first, last, pace)
    assert live is not None  # noqa: S101 - who plans live segments names their daemon
    return live.read(topic, segment, first, last)


async def extents_of(reader: SegmentReader, topic: TopicName, segment: Segment) -> list[Extent]:
    """Return the extents of a segment that the map has, in order. Raises as reading its tables does."""
    if isinstance(segment, LiveSegment):
        return _estimated(segment)
    if segment.foreign:
        return await _places(reader, topic, segment)
    kept = {one.ledger_id: one for one in segment.slices}
    async with reader.table(topic, segment) as table:
        return [
            Extent(block.ledger_id, block.first_entry_id, block.last_entry_id, block.offset, block.survey, number)
            for number, block in enumerate(table.manifest.blocks)
            if block.ledger_id in kept
        ]


async def _places(reader: SegmentReader, topic: TopicName, segment: CommittedSegment) -> list[Extent]:
    only = segment.slices[0]
    firsts = await reader.known_places(topic, segment)
    lasts = [*(first - 1 for first in firsts[1:]), only.last_entry_id]
    return [
        Extent(only.ledger_id, first, last, first * segment.object_bytes // only.entries, None, number)
        for number, (first, last) in enumerate(zip(firsts, lasts, strict=True))
    ]


def _estimated(segment: LiveSegment) -> list[Extent]:
    """Return extents of a live segment of about even size, each in one ledger."""
    found: list[Extent] = []
    at = 0
    for part in segment.slices:
        entries = max(1, part.entries * LIVE_EXTENT_BYTES // max(1, part.payload_bytes))
        for first in range(part.first_entry_id, part.last_entry_id + 1, entries):
            last = min(first + entries - 1, part.last_entry_id)
            begin = at + (first - part.first_entry_id) * part.payload_bytes // part.entries
            found.append(Extent(part.ledger_id, first, last, begin, None, len(found)))
        at += part.payload_bytes
    return found


async def current_snapshot(origin: bytes, objects: SegmentStore, topic: TopicName) -> Snapshot | None:
    """Take a new snapshot of one topic, from the source of the query's own. Raises as the stores do."""
    from offloaderd.core.names.patterns import of_topic  # noqa: PLC0415 - few tasks need it
    from offloaderd.spark.scan import snapshot as source_snapshot  # noqa: PLC0415
    from offloaderd.spark.scan.snapshot import known_to  # noqa: PLC0415

    settings, metadata = unpacked(origin)
    try:
        async with known_to(settings, metadata, objects) as stores:
            (found,) = await source_snapshot.of(settings, stores, of_topic(topic), lenient=True)
    except BucketMissing:
        raise
    except NotFound:
        return None
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """Entries from one position to another, both inclusive, and the segment that has them.

    With a `problem` no segment has them: `segment` is the one that had them, `condition` the reason.
    """

    segment: Segment
    first: Position
    last: Position
    problem: OffloaderError | None = None
    condition: Condition = Condition.DAMAGE

    @property
    def parts(self) -> list[Part]:
        """The entries by ledger."""
        return parts_of(self.segment, self.first, self.last)

    def continues(self, other: Run) -> bool:
        """Return whether segment, condition and problem are those of another run."""
        ours = self.segment, self.condition, str(self.problem)
        return ours == (other.segment, other.condition, str(other.problem))

    def broken(self, topic: TopicName, where: object, error: OffloaderError) -> BrokenSegment:
        """Return the error for some of its entries."""
        return broken(topic, self.segment, where, error, self.condition)


class LateReader:
    """Reads entries by their positions, from the segment that had them at the planning or has them now."""

    def __init__(self, reader: SegmentReader, current: Current, live: LiveReader | None = None) -> None:
        self.segments = reader
        self._current = current
        self._live = live
        self._known: dict[TopicName, Snapshot] = {}

    def read_segment(
        self, topic: TopicName, segment: Segment, first: Position, last: Position, pace: ReadAhead | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield every entry of [first, last] from the segment itself. Raises as `entries_of`."""
        return entries_of(self.segments, self._live, topic, segment, first, last, pace)

    async def read(
        self,
        topic: TopicName,
        segment: Segment,
        first: Position,
        last: Position,
        pace: ReadAhead | None = None,
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield every entry of [first, last], once and in order. Raises BrokenSegment, CorruptData."""
        todo = deque([Run(segment, first, last)])
        while todo:
            run = todo.popleft()
            if run.problem is not None:
                raise run.broken(topic, f"{run.first}..{run.last}", run.problem)
            at = run.first
            try:
                async with aclosing(self.read_segment(topic, run.segment, run.first, run.last, pace)) as batches:
                    async for batch in batches:
                        yield batch
                        at = batch.last.next()
            except BucketMissing:
                raise
            except NotFound as error:
                todo.extendleft(reversed(await self.locate(topic, Run(run.segment, at, run.last), error)))

    async def locate(self, topic: TopicName, run: Run, error: NotFound | CorruptData) -> list[Run]:
        """Return runs with the entries of a run whose segment was not found, in order.

        The last snapshot is tried first, since one merged segment replaces many; only a new one can prove that no
        segment has the entries. Of a live segment these are the entries that the daemon cannot give, from the first of
        the run on, and those behind them, which it may. Raises as the stores and the daemon do.
        """
        if isinstance(run.segment, LiveSegment):
            return await self._behind(topic, run.segment, run, error)
        known = self._known.get(topic)
        if known is not None:
            found = list(_located(known, run, error))
            if all(one.problem is None for one in found):
                return found
        try:
            snapshot = await self._current(topic)
        except OffloaderError as unknown:
            raise type(unknown)(
                f"segment {run.segment.segment_id} of {topic} is deleted, and which segment has its entries now "
                f"is unknown: {unknown.message}",
                hint="tasks ask it where the driver does, in ZooKeeper or in the bucket; or run the query again",
            ) from unknown
        if snapshot is None:
            gone = NotFound("the topic was deleted while the query ran")
            return [Run(run.segment, run.first, run.last, gone, Condition.RETENTION)]
        self._known[topic] = snapshot
        return list(_located(snapshot, run, error))

    async def _behind(
        self, topic: TopicName, segment: LiveSegment, run: Run, error: NotFound | CorruptData
    ) -> list[Run]:
        """Return the run of a live segment that its daemon cannot give, and the rest of the run, if there is more.

        That is one entry that is damaged, what retention deleted or the daemon passed over, or else the rest of a
        ledger. An error between two ledgers, as the first is deleted by then, is about none. Raises `error` of other
        kinds.
        """
        parts = run.parts
        if not parts:
            return []
        ledger_id, first_entry_id, last_entry_id = parts[0]
        at, end = Position(ledger_id, first_entry_id), Position(ledger_id, last_entry_id)
        if run.first < at:
            return [Run(segment, at, run.last)]
        condition = Condition.LOSSES
        match error:
            case CorruptData():
                end, condition = at, Condition.DAMAGE
            case TopicNotFound():
                end, condition = run.last, Condition.RETENTION
            case EntriesDeleted():
                oldest = await self._live.oldest(topic) if self._live is not None else None
                before = run.last if oldest is None else Position(oldest.ledger_id, oldest.entry_id - 1)
                end, condition = max(at, min(before, run.last)), Condition.RETENTION
            case NotGiven():
                end = min(error.upto, run.last)
            case EntriesMissing():
                pass
            case _:
                raise error
        behind = parts_of(segment, end.next(), run.last)
        rest = [Run(segment, Position(one.ledger_id, one.first_entry_id), run.last) for one in behind[:1]]
        return [Run(segment, run.first, end, error, condition), *rest]


def _located(snapshot: Snapshot, run: Run, error: OffloaderError) -> Iterator[Run]:
    """Yield runs with the entries of a run in a snapshot, in order, including those that no segment has."""
    pending: Run | None = None
    for found in _steps(snapshot, run, error):
        if pending is not None and found.continues(pending):
            pending = replace(pending, last=found.last)
        else:
            if pending is not None:
                yield pending
            pending = found
    if pending is not None:
        yield pending


def _steps(snapshot: Snapshot, run: Run, error: OffloaderError) -> Iterator[Run]:
    """Yield the same, no run longer than a ledger."""
    segments = snapshot.map.segments
    for part in run.parts:
        low = part.first_entry_id
        while low <= part.last_entry_id:
            first = Position(part.ledger_id, low)
            holder = snapshot.map.find(first)
            if holder is None:
                slices = (one for held in segments for one in held.slices if one.ledger_id == part.ledger_id)
                begins = [one.first_entry_id for one in slices]
                high = min((one - 1 for one in begins if low < one <= part.last_entry_id), default=part.last_entry_id)
                last = Position(part.ledger_id, high)
                yield from _nowhere(snapshot, run, first, last)
            else:
                held = next(one for one in holder.slices if one.range.begin <= first <= one.range.end)
                high = min(part.last_entry_id, held.last_entry_id)
                last = Position(part.ledger_id, high)
                had = run.segment
                same = (
                    isinstance(had, CommittedSegment)
                    and had.segment_id == holder.segment_id
                    and had.keys == holder.keys
                )
                yield Run(run.segment, first, last, error) if same else Run(holder, first, last)
            low = high + 1


def _nowhere(snapshot: Snapshot, run: Run, first: Position, last: Position) -> Iterator[Run]:
    """Yield entries of one ledger that no segment has, with the reason. Raises MapUnknown if none is recorded."""
    topic_map = snapshot.map
    floor = topic_map.floor
    if floor is None and snapshot.rebuilt and topic_map.segments:
        oldest = topic_map.segments[0].begin
        floor = Position(oldest.ledger_id, oldest.entry_id - 1)
    if floor is not None and first <= floor:
        end = min(last, floor)
        deleted = NotFound("they were deleted by retention while the query ran", hint="run the query again")
        yield Run(run.segment, first, end, deleted, Condition.RETENTION)
        if end < last:
            yield from _nowhere(snapshot, run, Position(first.ledger_id, end.entry_id + 1), last)
        return
    holes = (one for one in snapshot.holes if one.after < first and (one.before is None or last < one.before))
    hole = next(holes, None)
    if hole is not None:
        yield Run(run.segment, first, last, NotFound(hole.reason), hole.condition)
    elif snapshot.rebuilt:
        yield Run(run.segment, first, last, NotFound("no manifest in the bucket has them any more"))
    else:
        raise MapUnknown(
            f"{topic_map.topic}: no segment has entries {first}..{last} any more, nor is their deletion on record",
            hint="the metadata may be an older copy, or another's; nothing is left out on its word",
        )
