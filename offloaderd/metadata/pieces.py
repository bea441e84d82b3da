"""Storage of a ledger's context: one node, or for very many segments a node with pieces below it. Pure.

```
ledgers/<id>             the marks, the end, the table of pieces, and the newest segments
ledgers/<id>/<piece>     older segments, consecutive
```

A change of a piece writes the context's node in the same transaction, so the node's version stands for all of them
(`nodes.stored_context`), and of two concurrent changes only one succeeds. A change reads and writes only the pieces of
its segments: a commit writes the newest segments, a removal the oldest. A context that became small is one node again.

A context stays one node while a transaction with it fits the store's limit (`ROOM_BYTES`). Releases without pieces
refuse a context in pieces (`context.FORMAT_PIECES`) and stall its topic. They could not commit to a context of that
size either, so during an upgrade pieces stall no further topics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from offloaderd.core.model import LedgerEnd, OffloadMethod
from offloaderd.metadata.port import Create, Delete, Replace, Step, Versioned
from offloaderd.metadata.records import codec, context
from offloaderd.metadata.records.context import AnySegment, LedgerContext, LedgerSegment, Piece

ROOM_BYTES = 900_000
"""Before a transaction larger than this, the contexts in it are put in pieces. Earlier releases refuse transactions of
1,000,000 bytes or more, including the rest of a commit; the store's own limit is higher."""
PIECE_BYTES = 1 << 15
"""Approximate size of a piece: some 300 segments. The node and each piece are split at twice this size."""

_NONE: Mapping[int, Versioned] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoredContext:
    """A context's node with its version for compare-and-set, and its pieces by number."""

    value: bytes
    version: int
    pieces: Mapping[int, Versioned] = field(default_factory=lambda: _NONE)


def joined(stored: StoredContext, path: str) -> LedgerContext:
    """Return the whole context of a node and its pieces. Raises CorruptData if the pieces differ from its table."""
    known = context.decode(stored.value, path=path)
    older: list[LedgerSegment] = []
    for piece in known.pieces:
        _held(stored, piece, path)
        older += context.decode(stored.pieces[piece.number].value, path=f"{path}/{piece.number}").segments
    return replace(known, segments=(*older, *known.segments), pieces=())


def with_mark(
    stored: StoredContext, path: str, mark: Callable[[LedgerContext], LedgerContext]
) -> tuple[Step, StoredContext]:
    """Return the step that writes a changed mark, and the context afterwards. Raises CorruptData."""
    known, segments = context.skim(stored.value, path=path)
    value = context.encode(mark(known), segments)
    return Replace(path, value, stored.version), replace(stored, value=value, version=stored.version + 1)


def with_end(stored: StoredContext, path: str, end: LedgerEnd) -> tuple[Step, StoredContext] | None:
    """Return step and context for a ledger that has ended; None if its end is not offloaded. Raises CorruptData."""
    _, segments = context.skim(stored.value, path=path)
    if segments[-1].end_entry_id + 1 != end.entries:
        return None
    return with_mark(stored, path, lambda known: replace(known, end=end))


def created(path: str, known: LedgerContext) -> tuple[Step, StoredContext]:
    """Return the step that creates a context's node, and the context afterwards."""
    value = context.encode(known)
    return Create(path, value), StoredContext(value, 0)


def inserted(
    stored: StoredContext | None, path: str, segment: LedgerSegment, *, created_ms: int | None
) -> tuple[list[Step], StoredContext]:
    """Return the steps that insert a segment before, between or after the others, and the context afterwards.

    `created_ms` is the ledger's creation time, for a context without one. Raises CorruptData; ValueError for a gap.
    """
    if stored is None:
        end = LedgerEnd(segment.end_entry_id + 1, None) if segment.method is OffloadMethod.LEDGER_BASED else None
        step, made = created(path, LedgerContext(segments=(segment,), end=end, created_ms=created_ms))
        return [step], made
    entries = segment.begin_entry_id, segment.end_entry_id
    steps, after = exchanged(stored, path, entries, (segment,), created_ms=created_ms)
    assert after is not None  # noqa: S101 - it has the segment
    return steps, after


def exchanged(
    stored: StoredContext,
    path: str,
    entries: tuple[int, int],
    segments: Sequence[LedgerSegment] | Callable[[LedgerSegment], LedgerSegment],
    *,
    created_ms: int | None = None,
) -> tuple[list[Step], StoredContext | None]:
    """Return the steps that replace the segments of a range of entries by others, and the context afterwards.

    The range covers whole segments, or none; a function is applied to each of them. The context is None once no
    segment is left. `created_ms` as in `inserted`. Raises CorruptData; ValueError for a gap.
    """
    first, last = entries
    known, own = context.skim(stored.value, path=path)
    known = replace(known, created_ms=created_ms if known.created_ms is None else known.created_ms)
    table = known.pieces
    small = sum(len(one.value) for one in stored.pieces.values()) + len(stored.value) <= PIECE_BYTES
    begin = 0 if small else sum(one.end_entry_id < first for one in table)
    in_node = small or begin == len(table) or own[0].begin_entry_id <= last
    end = len(table) if in_node else max(begin + 1, sum(one.begin_entry_id <= last for one in table))
    held = [one for piece in table[begin:end] for one in _held(stored, piece, path)]
    held += own if in_node else ()
    before = [one for one in held if one.end_entry_id < first]
    if callable(segments):
        there = [one for one in held if first <= one.begin_entry_id <= last]
        segments = [segments(context.read(one, path=path)) for one in there]
    row: Sequence[AnySegment] = [*before, *segments, *(one for one in held if one.begin_entry_id > last)]
    if in_node and not row and begin:  # the node must hold the newest segments, so the last piece moves into it
        begin -= 1
        row = _held(stored, table[begin], path)
    if in_node and not row:
        pieces = [Delete(f"{path}/{one.number}", stored.pieces[one.number].version) for one in table]
        return [*pieces, Delete(path, stored.version)], None
    rows = _cut(row) if table else [row]
    return _written(stored, path, known, (begin, end), rows if not in_node else rows[:-1], rows[-1] if in_node else own)


def in_pieces(stored: StoredContext, path: str) -> tuple[list[Step], StoredContext]:
    """Return the steps that move a context's older segments to pieces, and the context afterwards.

    No steps for a context that is small, or in pieces already. Raises CorruptData.
    """
    known, segments = context.skim(stored.value, path=path)
    *older, own = _cut(segments)
    if known.pieces or not older:
        return [], stored
    return _written(stored, path, known, (0, 0), older, own)


def of_segments(path: str, known: LedgerContext) -> StoredContext:
    """Return a new context in its stored form. Raises ValueError for a gap."""
    _, stored = created(path, known)
    return stored if len(stored.value) <= ROOM_BYTES else replace(in_pieces(stored, path)[1], version=0)


def _held(stored: StoredContext, piece: Piece, path: str) -> Sequence[AnySegment]:
    """Read a piece. Raises CorruptData if it is missing or holds other entries than the node's table says."""
    at = f"{path}/{piece.number}"
    node = stored.pieces.get(piece.number)
    wanted = (piece.begin_entry_id, piece.end_entry_id)
    _, segments = context.skim(node.value, path=at) if node is not None else (None, ())
    held = (segments[0].begin_entry_id, segments[-1].end_entry_id) if segments else None
    if held != wanted:
        codec.corrupt(at, f"segments that hold the entries {wanted[0]} to {wanted[1]}", held)
    return segments


def _cut(segments: Sequence[AnySegment]) -> list[Sequence[AnySegment]]:
    """Cut segments into rows of about PIECE_BYTES if their size is more than twice that; else return one row."""
    if len(segments) < 2:
        return [segments] if segments else []
    size = sum(map(context.stored_bytes, segments))
    count = size // PIECE_BYTES if size > 2 * PIECE_BYTES else 1
    cuts = [number * len(segments) // count for number in range(count + 1)]
    return [segments[begin:end] for begin, end in pairwise(cuts)]


def _written(
    stored: StoredContext,
    path: str,
    known: LedgerContext,
    place: tuple[int, int],
    rows: Sequence[Sequence[AnySegment]],
    own: Sequence[AnySegment],
) -> tuple[list[Step], StoredContext]:
    """Write the node with its `own` segments, and `rows` in place of the pieces from index `place[0]` to `place[1]`."""
    begin, end = place
    gone = known.pieces[begin:end]
    numbers = [one.number for one in gone]
    unused = max(stored.pieces, default=0) + 1
    numbers += range(unused, unused + len(rows) - len(gone))
    steps: list[Step] = []
    pieces = dict(stored.pieces)
    table: list[Piece] = []
    for number, row in zip(numbers, rows, strict=False):
        value, before = context.encode(LedgerContext(), row), pieces.get(number)
        at = f"{path}/{number}"
        steps.append(Create(at, value) if before is None else Replace(at, value, before.version))
        pieces[number] = Versioned(value, 0 if before is None else before.version + 1)
        table.append(Piece(number=number, begin_entry_id=row[0].begin_entry_id, end_entry_id=row[-1].end_entry_id))
    steps += [Delete(f"{path}/{number}", pieces.pop(number).version) for number in numbers[len(rows) :]]
    known = replace(known, pieces=(*known.pieces[:begin], *table, *known.pieces[end:]))
    value = context.encode(known, own)
    steps.append(Replace(path, value, stored.version))
    return steps, StoredContext(value, stored.version + 1, MappingProxyType(pieces))
