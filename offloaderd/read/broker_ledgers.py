"""Reading a whole ledger that a broker has offloaded itself (PIP-17), by its index alone.

Rules:
- There is no manifest and no checksum: entries are checked by their framing (`format/v1.py`).
- The broker's settings decide the size of blocks, 64 MiB by default, so they are read in pieces that all readers share.
  The place of one entry is remembered for each piece, so a later read begins near its entry.
- Pieces are in the same cache as blocks of other segments, under one budget; only the next piece of a reader may exceed
  it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from offloaderd.core.entries import FramedEntries
from offloaderd.core.errors import CorruptData, reported
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, TopicName
from offloaderd.format.v1 import BlockScan, BlockSpan, LedgerObjectIndex, block_spans, decode_index
from offloaderd.format.verify import differs
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.cache import Cache, ReadAhead, Slot
from offloaderd.read.disk.fetcher import Fetcher, Range
from offloaderd.read.disk.files import owner_of

PIECE_BYTES = 1024 * 1024
"""Bytes of one request, and about the distance of remembered places."""
TABLE_BYTES = 2048
PLACE_BYTES = 128
"""Memory of a table, and of an entry of the index or a remembered place in it."""


class Place(NamedTuple):
    """The begin of an entry; for the first of a block, that of the block's header."""

    entry_id: int
    at: int


class LedgerTable:
    """The blocks of one object, and the places in them that are known."""

    def __init__(self, topic: TopicName, segment: CommittedSegment, index: LedgerObjectIndex) -> None:
        self.owner = owner_of(topic.managed_ledger, segment.segment_id)
        self.bucket, self.key = segment.bucket, segment.keys.data
        self.data_bytes = index.data_bytes
        self._spans = block_spans(index)
        self._firsts = [span.first_entry_id for span in self._spans]
        begins = set(self._firsts)
        header = index.header_bytes
        self._places = [
            Place(entry.first_entry_id, entry.offset + (0 if entry.first_entry_id in begins else header))
            for entry in index.entries
        ]

    def span(self, entry_id: int) -> BlockSpan:
        """Return the block that holds an entry."""
        return self._spans[bisect_right(self._firsts, entry_id) - 1]

    def nearest(self, entry_id: int) -> Place:
        """Return the last known place at or before an entry."""
        return self._places[bisect_right(self._places, entry_id, key=lambda place: place.entry_id) - 1]

    @property
    def known(self) -> list[int]:
        """The entries whose places are known, ascending; entry 0 is the first."""
        return [place.entry_id for place in self._places]

    def learn(self, place: Place) -> None:
        """Remember a place, unless one is known nearby."""
        index = bisect_right(self._places, place.entry_id, key=lambda known: known.entry_id)
        following = self._places[index : index + 1]
        if place.at - self._places[index - 1].at >= PIECE_BYTES and (
            not following or following[0].at - place.at >= PIECE_BYTES
        ):
            self._places.insert(index, place)

    def range(self, number: int) -> Range:
        """Return the bytes of a piece."""
        start = number * PIECE_BYTES
        return Range(start, min(PIECE_BYTES, self.data_bytes - start))

    @property
    def cost_bytes(self) -> int:
        """Greatest memory of the table, about."""
        return TABLE_BYTES + PLACE_BYTES * (len(self._places) + self.data_bytes // PIECE_BYTES)


def table_of(topic: TopicName, segment: CommittedSegment, index_data: bytes) -> LedgerTable:
    """Decode an index and compare it with the committed segment. Raises CorruptData with the difference."""
    key = segment.keys.index
    index = decode_index(index_data, key=key)
    if index.data_bytes != segment.object_bytes:
        raise differs(key, 8, f"a data object of {segment.object_bytes} bytes", index.data_bytes)
    last = segment.end.entry_id
    if index.ledger().lastEntryId != last:
        raise differs(key, 32, f"a ledger up to entry {last}", index.ledger().lastEntryId)
    return LedgerTable(topic, segment, index)


@dataclass(frozen=True, slots=True)
class LedgerObjects:
    """Reads the ledgers of brokers out of their buckets. `report` gets damage."""

    fetcher: Fetcher
    pieces: Cache[bytes]
    tables: Cache[LedgerTable]
    metrics: Metrics
    report: Callable[[CorruptData], None]

    async def read(
        self,
        topic: TopicName,
        segment: CommittedSegment,
        first: Position,
        last: Position,
        pace: ReadAhead,
        *,
        read_ahead_bytes: int,
    ) -> AsyncGenerator[FramedEntries, None]:
        """Yield every entry of [first, last], which the ledger must hold, in order, a batch for each piece.

        Raises NotFound for a missing object, CorruptData for one that differs from its index or the commit, Transient
        and Denied; all entries before an error are right. Close the iterator at the end.
        """
        async with self._table(topic, segment) as table:
            place = table.nearest(first.entry_id)
            while place.entry_id <= last.entry_id:
                span = table.span(place.entry_id)
                begins = place.entry_id == span.first_entry_id
                scan = BlockScan(
                    span,
                    ledger_id=first.ledger_id,
                    key=table.key,
                    entry_id=None if begins else place.entry_id,
                    at=place.at,
                )
                end = span.end if last.entry_id >= span.last_entry_id else None
                window = _Window(self, table, end)
                try:
                    while not scan.done and scan.next_entry_id <= last.entry_id:
                        found = await self._fed(scan, window, table)
                        pace.grow(read_ahead_bytes)
                        window.ahead_bytes = pace.window_bytes // 2
                        batch = found.between(first.entry_id, last.entry_id)
                        if batch.count:
                            yield batch
                finally:
                    window.close()
                place = Place(span.last_entry_id + 1, span.end)

    async def known_places(self, topic: TopicName, segment: CommittedSegment) -> list[int]:
        """Return entries whose places are known: those of the index, and some that were read. Raises as `read` does."""
        async with self._table(topic, segment) as table:
            return table.known

    async def _fed(self, scan: BlockScan, window: "_Window", table: LedgerTable) -> FramedEntries:
        wanted = scan.wanted_at
        number = wanted // PIECE_BYTES
        piece = await window.piece(number)
        try:
            with reported(self.report):
                found = scan.feed(piece[wanted - number * PIECE_BYTES :])
        except CorruptData:
            self._forget(table, {max(0, number - 1), number})  # an entry may begin in the piece before
            raise
        if scan.inside:
            table.learn(Place(scan.next_entry_id, scan.at))
        return found

    def _forget(self, table: LedgerTable, numbers: set[int]) -> None:
        """Drop damaged pieces from the disk: nothing but the framing of their entries shows damage."""
        there = self.fetcher.at(table.bucket, table.owner)
        for number in numbers:
            there.forget(table.key, table.range(number))

    @asynccontextmanager
    async def _table(self, topic: TopicName, segment: CommittedSegment) -> AsyncIterator[LedgerTable]:
        slot, new = self.tables.claim(("ledger", segment.segment_id), TABLE_BYTES)
        try:
            if new:
                key = segment.keys.index
                self.tables.load([slot], lambda: self._load_table(topic, segment, slot), name=f"get {key}")
            yield await slot.get()
        finally:
            self.tables.release(slot)

    async def _load_table(self, topic: TopicName, segment: CommittedSegment, slot: Slot[LedgerTable]) -> None:
        there = self.fetcher.at(segment.bucket, owner_of(topic.managed_ledger, segment.segment_id))
        with reported(self.report):
            table = await there.table(partial(table_of, topic, segment), segment.keys.index)
        self.tables.fill(slot, table, table.cost_bytes)

    def claim(self, table: LedgerTable, number: int, *, ahead: bool) -> Slot[bytes]:
        """Pin a piece, and fetch a new one."""
        start, length = table.range(number)
        slot, new = self.pieces.claim((table.bucket, table.key, number), length)
        if new:
            if ahead:
                self.metrics.prefetch_bytes.inc(length)
            self.pieces.load([slot], lambda: self._load_piece(table, start, length, slot), name=f"get {table.key}")
        return slot

    async def _load_piece(self, table: LedgerTable, start: int, length: int, slot: Slot[bytes]) -> None:
        there = self.fetcher.at(table.bucket, table.owner)
        async with AsyncExitStack() as stack:
            with reported(self.report):
                (piece,) = await stack.enter_async_context(
                    there.ranges(table.key, [Range(start, length)], checked=False)
                )
            self.pieces.fill(slot, await there.sound(table.key, piece, bytes), length)


class _Window:
    """The pinned pieces of one read: the present one, and those ahead."""

    def __init__(self, objects: LedgerObjects, table: LedgerTable, end: int | None) -> None:
        self.ahead_bytes = 0
        self._objects = objects
        self._table = table
        self._end = end
        self._slots: deque[tuple[int, Slot[bytes]]] = deque()

    async def piece(self, number: int) -> bytes:
        """Return a piece, fetch those ahead of it, and release all before it."""
        while self._slots and self._slots[0][0] < number:
            self._objects.pieces.release(self._slots.popleft()[1])
        if not self._slots:
            self._slots.append((number, self._objects.claim(self._table, number, ahead=False)))
        while self._may_fetch():
            following = self._slots[-1][0] + 1
            self._slots.append((following, self._objects.claim(self._table, following, ahead=True)))
        return await self._slots[0][1].get()

    def _may_fetch(self) -> bool:
        """Whether to fetch one piece more ahead: not for a read that ends within the block."""
        if self._end is None or (self._slots[-1][0] + 1) * PIECE_BYTES >= self._end:
            return False
        return len(self._slots) * PIECE_BYTES <= self.ahead_bytes and self._objects.pieces.room_bytes >= PIECE_BYTES

    def close(self) -> None:
        """Release all pieces."""
        while self._slots:
            self._objects.pieces.release(self._slots.popleft()[1])
