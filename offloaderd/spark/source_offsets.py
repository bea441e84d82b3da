"""How far a topic was handed out, and what comes next: the exact offsets of streams and exports.

An offset is, for each topic, the position of the last entry that was handed out; a topic of which there was none is not
in it. A step from one offset to another has the same entries however often it is repeated, whichever segments hold them
by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.clock import SystemClock
from offloaderd.errors import InvalidInput, NotFound
from offloaderd.model import Position, TopicName
from offloaderd.read.errors import EntriesDeleted
from offloaderd.spark import source_snapshot
from offloaderd.spark.source_extents import segment_reader
from offloaderd.spark.source_plan import shares
from offloaderd.spark.source_share import Condition, Hole
from offloaderd.spark.source_snapshot import Snapshot
from offloaderd.spark.source_transactions import with_held
from offloaderd.stores import bucket_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offloaderd.read.outcomes import KnownOutcomes
    from offloaderd.spark.source_options import SourceOptions
    from offloaderd.spark.source_share import Share

NOTHING = Position(-1, -1)
"""Before the first entry of a topic."""

Offset = dict[str, str]
"""Position of the last entry that was handed out, as text, by the topic's full name."""


async def look(options: SourceOptions, known: KnownOutcomes | None = None) -> list[Snapshot]:
    """Take a snapshot of all topics, each up to where consumers are given something; `known` as for `with_held`."""
    async with bucket_store(options.settings, SystemClock()) as objects, segment_reader(objects) as reader:
        found = await source_snapshot.take(options, objects)
        return await with_held(found, reader, known) if options.holds_back else found


async def plan_step(options: SourceOptions, start: Offset, end: Offset) -> list[Share]:
    """Share out what lies behind `start`, up to `end`. Raises EntriesDeleted for what is not there any more."""
    places: dict[TopicName, tuple[Position | None, Position | None]] = {}
    steps = []
    async with bucket_store(options.settings, SystemClock()) as objects, segment_reader(objects) as reader:
        for snapshot in await source_snapshot.take(options, objects):
            low, high = (position(offset, str(snapshot.topic)) for offset in (start, end))
            if low < high:
                places[snapshot.topic] = following(low), high
                steps.append(still_there(snapshot, low, high, skips=Condition.RETENTION in options.skipped))
        gone = {name for name in end if position(start, name) < position(end, name)} - {str(topic) for topic in places}
        if gone:
            raise NotFound(
                f"{', '.join(sorted(gone))}: nothing is known of it any more, and not all of it was read",
                hint="begin with another checkpoint or target if the topic was deleted",
            )
        return await shares(steps, options, options.wanted, reader, places=places)


def furthest(snapshots: list[Snapshot]) -> Offset:
    """Return the newest entries that are committed."""
    return {str(one.topic): str(one.end) for one in snapshots if one.end is not None}


def advance(snapshots: list[Snapshot], start: Offset, target: Offset | None, room: int | None) -> tuple[Offset, int]:
    """Return where a step of about `room` bytes ends that does not go beyond the target, and its bytes of objects.

    Each topic has the same part of the room, so that one with much to read holds up no others.
    """
    offset, total = dict(start), 0
    part = None if room is None else max(1, room // max(1, len(snapshots)))
    for snapshot in snapshots:
        name = str(snapshot.topic)
        goal = None if target is None else position(target, name)
        at, taken = reach(snapshot, position(start, name), goal, part)
        total += taken
        if at != NOTHING:
            offset[name] = str(at)
    return offset, total


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
    return snapshot.before(begin) or NOTHING


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
    hole = Hole(after=start, before=oldest, reason=reason, awaited=start == NOTHING, condition=Condition.RETENTION)
    return Snapshot(topic_map, (hole, *snapshot.holes))
