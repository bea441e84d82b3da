"""Values of a manifest: blocks, ledger parts, totals of the entries before the segment, and the manifest itself."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.entries import framed_bytes
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod, Position, SegmentRange
from offloaderd.format.pulsar.entry_time import Survey
from offloaderd.format.v2 import BLOCK_HEADER_BYTES, PAD_BYTES_MIN


class Broken(OffloaderError):
    """A rule does not hold; never leaves the package."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """One block of the data object: its entries, its place, and the CRC-32C of all its bytes.

    `sparse` has ascending pairs (entry, at): entry `first_entry_id + entry` begins at byte `at` of the block.
    Timestamps and indexes are PIP-70's of the first and the last entry; `survey` covers all, None in manifests of older
    versions. In a whole ledger's object (V1) this is a run of entries inside a much larger block: only that block's
    first run has `head_bytes`, only its last has `pad_bytes`. `chunks` has the CRC-32C of each chunk (`chunks.py`), 4
    bytes each, empty if unknown; then `sparse` has the first entry that begins in each chunk behind that of entry 0.
    """

    ledger_id: int
    first_entry_id: int
    entry_count: int
    offset: int
    length: int
    crc32c: int
    sparse: tuple[tuple[int, int], ...] = ()
    first_broker_timestamp: int | None = None
    last_broker_timestamp: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    survey: Survey | None = None
    first_publish_time: int | None = None
    head_bytes: int = BLOCK_HEADER_BYTES
    pad_bytes: int = PAD_BYTES_MIN
    chunks: bytes = b""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads; negative in a block that contradicts itself."""
        return self.length - self.head_bytes - self.pad_bytes - framed_bytes(0, self.entry_count)

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry in the block."""
        return self.first_entry_id + self.entry_count - 1

    @property
    def first_time(self) -> int | None:
        """Time of the first entry: the broker's, else the producer's; None if it has none or none was looked up."""
        return self.first_publish_time if self.first_broker_timestamp is None else self.first_broker_timestamp


class Past(NamedTuple):
    """Totals of the entries before a segment, as known at its seal.

    `entries` of the topic, which is the sequence number of the segment's first. For the entries from `since` up to the
    segment, `time_max` is the greatest time and `index_max` the greatest index; None without one.
    """

    entries: int
    since: Position
    time_max: int | None = None
    index_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPart:
    """A segment's part of one ledger, and the metadata of the whole ledger at the time of the seal.

    `created_ms` is the ledger's creation time, None if unknown; releases that do not know the field omit it.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    payload_bytes: int
    closed: bool
    ledger_entries: int
    ledger_bytes: int
    closed_ms: int
    created_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentManifest:
    """All data about one segment; lengths are those of the objects in the bucket.

    `losses` are directly before the segment or inside it. `ends` are those known at the seal: of the ledger in which
    the segment before ended, and of the segment's own ledgers. `replaces` are the sources of a rewritten segment.
    `chunk_bytes` is the length of a chunk, 0 if no block has chunks.
    """

    segment_id: UUID
    managed_ledger: str
    cluster: str
    epoch: int
    assigned_ms: int
    sealed_ms: int
    data_bytes: int
    preamble_bytes: int
    index_bytes: int
    index_crc32c: int
    ledgers: tuple[LedgerPart, ...]
    blocks: tuple[BlockInfo, ...]
    software_version: str
    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    method: OffloadMethod = OffloadMethod.STREAMING
    past: Past | None = None
    replaces: tuple[UUID, ...] = ()
    chunk_bytes: int = 0

    @property
    def range(self) -> SegmentRange:
        """First and last position of the segment."""
        first, last = self.ledgers[0], self.ledgers[-1]
        return SegmentRange(
            Position(first.ledger_id, first.first_entry_id), Position(last.ledger_id, last.last_entry_id)
        )

    def block_at(self, position: Position) -> int:
        """Return the index of the last block that begins at or before `position`; -1 if there is none.

        It has the position if the segment does; for a position after a ledger's end it is the ledger's last block.
        """
        return bisect_right(self.blocks, position, key=_begin_of) - 1


def _begin_of(block: BlockInfo) -> Position:
    return Position(block.ledger_id, block.first_entry_id)
