"""The exact offsets of streams and exports, and the shares between two of them.

An offset is, for each topic, the position of the last entry that was read; a topic that is not in it begins at its
oldest entry. A step from one offset to another has the same entries however often it is repeated, whichever segments
have them by then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from offloaderd.core.errors import EntriesDeleted, InvalidInput, NotFound
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.read.outcomes import KnownOutcomes
from offloaderd.spark.scan import snapshot as source_snapshot
from offloaderd.spark.scan.extents import segment_reader
from offloaderd.spark.scan.options import SourceOptions
from offloaderd.spark.scan.plan import shares
from offloaderd.spark.scan.positions import NOTHING, Offset, following, parsed, position
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.share import Condition, Hole, Share
from offloaderd.spark.scan.snapshot import Snapshot
from offloaderd.spark.scan.stores import Stores
from offloaderd.spark.scan.transactions import with_held

LEFT_OUT = "or leave it out with without=TOPIC: everything else then goes on, each entry once"


async def take_snapshots(options: SourceOptions, stores: Stores, known: KnownOutcomes | None = None) -> list[Snapshot]:
    """Take a snapshot of all topics, each with the end of what consumers get; `known`: see `with_held`."""
    async with segment_reader(stores.objects) as reader:
        found = await source_snapshot.take(options, stores)
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
        hint = "let retention keep more than the stream lags; skip=retention goes on behind them"
    elif start != NOTHING and oldest is not None and _is_another(topic_map, start, oldest):
        known = "retention has deleted it, or the topic was made again" if snapshot.rebuilt else "it was made again"
        reason = f"ledger {start.ledger_id} is not known any more, and {oldest} is the oldest entry: {known}"
        hint = (
            f"take another checkpoint or target for the new topic, {LEFT_OUT}; skip=retention goes on with the new one"
        )
    else:
        return snapshot
    if not skips:
        raise EntriesDeleted(f"{snapshot.topic}: {reason} before the stream got to them", hint=hint)
    hole = Hole(after=start, before=oldest, reason=reason, entries=count, condition=Condition.RETENTION)
    return replace(snapshot, holes=(replace(hole, awaited=start == NOTHING), *snapshot.holes))


def entries_between(after: Position, last: Position) -> int | None:
    """Return the number of entries behind one position up to another; None over ledgers' ends, where it is unknown."""
    return last.entry_id - after.entry_id if after.ledger_id == last.ledger_id else None


def _is_another(topic_map: TopicMap, start: Position, oldest: Position) -> bool:
    """Return whether a map begins behind a position that was read, without a recorded reason."""
    if topic_map.floor is not None and topic_map.floor >= start:
        return False
    lost = any(loss.after <= start < loss.before for loss in topic_map.losses)
    return start.ledger_id < oldest.ledger_id and start.ledger_id not in topic_map.contexts and not lost
