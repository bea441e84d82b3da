"""The ledger builder: cuts a closed ledger into the parts of one object in Pulsar's format (PIP-17, V1).

The object's blocks are large (64 MiB by default) and are written as a series of runs, so that neither writer nor reader
has to hold a block: a part holds whole runs, and the manifest has a checksum for each. Where a block ends depends on
the rest of the ledger (`v1.block_length`), so the ledger's entries and bytes have to be known before its first byte is
written. If the ledger proves to have others, the object is refused; Pulsar's writer would cut the ledger short.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from uuid import UUID

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES, frame, framed_bytes, padding
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import EntryBatch, LedgerInfo, TopicName
from offloaderd.format import v1
from offloaderd.format.chunks import CHUNK_BYTES
from offloaderd.format.manifest import BlockInfo, LedgerPart
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.ledgers.port import LedgerDescriber, LedgerSource
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.builders.builder import PART_COUNT_MAX, OpenBlock, SegmentBuilder

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
