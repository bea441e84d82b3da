"""Reading a few entries of a block by its chunks: a cold read of one entry fetches two chunks at most.

Rules:
- A block is read by chunks for few of its entries, unless more of it, or of the block before, is in the cache: such a
  reader reads on, and gets whole blocks.
- Chunks are in the same cache as blocks, under one budget; each is checked before it gets there.
- Blocks whose manifest has no chunks are read whole (FORMAT.md, section 4.5).
"""

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from offloaderd.core.entries import FramedEntries
from offloaderd.core.errors import CorruptData, reported
from offloaderd.format.chunks import Piece, checked_chunk, chunk_count, decode_piece, extent, piece_of
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read.cache import Cache, Slot
from offloaderd.read.segments.table import SegmentTable

SLOT_BYTES = 256
"""Memory of a chunk in the cache beside its bytes."""
NEAR = 16
"""Chunks to each side that are searched in the cache: all of a block of 1 MiB."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Reads single chunks of blocks. `report` gets damage."""

    fetcher: RetryingReader
    pieces: Cache[bytes]
    report: Callable[[CorruptData], None]

    def piece(self, table: SegmentTable, number: int, first_entry_id: int, last_entry_id: int) -> Piece | None:
        """Return the chunks with entries of block `number`; None if the whole block is to be read.

        That is a block without chunks, one with half of it or more to read, and one in the cache or, unless these
        chunks are, with other chunks or the block before in the cache; loads under way count.
        """
        block, size, blocks = table.manifest.blocks[number], table.manifest.chunk_bytes, self.pieces
        segment_id = table.manifest.segment_id
        if not block.chunks or blocks.holds((segment_id, number)):
            return None
        piece = piece_of(block, size, first_entry_id, last_entry_id)
        if 2 * extent(block, size, piece.first_chunk, piece.last_chunk)[1] >= block.length:
            return None
        low, high = piece.first_chunk, piece.last_chunk + 1
        near = range(max(0, low - NEAR), min(chunk_count(block.length, size), high + NEAR))
        held = {chunk for chunk in near if blocks.holds(_key(table, number, chunk))}
        if held:
            return piece if held.issuperset(range(low, high)) else None
        return None if blocks.holds((segment_id, number - 1)) else piece

    @asynccontextmanager
    async def entries(self, table: SegmentTable, number: int, piece: Piece) -> AsyncIterator[tuple[FramedEntries, int]]:
        """Give the entries of a `piece` that was just returned, and the bytes fetched for them.

        Raises NotFound for a missing object, CorruptData for a damaged chunk, Transient, Denied.
        """
        block, size = table.manifest.blocks[number], table.manifest.chunk_bytes
        claims = [self._claim(table, number, chunk) for chunk in range(piece.first_chunk, piece.last_chunk + 1)]
        slots = [slot for slot, _ in claims]
        try:
            fresh = all(new for _, new in claims)  # one of them alone is never in the cache
            if fresh:
                first = piece.first_chunk
                self.pieces.load(slots, lambda: self._load(table, number, first, slots), name=f"get {table.data_key}")
            got = [await slot.get() for slot in slots]
            with reported(self.report):
                found = decode_piece(b"".join(got), block, size, piece, key=table.data_key)
            yield found, sum(map(len, got)) if fresh else 0
        finally:
            for slot in slots:
                self.pieces.release(slot)

    def _claim(self, table: SegmentTable, number: int, chunk: int) -> tuple[Slot[bytes], bool]:
        _, length = extent(table.manifest.blocks[number], table.manifest.chunk_bytes, chunk, chunk)
        return self.pieces.claim(_key(table, number, chunk), length + SLOT_BYTES)

    async def _load(self, table: SegmentTable, number: int, first_chunk: int, slots: Sequence[Slot[bytes]]) -> None:
        """Fetch neighbouring chunks with one request, and check each."""
        block, size = table.manifest.blocks[number], table.manifest.chunk_bytes
        numbers = range(first_chunk, first_chunk + len(slots))
        extents = [extent(block, size, chunk, chunk) for chunk in numbers]
        lengths, fetcher = [length for _, length in extents], self.fetcher.at(table.bucket)
        with reported(self.report):
            parts = await fetcher.pieces(table.data_key, extents[0][0], lengths)
        for chunk, slot, part in zip(numbers, slots, parts, strict=True):
            check = partial(checked_chunk, block=block, chunk_bytes=size, number=chunk, key=table.data_key)
            try:
                at = block.offset + chunk * size
                sound = await fetcher.sound(table.data_key, at, part, check)
            except CorruptData as error:
                self.report(error)
                self.pieces.fail(slot, error)
            else:
                self.pieces.fill(slot, sound, len(sound) + SLOT_BYTES)


def _key(table: SegmentTable, number: int, chunk: int) -> Hashable:
    return "chunk", table.manifest.segment_id, number, chunk
