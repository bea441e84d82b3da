"""`spark.readStream.format("offload")`: new segments as they are committed, each entry exactly once.

An offset is, for each topic, the position of the last entry that was handed out; so a restart from a checkpoint goes on
at the next one, and a step that is repeated has the same entries, whichever segments hold them by then. A topic that
comes up later (a new partition) begins at its oldest entry. While history is still being offloaded, the stream waits
for it before it goes on behind it. What is deleted before the stream got to it ends the query, or is counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from offloaderd.clock import SystemClock
from offloaderd.errors import InvalidInput, NotFound
from offloaderd.model import Position, TopicName
from offloaderd.read.errors import EntriesDeleted
from offloaderd.spark import source_plan, source_snapshot
from offloaderd.spark.source import Reading
from offloaderd.spark.source_extents import segment_reader
from offloaderd.spark.source_options import Start
from offloaderd.spark.source_snapshot import Hole, Snapshot
from offloaderd.stores import open_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from offloaderd.spark.source_options import SourceOptions
    from offloaderd.spark.source_plan import Share

NOTHING = Position(-1, -1)
"""Before the first entry of a topic."""

Offset = dict[str, str]
"""Position of the last entry that was handed out, by topic in full; one of which there was none is not in it."""


class SegmentsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the topics of a query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._reading = Reading(options, schema)
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins: behind what has been deleted, behind all there is, or where `start` says."""
        options = self._reading.options
        begin = options.wanted.first
        offset: Offset = {}
        for snapshot in self._snapshots():
            if begin is not None:
                at = before(snapshot, begin)
            else:
                at = (snapshot.end if options.start is Start.LATEST else snapshot.map.floor) or NOTHING
            if at != NOTHING:
                offset[str(snapshot.topic)] = str(at)
        return offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """How far one step goes: to the newest entry, or so many bytes, and then to the end of the segment."""
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        offset = dict(start)
        for snapshot in self._snapshots():
            name = str(snapshot.topic)
            target = None if self._target is None else self._target.get(name, str(NOTHING))
            at, taken = reach(snapshot, position(start, name), None if target is None else parsed(target), room)
            if at != NOTHING:
                offset[name] = str(at)
            room = None if room is None else max(0, room - taken)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What `max_bytes_per_trigger` says."""
        limit = self._reading.options.trigger_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The newest entries that are committed, for the query's progress."""
        return {str(one.topic): str(one.end) for one in self._snapshots() if one.end is not None}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at what is committed now."""
        self._target = self.reportLatestOffset()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Share out what lies behind `start`, up to `end`. Raises EntriesDeleted for what is not there any more."""
        return [InputPartition(share) for share in asyncio.run(self._shares(start, end))]

    async def _shares(self, start: Offset, end: Offset) -> list[Share]:
        options = self._reading.options
        places: dict[TopicName, tuple[Position | None, Position | None]] = {}
        steps = []
        async with open_objects(options.settings, SystemClock()) as objects, segment_reader(objects) as reader:
            for snapshot in await source_snapshot.take(options, objects):
                name = str(snapshot.topic)
                low, high = position(start, name), position(end, name)
                if low < high:
                    places[snapshot.topic] = following(low), high
                    steps.append(still_there(snapshot, low, high, skips=options.skips))
            wanted = {name for name in end if position(start, name) < position(end, name)}
            gone = wanted - {str(topic) for topic in places}
            if gone:
                raise NotFound(
                    f"{', '.join(sorted(gone))}: nothing is known of it any more, and the stream is not through",
                    hint="begin with another checkpoint if the topic was deleted",
                )
            return await source_plan.shares(steps, options, options.wanted, reader, places=places)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one share."""
        return self._reading.rows(partition.value, self._reading.options.wanted)

    def _snapshots(self) -> list[Snapshot]:
        async def take() -> list[Snapshot]:
            options = self._reading.options
            async with open_objects(options.settings, SystemClock()) as objects:
                return await source_snapshot.take(options, objects)

        return asyncio.run(take())


def position(offset: Mapping[str, str], name: str) -> Position:
    """Return up to where a topic was handed out."""
    return parsed(offset.get(name, str(NOTHING)))


def parsed(text: str) -> Position:
    """Read a position of an offset, which may be the one before all. Raises InvalidInput."""
    return NOTHING if text == str(NOTHING) else Position.parse(text)


def following(at: Position) -> Position | None:
    """Return what comes after a position; None for everything that there is."""
    return None if at == NOTHING else Position(at.ledger_id, at.entry_id + 1)


def before(snapshot: Snapshot, begin: Position) -> Position:
    """Return the position before `begin`: in its ledger, at the end of an earlier one, or of what was deleted."""
    if begin.entry_id:
        return Position(begin.ledger_id, begin.entry_id - 1)
    slices = (part for segment in snapshot.map.segments for part in segment.slices)
    ends = [part.range.end for part in slices if part.ledger_id < begin.ledger_id]
    return max(ends, default=snapshot.map.floor or NOTHING)


def reach(snapshot: Snapshot, start: Position, target: Position | None, room: int | None) -> tuple[Position, int]:
    """Return where a step ends that begins behind `start`, and how many bytes of objects it is about.

    A step with a limit goes on to the end of the segment with which it is full.
    """
    end = snapshot.end
    if end is None or (target is not None and target <= start):
        return start, 0
    goal = end if target is None else min(end, target)
    if goal <= start:
        return start, 0
    at, taken = start, 0
    for segment in snapshot.map.segments:
        if segment.end <= start:
            continue
        if segment.begin > goal or (room is not None and taken >= room):
            return at, taken
        at, taken = min(goal, segment.end), taken + segment.object_bytes
    return (goal if room is None else at), taken


def still_there(snapshot: Snapshot, start: Position, end: Position, *, skips: bool) -> Snapshot:
    """Return the snapshot, with a hole for what was deleted of a step. Raises EntriesDeleted unless it `skips`."""
    topic_map = snapshot.map
    floor = topic_map.floor
    if topic_map.offloaded is None or topic_map.offloaded < end:
        raise InvalidInput(
            f"{snapshot.topic}: the stream had got to {end}, and nothing is offloaded behind {topic_map.offloaded}",
            hint="the checkpoint is of another cluster or topic, or the metadata was restored from an older copy",
        )
    if floor is None or floor <= start:
        return snapshot
    oldest = topic_map.segments[0].begin if topic_map.segments else None
    reason = f"entries behind {start if start != NOTHING else 'the begin'} up to {floor} were deleted by retention"
    if not skips:
        hint = "let retention keep more than the stream lags; mode=skip goes on behind them"
        raise EntriesDeleted(f"{snapshot.topic}: {reason} before the stream got to them", hint=hint)
    hole = Hole(after=start, before=oldest, reason=reason, awaited=start == NOTHING)
    return Snapshot(topic_map, (hole, *snapshot.holes))
