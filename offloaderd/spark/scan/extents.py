"""The extents of a segment: blocks of its manifest, or the entries between two places of a broker's index.

A broker's index (PIP-17) has entries at which reading can begin, without all lengths between them. These are estimated
in proportion: shares are even enough, and each entry is in exactly one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.port import SegmentStore
from offloaderd.read.segments.reader import SegmentOptions, SegmentReader
from offloaderd.spark.scan.query import Extent

MIB = 1024 * 1024
READ_AHEAD_BYTES = 8 * MIB
CACHE_BYTES = 16 * MIB
TABLES_BYTES = 16 * MIB
"""Memory of a task, independent of the size of segments; one block that is read ahead may be added."""


@asynccontextmanager
async def segment_reader(objects: SegmentStore) -> AsyncIterator[SegmentReader]:
    """Yield a reader with the memory that one task may take."""
    options = SegmentOptions(cache_bytes=CACHE_BYTES, tables_bytes=TABLES_BYTES, read_ahead_bytes=READ_AHEAD_BYTES)
    async with SegmentReader(objects, clock=SystemClock(), metrics=Metrics(), options=options) as reader:
        yield reader


async def extents_of(reader: SegmentReader, topic: TopicName, segment: CommittedSegment) -> list[Extent]:
    """Return the extents of a segment that the map has, in order. Raises as reading its tables does."""
    if segment.foreign:
        return await _places(reader, segment)
    kept = {one.ledger_id: one for one in segment.slices}
    async with reader.table(topic, segment) as table:
        return [
            Extent(block.ledger_id, block.first_entry_id, block.last_entry_id, block.offset, block.survey, number)
            for number, block in enumerate(table.manifest.blocks)
            if block.ledger_id in kept
        ]


async def _places(reader: SegmentReader, segment: CommittedSegment) -> list[Extent]:
    only = segment.slices[0]
    firsts = await reader.known_places(segment)
    lasts = [*(first - 1 for first in firsts[1:]), only.last_entry_id]
    return [
        Extent(only.ledger_id, first, last, first * segment.object_bytes // only.entries, None, number)
        for number, (first, last) in enumerate(zip(firsts, lasts, strict=True))
    ]
