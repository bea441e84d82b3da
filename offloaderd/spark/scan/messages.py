"""Messages of the entries of a share, each in a row of its own, with chunks joined.

Every entry has at least one row, in the task that reads it: a chunk has its own row, in state `chunk`, except the last
of a message, whose row has the whole message, or is in state `incomplete` if that cannot be had. Earlier chunks may be
in another share, or in blocks that a query does not read; then the task searches backwards, so a message does not
depend on shares and filters. Chunks are joined as by the daemon's ReadMessages: all of one message, in their order,
none missing and none twice.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from offloaderd.core.errors import BucketMissing, CorruptData, NotFound
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.read_options import Transactions
from offloaderd.format.pulsar.entry_time import time_of
from offloaderd.format.pulsar.messages import (
    CONTENT_BYTES_MAX,
    Chunk,
    Joiner,
    Message,
    MessageState,
    PlainBatch,
    decode_columns,
    decode_entry,
)
from offloaderd.format.pulsar.transactions import TransactionState
from offloaderd.spark.scan.columns import BatchRows, Row
from offloaderd.spark.scan.query import Extent
from offloaderd.spark.scan.segments import LateReader, Run, extents_of
from offloaderd.spark.scan.share import BrokenSegment, Condition, Piece, Segment, broken
from offloaderd.spark.scan.transactions import OutcomeUnknown, PieceOutcomes

ROWS_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024
"""The limits of a batch of messages; that of bytes is approximate."""

LOOK_BACK_BYTES = 128 * 1024 * 1024
"""Bytes of a topic's objects to search for earlier chunks: as many as a message may have."""


class Messages:
    """Unpacks the entries of one share, in their order. Close it at the end.

    Messages in transactions, and markers, are those that a consumer gets, or all. `step`: a message of an open
    transaction is an error, since no later step reads it, and so is one that may have begun in history to come.
    """

    def __init__(
        self,
        reader: LateReader,
        *,
        skip: frozenset[Condition] = frozenset(),
        transactions: Transactions = Transactions.COMMITTED,
        step: bool = False,
    ) -> None:
        self._reader = reader
        self._skip = skip
        self._everything = transactions is Transactions.ALL
        self._step = step
        self._joiner = Joiner()
        self._outcomes = PieceOutcomes(reader)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._outcomes.close()

    async def rows(
        self, piece: Piece, batch: EntryBatch, mask: Sequence[bool] | None
    ) -> AsyncGenerator[list[Row | BatchRows], None]:
        """Yield the rows of a batch's entries, or of those that the mask selects.

        Raises, unless it skips the condition, BrokenSegment when chunks or markers cannot be read, and OutcomeUnknown;
        and as the store does.
        """
        rows: list[Row | BatchRows] = []
        count = size = 0
        await self._outcomes.take(piece, batch)
        for at, payload in enumerate(batch.payloads):
            position = Position(batch.ledger_id, batch.first_entry_id + at)
            included = mask is None or mask[at]
            messages = decode_columns(position, payload, batch_max=ROWS_MAX if included else 0)
            if isinstance(messages, PlainBatch):
                rows.append(BatchRows(messages, payload, time_of(payload).time_ms))
                count += len(messages.values)
                size += len(payload) + sum(map(len, filter(None, messages.values)))
                if count >= ROWS_MAX or size >= BYTES_MAX:
                    yield rows
                    rows, count, size = [], 0, 0
                continue
            state = None
            if included:
                try:
                    state = await self._state(piece, messages[0])
                except (OutcomeUnknown, BrokenSegment) as error:
                    if error.condition not in self._skip:
                        raise
                    messages = [Message(position=position, state=MessageState.RAW, data=payload, reason=error.message)]
                included = self._is_given(messages[0], state)
            chunk = messages[0].chunk
            if chunk is not None and messages[0].state is MessageState.CHUNK:
                messages = [await self._joined(piece, messages[0], chunk, included=included)]
            if not included:
                continue
            time_ms = time_of(payload).time_ms
            whole: bytes | None = payload
            for message in messages:
                rows.append(Row(message, whole, time_ms, state))
                size += len(message.data) + len(whole or b"")
                whole = None
                count += 1
                if count >= ROWS_MAX or size >= BYTES_MAX:
                    yield rows
                    rows, count, size = [], 0, 0
        if rows:
            yield rows

    def _is_given(self, first: Message, state: TransactionState | None) -> bool:
        """Return whether an entry has rows, by its first message and the state of its transaction."""
        return self._everything or (
            first.state is not MessageState.MARKER and state in {None, TransactionState.COMMITTED}
        )

    async def _state(self, piece: Piece, first: Message) -> TransactionState | None:
        """Return the state of an entry's transaction. Raises OutcomeUnknown and BrokenSegment if it is needed."""
        if first.transaction is None:
            return None
        try:
            found = await self._outcomes.state(first.position, first.transaction)
        except BrokenSegment:
            if not self._everything:
                raise
            found = TransactionState.UNKNOWN
        if self._everything or first.state is MessageState.MARKER:
            return found
        if found is TransactionState.UNKNOWN or (found is TransactionState.OPEN and self._step):
            raise OutcomeUnknown(
                Condition.UNFINISHED,
                f"{piece.topic}, message {first.position}: whether its transaction {first.transaction} was committed "
                f"is not said up to {(piece.after or (piece.segment,))[-1].end}",
                hint="run the query again when the transaction is over, or read all messages with transactions=all",
            )
        return found

    async def _joined(self, piece: Piece, last: Message, chunk: Chunk, *, included: bool) -> Message:
        """Return the message that a chunk completes, or the chunk."""
        given = list(self._joiner.take([last]))  # with chunks that it gives up; they have had their rows
        if chunk.index != chunk.count - 1 or not included:
            return last
        incomplete = replace(last, state=MessageState.INCOMPLETE)
        if chunk.content_bytes > CONTENT_BYTES_MAX:
            return replace(incomplete, reason=f"{last.reason}: the whole would be {chunk.content_bytes} bytes")
        if given[-1].state is not MessageState.CHUNK:
            return replace(given[-1], chunk=chunk)
        try:
            before = await self._before(piece, last.position, chunk)
        except BrokenSegment as error:
            if error.condition not in self._skip:
                raise
            return replace(incomplete, reason=f"{last.reason}: those before it cannot be read: {error.message}")
        (*earlier, found) = Joiner().take([*before, last])
        if found.state is not MessageState.CHUNK:
            return replace(found, chunk=chunk)
        if any(one.state is not MessageState.CHUNK for one in earlier):
            return replace(last, reason=f"{last.reason}: the message was complete before it")
        return replace(incomplete, reason=found.reason)

    async def _before(self, piece: Piece, at: Position, chunk: Chunk) -> list[Message]:
        """Return the chunks of a message before a position, as far back as its first, if that is found.

        Raises BrokenSegment, and as the store does.
        """
        found: list[Message] = []
        room, last = LOOK_BACK_BYTES, at
        todo = [*piece.before, piece.segment]
        while todo:
            segment = todo.pop()
            try:
                extents = await extents_of(self._reader.segments, piece.topic, segment)
                ends = [*(one.at for one in extents[1:]), segment.object_bytes]
                for extent, end in reversed(list(zip(extents, ends, strict=True))):
                    if (extent.ledger_id, extent.first_entry_id) >= at:
                        continue
                    here = [one async for one in self._chunks(piece.topic, segment, extent, at, chunk.message)]
                    found = [*here, *found]
                    at = Position(extent.ledger_id, extent.first_entry_id)
                    room -= end - extent.at
                    if room <= 0 or any(one.chunk is not None and one.chunk.index == 0 for one in here):
                        return found
            except BucketMissing:
                raise
            except NotFound as error:
                todo += await self._instead(piece.topic, segment, at, error)
            except CorruptData as error:
                raise broken(piece.topic, segment, f"before {at}", error) from error
        if piece.gap is not None and self._step:
            raise BrokenSegment(
                Condition.UNFINISHED,
                f"{piece.topic}: a message in chunks that ends at {last} may have begun in history before {piece.gap}, "
                "which is not offloaded yet",
                hint="it is read when that is offloaded",
            )
        return found

    async def _instead(self, topic: TopicName, segment: Segment, at: Position, error: NotFound) -> list[Segment]:
        """Return the segments that now have a deleted one's entries before a position. Raises BrokenSegment."""
        found = []
        for run in await self._reader.locate(topic, Run(segment, segment.begin, min(segment.end, at)), error):
            if run.problem is not None:
                raise run.broken(topic, f"before {at}", run.problem) from error
            found.append(run.segment)
        return found

    async def _chunks(
        self, topic: TopicName, segment: Segment, extent: Extent, at: Position, name: str
    ) -> AsyncGenerator[Message, None]:
        """Yield the chunks of one message in an extent, before a position."""
        upto = extent.last_entry_id
        if extent.ledger_id == at.ledger_id:
            upto = min(upto, at.entry_id - 1)
        first, last = Position(extent.ledger_id, extent.first_entry_id), Position(extent.ledger_id, upto)
        async with aclosing(self._reader.read_segment(topic, segment, first, last)) as batches:
            async for batch in batches:
                for entry_id, payload in enumerate(batch.payloads, batch.first_entry_id):
                    one = decode_entry(Position(batch.ledger_id, entry_id), payload)[0]
                    if one.state is MessageState.CHUNK and one.chunk is not None and one.chunk.message == name:
                        yield one
