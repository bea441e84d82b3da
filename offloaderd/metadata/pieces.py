"""A ledger's context as it is stored: in one node, or, of very many segments, in a node and pieces below it. Pure.

```
ledgers/<id>             the marks, the end, which pieces there are, and the newest segments
ledgers/<id>/<piece>     older segments, consecutive
```

Rules: whoever changes a piece writes the context's node in the same transaction, so its version stands for all of them
(`nodes.stored_context`), and two who change the same context never both win. A change reads and writes only the pieces
whose segments it concerns: a commit writes the newest segments, a removal the oldest ones. A context that has become
small is one node again.

When: a context stays in one node as long as a transaction with it has room in the store (`ROOM_BYTES`). Releases that
know no pieces refuse a context in pieces (`context.FORMAT_PIECES`) and stall its topic; at that size they could not
commit to it any more either, so during an upgrade nothing stalls that would not have stalled without pieces.
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
"""A transaction that would be larger has the contexts that it changes put in pieces first. Earlier releases refuse one
of 1,000,000 bytes or more, of which the rest of a commit takes some; the store's own limit is above that."""
PIECE_BYTES = 1 << 15
"""About how much a piece holds: some 300 segments. The node and each piece are cut when they are twice as large."""

_NONE: Mapping[int, Versioned] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoredContext:
    """A context's node with the version to compare-and-set against, and its pieces by number."""

    value: bytes
    version: int
    pieces: Mapping[int, Versioned] = field(default_factory=lambda: _NONE)


def joined(stored: StoredContext, path: str) -> LedgerContext:
    """Return the whole context, whatever it is stored in. Raises CorruptData for pieces that are not as it says."""
    known = context.decode(stored.value, path=path)
    older: list[LedgerSegment] = []
    for piece in known.pieces:
        _held(stored, piece, path)
        older += context.decode(stored.pieces[piece.number].value, path=f"{path}/{piece.number}").segments
    return replace(known, segments=(*older, *known.segments), pieces=())


def with_mark(
    stored: StoredContext, path: str, mark: Callable[[LedgerContext], LedgerContext]
) -> tuple[Step, StoredContext]:
    """Return the step that writes another mark, and the context afterwards. Raises CorruptData."""
    known, segments = context.skim(stored.value, path=path)
    value = context.encode(mark(known), segments)
    return Replace(path, value, stored.version), replace(stored, value=value, version=stored.version + 1)


def with_end(stored: StoredContext, path: str, end: LedgerEnd) -> tuple[Step, StoredContext] | None:
    """Return the same of a ledger that has ended, None when it is not offloaded to that end. Raises CorruptData."""
    _, segments = context.skim(stored.value, path=path)
    if segments[-1].end_entry_id + 1 != end.entries:
        return None
    return with_mark(stored, path, lambda known: replace(known, end=end))


def created(path: str, known: LedgerContext) -> tuple[Step, StoredContext]:
    """Return the step that writes the first node of a context, and the context afterwards."""
    value = context.encode(known)
    return Create(path, value), StoredContext(value, 0)


def inserted(
    stored: StoredContext | None, path: str, segment: LedgerSegment, *, created_ms: int | None
) -> tuple[list[Step], StoredContext]:
    """Return the steps that put one more segment between two, or at an end, and the context afterwards.

    `created_ms` is when the ledger was made, for a context that does not say. Raises CorruptData, ValueError for a gap.
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
    segments: Sequence[LedgerSegment],
    *,
    created_ms: int | None = None,
) -> tuple[list[Step], StoredContext | None]:
    """Return the steps that put segments in the place of those with entries between two, and the context afterwards.

    What is exchanged are whole segments, or none; without any segment left there is no context. `created_ms` as in
    `inserted`. Raises CorruptData, ValueError for a gap.
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
    row: Sequence[AnySegment] = [*before, *segments, *(one for one in held if one.begin_entry_id > last)]
    if in_node and not row and begin:  # the newest segments lie in the node, whichever these are
        begin -= 1
        row = _held(stored, table[begin], path)
    if in_node and not row:
        pieces = [Delete(f"{path}/{one.number}", stored.pieces[one.number].version) for one in table]
        return [*pieces, Delete(path, stored.version)], None
    rows = _cut(row) if table else [row]
    return _written(stored, path, known, (begin, end), rows if not in_node else rows[:-1], rows[-1] if in_node else own)


def in_pieces(stored: StoredContext, path: str) -> tuple[list[Step], StoredContext]:
    """Return the steps that put the older segments of a context in pieces, and the context afterwards.

    One that is in pieces already, or small, needs none. Raises CorruptData.
    """
    known, segments = context.skim(stored.value, path=path)
    *older, own = _cut(segments)
    if known.pieces or not older:
        return [], stored
    return _written(stored, path, known, (0, 0), older, own)


def of_segments(path: str, known: LedgerContext) -> StoredContext:
    """Return a new context as it is to be stored. Raises ValueError for a gap."""
    _, stored = created(path, known)
    return stored if len(stored.value) <= ROOM_BYTES else replace(in_pieces(stored, path)[1], version=0)


def _held(stored: StoredContext, piece: Piece, path: str) -> Sequence[AnySegment]:
    """Read a piece; raises CorruptData when it is not there, or holds other entries than it should."""
    at = f"{path}/{piece.number}"
    node = stored.pieces.get(piece.number)
    wanted = (piece.begin_entry_id, piece.end_entry_id)
    _, segments = context.skim(node.value, path=at) if node is not None else (None, ())
    held = (segments[0].begin_entry_id, segments[-1].end_entry_id) if segments else None
    if held != wanted:
        codec.corrupt(at, f"segments that hold the entries {wanted[0]} to {wanted[1]}", held)
    return segments


def _cut(segments: Sequence[AnySegment]) -> list[Sequence[AnySegment]]:
    """Cut segments into rows of about PIECE_BYTES, if they are more than twice that; at least one row of them."""
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
    """Write the node with its `own` segments, and rows of segments in the place of some of its pieces."""
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
