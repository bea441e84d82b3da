"""What is known of a segment's data object from its index and manifest: checked once, kept, and asked by all reads."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.core.model import Position, TopicName
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import LedgerPart, SegmentManifest
from offloaderd.format.manifest_bytes import BLOCK_BYTES, CHUNKS_BYTES, SPARSE_BYTES
from offloaderd.format.verify import check_index, differs
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.read.disk.files import Owner, owner_of

TABLE_BYTES = 2048
"""Memory that a decoded manifest takes beside its blocks."""


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """A segment's checked manifest, with the first positions of its blocks; `owner` is whose it is on the disk."""

    owner: Owner
    segment: CommittedSegment
    manifest: SegmentManifest
    starts: Sequence[tuple[int, int]]

    @property
    def data_key(self) -> str:
        """Key of the data object in the segment's own place."""
        return self.segment.keys.data

    @property
    def topic(self) -> TopicName:
        """The segment's topic."""
        return TopicName.from_managed_ledger(self.manifest.managed_ledger)

    def block_at(self, position: Position) -> int:
        """Return the number of the block that holds `position`, from 0; -1 before the first."""
        return bisect_right(self.starts, (position.ledger_id, position.entry_id)) - 1

    def part(self, ledger_id: int) -> LedgerPart | None:
        """Return the segment's part of a ledger; None without one."""
        return next((part for part in self.manifest.ledgers if part.ledger_id == ledger_id), None)

    @property
    def cost_bytes(self) -> int:
        """Memory of the table, about."""
        sparse = sum(len(block.sparse) for block in self.manifest.blocks)
        chunks = sum(CHUNKS_BYTES + len(block.chunks) for block in self.manifest.blocks if block.chunks)
        return TABLE_BYTES + BLOCK_BYTES * len(self.starts) + SPARSE_BYTES * sparse + chunks


def table_of(topic: TopicName, segment: CommittedSegment, index_data: bytes, manifest_data: bytes) -> SegmentTable:
    """Decode and compare a segment's index and manifest. Raises CorruptData with the object and the difference."""
    _, index_key, manifest_key = segment.keys.all
    manifest = manifest_bytes.decode(manifest_data, key=manifest_key, data_bytes=segment.object_bytes)
    _check_identity(topic, segment, manifest, manifest_key)
    check_index(index_data, manifest, key=index_key)
    starts = [(block.ledger_id, block.first_entry_id) for block in manifest.blocks]
    return SegmentTable(owner_of(topic.managed_ledger, segment.segment_id), segment, manifest, starts)


def _check_identity(topic: TopicName, segment: CommittedSegment, manifest: SegmentManifest, key: str) -> None:
    """Raise CorruptData for a manifest of another segment or topic, or with other entries than the commit."""
    if manifest.segment_id != segment.segment_id:
        raise differs(key, 0, f"segment {segment.segment_id}", manifest.segment_id)
    if TopicName.from_managed_ledger(manifest.managed_ledger) != topic:
        raise differs(key, 0, f"entries of {topic.managed_ledger}", manifest.managed_ledger)
    if not segment.is_run_of(manifest.ledgers):
        raise differs(key, 0, f"entries {segment.range}", manifest.range)
