"""The live end of each topic at the planning: what is in no segment and a daemon can read, as live segments.

The map is read first and the daemon asked then, so nothing is between them: the daemon has what was committed since,
and all behind it. The planning fixes the positions. Live segments have

- the entries behind the newest that is committed, up to the newest that the daemon can read, and
- where history is unfinished, the entries of its gap. A gap in which the daemon lists nothing stays a hole.

Recorded losses stay holes. Wherever a range passes to another ledger, at its begin and inside it, the first entry there
is read once, from the end of the ledger before, if the query has both: a task may begin there, so no task reads over
it. A daemon that does not know what was between them says so, and that is a hole as well. One that has more entries of
the ledger before than it lists, or a ledger between that it does not list, makes the planning fail.

The ledgers are those that the daemon lists. A topic without a ledger source has its newest ones in the daemon's buffer
alone; that is read once, to know them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.aio import each
from offloaderd.core.errors import Conflict, CorruptData, EntriesDeleted, EntriesMissing, TopicNotFound, Transient
from offloaderd.core.model import Position
from offloaderd.metadata.committed import LedgerSlice
from offloaderd.metadata.identity import deployment
from offloaderd.protocol.conversion import from_position
from offloaderd.read.transactions import ENTRY_BYTES, entry_bytes_of
from offloaderd.spark.scan.share import Condition, Hole, LiveSegment, Part, clipped

if TYPE_CHECKING:
    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.spark.scan.query import EntryQuery
    from offloaderd.spark.scan.snapshot import Snapshot, Stores


class Uncommitted(NamedTuple):
    """Positions behind `after` and before `before` that no segment has; `oldest`: nothing precedes them."""

    after: Position
    before: Position
    oldest: bool = False


async def with_live_ends(
    snapshots: Sequence[Snapshot], query: EntryQuery, client: DaemonClient, stores: Stores
) -> list[Snapshot]:
    """Return the snapshots with the live ends of the topics that the query includes.

    Raises Conflict for a daemon of another deployment, and as the daemon does.
    """
    if snapshots and stores.metadata is not None:
        ours, theirs = await deployment(stores.metadata), (await client.identity(snapshots[0].topic)).deployment_id
        if ours is not None and theirs and str(ours.deployment_id) != theirs:
            raise Conflict(
                f"the daemon at {client.address} is of deployment {theirs}, and the metadata of {ours.deployment_id}",
                hint="let `address` name a daemon of the cluster that metadata.root and daemon.cluster name",
            )

    async def ended(snapshot: Snapshot) -> Snapshot:
        return await _with_live_end(snapshot, query, client) if query.holds_topic(str(snapshot.topic)) else snapshot

    return await each(snapshots, ended, in_flight_max=4)


async def _with_live_end(snapshot: Snapshot, query: EntryQuery, client: DaemonClient) -> Snapshot:
    topic, offloaded = snapshot.topic, snapshot.map.offloaded
    try:
        found = await client.last_positions(topic)
    except TopicNotFound:
        if offloaded is not None:
            raise
        return snapshot  # only its folder is left in the metadata
    oldest = from_position(found.first) if found.HasField("first") else None
    newest = from_position(found.confirmed) if found.HasField("confirmed") else None
    if offloaded is not None and (newest or offloaded) < offloaded:
        raise Transient(
            f"{topic}: {offloaded} is committed, and for the daemon at {client.address} {newest} is the newest entry",
            hint="compare its cluster with that of the query; if it is the same, run the query again",
        )
    if oldest is None or newest is None:
        return snapshot
    ranges = list(_uncommitted(snapshot.map, oldest, newest))
    parts = await _parts(client, topic, ranges, newest) if ranges else []
    lives: list[LiveSegment] = []
    holes: list[Hole] = []
    for one in ranges:
        if (live := _live(snapshot.map, one, parts)) is None:
            continue
        lives.append(live)
        passages = list(_inner(live, {part.ledger_id for part in query.of(live)}))
        if not one.oldest:
            passages.append((one.after, live.begin))
        elif live.begin != oldest:
            raise _unlisted(topic, oldest, live.begin)
        asked = await each(passages, lambda ends: _hole_before(client, snapshot.map, *ends), in_flight_max=4)
        holes += chain.from_iterable(asked)
    made = replace(snapshot, live=tuple(lives))
    filled = made.unfinished is None
    holes += [hole for hole in snapshot.holes if not (filled and hole.condition is Condition.UNFINISHED)]
    return replace(made, holes=tuple(sorted(holes, key=lambda hole: hole.after)))


async def _hole_before(client: DaemonClient, topic_map: TopicMap, after: Position, begin: Position) -> list[Hole]:
    """Return what the daemon misses between a position and the begin of the next ledger, if it cannot go from one to
    the other and that is not on record. Raises Transient for entries in a ledger that nobody lists, and as the daemon.
    """
    if after.ledger_id == begin.ledger_id or any(after < loss.before <= begin for loss in topic_map.losses):
        return []
    try:
        async with aclosing(client.read(topic_map.topic, first=after.next(), last=begin)) as answers:
            async for answer in answers:
                if answer.batch.first != begin:
                    raise _unlisted(topic_map.topic, answer.batch.first, begin)
    except CorruptData:
        return []  # of its first entry, which the task comes to
    except EntriesMissing as error:
        condition = Condition.RETENTION if isinstance(error, EntriesDeleted) else Condition.LOSSES
        return [Hole(after=after, before=begin, reason=error.message, condition=condition)]
    return []


def _inner(live: LiveSegment, wanted: Container[int]) -> Iterator[tuple[Position, Position]]:
    """Yield the end of each ledger of a live segment and the begin of the next one, where both are wanted."""
    for one, following in pairwise(live.slices):
        if one.ledger_id in wanted and following.ledger_id in wanted:
            yield Position(one.ledger_id, one.last_entry_id), Position(following.ledger_id, following.first_entry_id)


def _unlisted(topic: TopicName, found: Position, begin: Position) -> Transient:
    """Return the error for entries before a ledger that nobody lists: they are in a buffer, their ledger is deleted."""
    return Transient(
        f"{topic}: a daemon has {found}, before {begin}, and its ledger is neither committed nor at the source",
        hint="run the query again: the owner has it in its open segment, and commits that soon",
    )


def _uncommitted(topic_map: TopicMap, oldest: Position, newest: Position) -> Iterator[Uncommitted]:
    """Yield the ranges of a topic that no segment has, in order, up to the newest entry."""
    offloaded, plan = topic_map.offloaded, topic_map.unfinished
    first = _previous(oldest)

    def behind(known: Position | None, before: Position) -> Uncommitted:
        if known is None or known < first:  # what was there was deleted, and cannot be asked for
            return Uncommitted(first, before, oldest=True)
        return Uncommitted(known, before)

    if plan is not None and offloaded is not None and offloaded >= plan.live_begin:
        yield behind(topic_map.history_end or topic_map.floor, plan.live_begin)
    if offloaded is None or offloaded < newest:
        yield behind(offloaded, newest.next())


async def _parts(client: DaemonClient, topic: TopicName, ranges: Sequence[Uncommitted], newest: Position) -> list[Part]:
    """Return the ledgers from the begin of the ranges up to the newest entry, each with all entries that can be read.

    A ledger whose end is unknown and that the source does not have ends with what is committed. Raises Transient while
    the daemon does not list all of them, and as it does.
    """
    low = ranges[0].after
    if low.ledger_id == newest.ledger_id:
        return [Part(newest.ledger_id, 0, newest.entry_id)]
    listed = await client.ledgers(topic)
    if listed.source_error:
        raise Transient(f"{topic}: the daemon cannot read its ledger source: {listed.source_error}", hint="try again")
    found = {one.ledger_id: one for one in listed.ledgers if low.ledger_id <= one.ledger_id <= newest.ledger_id}
    ends = {one.ledger_id: one.entries - 1 for one in found.values() if one.HasField("entries") and one.state != "open"}
    ends[newest.ledger_id] = newest.entry_id
    sourced = any(one.HasField("at_source") for one in listed.ledgers)
    unknown = found.keys() - ends.keys() - {one.ledger_id for one in found.values() if sourced and not one.at_source}
    if newest.ledger_id in found and not unknown:
        return [Part(ledger_id, 0, end) for ledger_id, end in sorted(ends.items())]
    if sourced:
        raise Transient(
            f"{topic}: the daemon does not list the ledgers up to {newest} yet, its newest entry", hint="try again"
        )
    return [part async for part in _read_through(client, topic, ranges[-1], newest)]


async def _read_through(
    client: DaemonClient, topic: TopicName, wanted: Uncommitted, newest: Position
) -> AsyncIterator[Part]:
    """Yield the ledgers of a range by what a read of it gives. Raises as the read does."""
    part: Part | None = None
    async with aclosing(client.read(topic, first=wanted.after.next(), last=newest)) as answers:
        async for answer in answers:
            batch = answer.batch
            if part is not None and part.ledger_id != batch.ledger_id:
                yield part
                part = None
            first = part.first_entry_id if part is not None else batch.first_entry_id
            part = Part(batch.ledger_id, first, batch.last_entry_id)
    if part is not None:
        yield part


def _live(topic_map: TopicMap, within: Uncommitted, parts: Sequence[Part]) -> LiveSegment | None:
    """Return the live segment of a range, None for no entry."""
    entry_bytes = entry_bytes_of(topic_map.segments[-1].slices[-1]) if topic_map.segments else ENTRY_BYTES
    bounds = ((one.ledger_id, *clipped(*one, within.after.next(), _previous(within.before))) for one in parts)
    slices = tuple(
        LedgerSlice(ledger_id, low, high, (high - low + 1) * entry_bytes)
        for ledger_id, low, high in bounds
        if low <= high
    )
    return LiveSegment(slices=slices, object_bytes=sum(one.payload_bytes for one in slices)) if slices else None


def _previous(position: Position) -> Position:
    """Return the position before one, which has no entry at the begin of a ledger."""
    return Position(position.ledger_id, position.entry_id - 1)
