"""Entries of a ledger from the copy that a broker made of it (PIP-17), where BookKeeper has it no more.

For what is left of a ledger that was offloaded in part before the broker deleted it: no object can be adopted for that.
"""

from collections.abc import AsyncGenerator

from offloaderd.core.model import EntryBatch
from offloaderd.format.v1.index import LedgerObjectIndex
from offloaderd.format.v1.scan import BlockScan, block_spans
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.port import ObjectReader


async def read_copy(
    objects: ObjectReader, where: SegmentKeys, index: LedgerObjectIndex, first: int, last: int, *, batch_bytes: int
) -> AsyncGenerator[EntryBatch, None]:
    """Yield the entries `first` to `last`, in order, in batches of about `batch_bytes`.

    Blocks are read from their begin. Raises NotFound, CorruptData, Transient and Denied; what was yielded is right.
    """
    assert where.ledger_id is not None  # noqa: S101 - the object of a ledger
    for span in block_spans(index):
        if span.last_entry_id < first or span.first_entry_id > last:
            continue
        scan = BlockScan(span, ledger_id=where.ledger_id, key=where.data)
        while scan.inside and scan.next_entry_id <= last:
            length = min(batch_bytes, span.end - scan.wanted_at)
            batch = scan.feed(await objects.get(where.data, scan.wanted_at, length)).between(first, last)
            if batch.count:
                yield batch.decoded()
