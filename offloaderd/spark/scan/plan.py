"""Shares of even size from a snapshot, each for one task. A query of whole segments costs no request to the bucket.

A share is a list of pieces; a piece is entries of a segment by their positions, taken as if all were of one size. So
shares do not depend on blocks, and a task that cannot read a piece knows the entries that it skips. The tables of a
segment are read only when a query is for a part of it, to cut off the rest; beyond a number of such segments the tasks
do that themselves.
"""

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from offloaderd.core.aio import each
from offloaderd.core.errors import BucketMissing, CorruptData, EntriesDeleted, InvalidInput, NotFound
from offloaderd.core.model import LEDGER_ID_MAX, Position, TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.segments import SegmentReader
from offloaderd.spark.scan import snapshot as source_snapshot
from offloaderd.spark.scan.live import LiveReader
from offloaderd.spark.scan.live_end import with_live_ends
from offloaderd.spark.scan.messages import LOOK_BACK_BYTES
from offloaderd.spark.scan.options import SourceOptions
from offloaderd.spark.scan.query import EntryQuery, Span
from offloaderd.spark.scan.segments import extents_of, segment_reader
from offloaderd.spark.scan.share import (
    Condition,
    Hole,
    Missing,
    Piece,
    Segment,
    Share,
    Unread,
    parts_of,
)
from offloaderd.spark.scan.snapshot import Snapshot, Stores, holes_within
from offloaderd.spark.scan.transactions import with_held

TABLES_MAX = 1024
"""Segments whose tables the planning reads, with two small requests each."""

LOOK_BACK_SEGMENTS = 100
"""Segments before its own that a task may search for the chunks of a message."""

LOOK_AHEAD_BYTES = 1024 * 1024 * 1024
LOOK_AHEAD_SEGMENTS = 100
"""Bytes and segments after its own that a task may search for the end of a transaction."""

CLOCKS_APART_MS = 3_600_000
"""The tolerance when the clocks of two machines (producers, brokers, daemons, stores) are compared."""
TIME_MS_MAX = 2**63 - 1


class HoleInRange(Unread):
    """Entries of the range are in no segment: lost, or still to come."""


async def plan(options: SourceOptions, query: EntryQuery, stores: Stores) -> list[Share]:
    """Take a snapshot and return its shares. Raises NotFound, as `shares` does, and as the daemon of a live end."""
    async with segment_reader(stores.objects) as reader, AsyncExitStack() as stack:
        found = await source_snapshot.take(options, stores)
        live = None
        if options.live is not None:
            live = await stack.enter_async_context(LiveReader(options.live))
            found = await with_live_ends(found, query, await live.client(), stores)
        if options.holds_back:
            found = await with_held(found, reader, live=live)
        return await shares(found, options, query, reader)


async def shares(
    snapshots: Sequence[Snapshot],
    options: SourceOptions,
    query: EntryQuery,
    reader: SegmentReader,
    *,
    places: dict[TopicName, tuple[Position | None, Position | None]] | None = None,
) -> list[Share]:
    """Return the shares of a query, of about `partition_bytes`, in the order of topics and positions.

    `places` are the ranges of a stream's step, by topic. Raises HoleInRange and EntriesDeleted for entries that no
    segment has, unless the query skips them; InvalidInput for a range beyond the end.
    """
    rows: list[Piece | Missing] = []
    for snapshot in snapshots:
        if not query.holds_topic(str(snapshot.topic)):
            continue
        first, last = places[snapshot.topic] if places is not None else (query.first, query.last)
        here = replace(query, first=first, last=last)
        if places is None and len(snapshots) == 1:  # several topics have positions of their own
            _check_range(snapshot, here)
        if snapshot.held is not None:
            before = snapshot.before(snapshot.held)
            if before is None or (first is not None and before < first):
                continue
            here = replace(here, last=before if last is None else min(last, before))
        rows += _missing(snapshot, here, options.skipped)
        pieces = await _pieces(snapshot, here, reader)
        rows += with_neighbours(pieces, snapshot) if options.messages else pieces
    return shared_out(rows, options.partition_bytes)


def _check_range(snapshot: Snapshot, query: EntryQuery) -> None:
    """Raise the errors of a read over gRPC for positions that do not exist."""
    topic_map = snapshot.map
    if query.first is not None and topic_map.floor is not None and query.first <= topic_map.floor:
        oldest = topic_map.segments[0].begin if topic_map.segments else None
        hint = f"the oldest is {oldest}" if oldest else "nothing is left of the topic"
        raise EntriesDeleted(f"{snapshot.topic}: position {query.first} was deleted by retention", hint=hint)
    for name, bound in (("start", query.first), ("end", query.last)):
        newest = snapshot.newest
        if bound is not None and (newest is None or bound > newest):
            hint = f"{'the newest is' if snapshot.live else 'offloaded up to'} {newest}"
            hint = hint if newest is not None else "nothing is offloaded yet"
            raise InvalidInput(f"{snapshot.topic}: {name} = {bound} is beyond the end", hint=hint)


def _missing(snapshot: Snapshot, query: EntryQuery, skip: frozenset[Condition]) -> list[Missing]:
    """Return the holes in the range. Raises HoleInRange for one that the query does not skip."""
    found = [one for one in holes_within(snapshot, query.first, query.last) if _may_concern(snapshot, query, one)]
    for hole in found:
        if hole.condition not in skip:
            onwards = f"begin at start={hole.before}, or " if hole.before is not None else ""
            hint = f"{onwards}read what there is with skip={hole.condition}"
            raise HoleInRange(hole.condition, f"{snapshot.topic}: {hole.reason}", hint=hint)
    return [Missing(snapshot.topic, hole) for hole in found]


def _may_concern(snapshot: Snapshot, query: EntryQuery, hole: Hole) -> bool:
    """Return whether a hole may have entries in the ledgers, and of the times, of a query."""
    last = LEDGER_ID_MAX if hole.before is None else hole.before.ledger_id
    return query.ledgers.meets(hole.after.ledger_id, last) and _may_be_then(snapshot, query.time_span, hole)


def _may_be_then(snapshot: Snapshot, times: Span, hole: Hole) -> bool:
    """Return whether entries of a hole may have times of a span.

    They were written after the creation of their ledger, or of an earlier one, and before the next entries were
    offloaded.
    """
    if times == Span():
        return True
    made_ms = snapshot.map.created.get(hole.after.ledger_id)
    follows = snapshot.map.find(hole.before) if hole.before is not None else None
    low = 0 if made_ms is None else made_ms - CLOCKS_APART_MS
    high = TIME_MS_MAX if follows is None or not follows.offloaded_ms else follows.offloaded_ms + CLOCKS_APART_MS
    return times.meets(low, high)


async def _pieces(snapshot: Snapshot, query: EntryQuery, reader: SegmentReader) -> list[Piece]:
    """Return a piece for each segment that may have entries of a query, cut by its tables if they are read."""
    topic = snapshot.topic
    found = [one for one in snapshot.segments if query.of(one)]
    stored = [one for one in found if isinstance(one, CommittedSegment)]
    cut = [one for one in stored if not query.takes_all(one)][-TABLES_MAX:]
    pieces = {one.begin: _whole(topic, one, query) for one in found}
    for segment, piece in zip(cut, await each(cut, lambda one: _cut(reader, topic, one, query)), strict=True):
        if piece is None:
            del pieces[segment.begin]
        else:
            pieces[segment.begin] = piece
    return list(pieces.values())


def _whole(topic: TopicName, segment: Segment, query: EntryQuery) -> Piece:
    parts = query.of(segment)
    first = Position(parts[0].ledger_id, parts[0].first_entry_id)
    last = Position(parts[-1].ledger_id, parts[-1].last_entry_id)
    entries = sum(one.entries for one in parts_of(segment, first, last))
    return Piece(topic, segment, first, last, segment.object_bytes * entries // segment.entries)


def with_neighbours(pieces: Sequence[Piece], snapshot: Snapshot) -> list[Piece]:
    """Return the pieces, each with the segments to search for chunks of its messages and for outcomes.

    Nothing is searched before history that is not offloaded yet, as that may have the chunk that is looked for.
    """
    segments, plan = snapshot.segments, replace(snapshot, beside=False).unfinished
    numbers = {one.begin: number for number, one in enumerate(segments)}
    behind = bisect_left(segments, plan.live_begin, key=lambda one: one.begin) if plan is not None else 0
    found = []
    for piece in pieces:
        number = first = numbers[piece.segment.begin]
        room, low = LOOK_BACK_BYTES, behind if number >= behind else 0
        while first > low and room > 0 and number - first < LOOK_BACK_SEGMENTS:
            first -= 1
            room -= segments[first].object_bytes
        end, room = number + 1, LOOK_AHEAD_BYTES
        while end < len(segments) and room > 0 and end - number <= LOOK_AHEAD_SEGMENTS:
            room -= segments[end].object_bytes
            end += 1
        before, after = tuple(segments[first:number]), tuple(segments[number + 1 : end])
        gap = plan.live_begin if plan is not None and first == behind else None
        found.append(replace(piece, before=before, after=after, reaches_end=end == len(segments), gap=gap))
    return found


async def _cut(reader: SegmentReader, topic: TopicName, segment: CommittedSegment, query: EntryQuery) -> Piece | None:
    """Return the piece of a segment by its tables, None for nothing; by the map if they cannot be read."""
    try:
        extents = await extents_of(reader, topic, segment)
    except BucketMissing:
        raise
    except (CorruptData, NotFound):
        return _whole(topic, segment, query)  # the task finds the entries elsewhere, fails, or skips them
    ends = [*(one.at for one in extents[1:]), segment.object_bytes]
    kept = [(one, end) for one, end in zip(extents, ends, strict=True) if query.may_hold(one)]
    if not kept:
        return None
    first = Position(kept[0][0].ledger_id, query.bounds(kept[0][0])[0])
    last = Position(kept[-1][0].ledger_id, query.bounds(kept[-1][0])[1])
    return Piece(topic, segment, first, last, kept[-1][1] - kept[0][0].at)


def shared_out(rows: Sequence[Piece | Missing], partition_bytes: int) -> list[Share]:
    """Cut the pieces into shares of about the same size, the nearest to `partition_bytes` not above it."""
    total = sum(one.object_bytes for one in rows if isinstance(one, Piece))
    count = max(1, -(-total // partition_bytes))
    size = max(1, -(-total // count))
    found: list[Share] = []
    current: list[Piece | Missing] = []
    room = size
    for one in rows:
        rest: Piece | Missing | None = one
        while isinstance(rest, Piece) and rest.object_bytes > room and len(found) < count - 1:
            head, rest = rest.cut(room)
            found.append((*current, head))
            current, room = [], size
        if rest is not None:
            current.append(rest)
            room -= rest.object_bytes if isinstance(rest, Piece) else 0
    return [*found, tuple(current)] if current else found
