"""Verification of a ledger that a broker has offloaded itself: two objects without checksums or manifest.

Index and data must agree with each other and with what was adopted; entries are checked by their framing.
"""

from functools import partial

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES, FramedEntries
from offloaderd.core.errors import CorruptData
from offloaderd.format.v1 import BlockScan, BlockSpan, LedgerObjectIndex, block_spans, decode_index
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.retrying import RetryingReader
from offloaderd.upkeep.verify.flaws import Flaw, Kind, corrupt, noted

PIECE_BYTES = 1 << 20


async def check_objects(reader: RetryingReader, segment: CommittedSegment) -> list[Flaw]:
    """Check the index and the size of the data. Raises as the store, except NotFound."""
    where, reader = segment.keys, reader.at(segment.bucket)
    flaws: list[Flaw] = []
    with noted(flaws, where.index, Kind.INDEX):
        await _index(reader, segment)
    with noted(flaws, where.data, Kind.SIZE):
        size = (await reader.head(where.data)).size_bytes
        if size != segment.object_bytes:
            said = f"{segment.object_bytes} bytes"
            flaws.append(Flaw(kind=Kind.SIZE, key=where.data, expected=said, found=f"{size} bytes"))
    return flaws


async def check_entries(reader: RetryingReader, segment: CommittedSegment) -> list[Flaw]:
    """Read all data, a piece at a time, up to the first flaw of each block. Raises as `check_objects`."""
    flaws, reader = [], reader.at(segment.bucket)
    index = await _index(reader, segment)
    for span in block_spans(index):
        scan = _scan(segment, span)
        try:
            while not scan.done:
                await _step(reader, segment, scan, span.end)
        except CorruptData as error:
            flaws.append(corrupt(Kind.BLOCK, error, entries=f"{scan.next_entry_id} to {span.last_entry_id}"))
    return flaws


async def find_entry(reader: RetryingReader, segment: CommittedSegment, entry_id: int) -> tuple[int, int]:
    """Return the offset of an entry's payload in the data, and its length. Raises NotFound and CorruptData."""
    reader = reader.at(segment.bucket)
    index = await _index(reader, segment)
    span = next(one for one in reversed(block_spans(index)) if one.first_entry_id <= entry_id)
    scan = _scan(segment, span)
    while (found := await _step(reader, segment, scan, span.end)).last_entry_id < entry_id:
        pass
    one = found.between(entry_id, entry_id)
    return one.at + one.start + ENTRY_OVERHEAD_BYTES, one.payload_bytes()


def _scan(segment: CommittedSegment, span: BlockSpan) -> BlockScan:
    return BlockScan(span, ledger_id=segment.begin.ledger_id, key=segment.keys.data)


async def _step(reader: RetryingReader, segment: CommittedSegment, scan: BlockScan, end: int) -> FramedEntries:
    """Feed one piece; return the entries that are complete."""
    async with reader.piece(segment.keys.data, scan.wanted_at, min(PIECE_BYTES, end - scan.wanted_at)) as data:
        if not data:
            raise CorruptData(
                key=segment.keys.data, offset=scan.wanted_at, expected=f"an object of {end} bytes", found="its end"
            )
        return scan.feed(data)


async def _index(reader: RetryingReader, segment: CommittedSegment) -> LedgerObjectIndex:
    """Read an index and compare it with what was adopted. Raises NotFound, CorruptData."""
    key = segment.keys.index
    index = await reader.table(partial(decode_index, key=key), key)
    found = (index.data_bytes, index.ledger().lastEntryId)
    wanted = (segment.object_bytes, segment.end.entry_id)
    if found != wanted:
        expected = f"{wanted[0]} bytes of data up to entry {wanted[1]}"
        raise CorruptData(key=key, offset=8, expected=expected, found=f"{found[0]} bytes up to entry {found[1]}")
    return index
