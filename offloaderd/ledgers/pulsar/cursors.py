"""Pulsar's cursors, by which subscriptions know what is acknowledged. Pure parsing, and the node that a mount writes.

A cursor is a child of its topic's node. While its topic is loaded, its position is the last entry of a ledger of its
own; once it is closed, and as it was when that ledger began, the position is in the node (ManagedCursorImpl).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.pulsar import cursors_pb2 as pb
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import NestedPositionInfo
from offloaderd.ledgers.pulsar.managed_ledger import content_of

NO_LEDGER = -1
WORD_BITS = 64
WORDS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What a cursor knows. All entries up to `mark_delete` are acknowledged; its entry id may be -1.

    `acknowledged` are further ranges, after the first position and up to the second one; `batches` the words of what is
    open of a batch, by the batch's position. `numbers` and `texts` are properties: of the position, as the
    de-duplication writes them, and of the subscription.
    """

    mark_delete: Position
    acknowledged: tuple[tuple[Position, Position], ...] = ()
    batches: tuple[tuple[Position, tuple[int, ...]], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorNode:
    """A cursor's node: the cursor as the node has it, and the ledger with later positions; None for no ledger."""

    cursor: Cursor
    ledger_id: int | None = None


def decode_node(node: bytes, *, path: str) -> CursorNode:
    """Read a cursor's node, compressed or not. Raises CorruptData, and InvalidConfig as `content_of` does."""
    data, at = content_of(node, key=path)
    found = parse_message(pb.ManagedCursorInfo, data, key=path, at=at)
    known = found.HasField("markDeleteLedgerId") and found.HasField("markDeleteEntryId")  # else nothing is acknowledged
    mark_delete = (found.markDeleteLedgerId, found.markDeleteEntryId) if known else (-1, -1)
    cursor = Cursor(
        mark_delete=_position(*mark_delete, path, at),
        acknowledged=_ranges(found.individualDeletedMessages, path, at),
        batches=_batches(found.batchedEntryDeletionIndexInfo, path, at),
        numbers=tuple((one.name, one.value) for one in found.properties),
        texts=tuple((one.name, one.value) for one in found.cursorProperties),
    )
    return CursorNode(cursor=cursor, ledger_id=found.cursorsLedgerId if found.cursorsLedgerId >= 0 else None)


def decode_entry(data: bytes, *, key: str, texts: tuple[tuple[str, str], ...]) -> Cursor:
    """Read an entry of a cursor's ledger; the node has the `texts`. Raises CorruptData."""
    found = parse_message(pb.PositionInfo, data, key=key, at=0)
    ranges = _ranges(found.individualDeletedMessages, key, 0)
    return Cursor(
        mark_delete=_position(found.ledgerId, found.entryId, key, 0),
        acknowledged=ranges or tuple(_of_bits(found.individualDeletedMessageRanges, key)),
        batches=_batches(found.batchedEntryDeletionIndexInfo, key, 0),
        numbers=tuple((one.name, one.value) for one in found.properties),
        texts=texts,
    )


def encode_node(cursor: Cursor) -> bytes:
    """Return the node of a cursor without a ledger, as a broker leaves it when it unloads the topic."""
    message = pb.ManagedCursorInfo(
        cursorsLedgerId=NO_LEDGER,
        markDeleteLedgerId=cursor.mark_delete.ledger_id,
        markDeleteEntryId=cursor.mark_delete.entry_id,
        individualDeletedMessages=[
            pb.MessageRange(lowerEndpoint=_nested(after), upperEndpoint=_nested(last))
            for after, last in cursor.acknowledged
        ],
        properties=[pb.LongProperty(name=name, value=value) for name, value in cursor.numbers],
        batchedEntryDeletionIndexInfo=[
            pb.BatchedEntryDeletionIndexInfo(position=_nested(at), deleteSet=words) for at, words in cursor.batches
        ],
        cursorProperties=[pb.StringProperty(name=name, value=value) for name, value in cursor.texts],
    )
    return message.SerializeToString(deterministic=True)


def _nested(position: Position) -> NestedPositionInfo:
    return NestedPositionInfo(ledgerId=position.ledger_id, entryId=position.entry_id)


def _position(ledger_id: int, entry_id: int, key: str, at: int) -> Position:
    """Return a position of the cursor. A ledger id of -1 stands before the first ledger."""
    if ledger_id < -1 or entry_id < -1:
        raise CorruptData(key=key, offset=at, expected="a position of at least -1:-1", found=f"{ledger_id}:{entry_id}")
    return Position(ledger_id, entry_id)


def _ranges(found: Iterable[pb.MessageRange], key: str, at: int) -> tuple[tuple[Position, Position], ...]:
    ends = ((one.lowerEndpoint, one.upperEndpoint) for one in found)
    return tuple(
        (_position(low.ledgerId, low.entryId, key, at), _position(high.ledgerId, high.entryId, key, at))
        for low, high in ends
    )


def _batches(
    found: Iterable[pb.BatchedEntryDeletionIndexInfo], key: str, at: int
) -> tuple[tuple[Position, tuple[int, ...]], ...]:
    return tuple(
        (_position(one.position.ledgerId, one.position.entryId, key, at), tuple(one.deleteSet)) for one in found
    )


def _of_bits(found: Iterable[pb.LongListMap], key: str) -> Iterator[tuple[Position, Position]]:
    """Yield the ranges of entries whose bits are set (LongPairRangeSet): one bit an entry of the ledger."""
    for one in found:
        if one.key < 0 or len(one.values) > WORDS_MAX:
            expected = f"a ledger and at most {WORDS_MAX} words"
            raise CorruptData(key=key, offset=0, expected=expected, found=f"{one.key}: {len(one.values)}")
        entries = (
            WORD_BITS * index + bit
            for index, word in enumerate(one.values)
            for bit in range(WORD_BITS)
            if word >> bit & 1
        )
        for _, run in groupby(enumerate(entries), key=lambda pair: pair[1] - pair[0]):
            ids = [entry_id for _, entry_id in run]
            yield Position(one.key, ids[0] - 1), Position(one.key, ids[-1])
