"""What a segment's manifest says otherwise than the map, and which losses it lacks: a rebuild knows no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.upkeep.flaws import Flaw, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.format.values import LedgerPart, SegmentManifest
    from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
    from offloaderd.model import Loss


def unrecorded(committed: CommittedSegment, manifest: SegmentManifest, losses: Sequence[Loss], key: str) -> list[Flaw]:
    """Return the losses that the map has before and within a segment, and its manifest has not."""
    said = {(loss.after, loss.before) for loss in manifest.losses}
    return [
        Flaw(kind=Kind.LOSSES, key=key, expected=f"the loss between {loss.after} and {loss.before}", found="none")
        for loss in losses
        if committed.begin <= loss.before <= committed.end and (loss.after, loss.before) not in said
    ]


def differences(
    committed: CommittedSegment, parts: Sequence[LedgerPart] | Sequence[LedgerSlice], data_bytes: int, key: str
) -> list[Flaw]:
    """Return what a manifest says otherwise than the map; the map may have dropped the segment's first ledgers."""
    flaws = []
    if not committed.is_run_of(parts):
        held = ", ".join(
            f"{part.ledger_id}:{part.first_entry_id} to {part.ledger_id}:{part.last_entry_id}" for part in parts
        )
        flaws.append(Flaw(kind=Kind.MAP, key=key, expected=f"entries {committed.range}", found=f"entries {held}"))
    if committed.object_bytes != data_bytes:
        expected, found = f"a data object of {committed.object_bytes} bytes", f"one of {data_bytes} bytes"
        flaws.append(Flaw(kind=Kind.MAP, key=key, expected=expected, found=found))
    return flaws
