"""`spark.readStream.format("offload")`: new segments as they are committed, each entry exactly once; and its steps.

An offset is, for each topic, the position of the last entry that was read; so a restart from a checkpoint continues at
the next one. A topic that is not in it, such as a new partition, begins at its oldest entry. A step from one offset to
another has the same entries each time, whichever segments have them by then. The stream waits for history that is still
being offloaded. Entries that were deleted before the stream has read them end the query, or are left out and counted
(options `mode` and `skip`). Exports make the same steps.

A step has about a given number of bytes, which the topics share, and may end inside a segment. If each topic's share
would be too small for a task, a step takes fewer topics, and the next step begins with the topic after them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from offloaderd.core.errors import EntriesDeleted, InvalidInput, NotFound
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.read.transactions import KnownOutcomes
from offloaderd.spark.errors import brief
from offloaderd.spark.scan import snapshot as source_snapshot
from offloaderd.spark.scan.options import SourceOptions, Start
from offloaderd.spark.scan.plan import shares
from offloaderd.spark.scan.query import NOTHING, EntryQuery, Offset, following, parsed, position
from offloaderd.spark.scan.read import ShareReader, rows
from offloaderd.spark.scan.segments import segment_reader
from offloaderd.spark.scan.share import Condition, Hole, Share
from offloaderd.spark.scan.snapshot import HeldStores, Snapshot, Stores
from offloaderd.spark.scan.transactions import with_held

if TYPE_CHECKING:
    import pyarrow as pa


class SegmentsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the topics of a query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._task = options.task(schema, step=True)
        self._target: Offset | None = None
        self._held = HeldStores(options)
        self._known = KnownOutcomes()
        self._snapshots: list[Snapshot] = []
        self._step = Step({})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the part that tasks need."""
        return ShareReader, (self._task, self._options.query)

    @brief
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the begin of a new query: behind the floor, behind all entries, or by the option `start`."""
        latest = self._options.start is Start.LATEST
        offset: Offset = {}
        for snapshot in self._refreshed():
            at = snapshot.end if latest else begin(snapshot, self._options.query)
            if at is not None and at != NOTHING:
                offset[str(snapshot.topic)] = written(snapshot, at)
        return offset

    @brief
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of a step: the newest entry of the query, or the limit of bytes."""
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        query, turn = self._options.query, self._step.turn
        self._step = advance(self._refreshed(), start, query, target=self._target, room=room, turn=turn)
        return self._step.offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the option `max_bytes_per_trigger`."""
        limit = self._options.trigger_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    @brief
    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the newest committed entries of the last snapshots, for the query's progress."""
        return furthest(self._snapshots or self._refreshed(), self._options.query)

    @brief
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at the entries committed now."""
        self._target = furthest(self._refreshed(), self._options.query)

    @brief
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the shares behind `start`, up to `end`. Raises as `plan_step` does.

        A new step is planned by its own snapshots, a step that a checkpoint repeats by new ones.
        """
        known = self._snapshots if end == self._step.offset else None
        made = self._held.run(lambda stores: plan_step(self._options, stores, start, end, known))
        return [InputPartition(share) for share in made]

    def stop(self) -> None:
        """Close the stores of the stream."""
        self._held.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See ShareReader."""
        return rows(self._task, partition.value, self._options.query)

    def _refreshed(self) -> list[Snapshot]:
        self._snapshots = self._held.run(lambda stores: take_snapshots(self._options, stores, self._known))
        return self._snapshots


LEFT_OUT = "or leave it out with without=TOPIC: everything else then continues, each entry once"


async def take_snapshots(
    options: SourceOptions, stores: Stores, known: KnownOutcomes | None = None, *, beside: bool = False
) -> list[Snapshot]:
    """Take a snapshot of all topics, each with the end of what consumers get.

    `known`: see `with_held`; `beside`: see Snapshot.
    """
    async with segment_reader(stores.objects) as reader:
        found = [replace(one, beside=beside) for one in await source_snapshot.take(options, stores)]
        return await with_held(found, reader, known) if options.holds_back else found


async def plan_step(
    options: SourceOptions, stores: Stores, start: Offset, end: Offset, snapshots: Sequence[Snapshot] | None = None
) -> list[Share]:
    """Return the shares of the entries behind `start`, up to `end`, as they are now or were in the snapshots.

    Raises EntriesDeleted for deleted entries, NotFound for a deleted topic, InvalidInput for another history.
    """
    async with segment_reader(stores.objects) as reader:
        found = list(snapshots) if snapshots is not None else await source_snapshot.take(options, stores)
        steps = deleted_topics(found, start, end, options)
        places: dict[TopicName, tuple[Position | None, Position | None]]
        places = {one.topic: (None, position(end, str(one.topic))) for one in steps}
        for snapshot in found:
            name = str(snapshot.topic)
            low = start.get(name) or str(begin(snapshot, options.query))
            if parsed(low)[0] >= position(end, name):
                continue
            there = check_step(snapshot, low, end[name], skips=Condition.RETENTION in options.skipped)
            place = clipped(options.query, parsed(low)[0], position(end, name))
            if place is not None:
                steps.append(there)
                places[snapshot.topic] = place
        return await shares(steps, options, options.query, reader, places=places)


def clipped(query: EntryQuery, low: Position, high: Position) -> tuple[Position | None, Position] | None:
    """Return the first (None: the oldest) and last entry of a step in a query, None for no entry."""
    first, last = following(low), high
    if query.first is not None:
        first = query.first if first is None else max(first, query.first)
    if query.last is not None:
        last = min(last, query.last)
    return (first, last) if first is None or first <= last else None


def deleted_topics(found: Iterable[Snapshot], start: Offset, end: Offset, options: SourceOptions) -> list[Snapshot]:
    """Return holes for deleted topics of which a step has entries. Raises NotFound for one, unless it skips them.

    Topics that the options exclude are ignored.
    """
    known = {str(one.topic) for one in found}
    holes = []
    for name in sorted(end.keys() - known):
        low, topic = position(start, name), TopicName.parse(name)
        if low >= position(end, name) or options.leaves_out(topic):
            continue
        reason = f"nothing is known of the topic any more, it was deleted before it was read up to {end[name]}"
        if Condition.RETENTION not in options.skipped:
            hint = (
                f"compare metadata.root and daemon.cluster; if it was deleted, read on with skip=retention, {LEFT_OUT}"
            )
            raise NotFound(f"{name}: {reason}", hint=hint)
        count = entries_between(low, position(end, name))
        hole = Hole(after=low, before=None, reason=reason, entries=count, condition=Condition.RETENTION)
        holes.append(Snapshot(TopicMap(topic), (hole,)))
    return holes


def furthest(snapshots: Iterable[Snapshot], query: EntryQuery) -> Offset:
    """Return the newest committed entries of a query."""
    last = query.last
    return {
        str(one.topic): written(one, end if last is None else min(end, last))
        for one in snapshots
        if (end := one.end) is not None
    }


def written(snapshot: Snapshot, at: Position) -> str:
    """Return the text of an offset for a topic that was read up to a position."""
    made = snapshot.map.created.get(at.ledger_id)
    return str(at) if made is None else f"{at}@{made}"


def begin(snapshot: Snapshot, query: EntryQuery) -> Position:
    """Return the position behind which a topic begins: its floor, or the last one before the range."""
    floor = snapshot.map.floor or NOTHING
    if query.first is None:
        return floor
    ranges = (part.range for segment in snapshot.map.segments for part in segment.slices)
    before = Position(query.first.ledger_id, query.first.entry_id - 1)  # it need not exist
    return max(floor, *(min(one.end, before) for one in ranges if one.begin < query.first), NOTHING)


def in_history(snapshot: Snapshot, text: str) -> Position:
    """Return the position of an offset in a topic. Raises InvalidInput for an offset of another history.

    A topic that was created anew, or whose metadata were restored from an older copy, ends before the offset, or the
    ledger with its id was created at another time.
    """
    at, made = parsed(text)
    newest, known = snapshot.map.offloaded, snapshot.map.created.get(at.ledger_id)
    if at != NOTHING and (newest is None or newest < at):
        raise InvalidInput(
            f"{snapshot.topic}: it was read up to {at}, and ends at {newest or 'nothing'} now: it was deleted and made "
            "again, its metadata was restored from an older copy, or this is another cluster",
            hint=f"restore newer metadata; of a new topic, take another checkpoint or target, {LEFT_OUT}",
        )
    if made is not None and known is not None and made != known:
        raise InvalidInput(
            f"{snapshot.topic}: it was read up to {at}, and ledger {at.ledger_id} is another one now: it was made at "
            f"{known}, not {made} (ms since 1970); the topic was deleted and made again, or this is another cluster",
            hint=f"take another checkpoint or target for the new topic, {LEFT_OUT}",
        )
    return at


def check_step(snapshot: Snapshot, low: str, high: str, *, skips: bool) -> Snapshot:
    """Return the snapshot, with a hole for the entries of a step that were deleted.

    Raises EntriesDeleted for such a hole unless it `skips`, InvalidInput for a step of another history.
    """
    start = parsed(low)[0]
    in_history(snapshot, high)
    in_history(snapshot, low)
    topic_map = snapshot.map
    floor = topic_map.floor or NOTHING
    oldest = topic_map.segments[0].begin if topic_map.segments else None
    count = None
    if floor > start:
        count = entries_between(start, min(floor, parsed(high)[0]))
        reason = f"entries behind {start if start != NOTHING else 'the begin'} up to {floor} were deleted by retention"
        hint = "let retention keep more than the stream lags; skip=retention continues behind them"
    elif start != NOTHING and oldest is not None and is_another(topic_map, start, oldest):
        known = "retention has deleted it, or the topic was made again" if snapshot.rebuilt else "it was made again"
        reason = f"ledger {start.ledger_id} is not known any more, and {oldest} is the oldest entry: {known}"
        hint = f"take another checkpoint or target for the new topic, {LEFT_OUT}; skip=retention reads the new one"
    else:
        return snapshot
    if not skips:
        raise EntriesDeleted(f"{snapshot.topic}: {reason} before the stream got to them", hint=hint)
    hole = Hole(after=start, before=oldest, reason=reason, entries=count, condition=Condition.RETENTION)
    return replace(snapshot, holes=(replace(hole, awaited=start == NOTHING), *snapshot.holes))


def entries_between(after: Position, last: Position) -> int | None:
    """Return the number of entries behind one position up to another; None over ledgers' ends, where it is unknown."""
    return last.entry_id - after.entry_id if after.ledger_id == last.ledger_id else None


def is_another(topic_map: TopicMap, start: Position, oldest: Position) -> bool:
    """Return whether a map begins behind a position that was read, without a recorded reason."""
    if topic_map.floor is not None and topic_map.floor >= start:
        return False
    lost = any(loss.after <= start < loss.before for loss in topic_map.losses)
    return start.ledger_id < oldest.ledger_id and start.ledger_id not in topic_map.contexts and not lost


PART_BYTES = 16 * 1024 * 1024
"""The least part of a topic, if the step has room: with less the requests would cost more than the bytes."""


@dataclass(frozen=True, slots=True)
class Step:
    """The end of a step, the bytes of objects that it reads (estimated), and the topic that was served last.

    `start` is its begin, with topics that are new in it.
    """

    offset: Offset
    start: Offset = field(default_factory=dict)
    object_bytes: int = 0
    turn: str = ""


@dataclass(slots=True)
class _Lane:
    """One topic of a step that is being made: its position, and the last one that it may reach."""

    snapshot: Snapshot
    at: Position
    goal: Position


def advance(
    snapshots: Sequence[Snapshot],
    start: Mapping[str, str],
    query: EntryQuery,
    *,
    target: Mapping[str, str] | None = None,
    room: int | None = None,
    turn: str = "",
) -> Step:
    """Return a step of about `room` bytes that ends at the target, or at the last entry of the query, at most.

    It is larger than the room by less than an entry. `turn` is that of the step before. Raises InvalidInput for an
    offset of another history of its topic.
    """
    step = Step(dict(start), turn=turn)
    goals = furthest(snapshots, query)
    lanes = []
    for snapshot in sorted(snapshots, key=lambda one: str(one.topic)):
        name = str(snapshot.topic)
        at = in_history(snapshot, start[name]) if name in start else begin(snapshot, query)
        if name not in goals or (target is not None and name not in target):
            continue
        step.offset.setdefault(name, written(snapshot, at))
        goal = position(goals, name) if target is None else min(position(goals, name), position(target, name))
        if goal > at:
            lanes.append(_Lane(snapshot, at, goal))
    behind = next((number for number, one in enumerate(lanes) if str(one.snapshot.topic) > turn), 0)
    step = replace(step, start=dict(step.offset))
    return _served(step, lanes[behind:] + lanes[:behind], room)


def _served(step: Step, lanes: list[_Lane], room: int | None) -> Step:
    """Give each topic its part in turn, and the rest of the bytes to those that have more."""
    while lanes and (room is None or step.object_bytes < room):
        left = None if room is None else room - step.object_bytes
        part = None if left is None else max(left // len(lanes), min(left, PART_BYTES), 1)
        unfinished = []
        for lane in lanes:
            free = None if room is None or part is None else min(part, room - step.object_bytes)
            if free is not None and free <= 0:
                break
            at, taken = reach(lane.snapshot, lane.at, lane.goal, free)
            name = str(lane.snapshot.topic)
            step.offset[name] = written(lane.snapshot, at)
            step = replace(step, object_bytes=step.object_bytes + taken, turn=name)
            if part is not None and at > lane.at:
                lane.at = at
                unfinished.append(lane)
        lanes = unfinished
    return step


def reach(snapshot: Snapshot, start: Position, goal: Position, room: int | None) -> tuple[Position, int]:
    """Return the last entry of a step behind `start` and up to `goal`, and its estimated bytes of objects.

    It has at least one entry, if there are any.
    """
    at, taken = start, 0.0
    segments = snapshot.map.segments
    for segment in islice(segments, bisect_right(segments, start, key=lambda one: one.end), None):
        for first, last, entry_bytes in _runs(segment, start, goal):
            fit = last.entry_id - first.entry_id + 1
            if room is not None and entry_bytes > 0:
                fit = min(fit, max(int((room - taken) // entry_bytes), 0 if taken else 1))
            if fit:
                at, taken = Position(first.ledger_id, first.entry_id + fit - 1), taken + fit * entry_bytes
            if at != last or (room is not None and taken >= room):
                return at, ceil(taken)
        if segment.end >= goal:
            break
    return at, ceil(taken)


def _runs(segment: CommittedSegment, start: Position, goal: Position) -> Iterator[tuple[Position, Position, float]]:
    """Yield the first and last entry of each ledger behind `start` and up to `goal`, and the bytes of one of them."""
    weight = sum(one.payload_bytes + one.entries for one in segment.slices)
    for one in segment.slices:
        first, last = one.range.begin, min(one.range.end, goal)
        if start.ledger_id == one.ledger_id:
            first = max(first, Position(one.ledger_id, start.entry_id + 1))
        if start < first <= last:
            yield first, last, segment.object_bytes * (one.payload_bytes + one.entries) / weight / one.entries
