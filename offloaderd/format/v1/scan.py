"""Entries of a V1 block that is read in pieces, with the index as the only description of the block.

For objects of brokers, which have no checksums: header, entry ids, lengths and padding are checked. A block may have 64
MiB and more; only a piece and the begin of an entry are held in memory.
"""

from offloaderd.core.entries import ENTRY_HEAD, ENTRY_OVERHEAD_BYTES, PAD
from offloaderd.core.errors import CorruptData
from offloaderd.core.frames import FramedEntries
from offloaderd.format.index_entries import IndexEntry
from offloaderd.format.v1.blocks import BLOCK_HEADER_BYTES, decode_header
from offloaderd.format.v1.index import LedgerObjectIndex


class BlockSpan:
    """One block according to the index: bytes `offset` to `end` (exclusive), entries `first_entry_id` to the last."""

    __slots__ = ("end", "first_entry_id", "last_entry_id", "offset")

    def __init__(self, offset: int, end: int, first_entry_id: int, last_entry_id: int) -> None:
        self.offset = offset
        self.end = end
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id


def block_spans(index: LedgerObjectIndex) -> list[BlockSpan]:
    """Return the blocks of an object in order; index entries inside a block have no span."""
    starts: list[IndexEntry] = []
    for entry in index.entries:
        if not starts or entry.part_id != starts[-1].part_id:
            starts.append(entry)
    ends = [*(start.offset for start in starts[1:]), index.data_bytes]
    lasts = [*(start.first_entry_id - 1 for start in starts[1:]), index.ledger().lastEntryId]
    return [
        BlockSpan(start.offset, end, start.first_entry_id, last)
        for start, end, last in zip(starts, ends, lasts, strict=True)
    ]


class BlockScan:
    """Takes the bytes of a block, from its header or an entry on, and returns the complete entries.

    The block itself does not name its ledger. The bytes begin at entry `entry_id`, at byte `at` of the object `key`, or
    without it at the block's header.
    """

    def __init__(self, span: BlockSpan, *, ledger_id: int, key: str, entry_id: int | None = None, at: int = 0) -> None:
        self.next_entry_id = span.first_entry_id if entry_id is None else entry_id
        """The first entry that was not returned yet."""
        self.at = span.offset if entry_id is None else at
        """Offset of that entry, or of the header or the padding."""
        self._span = span
        self._ledger_id = ledger_id
        self._key = key
        self._head = entry_id is None
        self._rest = b""
        self._padded = 0

    @property
    def wanted_at(self) -> int:
        """Offset of the next byte to feed."""
        return self.at + len(self._rest)

    @property
    def inside(self) -> bool:
        """Whether entries of the block are still missing."""
        return self.next_entry_id <= self._span.last_entry_id

    @property
    def done(self) -> bool:
        """Whether the block has been read to its end."""
        return self.at >= self._span.end

    def feed(self, data: bytes) -> FramedEntries:
        """Take the next bytes, cut at the block's end. Return complete entries, heads checked. Raises CorruptData."""
        span = self._span
        data = (self._rest + data if self._rest else data)[: span.end - self.at]
        start = 0
        if self._head:
            if len(data) < min(BLOCK_HEADER_BYTES, span.end - self.at):
                self._rest = data
                return self._whole(data, 0, 0, 0)
            self._check_header(data)
            start, self._head = BLOCK_HEADER_BYTES, False
        count, stop = self._entries(data, start)
        found = self._whole(data, count, start, stop)
        self.next_entry_id += count
        if self.next_entry_id > span.last_entry_id:
            self._check_padding(data[stop:], self.at + stop)
            stop = len(data)
        elif self.at + len(data) >= span.end:
            raise self._corrupt(self.at + stop, f"entry {self.next_entry_id}", "the end of its block")
        self.at += stop
        self._rest = data[stop:]
        return found

    def _whole(self, data: bytes, count: int, start: int, end: int) -> FramedEntries:
        """Return the next `count` entries, which are `data[start:end]`."""
        return FramedEntries(self._ledger_id, self.next_entry_id, count, data, start, end, self._key, self.at)

    def _check_header(self, data: bytes) -> None:
        span = self._span
        header = decode_header(data, key=self._key, at=span.offset)
        if header.first_entry_id != span.first_entry_id:
            raise self._corrupt(span.offset + 20, f"a block from entry {span.first_entry_id} on", header.first_entry_id)
        if header.block_bytes != span.end - span.offset:
            raise self._corrupt(span.offset + 12, f"a block of {span.end - span.offset} bytes", header.block_bytes)

    def _entries(self, data: bytes, start: int) -> tuple[int, int]:
        """Return the number of whole entries in `data` from `start` on, and the offset of the next one."""
        unpack = ENTRY_HEAD.unpack_from
        first = self.next_entry_id
        wanted, last, head_last = first, self._span.last_entry_id, len(data) - ENTRY_OVERHEAD_BYTES
        room = self._span.end - self.at
        while wanted <= last and start <= head_last:
            length, entry_id = unpack(data, start)
            body = start + ENTRY_OVERHEAD_BYTES
            if not 0 <= length <= room - body:
                raise self._corrupt(self.at + start, f"entry {wanted} of at most {room - body} bytes", length)
            if entry_id != wanted:
                raise self._corrupt(self.at + start + 4, f"entry id {wanted}", entry_id)
            if body + length > len(data):
                break
            start = body + length
            wanted += 1
        return wanted - first, start

    def _check_padding(self, data: bytes, at: int) -> None:
        phase = self._padded % len(PAD)
        expected = (PAD * (len(data) // len(PAD) + 2))[phase : phase + len(data)]
        if data != expected:
            wrong = next(number for number, byte in enumerate(data) if byte != expected[number])
            bytes_there = data[wrong : wrong + 4].hex()
            raise self._corrupt(at + wrong, f"padding {expected[wrong : wrong + 4].hex()}", bytes_there)
        self._padded += len(data)

    def _corrupt(self, at: int, expected: object, found: object) -> CorruptData:
        return CorruptData(
            key=self._key,
            offset=at,
            expected=expected,
            found=found,
            hint="the object is not what its index says; read from the ledger source if it still has the ledger",
        )
