"""What must be known of a segment to read it: where its blocks are, from index and manifest, which must agree.

The manifest carries a checksum of itself (checked when it is decoded) and of the index; the index is what other
readers of the format go by. A segment whose two tables disagree with each other, or with what was committed, is not
read at all.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.core.model import Position, TopicName
from offloaderd.format.manifest import document as manifest_format
from offloaderd.format.manifest.wire import BLOCK_BYTES, CHUNKS_BYTES, SPARSE_BYTES
from offloaderd.format.values import LedgerPart, SegmentManifest
from offloaderd.format.verify import check_index, differs
from offloaderd.metadata.committed import CommittedSegment

TABLE_BYTES = 2048
"""Memory that a decoded manifest takes beside its blocks."""


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """A segment's checked manifest, with what finds a block fast."""

    bucket: str
    data_key: str
    manifest: SegmentManifest
    starts: Sequence[tuple[int, int]]

    def block_at(self, position: Position) -> int:
        """Return the number of the block that holds `position`, from 0; -1 when it lies before the first."""
        return bisect_right(self.starts, (position.ledger_id, position.entry_id)) - 1

    def part(self, ledger_id: int) -> LedgerPart | None:
        """Return what the segment says of a ledger."""
        return next((part for part in self.manifest.ledgers if part.ledger_id == ledger_id), None)

    @property
    def cost_bytes(self) -> int:
        """Memory that the table takes, about."""
        sparse = sum(len(block.sparse) for block in self.manifest.blocks)
        chunks = sum(CHUNKS_BYTES + len(block.chunks) for block in self.manifest.blocks if block.chunks)
        return TABLE_BYTES + BLOCK_BYTES * len(self.starts) + SPARSE_BYTES * sparse + chunks


def table_of(topic: TopicName, segment: CommittedSegment, index_data: bytes, manifest_data: bytes) -> SegmentTable:
    """Decode and cross-check a segment's tables. Raises CorruptData that names the object and what differs."""
    data_key, index_key, manifest_key = segment.keys.all
    manifest = manifest_format.decode(manifest_data, key=manifest_key, data_bytes=segment.object_bytes)
    _check_identity(topic, segment, manifest, manifest_key)
    check_index(index_data, manifest, key=index_key)
    starts = [(block.ledger_id, block.first_entry_id) for block in manifest.blocks]
    return SegmentTable(segment.bucket, data_key, manifest, starts)


def _check_identity(topic: TopicName, segment: CommittedSegment, manifest: SegmentManifest, key: str) -> None:
    """The manifest must be this segment's, of this topic, and hold what was committed."""
    if manifest.segment_id != segment.segment_id:
        raise differs(key, 0, f"segment {segment.segment_id}", manifest.segment_id)
    if TopicName.from_managed_ledger(manifest.managed_ledger) != topic:
        raise differs(key, 0, f"entries of {topic.managed_ledger}", manifest.managed_ledger)
    if not segment.is_run_of(manifest.ledgers):
        raise differs(key, 0, f"entries {segment.range}", manifest.range)
