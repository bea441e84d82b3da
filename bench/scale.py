"""How much of everything: a full run, or a quick one with fewer bytes."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bytes and seconds of one run, and how often everything is measured."""

    runs: int
    segment_bytes: int
    segments: int
    durable_s: float
    sustained_s: float

    @property
    def total_bytes(self) -> int:
        """Payload bytes of one measurement of throughput."""
        return self.segment_bytes * self.segments


def scale(*, quick: bool, runs: int) -> Scale:
    """Return the size of a run."""
    if quick:
        return Scale(runs=runs, segment_bytes=64 * MIB, segments=1, durable_s=20, sustained_s=12)
    return Scale(runs=runs, segment_bytes=128 * MIB, segments=2, durable_s=60, sustained_s=40)
