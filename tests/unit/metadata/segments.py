"""Segments as the map has them, made of slices."""

from __future__ import annotations

from uuid import UUID

from offloaderd.metadata.committed import CommittedSegment, LedgerSlice


def made(number: int, *slices: tuple[int, int, int]) -> CommittedSegment:
    """A segment of (ledger, first, last) slices; a payload byte an entry."""
    return CommittedSegment(
        segment_id=UUID(int=number << 64 | 0xF << 60 | number),
        slices=tuple(LedgerSlice(ledger, first, last, last - first + 1) for ledger, first, last in slices),
        object_bytes=1000 + number,
        assigned_ms=number,
        offloaded_ms=number + 1,
        bucket="bucket",
        prefix="p/",
    )
