"""The record of a committed segment: its entries and the place of its objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self
from uuid import UUID

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import DRIVER, OffloadMethod, Position, SegmentRange
from offloaderd.format.manifest import LedgerPart, SegmentManifest
from offloaderd.format.verify import differs
from offloaderd.objects.keys import SegmentKeys


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """Consecutive entries of one ledger, `first_entry_id` to `last_entry_id`, both inclusive.

    `created_ms` is the ledger's creation time if the manifest has it; the map keeps it by ledger.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    payload_bytes: int
    created_ms: int | None = field(default=None, compare=False)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def range(self) -> SegmentRange:
        """From the first to the last entry."""
        return SegmentRange(Position(self.ledger_id, self.first_entry_id), Position(self.ledger_id, self.last_entry_id))


class Sliced:
    """Entries of consecutive `slices`."""

    __slots__ = ()
    slices: tuple[LedgerSlice, ...]

    @property
    def begin(self) -> Position:
        """Position of the first entry."""
        return Position(self.slices[0].ledger_id, self.slices[0].first_entry_id)

    @property
    def end(self) -> Position:
        """Position of the last entry."""
        return Position(self.slices[-1].ledger_id, self.slices[-1].last_entry_id)

    @property
    def range(self) -> SegmentRange:
        """From the first to the last entry."""
        return SegmentRange(self.begin, self.end)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return sum(part.entries for part in self.slices)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(part.payload_bytes for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedSegment(Sliced):
    """A segment that readers may trust: slices by ascending ledger, place of the objects, and Pulsar's driver name.

    `mirror` is the bucket and prefix of a verified copy of its objects, None without one.
    """

    segment_id: UUID
    slices: tuple[LedgerSlice, ...]
    object_bytes: int
    assigned_ms: int
    offloaded_ms: int
    bucket: str
    prefix: str
    method: OffloadMethod = OffloadMethod.STREAMING
    driver: str = DRIVER
    mirror: tuple[str, str] | None = None

    @classmethod
    def described(cls, manifest: SegmentManifest, *, bucket: str, prefix: str) -> Self:
        """Return the segment that a manifest describes, as its commit records it."""
        return cls(
            segment_id=manifest.segment_id,
            slices=tuple(
                LedgerSlice(
                    part.ledger_id, part.first_entry_id, part.last_entry_id, part.payload_bytes, part.created_ms
                )
                for part in manifest.ledgers
            ),
            object_bytes=manifest.data_bytes,
            assigned_ms=manifest.assigned_ms,
            offloaded_ms=manifest.sealed_ms,
            bucket=bucket,
            prefix=prefix,
            method=manifest.method,
        )

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and prefix."""
        return self.bucket, self.prefix

    @property
    def copy(self) -> Self | None:
        """The same segment as it lies in its mirror, None without one."""
        if self.mirror is None:
            return None
        bucket, prefix = self.mirror
        return replace(self, bucket=bucket, prefix=prefix, mirror=None)

    @property
    def each_place(self) -> tuple[Self, ...]:
        """The segment, and as it lies in its mirror."""
        return (self,) if (copy := self.copy) is None else (self, copy)

    @property
    def keys(self) -> SegmentKeys:
        """Keys of its objects."""
        whole = self.method is OffloadMethod.LEDGER_BASED
        return SegmentKeys(self.prefix, self.segment_id, self.slices[0].ledger_id if whole else None)

    @property
    def foreign(self) -> bool:
        """Whether a broker wrote it: its objects have no manifest, and only the broker deletes them."""
        return self.driver != DRIVER

    def holds(self, position: Position) -> bool:
        """Whether the entry at this position is in the segment."""
        return any(
            part.ledger_id == position.ledger_id and part.first_entry_id <= position.entry_id <= part.last_entry_id
            for part in self.slices
        )

    def check_manifest(self, manifest: SegmentManifest, *, managed_ledger: str, cluster: str) -> None:
        """Raise CorruptData unless a manifest is this segment's and agrees with the commit."""
        for what, expected, found in (
            ("segment", self.segment_id, manifest.segment_id),
            ("managed ledger", managed_ledger, manifest.managed_ledger),
            ("cluster", cluster, manifest.cluster),
            ("bytes of the data", self.object_bytes, manifest.data_bytes),
            ("entries", self.range, self.range if self.is_run_of(manifest.ledgers) else manifest.range),
        ):
            if expected != found:
                raise differs(self.keys.manifest, 0, f"{what} {expected}", found)

    def is_run_of(self, parts: Sequence[LedgerPart] | Sequence[LedgerSlice]) -> bool:
        """Whether the slices are consecutive parts of a manifest's ledgers, or all of them.

        Ledgers that were marked deleted may be removed from the map, so it may hold only a part of the segment.
        """
        ours = [(part.ledger_id, part.first_entry_id, part.last_entry_id) for part in self.slices]
        stored = [(part.ledger_id, part.first_entry_id, part.last_entry_id) for part in parts]
        start = stored.index(ours[0]) if ours and ours[0] in stored else len(stored)
        return bool(ours) and ours == stored[start : start + len(ours)]

    def checked(self) -> Self:
        """Return the segment if its slices can be one segment's. Raises InvalidInput."""
        slices = self.slices
        sound = bool(slices) and all(0 <= part.first_entry_id <= part.last_entry_id for part in slices)
        for before, after in pairwise(slices):
            sound = sound and before.ledger_id < after.ledger_id and after.first_entry_id == 0
        if self.method is OffloadMethod.LEDGER_BASED:
            sound = sound and len(slices) == 1 and slices[0].first_entry_id == 0
        if not sound:
            raise InvalidInput(f"segment {self.segment_id} does not hold consecutive entries: {slices}")
        return self
