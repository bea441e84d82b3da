"""Reading one committed segment: ranged GETs over blocks, each block checked before an entry is handed out.

Rules:
- Index and manifest are fetched once (in parallel), compared with each other and with the commit, and cached. The
  manifest has a checksum of itself (checked when it is decoded) and of the index, which other readers of the format
  use. A segment in which they differ is not read at all.
- Neighbouring blocks are fetched with one GET. A read begins with one block; each further block doubles the window, up
  to `read_ahead_bytes`, with which a direct read begins. A GET is for a third of it, so that two are under way while a
  third is yielded. The window goes on in the next segment, or ledger, whose tables and first blocks are fetched while
  the last blocks of the present one are yielded; the block that a read waits for has a small request of its own.
- Blocks ahead are pinned in the shared block cache, so all readers together stay within its budget, each with an equal
  share of it at most; only the next block of a reader may exceed it.
- A few entries of a block are read by its chunks, two at most for one entry, unless more of it, or of the block before,
  is in the cache: such a reader reads on, and gets whole blocks. Chunks are in the same cache, each checked before it
  gets there. Blocks whose manifest has no chunks are read whole (FORMAT.md, section 4.5).
- Ledgers that a broker has offloaded itself have no manifest: `broker_ledgers.py` reads them.
- The cache has blocks as stored: passing them on needs no decoding of entries. Several readers of a block fetch and
  check it once.
- What a segment's own place does not give is read from its mirror, if it has one (`places.py`).
- What is fetched comes from the disk cache, if there is one and it has it (`disk/`), and is checked all the same.
- Checking runs block by block and yields to the event loop in between; nothing awaits for a single entry.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias, cast

import structlog

from offloaderd.core.aio import Signal, Tasks, finished
from offloaderd.core.clock import Clock
from offloaderd.core.entries import FramedEntries
from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, OffloaderError, reported
from offloaderd.core.limits import FLOW, Flow
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.retry import RetryPolicy
from offloaderd.format.chunks import Piece, checked_chunk, chunk_count, decode_piece, extent, piece_of
from offloaderd.format.manifest import BlockInfo
from offloaderd.format.verify import framed_block, runs
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.retrying import RetryingReader, Slots
from offloaderd.read import cache
from offloaderd.read.broker_ledgers import LedgerObjects, LedgerTable
from offloaderd.read.cache import Cache, ReadAhead, Slot
from offloaderd.read.disk.fetcher import Fetcher, Range
from offloaderd.read.disk.files import owner_of
from offloaderd.read.loading import Extents, Loading
from offloaderd.read.places import PASSED_ON, Places, graver, located
from offloaderd.read.tables import SegmentTable, table_of

SLOT_BYTES = 256
"""Memory of a chunk in the cache beside its bytes."""
NEAR = 16
"""Chunks to each side that are searched in the cache: all of a block of 1 MiB."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Reads single chunks of blocks. `report` gets damage."""

    fetcher: Fetcher
    places: Places
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
        held = {chunk for chunk in near if blocks.holds(_chunk_key(table, number, chunk))}
        if held:
            return piece if held.issuperset(range(low, high)) else None
        return None if blocks.holds((segment_id, number - 1)) else piece

    @asynccontextmanager
    async def entries(self, table: SegmentTable, number: int, piece: Piece) -> AsyncIterator[tuple[FramedEntries, int]]:
        """Give the entries of a `piece` just returned, and the bytes fetched. Raises as `SegmentReader.read`."""
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
        return self.pieces.claim(_chunk_key(table, number, chunk), length + SLOT_BYTES)

    async def _load(self, table: SegmentTable, number: int, first_chunk: int, slots: Sequence[Slot[bytes]]) -> None:
        block, size = table.manifest.blocks[number], table.manifest.chunk_bytes
        numbers = range(first_chunk, first_chunk + len(slots))
        checks = [
            partial(checked_chunk, block=block, chunk_bytes=size, number=one, key=table.data_key) for one in numbers
        ]
        ranges = [Range(*extent(block, size, one, one)) for one in numbers]
        extents = Extents(ranges, Range(block.offset, block.length))
        loading = Loading(self.fetcher, self.places, self.pieces, SLOT_BYTES, self.report)
        await loading.load(table, extents, slots, checks)


def _chunk_key(table: SegmentTable, number: int, chunk: int) -> Hashable:
    return "chunk", table.manifest.segment_id, number, chunk


WINDOW_REQUESTS = 3  # that fill the window of a read
SLOT_BLOCK_BYTES = 512
"""Memory of a block in the cache beside its bytes."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """Budgets in bytes, and the retries of requests."""

    cache_bytes: int = 128 * 1024 * 1024
    tables_bytes: int = 16 * 1024 * 1024
    read_ahead_bytes: int = 16 * 1024 * 1024
    gets_max: int = 32
    """Requests at a time to each bucket; more wait, by namespaces in turn."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class BlockWindow:
    """The claimed blocks of one read that are not yet yielded, oldest first."""

    def __init__(
        self,
        reader: "SegmentReader",
        blocks: Cache[FramedEntries],
        table: SegmentTable,
        first_block: int,
        last_block: int,
        pace: ReadAhead,
        *,
        before: "BlockWindow | None" = None,
    ) -> None:
        """`before`: the window of what is read first. Nobody waits for this one yet: it claims what that leaves."""
        self._reader = reader
        self._blocks = blocks
        self._table = table
        self._next = first_block
        self._last = last_block
        self._bytes = 0
        self.pace = pace
        self._before = before
        self._slots: deque[tuple[Slot[FramedEntries], int]] = deque()
        self.moved = Signal()
        """Notified when a block was taken, and at the end."""
        self.closed = False

    def next(self) -> Slot[FramedEntries] | None:
        """Return the next block, which the caller releases; None after the last. Fetches ahead."""
        self.top_up()
        if not self._slots:
            return None
        slot, length = self._slots.popleft()
        self._bytes -= length
        self.pace.grow(self._reader.read_ahead_bytes)
        self.moved.notify()
        return slot

    @property
    def _left_bytes(self) -> int:
        """Bytes of the blocks that are not claimed yet."""
        blocks, last = self._table.manifest.blocks, self._table.manifest.blocks[self._last]
        return last.offset + last.length - blocks[self._next].offset if self._next <= self._last else 0

    @property
    def near_end(self) -> bool:
        """Whether no more than another window is left to claim."""
        return self._left_bytes <= self.pace.window_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that the read may claim besides what is claimed, and left, here."""
        return self.pace.window_bytes - self._bytes - self._left_bytes

    async def loaded(self) -> None:
        """Wait until all that is claimed is there, and keep none of it. Raises what loading raised."""
        while self._slots:
            slot, _ = self._slots[0]
            await slot.get()
            self._slots.popleft()
            self._blocks.release(slot)

    def top_up(self) -> None:
        """Claim more while there is room for a request in the window; always the next block that is waited for."""
        self.pace.fit(self._reader.read_ahead_bytes)
        limit = self.pace.window_bytes if self._before is None else self._before.room_bytes
        request = self.pace.window_bytes // WINDOW_REQUESTS
        while self._next <= self._last and (self._is_awaited or self._bytes <= limit - request):
            length = self._length(self._next)
            if not self._is_awaited and self._bytes + length > limit:
                return
            if not self._claim_run(max(cache.WINDOW_BYTES_MIN // 2 if self._is_awaited else request, length)):
                return

    @property
    def _is_awaited(self) -> bool:
        """Whether a read waits for the next block."""
        return self._before is None and not self._slots

    def _claim_run(self, run_bytes: int) -> bool:
        """Claim neighbouring blocks of about `run_bytes`, fetching the new ones together; False when none fits."""
        ahead = not self._is_awaited
        fresh: list[Slot[FramedEntries]] = []
        first = self._next
        claimed = 0
        while self._next <= self._last and claimed < run_bytes:
            length = self._length(self._next)
            if not self._is_awaited and (claimed + length > run_bytes or self._blocks.room_bytes < length):
                break
            slot, new = self._reader.claim(self._table, self._next)
            self._slots.append((slot, length))
            self._bytes += length
            claimed += length
            if new:
                if not fresh:
                    first = self._next
                fresh.append(slot)
            elif fresh:
                self._next += 1
                break
            self._next += 1
        if fresh:
            self._reader.fetch(self._table, first, fresh, ahead=ahead)
        return claimed > 0

    def _length(self, number: int) -> int:
        return self._table.manifest.blocks[number].length

    def close(self) -> None:
        """Unpin the blocks that were not yielded."""
        self.closed = True
        self.moved.notify()
        while self._slots:
            self._blocks.release(self._slots.popleft()[0])


Then: TypeAlias = Callable[[BlockWindow], None]
"""Begins to fetch what a read goes on with; gets the window of what it reads before."""


class FetchAhead:
    """What a read goes on with, while it is fetched."""

    def __init__(self, loader: Tasks) -> None:
        self._loader = loader
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, fetch: Callable[[BlockWindow | None], Coroutine[None, None, None]], before: BlockWindow | None
    ) -> None:
        """Start a task that fetches it. Its errors are those of the read, once that has come there."""

        async def fetched() -> None:
            try:
                await fetch(before)
            except OffloaderError:
                pass
            except Exception:
                log.warning("read.not_fetched_ahead", exc_info=True)

        task = self._loader.start(fetched(), name="what a read goes on with")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Stop fetching: the read does not go on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            await finished(task)


class SegmentReader:
    """Reads committed segments out of their buckets; an async context manager that owns reads ahead."""

    damaged: Callable[[TopicName, CommittedSegment, OffloaderError], None] | None = None
    """Called for damaged segments, and those without an object, which may be under deletion."""

    def __init__(self, objects: ObjectReader, *, clock: Clock, metrics: Metrics, options: SegmentOptions) -> None:
        slots = Slots(options.gets_max)
        self.fetcher = Fetcher(RetryingReader(objects, clock=clock, retry=options.retry, slots=slots))
        """What reads the store; whoever sets its disk cache opens that."""
        self._metrics = metrics
        self._options = options
        self._reads: Counter[Flow | None] = Counter()
        self.loader = Tasks("the reader")
        self._blocks: Cache[FramedEntries] = Cache("blocks", options.cache_bytes, loader=self.loader, metrics=metrics)
        self._blocks.beside = lambda: self.fetcher.waiting_bytes
        self._tables: Cache[SegmentTable] = Cache("segments", options.tables_bytes, loader=self.loader, metrics=metrics)
        pieces = cast("Cache[bytes]", self._blocks)  # one budget for all: their keys tell them apart
        self.places = Places(clock, metrics, self._damaged)
        """The order in which the places of a segment are read."""
        self._chunks = Chunks(self.fetcher, self.places, pieces=pieces, report=self._report)
        self._ledgers = LedgerObjects(
            self.fetcher,
            pieces=pieces,
            tables=cast("Cache[LedgerTable]", self._tables),
            metrics=metrics,
            report=self._report,
        )

    async def __aenter__(self) -> Self:
        await self.loader.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel all fetches; reads under way raise Closed."""
        await self.loader.__aexit__(kind, error, trace)

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks and tables in memory."""
        return self._blocks.used_bytes + self._tables.used_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes that reads hold, or wait for, at this moment."""
        return self._blocks.pinned_bytes + self._tables.pinned_bytes

    @asynccontextmanager
    async def table(self, topic: TopicName, segment: CommittedSegment) -> AsyncIterator[SegmentTable]:
        """Give the segment's checked tables. Raises NotFound, CorruptData, Transient, Denied."""
        estimate = len(segment.slices) * 1024
        slot, new = self._tables.claim(segment.segment_id, estimate)
        try:
            if new:
                self._tables.load(
                    [slot], lambda: self._load_table(topic, segment, slot), name=f"tables of {segment.segment_id}"
                )
            yield replace(await slot.get(), segment=segment)  # its places may have changed since it was read
        except (CorruptData, NotFound) as error:
            if not isinstance(error, BucketMissing):
                self._damaged(topic, segment, error)
            raise
        finally:
            self._tables.release(slot)

    async def _load_table(self, topic: TopicName, segment: CommittedSegment, slot: Slot[SegmentTable]) -> None:
        places, failed = self.places.of(segment), None
        for number, one in enumerate(places, start=1):
            _, index_key, manifest_key = one.keys.all
            try:
                with reported(self._report):
                    there = self.fetcher.at(one.bucket, owner_of(topic.managed_ledger, segment.segment_id))
                    table = await there.table(partial(table_of, topic, one), index_key, manifest_key)
            except PASSED_ON as error:
                failed = graver(failed, error)
                if number == len(places):
                    raise failed from None
                self.places.passed_on(topic, one, error)
            else:
                self._tables.fill(slot, table, table.cost_bytes)
                return

    async def read(
        self,
        topic: TopicName,
        segment: CommittedSegment,
        first: Position,
        last: Position,
        pace: ReadAhead | None = None,
        *,
        then: Then | None = None,
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield every entry of [first, last], which the segment must hold, once and in order, a batch for each block.

        The caller passes one `pace` to all calls of one sequential read. Raises NotFound for a missing object,
        CorruptData for a damaged one, Transient and Denied; all entries before an error are right. Close the iterator
        at the end.
        """
        async with aclosing(self.read_framed(topic, segment, first, last, pace, then=then)) as batches:
            async for batch in batches:
                with reported(self._report):
                    decoded = batch.decoded()
                yield decoded

    async def read_framed(
        self,
        topic: TopicName,
        segment: CommittedSegment,
        first: Position,
        last: Position,
        pace: ReadAhead | None = None,
        *,
        bytes_max: int | None = None,
        then: Then | None = None,
    ) -> AsyncGenerator[FramedEntries, None]:
        """Yield as `read`, but entries as stored, in pieces of `bytes_max` or one entry; decoders check each frame.

        `then` is called once when most blocks are on their way.
        """
        flow = FLOW.get()
        self._reads[flow] += 1
        try:
            async with aclosing(self._parts(topic, segment, first, last, pace or ReadAhead(), then)) as batches:
                async for batch in batches:
                    with reported(self._report):
                        pieces = [batch] if bytes_max is None else list(batch.pieces(bytes_max))
                    for piece in pieces:
                        yield piece
        except BucketMissing as error:
            raise located(segment, error) from error
        finally:
            self._reads[flow] -= 1
            if not self._reads[flow]:
                del self._reads[flow]

    async def _parts(
        self,
        topic: TopicName,
        segment: CommittedSegment,
        first: Position,
        last: Position,
        pace: ReadAhead,
        then: Then | None,
    ) -> AsyncGenerator[FramedEntries, None]:
        if segment.foreign:
            ahead = self.read_ahead_bytes
            foreign = self._ledgers.read(topic, segment, first, last, pace, read_ahead_bytes=ahead)
            async with aclosing(foreign) as batches:
                async for batch in batches:
                    yield batch
            return
        async with self.table(topic, segment) as table:
            begin, end = table.block_at(first), table.block_at(last)
            piece = self._chunks.piece(table, begin, first.entry_id, last.entry_id) if begin == end else None
            if piece is not None:
                async with self._chunks.entries(table, begin, piece) as (found, _):
                    yield found
                return
            window = BlockWindow(self, self._blocks, table, begin, end, pace)
            try:
                while (slot := window.next()) is not None:
                    try:
                        if then is not None and window.near_end:
                            then(window)
                            then = None
                        block = await slot.get()
                        low = first.entry_id if block.ledger_id == first.ledger_id else 0
                        high = last.entry_id if block.ledger_id == last.ledger_id else block.last_entry_id
                        with reported(self._report):
                            part = block.between(low, high)
                        yield part
                    finally:
                        self._blocks.release(slot)
            finally:
                window.close()

    async def stored(
        self, topic: TopicName, segment: CommittedSegment, first: Position, last: Position, bytes_max: int
    ) -> tuple[CommittedSegment, Sequence[BlockInfo]]:
        """Return the segment as it lies where it is read first, and the blocks with entries of [first, last].

        They are `bytes_max` together, or one; none where this reader gives the entries at less cost than a reader of
        whole blocks: with a disk cache, or by chunks. Raises as `read` does.
        """
        if segment.foreign or self.fetcher.disk is not None:
            return segment, ()
        async with self.table(topic, segment) as table:
            begin, end = table.block_at(first), table.block_at(last)
            if begin == end and self._chunks.piece(table, begin, first.entry_id, last.entry_id) is not None:
                return segment, ()
            wanted = next(runs(table.manifest.blocks[begin : end + 1], bytes_max))
            return self.places.of(table.segment)[0], wanted.blocks

    async def fetch_begin(
        self,
        topic: TopicName,
        segment: CommittedSegment,
        first: Position,
        last: Position,
        before: BlockWindow | None,
    ) -> None:
        """Fetch a segment's tables, then the first blocks of a range into the cache, if they have room there.

        They get what the window of what is read `before` leaves, until that one is closed. Of a range that `read` would
        read by its chunks, and without a window, only the tables are fetched. Raises as `read` does.
        """
        if segment.foreign:
            return
        async with self.table(topic, segment) as table:
            begin, end = table.block_at(first), table.block_at(last)
            if before is None or (
                begin == end and self._chunks.piece(table, begin, first.entry_id, last.entry_id) is not None
            ):
                return
            window = BlockWindow(self, self._blocks, table, begin, end, before.pace, before=before)
            try:
                window.top_up()
                while not before.closed:
                    await before.moved.wait()
                    window.top_up()
                await window.loaded()
            finally:
                window.close()

    async def block(self, table: SegmentTable, number: int) -> tuple[FramedEntries, bool]:
        """Return one checked block, and whether it had to be fetched. Raises as `read` does."""
        slot, new = self.claim(table, number)
        try:
            if new:
                self.fetch(table, number, [slot], ahead=False)
            return await slot.get(), new
        finally:
            self._blocks.release(slot)

    async def entry(self, table: SegmentTable, position: Position) -> tuple[bytes, int]:
        """Return the payload of one entry of the segment, and the bytes fetched for it. Raises as `read` does."""
        number = table.block_at(position)
        piece = self._chunks.piece(table, number, position.entry_id, position.entry_id)
        if piece is not None:
            async with self._chunks.entries(table, number, piece) as (found, fetched_bytes):
                return found.payload(position.entry_id), fetched_bytes
        block, new = await self.block(table, number)
        with reported(self._report):
            return block.payload(position.entry_id), table.manifest.blocks[number].length if new else 0

    async def known_places(self, topic: TopicName, segment: CommittedSegment) -> list[int]:
        """Return the entries of a broker's ledger with a known place. Raises as `read` does."""
        return await self._ledgers.known_places(topic, segment)

    def has_table(self, segment: CommittedSegment) -> bool:
        """Whether the segment's table is in memory, or being loaded."""
        return self._tables.holds(segment.segment_id)

    def claim(self, table: SegmentTable, number: int) -> tuple[Slot[FramedEntries], bool]:
        """Pin a block; return whether the caller must fetch it."""
        block = table.manifest.blocks[number]
        return self._blocks.claim((table.manifest.segment_id, number), block.length + SLOT_BLOCK_BYTES)

    def fetch(
        self, table: SegmentTable, first_block: int, slots: Sequence[Slot[FramedEntries]], *, ahead: bool
    ) -> None:
        """Fetch neighbouring new blocks with one request."""
        blocks = table.manifest.blocks[first_block : first_block + len(slots)]
        if ahead:
            self._metrics.prefetch_bytes.inc(sum(block.length for block in blocks))
        self._blocks.load(slots, lambda: self._load_blocks(table, blocks, slots), name=f"get {table.data_key}")

    @property
    def read_ahead_bytes(self) -> int:
        """Greatest window of one read: at most its share of the cache among the reads of its namespace, which has an
        equal share of it among the namespaces that read.
        """
        of_namespace = self._options.cache_bytes // max(1, len(self._reads))
        return min(self._options.read_ahead_bytes, of_namespace // max(1, self._reads[FLOW.get()]))

    async def _load_blocks(
        self, table: SegmentTable, blocks: Sequence[BlockInfo], slots: Sequence[Slot[FramedEntries]]
    ) -> None:
        checks = [partial(framed_block, info=one, key=table.data_key, method=table.manifest.method) for one in blocks]
        extents = Extents([Range(one.offset, one.length) for one in blocks])
        loading = Loading(self.fetcher, self.places, self._blocks, SLOT_BLOCK_BYTES, self._report)
        await loading.load(table, extents, slots, checks)

    def _damaged(self, topic: TopicName, segment: CommittedSegment, error: OffloaderError) -> None:
        if self.damaged is not None:
            self.damaged(topic, segment, error)

    def _report(self, error: CorruptData) -> None:
        self._metrics.checksum_failures.labels(where="read").inc()
        log.error(
            "data.corrupt", key=error.key, offset=error.offset, expected=str(error.expected), found=str(error.found)
        )
