"""Seeking in a topic: the first entry, in the order of the log, that reaches a time, message index or sequence number.

The log is all that can be read at this moment, in any tier, without lost or deleted entries. Its pieces are searched in
order: segments by their manifests, ledgers that brokers offloaded themselves by their index, entries of only the source
or the buffer by single reads. When a segment cannot be read, its entries are searched in the source; when the source
does not answer, the entries that are offloaded from the topic's begin on. PIP-73's priority does not count: manifests
answer at once, and both tiers hold the same entries.

As in Pulsar (PersistentMessageFinder), seeking behind the newest entry is no error: there is no entry yet.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from uuid import UUID

import structlog

from offloaderd.core.errors import EntriesMissing, InvalidInput, Transient
from offloaderd.core.model import Gap, Position, SegmentRange, TopicName
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.format.pulsar.entry_time import time_of
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.read.plan import SourceLedger, TopicView
from offloaderd.read.reader import TopicReader
from offloaderd.read.search import Cost, EntrySeek, Hit, LedgerSeek, SegmentSeek, SourceSeek, first_true
from offloaderd.read.stream import FALL_BACK_ON

log = structlog.get_logger(__name__)

VIEWS_MAX = 2
"""Entries move from tier to tier during a seek; one that is not found in two views is missing."""


class Unseekable(InvalidInput):
    """Nothing was found, and many entries have no time or index; the hint names another kind of seek."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """The answer to a seek: the entry, or None when there is none yet.

    Then `behind` is the position of the next entry, behind the newest one, like a cursor of Pulsar; None for a topic
    without entries.
    """

    hit: Hit | None
    behind: Position | None
    cost: Cost

    @property
    def begin(self) -> Position | None:
        """The position to read from: the entry, or the next one."""
        return self.hit.position if self.hit is not None else self.behind


async def seek(reader: TopicReader, topic: TopicName, goal: Goal) -> Sought:
    """Find an entry. Raises TopicNotFound, InvalidInput (Unseekable), and what reading raises when every tier fails."""
    goal.checked()
    cost = Cost()
    outcome = "error"
    try:
        found = await _seek(reader, topic, goal, cost)
        outcome = cost.answered if found.hit is not None else "nothing"
    finally:
        reader.metrics.seeks.labels(kind=goal.kind, outcome=outcome).inc()
        reader.metrics.seek_bytes.labels(source="objects").inc(cost.get_bytes)
        reader.metrics.seek_bytes.labels(source="source").inc(cost.source_bytes)
    return found


async def _seek(reader: TopicReader, topic: TopicName, goal: Goal, cost: Cost) -> Sought:
    """Search, and again without failed segments that the source can replace."""
    failed: set[UUID] = set()
    views = 0
    while True:
        views += 1
        view = await _view(reader, topic)
        if view.is_empty():
            await reader.priority(topic)
        now = _Log(reader, topic, view, cost)
        try:
            hit = await now.find(goal, failed)
        except FALL_BACK_ON as error:
            log.warning("seek.tier_failed", topic=str(topic), error=str(error))
            if not now.replaces(cost.at, failed) and (cost.at is not None or views == VIEWS_MAX):
                raise
        else:
            return Sought(hit=hit, behind=now.behind, cost=cost)


async def _view(reader: TopicReader, topic: TopicName) -> TopicView:
    """Return the view, without a source that does not answer. Raises Transient if nothing is offloaded."""
    try:
        return await reader.view(topic)
    except Transient:
        return await reader.view(topic, Position(0, 0))


class _Log:
    """A topic in one view, cut into pieces."""

    def __init__(self, reader: TopicReader, topic: TopicName, view: TopicView, cost: Cost) -> None:
        self._reader = reader
        self._topic = topic
        self._view = view
        self._cost = cost
        self._stored = replace(view, hot=None).newest()
        self._hot = _hot_stretches(reader, topic, self._stored) if view.hot is not None else []

    @property
    def _newest(self) -> Position | None:
        """The newest entry up to which there is no gap."""
        return self._hot[-1].end if self._hot else self._stored

    @property
    def behind(self) -> Position | None:
        """The position of the next entry; None for a topic without entries."""
        newest = self._newest
        return None if newest is None else newest.next()

    async def find(self, goal: Goal, failed: Collection[UUID]) -> Hit | None:
        """Search all pieces but the failed segments."""
        self._cost.at = self._cost.skipped = None
        pieces = self._pieces(failed)
        hit: Hit | None = None
        if goal.kind is SeekKind.SEQUENCE:
            hit = await SequenceSeek(pieces).find(goal.value)
        else:
            for piece in pieces:
                if (hit := await piece.find(goal)) is not None:
                    break
        if (gap := self._gap_before(hit)) is not None:
            hint = f"read from {gap.before}" if gap.before is not None else "repair the bucket"
            raise EntriesMissing(f"the entry may be among those {gap}, which cannot be read: {gap.why}", hint=hint)
        away = bool(self._view.source_away) or self._view.refused is not None
        if away and (hit is None or not await self._begins_with(pieces[0])):
            raise self._view.refused or Transient(
                f"the ledger source of {self._topic} cannot be read, and may have the entry", hint="try again later"
            )
        newest = self._newest
        if hit is None and self._view.hot is not None and (newest is None or newest < self._view.hot[1]):
            raise Transient(f"what follows {newest} in {self._topic} is not readable yet", hint="try again")
        if hit is None and newest is not None and (blank := await self._blank(goal, pieces)):
            raise Unseekable(
                f"no {goal.kind} from {goal.value} on was found, and the entries round {blank} have none",
                hint="brokers number messages only with brokerEntryMetadataInterceptors, and only messages of Pulsar's "
                "producers have times; seek by sequence",
            )
        return hit

    def _gap_before(self, hit: Hit | None) -> Gap | None:
        """Return the gap that directly precedes the entry, or the end of the topic if nothing was found."""
        at = hit.position if hit is not None else None
        return next((gap for gap in self._view.gaps if gap.before == at), None)

    async def _blank(self, goal: Goal, pieces: Sequence[SegmentSeek | EntrySeek]) -> Position | None:
        """Return a position round which entries have no time or index, so that the goal may be among them.

        That is where entries were skipped, or the newest entry if none has any.
        """
        if goal.kind is SeekKind.SEQUENCE or self._cost.skipped is not None:
            return self._cost.skipped
        lowest = replace(goal, value=0)
        for piece in pieces:
            if await piece.find(lowest) is not None:
                return None
        return self._newest

    async def _begins_with(self, piece: SegmentSeek | EntrySeek) -> bool:
        """Whether no entry of only the source can be before or among the segments."""
        if self._view.unfinished is not None or not isinstance(piece, SegmentSeek):
            return False
        async with piece.table(0) as table:
            past = table.manifest.past
        return self._view.floor is not None or (past is not None and not past.entries)

    def replaces(self, segment: CommittedSegment | None, failed: set[UUID]) -> bool:
        """Add a segment that cannot be read to `failed` if the source has all its entries; return whether it has."""
        if segment is None:
            return False
        held = ((part, self._view.ledger(part.ledger_id)) for part in segment.slices)
        whole = all(ledger is not None and part.last_entry_id <= ledger.last_entry_id for part, ledger in held)
        if whole:
            failed.add(segment.segment_id)
        return whole

    def _pieces(self, failed: Collection[UUID]) -> list[SegmentSeek | EntrySeek]:
        """Return the searches, in the order of the log: neighbours of a kind together."""
        segments = [one for one in self._view.segments if one.segment_id not in failed]
        items: list[CommittedSegment | SegmentRange] = [*segments, *_uncovered(self._view.source, segments), *self._hot]
        items.sort(key=lambda one: one.begin)
        pieces: list[SegmentSeek | EntrySeek] = []
        reader = self._reader
        for kind, group in groupby(items, key=_kind):
            if kind is SourceSeek:
                stretches = [one for one in group if isinstance(one, SegmentRange)]
                pieces.append(SourceSeek(reader, self._topic, stretches, self._cost))
                continue
            run = [one for one in group if not isinstance(one, SegmentRange)]
            if kind is LedgerSeek:
                pieces += [LedgerSeek(reader.segments, self._topic, one, self._cost) for one in run]
            else:
                pieces.append(SegmentSeek(reader.segments, self._topic, run, self._cost))
        return pieces


class SequenceSeek:
    """Entries of all tiers in the order of the log, by number (FORMAT.md, 4.4): manifests have the first of segments.

    Entries of only the source are counted from there: on behind the segment before them, back before the first segment.
    Without a number in a manifest (older versions), the existing entries before its segment are counted.
    """

    def __init__(self, pieces: Sequence[SegmentSeek | EntrySeek]) -> None:
        self._pieces = pieces
        self._before = list(accumulate((piece.entries for piece in pieces), initial=0))
        """Number of entries before each piece."""

    async def find(self, wanted: int) -> Hit | None:
        """Return the first entry whose number is `wanted` or more. Raises what reading raises."""
        number = 0
        for at, piece in enumerate(self._pieces):
            if isinstance(piece, SegmentSeek):
                end = await self._end(at, piece)
                if wanted < end:
                    return await self._in_segments(at, piece, wanted)
            else:
                number = number if at else await self._front()
                end = number + piece.entries
                if wanted < end:
                    found, sequence = max(0, wanted - number), max(wanted, number)
                    payload, tier = await piece.entry(found)
                    return Hit(position=piece.position(found), time=time_of(payload), tier=tier, sequence=sequence)
            number = end
        return None

    async def _front(self) -> int:
        """Return the number of the oldest entry, counted back from the first segment."""
        for at, piece in enumerate(self._pieces):
            if isinstance(piece, SegmentSeek):
                return max(0, await self._begin(at, piece, 0) - self._before[at])
        return 0

    async def _begin(self, at: int, piece: SegmentSeek, number: int) -> int:
        async with piece.table(number) as table:
            past = table.manifest.past
        if past is not None:
            return past.entries
        return self._before[at] + sum(one.entries for one in piece.segments[:number])

    async def _end(self, at: int, piece: SegmentSeek) -> int:
        """Return the number of the entry behind some segments."""
        last = len(piece.segments) - 1
        begin = await self._begin(at, piece, last)
        async with piece.table(last) as table:
            parts = table.manifest.ledgers
            return begin + sum(part.last_entry_id - part.first_entry_id + 1 for part in parts)

    async def _in_segments(self, at: int, piece: SegmentSeek, wanted: int) -> Hit | None:
        """Find the entry in the last segment that does not begin behind it, or the one after a gap in the numbers."""
        last = len(piece.segments) - 1
        begin = await self._begin(at, piece, last)
        before = list(accumulate((one.entries for one in reversed(piece.segments[:-1])), initial=0))
        guess = last - bisect_right(before, max(0, begin - wanted - 1)) if wanted < begin else last

        async def behind(number: int) -> bool:
            return await self._begin(at, piece, number) > wanted

        first = max(0, await first_true(0, last + 1, max(0, guess) + 1, behind) - 1)
        for number in range(first, last + 1):
            begin = await self._begin(at, piece, number)
            if (hit := await _read_in_segment(piece, number, begin, wanted)) is not None:
                return hit
        return None


async def _read_in_segment(piece: SegmentSeek, number: int, begin: int, wanted: int) -> Hit | None:
    """Return the first entry of a segment that is kept and has `wanted` or a greater number; it is read."""
    kept = {part.ledger_id for part in piece.segments[number].slices}
    async with piece.table(number) as table:
        for part in table.manifest.ledgers:
            entries = part.last_entry_id - part.first_entry_id + 1
            if part.ledger_id in kept and wanted < begin + entries:
                sequence = max(begin, wanted)
                position = Position(part.ledger_id, part.first_entry_id + sequence - begin)
                found = time_of(await piece.entry(table, position))
                return Hit(position=position, time=found, tier=Tier.OBJECTS, sequence=sequence)
            begin += entries
    return None


def _kind(item: CommittedSegment | SegmentRange) -> type[SegmentSeek | EntrySeek]:
    if isinstance(item, SegmentRange):
        return SourceSeek
    return LedgerSeek if item.foreign else SegmentSeek


def _uncovered(source: Sequence[SourceLedger], segments: Sequence[CommittedSegment]) -> Iterator[SegmentRange]:
    slices: dict[int, list[LedgerSlice]] = defaultdict(list)
    for segment in segments:
        for part in segment.slices:
            slices[part.ledger_id].append(part)
    for ledger in source:
        at = 0
        for part in slices[ledger.ledger_id]:
            if at < part.first_entry_id and at <= ledger.last_entry_id:
                yield _range(ledger.ledger_id, at, min(part.first_entry_id - 1, ledger.last_entry_id))
            at = part.last_entry_id + 1
        if at <= ledger.last_entry_id:
            yield _range(ledger.ledger_id, at, ledger.last_entry_id)


def _range(ledger_id: int, first_entry_id: int, last_entry_id: int) -> SegmentRange:
    return SegmentRange(Position(ledger_id, first_entry_id), Position(ledger_id, last_entry_id))


def _hot_stretches(reader: TopicReader, topic: TopicName, stored: Position | None) -> list[SegmentRange]:
    """Return the entries of the buffer behind `stored`, up to a gap."""
    held = reader.hot.range(topic)
    stretches: list[SegmentRange] = []
    if held is None:
        return stretches
    cursor = held[0] if stored is None else reader.hot.next_after(topic, stored)
    while cursor is not None:
        batch = reader.hot.read(topic, cursor, None, reader.options.batch_bytes)
        if batch is None:
            break
        last = stretches[-1] if stretches else None
        if last is not None and last.end == Position(batch.ledger_id, batch.first_entry_id - 1):
            stretches[-1] = replace(last, end=batch.last)
        else:
            stretches.append(SegmentRange(batch.first, batch.last))
        cursor = reader.hot.next_after(topic, batch.last)
    return stretches
