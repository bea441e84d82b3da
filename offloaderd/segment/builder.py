"""The builders: cut the entries of one open segment into the parts of its object, in memory, without I/O.

Blocks and parts are cut by entry sizes alone, never by the time of their arrival, so the same entries under the same
settings always give the same object (architecture section 6, 4). Payloads are referenced until their part is cut and
copied once, into that part.

The ledger builder cuts a closed ledger into one object in Pulsar's format (PIP-17, V1). The blocks are large (64 MiB by
default) and are written as a series of runs, so that neither writer nor reader has to hold a block: a part holds whole
runs, and the manifest has a checksum for each. Where a block ends depends on the rest of the ledger
(`v1.block_length`), so the ledger's entries and bytes have to be known before its first byte is written. If the ledger
proves to have others, the object is refused; Pulsar's writer would cut the ledger short.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import accumulate
from uuid import UUID

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES, frame, framed_bytes, padding
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, LedgerInfo, Position, SegmentRange, TopicName
from offloaderd.format import v1, v2
from offloaderd.format.chunks import CHUNK_BYTES, checksums, sparse_positions
from offloaderd.format.manifest import BlockInfo, LedgerPart
from offloaderd.format.pulsar.entry_time import block_times
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.ledgers.port import LedgerDescriber, LedgerSource
from offloaderd.metadata.records.attempt import Attempt, StoredPart

__all__ = ["CutPart", "SegmentBuilder", "SegmentLayout"]

PART_COUNT_MAX = 10_000
"""S3's limit on the parts of one object."""

LEDGERS_MAX = 200
"""A commit writes all ledgers of a segment in one transaction, of which the metadata store takes 1 MB."""


@dataclass(frozen=True, slots=True)
class CutPart:
    """One part, ready for upload: its stored bytes, and a description of its blocks."""

    part_number: int
    pieces: tuple[bytes, ...]
    blocks: tuple[BlockInfo, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole part."""
        return sum(map(len, self.pieces))

    @property
    def end(self) -> Position:
        """Position of its last entry."""
        return Position(self.blocks[-1].ledger_id, self.blocks[-1].last_entry_id)


@dataclass(slots=True)
class OpenBlock:
    """A block that still grows, or waits for its part."""

    ledger_id: int
    first_entry_id: int
    payloads: list[bytes]
    entry_bytes: int = 0
    head_bytes: int = v2.BLOCK_HEADER_BYTES
    pad_bytes: int = v2.PAD_BYTES_MIN

    @property
    def length(self) -> int:
        """Bytes of the whole block, with header and padding."""
        return self.head_bytes + self.entry_bytes + self.pad_bytes

    def encode(self) -> list[bytes]:
        """Return its chunks, to be joined once."""
        return v2.encode_block(self.ledger_id, self.first_entry_id, self.payloads).chunks


@dataclass(slots=True)
class _LedgerSums:
    first_entry_id: int
    last_entry_id: int
    payload_bytes: int = 0


class SegmentBuilder:
    """Takes consecutive entries and returns parts; at the end also the facts for index and manifest.

    Blocks longer than `chunk_bytes` have chunks of that length in the manifest; the object's bytes do not depend on it.
    """

    def __init__(
        self,
        segment_id: UUID,
        layout: SegmentLayout | LedgerLayout,
        *,
        assigned_ms: int,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.segment_id = segment_id
        self.assigned_ms = assigned_ms
        self.payload_bytes = 0
        self.entries = 0
        self.begin: Position | None = None
        self.end: Position | None = None
        self._layout = layout
        self._chunk_bytes = chunk_bytes
        self._open: OpenBlock | None = None
        self._closed: list[OpenBlock] = []  # blocks that are full but not yet in a part
        self._closed_bytes = 0
        self._blocks: list[BlockInfo] = []
        self._ledgers: dict[int, _LedgerSums] = {}
        self._offset = layout.preamble_bytes
        self.part_count = 0

    @property
    def part_ready(self) -> bool:
        """Return whether there are enough full blocks for a part."""
        return self._closed_bytes >= self._layout.part_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of the next part if it is cut now."""
        return self._closed_bytes

    @property
    def full(self) -> bool:
        """Return whether it holds as many parts or ledgers as an object or a commit can have."""
        return self.part_count >= PART_COUNT_MAX - 2 or len(self._ledgers) >= LEDGERS_MAX

    def add(self, batch: EntryBatch, payload_bytes_max: int | None = None) -> EntryBatch:
        """Take entries of the batch until the segment holds `payload_bytes_max`, and return the taken ones.

        The entry that reaches the limit is still taken, so at least one is.
        """
        sums = list(accumulate(map(len, batch.payloads), initial=0))
        if payload_bytes_max is not None and self.payload_bytes + sums[-1] > payload_bytes_max:
            count = bisect_left(sums, payload_bytes_max - self.payload_bytes, 1)
            batch = batch.between(batch.first_entry_id, batch.first_entry_id + count - 1)
            del sums[count + 1 :]
        self._fill_blocks(batch, sums)
        self._count(batch.first, batch.last_entry_id, sums[-1])
        return batch

    def _count(self, first: Position, last_entry_id: int, payload_bytes: int) -> None:
        self.payload_bytes += payload_bytes
        self.entries += last_entry_id - first.entry_id + 1
        if self.begin is None:
            self.begin = first
        self.end = Position(first.ledger_id, last_entry_id)
        ledger = self._ledgers.setdefault(first.ledger_id, _LedgerSums(first.entry_id, last_entry_id))
        ledger.last_entry_id = last_entry_id
        ledger.payload_bytes += payload_bytes

    def restore(self, parts: Sequence[StoredPart]) -> None:
        """Continue behind parts that an earlier owner stored; only before the first entry is added.

        Raises InvalidInput when they cannot be the first parts of a segment.
        """
        for part in parts:
            begin = self._offset if self.part_count else 0
            for block in part.blocks:
                self._restore(block)
            self.part_count += 1
            if part.size_bytes != self._offset - begin:
                raise InvalidInput(f"part {self.part_count} of {part.size_bytes} bytes does not hold its blocks")

    def _restore(self, block: BlockInfo) -> None:
        first, size = Position(block.ledger_id, block.first_entry_id), block.payload_bytes
        at = self.end
        follows = at is None or first in {(at.ledger_id, at.entry_id + 1), (max(first.ledger_id, at.ledger_id + 1), 0)}
        if block.offset != self._offset or size < 0 or block.entry_count < 1 or not follows:
            raise InvalidInput(f"a block from {first} at byte {block.offset} does not follow {at} at {self._offset}")
        self._blocks.append(block)
        self._offset += block.length
        self._count(first, block.last_entry_id, size)

    def _fill_blocks(self, batch: EntryBatch, sums: Sequence[int]) -> None:
        """Cut a batch into blocks; `sums[i]` are the payload bytes before its entry `i`, the last one all of them."""
        room = self._layout.block_bytes - v2.BLOCK_HEADER_BYTES - v2.PAD_BYTES_MIN
        at, count = 0, len(batch.payloads)

        def framed(end: int) -> int:
            """Bytes of the entries before `end` in a block; computed where a block ends, not for each entry."""
            return framed_bytes(sums[end], end)

        while at < count:
            block = self._open
            if block is not None and block.ledger_id != batch.ledger_id:
                self._close_block()
                block = None
            if block is None:
                block = self._open = OpenBlock(batch.ledger_id, batch.first_entry_id + at, [])
            # As many entries as fit; one that is larger than a whole block gets a block of its own.
            end = bisect_right(range(count + 1), framed(at) + room - block.entry_bytes, key=framed) - 1
            if end <= at and not block.payloads:
                end = at + 1
            if end > at:
                block.payloads += batch.payloads[at:end]
                block.entry_bytes += framed(end) - framed(at)
                at = end
            if at < count:
                self._close_block()

    def _close_block(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._closed_bytes += self._open.length
            self._open = None

    def finish_blocks(self) -> None:
        """Close the open block: no more entries come."""
        self._close_block()

    def planned(self) -> tuple[int, int]:
        """Return the bytes and parts that the object will have if no more entries come."""
        count, size = self.part_count, 0
        for block in self._closed:
            size += block.length
            if size >= self._layout.part_bytes:
                count, size = count + 1, 0
        return self._offset + self._closed_bytes, count + bool(size)

    def cut_part(self, *, last: bool = False) -> CutPart:
        """Cut the next part from the full blocks, of which one has to exist; `last` takes them all."""
        count, size = 0, 0
        while count < len(self._closed) and (last or size < self._layout.part_bytes):
            size += self._closed[count].length
            count += 1
        blocks, self._closed = self._closed[:count], self._closed[count:]
        self._closed_bytes -= size
        self.part_count += 1
        before = v2.PREAMBLE if self.part_count == 1 and self._layout.preamble_bytes else b""
        pieces: list[bytes] = []
        for block in blocks:  # all steps of a block at once, while its entries are in the cache
            piece = b"".join((before, *block.encode()))
            at, before = len(before), b""
            length = len(piece) - at
            self._blocks.append(self._describe(block, length, *checksums(piece, at, length, self._chunk_bytes)))
            self._offset += length
            pieces.append(piece)
        return CutPart(self.part_count, tuple(pieces), tuple(self._blocks[-len(blocks) :]))

    def _describe(self, block: OpenBlock, length: int, crc32c: int, chunks: bytes) -> BlockInfo:
        return BlockInfo(
            ledger_id=block.ledger_id,
            first_entry_id=block.first_entry_id,
            entry_count=len(block.payloads),
            offset=self._offset,
            length=length,
            crc32c=crc32c,
            sparse=sparse_positions(map(len, block.payloads), block.head_bytes, self._chunk_bytes),
            head_bytes=block.head_bytes,
            pad_bytes=block.pad_bytes,
            chunks=chunks,
            **block_times(block.payloads)._asdict(),
        )

    @property
    def range(self) -> SegmentRange:
        """The entries taken so far; only of a segment that holds any."""
        assert self.begin is not None  # noqa: S101 - a segment is opened with its first entry
        assert self.end is not None  # noqa: S101
        return SegmentRange(self.begin, self.end)

    @property
    def object_bytes(self) -> int:
        """Length of the data object, once the last part has been cut."""
        return self._offset

    def ledgers(self, info: Callable[[int], LedgerInfo | None]) -> tuple[LedgerPart, ...]:
        """Return what the segment holds of each ledger; `info` returns what is known of the whole ledger."""
        parts = []
        for ledger_id, sums in sorted(self._ledgers.items()):
            known = info(ledger_id)
            closed = known is not None and known.closed
            parts.append(
                LedgerPart(
                    ledger_id=ledger_id,
                    first_entry_id=sums.first_entry_id,
                    last_entry_id=sums.last_entry_id,
                    payload_bytes=sums.payload_bytes,
                    closed=closed,
                    ledger_entries=known.entries if known and closed else sums.last_entry_id + 1,
                    ledger_bytes=known.size_bytes if known and closed else 0,
                    closed_ms=known.closed_at_ms if known else 0,
                    created_ms=known.created_ms if known else None,
                )
            )
        return tuple(parts)

    @property
    def blocks(self) -> tuple[BlockInfo, ...]:
        """All blocks, once the last part has been cut."""
        return tuple(self._blocks)


COUNT_BYTES = 1 << 20

PARTS_MAX = PART_COUNT_MAX - 1000
"""Most parts into which a ledger is cut; the rest is for parts that become longer than planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCut:
    """How whole ledgers are cut: sizes in bytes."""

    block_bytes: int
    part_bytes: int
    run_bytes: int
    dense_index: bool = False

    def layout(self, *, entries: int, payload_bytes: int, metadata: bytes) -> LedgerLayout:
        """Return the layout of a ledger; a long one has longer parts."""
        return LedgerLayout(
            block_bytes=self.block_bytes,
            part_bytes=max(self.part_bytes, -(-2 * payload_bytes // PARTS_MAX)),
            run_bytes=self.run_bytes,
            dense_index=self.dense_index,
            entries=entries,
            payload_bytes=payload_bytes,
            metadata=metadata,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLedgers(LedgerCut):
    """How the source's ledgers are written whole, with the port that returns BookKeeper's metadata of them."""

    describer: LedgerDescriber


async def ledger_layout(
    ledgers: WholeLedgers | None, source: LedgerSource | None, topic: TopicName, info: LedgerInfo, *, count: bool
) -> LedgerLayout:
    """Return the layout of a closed ledger of the source. Raises NotFound, Transient, InvalidInput.

    Its length is that of its last entry; with `count`, after that proved wrong, all entries are read instead.
    """
    assert ledgers is not None  # noqa: S101 - else no ledger is written whole
    assert source is not None  # noqa: S101 - as above
    if count:
        payload_bytes = 0
        entries = source.read(topic, info.ledger_id, 0, info.entries - 1, batch_bytes=COUNT_BYTES)
        async with aclosing(entries) as batches:
            async for batch in batches:
                payload_bytes += batch.payload_bytes()
    else:
        payload_bytes = await source.length_at(topic, info.ledger_id, info.entries - 1)
    metadata = await ledgers.describer.described(topic, info.ledger_id)
    return ledgers.layout(entries=info.entries, payload_bytes=payload_bytes, metadata=metadata)


@dataclass(slots=True)
class _Run(OpenBlock):
    """Entries of one V1 block; the first run of a block has its header, with the block's length."""

    block_bytes: int = 0

    def encode(self) -> list[bytes]:
        """Return its chunks, to be joined once."""
        header = v1.encode_header(v1.BlockHeader(self.block_bytes, self.first_entry_id)) if self.head_bytes else b""
        return [header, *frame(self.first_entry_id, self.payloads), padding(self.pad_bytes)]


class LedgerBuilder(SegmentBuilder):
    """Takes the entries of one closed ledger from entry 0 to its last, and returns parts."""

    def __init__(
        self, segment_id: UUID, layout: LedgerLayout, *, assigned_ms: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        super().__init__(segment_id, layout, assigned_ms=assigned_ms, chunk_bytes=chunk_bytes)
        self._ledger = layout
        self._entries_left = layout.entries
        self._bytes_left = layout.payload_bytes
        self._room = 0  # bytes left in the V1 block that is being written

    def _fill_blocks(self, batch: EntryBatch, sums: Sequence[int]) -> None:
        sums = [framed_bytes(payload_bytes, entries) for entries, payload_bytes in enumerate(sums)]
        at, count = 0, len(batch.payloads)
        while at < count:
            run = self._open
            if run is None:
                first_framed = sums[at + 1] - sums[at]
                run = self._open = self._new_run(batch.ledger_id, batch.first_entry_id + at, first_framed)
            limit = min(self._room, self._ledger.run_bytes - run.entry_bytes)
            end = bisect_right(sums, sums[at] + limit) - 1
            if end <= at and not run.payloads:
                end = at + 1
            if end > at:
                run.payloads += batch.payloads[at:end]
                run.entry_bytes += sums[end] - sums[at]
                self._went_in(end - at, sums[end] - sums[at])
                at = end
            if at < count:
                self._close_block(filled=sums[at + 1] - sums[at] > self._room)

    def _new_run(self, ledger_id: int, first_entry_id: int, first_framed: int) -> _Run:
        if self._room:
            return _Run(ledger_id, first_entry_id, [], head_bytes=0, pad_bytes=0)
        block_bytes = max(self._next_block_bytes(), v1.BLOCK_HEADER_BYTES + first_framed)
        self._room = block_bytes - v1.BLOCK_HEADER_BYTES
        return _Run(ledger_id, first_entry_id, [], pad_bytes=0, block_bytes=block_bytes)

    def _next_block_bytes(self) -> int:
        return v1.block_length(
            block_bytes_max=self._ledger.block_bytes,
            entries_left=self._entries_left,
            payload_bytes_left=self._bytes_left,
        )

    def _went_in(self, entries: int, size_bytes: int) -> None:
        """Count entries off; raises InvalidInput when the ledger has more than its layout."""
        self._room -= size_bytes
        self._entries_left -= entries
        self._bytes_left -= size_bytes - entries * ENTRY_OVERHEAD_BYTES
        if min(self._room, self._entries_left, self._bytes_left) < 0:
            raise InvalidInput(f"the ledger has more than {self._said}")

    @property
    def _said(self) -> str:
        return f"the {self._ledger.entries} entries of {self._ledger.payload_bytes} bytes that it was said to have"

    def _close_block(self, *, filled: bool = False) -> None:
        """Close the open run; in a `filled` block, which has no room for the next entry, the rest is padding."""
        if self._open is not None and filled:
            self._open.pad_bytes, self._room = self._room, 0
        super()._close_block()

    def finish_blocks(self) -> None:
        """Close the last block. Raises InvalidInput when the ledger has less than its layout."""
        if self._entries_left or self._bytes_left:
            raise InvalidInput(f"the ledger has less than {self._said}")
        super().finish_blocks()

    def ledgers(self, info: Callable[[int], LedgerInfo | None]) -> tuple[LedgerPart, ...]:
        """Return what the segment holds: a whole, closed ledger, even if the source has deleted it."""
        (part,) = super().ledgers(info)
        whole = self._ledger
        return (replace(part, closed=True, ledger_entries=whole.entries, ledger_bytes=whole.payload_bytes),)

    def _restore(self, block: BlockInfo) -> None:
        super()._restore(block)
        if block.head_bytes:
            alone = block.length if block.entry_count == 1 else 0
            self._room = max(self._next_block_bytes(), alone) - block.head_bytes
        elif not self._room:
            raise InvalidInput(f"a run from entry {block.first_entry_id} lies in no block")
        self._went_in(block.entry_count, block.length - block.head_bytes - block.pad_bytes)
        if block.pad_bytes not in {0, self._room}:
            raise InvalidInput(f"a run from entry {block.first_entry_id} has {block.pad_bytes} bytes of padding")
        self._room -= block.pad_bytes


def builder_of(attempt: Attempt, layout: SegmentLayout, *, chunk_bytes: int) -> SegmentBuilder:
    """Return the builder for an attempt, by its recorded layout; `layout` is for an attempt without one."""
    if isinstance(attempt.layout, LedgerLayout):
        return LedgerBuilder(
            attempt.segment_id, attempt.layout, assigned_ms=attempt.assigned_ms, chunk_bytes=chunk_bytes
        )
    return SegmentBuilder(
        attempt.segment_id, attempt.layout or layout, assigned_ms=attempt.assigned_ms, chunk_bytes=chunk_bytes
    )
