"""Transactions of a topic in segments: the end of what consumers get, and the outcome of each message's transaction.

The driver reads the newest `LOOK_BACK_BYTES` of a topic for transactions without an outcome: a query or a step of a
stream ends before the first of them, so that no message is omitted whose outcome is still to come. A task reads ahead
from each message in a transaction to its marker, over all segments that its piece names. An outcome that is not there
is unknown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.aio import each
from offloaderd.core.errors import BucketMissing, CorruptData, NotFound
from offloaderd.core.model import START, EntryBatch, Position, TopicName
from offloaderd.format.pulsar.transactions import TransactionId, TransactionLog, TransactionState, mention_of
from offloaderd.read.plan import SourceLedger, TopicView
from offloaderd.read.segments import SegmentReader
from offloaderd.read.transactions import Known, KnownOutcomes, Outcomes, look_back_from
from offloaderd.spark.scan.segments import LateReader, entries_of
from offloaderd.spark.scan.share import Piece, Segment, Unread, broken

if TYPE_CHECKING:
    from offloaderd.spark.scan.live import LiveReader
    from offloaderd.spark.scan.snapshot import Snapshot

LOOK_BACK_BYTES = 32 * 1024 * 1024
"""Bytes of each topic that the driver reads. The tasks find a transaction that has been open for longer."""

NOWHERE = Position(-1, -1)


class OutcomeUnknown(Unread):
    """The segments of a query do not have the outcome of a transaction; the error names it."""


async def with_held(
    snapshots: Sequence[Snapshot],
    reader: SegmentReader,
    known: KnownOutcomes | None = None,
    live: LiveReader | None = None,
) -> list[Snapshot]:
    """Return the snapshots with the position from which consumers get nothing yet. Raises as the store does.

    Outcomes `known` from earlier snapshots are not read again, and new ones are added.
    """
    before = known if known is not None else KnownOutcomes()

    async def held(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, held=await _first_open(snapshot, reader, before, live))

    return await each(snapshots, held, in_flight_max=4)


async def _first_open(
    snapshot: Snapshot, reader: SegmentReader, known: KnownOutcomes, live: LiveReader | None
) -> Position | None:
    """Return the begin of the first open transaction in the newest entries, after the last one that is not readable."""
    end = snapshot.end
    if end is None:
        return None
    topic_map = snapshot.map
    unfinished = topic_map.unfinished
    gap = (topic_map.history_end or START, unfinished.live_begin) if unfinished is not None else None
    ledgers = [SourceLedger(one.ledger_id, one.last_entry_id, True) for held in snapshot.live for one in held.slices]
    view = TopicView(segments=topic_map.segments, source=ledgers, losses=topic_map.losses, unfinished=gap)
    start = look_back_from(view, end.next(), LOOK_BACK_BYTES)
    if start is None:
        return None
    origin, log = start, TransactionLog()
    if (found := known.find(snapshot.topic, start, end)) is not None and found.upto <= end:
        origin, log = found.origin, found.log
        start = found.upto.next()
    for segment in snapshot.segments:
        first = begin_in(segment, start)
        if first is None or first > end:
            continue
        last = min(end, segment.end)
        try:
            async with aclosing(entries_of(reader, live, snapshot.topic, segment, first, last)) as batches:
                async for batch in batches:
                    _take(log, batch)
        except BucketMissing:
            raise
        except (CorruptData, NotFound):
            origin, log = segment.end, TransactionLog()  # its task fails or skips it
    known.keep(snapshot.topic, Known(origin, end, log))
    opened = log.first_open()
    return opened.position if opened is not None else None


def _take(log: TransactionLog, batch: EntryBatch) -> None:
    for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
        if (mention := mention_of(payload)) is not None:
            log.take(Position(batch.ledger_id, entry_id), mention)


class PieceOutcomes:
    """The outcomes of the transactions in one share, whose pieces are read in order. Close it at the end."""

    def __init__(self, reader: LateReader) -> None:
        self._reader = reader
        self._topic: TopicName | None = None
        self._piece: Piece | None = None
        self._outcomes = Outcomes(self._behind)
        self._late: dict[TransactionId, TransactionState] = {}
        self._aborted: set[TransactionId] = set()
        self._searched = NOWHERE

    async def take(self, piece: Piece, batch: EntryBatch) -> None:
        """Take the next entries of a piece."""
        if piece.topic != self._topic:
            await self.close()
            self._topic, self._late = piece.topic, {}
            self._aborted, self._searched = set(), NOWHERE
            self._outcomes = Outcomes(self._behind)
        self._piece = piece
        await self._outcomes.take(batch)

    async def state(self, position: Position, transaction: TransactionId) -> TransactionState:
        """Return the state of a message that was taken.

        OPEN: there is no marker up to the newest entry. UNKNOWN: it may be behind the segments of the piece. Raises
        BrokenSegment when a segment between cannot be read, and as the store does.
        """
        found = self._outcomes.log.state(position, transaction)
        while found is TransactionState.OPEN:
            if transaction in self._late:
                return self._late[transaction]
            if not await self._outcomes.look_ahead():
                found = await self._without_marker(position, transaction)
                self._late[transaction] = found
                return found
            found = self._outcomes.log.state(position, transaction)
        return found

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._outcomes.close()

    async def _without_marker(self, position: Position, transaction: TransactionId) -> TransactionState:
        """Search before a message for the abort of its transaction: then it came too late, and no marker follows."""
        piece = self._piece
        if piece is None:
            return TransactionState.UNKNOWN
        before = Position(position.ledger_id, position.entry_id - 1) if position.entry_id else position
        await self._search(piece, before)
        if transaction in self._aborted:
            return TransactionState.ABORTED
        return TransactionState.OPEN if piece.reaches_end else TransactionState.UNKNOWN

    async def _search(self, piece: Piece, upto: Position) -> None:
        """Note aborts up to a position, from the end of the last search."""
        for segment in (*piece.before, piece.segment):
            begin = begin_in(segment, self._searched.next())
            if begin is None or begin > upto:
                continue
            async with aclosing(self._read(piece.topic, segment, begin, min(segment.end, upto))) as batches:
                async for batch in batches:
                    for payload in batch.payloads:
                        mention = mention_of(payload)
                        if mention is not None and mention.ends is TransactionState.ABORTED:
                            self._aborted.add(mention.transaction)
                    self._searched = batch.last

    async def _behind(self, first: Position) -> AsyncGenerator[EntryBatch, None]:
        """Yield the entries behind a position in all segments that the piece names."""
        piece = self._piece
        for segment in (piece.segment, *piece.after) if piece is not None else ():
            begin = begin_in(segment, first)
            if begin is not None and piece is not None:
                async with aclosing(self._read(piece.topic, segment, begin, segment.end)) as batches:
                    async for batch in batches:
                        yield batch

    async def _read(
        self, topic: TopicName, segment: Segment, first: Position, last: Position
    ) -> AsyncGenerator[EntryBatch, None]:
        try:
            async with aclosing(self._reader.read(topic, segment, first, last)) as batches:
                async for batch in batches:
                    yield batch
        except CorruptData as error:
            raise broken(topic, segment, f"{first}..{last}", error) from error


def begin_in(segment: Segment, first: Position) -> Position | None:
    """Return the first position of a segment at or after `first`; None if the segment ends before it.

    `first` need not be in the segment: the end of a ledger leads to the next one.
    """
    for part in segment.slices:
        if part.range.end >= first:
            return max(first, part.range.begin)
    return None
