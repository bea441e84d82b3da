"""What may be said of how topics are offloaded, read and kept; whoever says nothing (None) leaves it to the next level.

The names and meanings are those of PIP-76, PIP-17 and PIP-73 as Pulsar's code has them (`OffloadPoliciesImpl`). What
says "off" is not what says nothing: a threshold or lag of OFF ends the search, None goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from offloaderd.model import HistoryOrder, OffloadMethod, OutagePolicy, TierRetention
from offloaderd.read_options import ReadPriority

if TYPE_CHECKING:
    from collections.abc import Mapping

OFF = -1
"""What any negative threshold or lag stands for: no threshold, never delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicies:
    """What one level says; sizes in bytes, times in seconds.

    `threshold_bytes` and `threshold_s` are what the ledger-based method leaves in BookKeeper: 0 is nothing, so every
    closed ledger goes. `deletion_lag_s` counts from the offloading. `retention` is taken over with its two limits, or
    not at all; a limit of None is none.
    """

    method: OffloadMethod | None = None
    segment_bytes_max: int | None = None
    segment_age_max_s: float | None = None
    segment_age_min_s: float | None = None
    threshold_bytes: int | None = None
    threshold_s: float | None = None
    deletion_lag_s: float | None = None
    read_priority: ReadPriority | None = None
    bucket: str | None = None
    prefix: str | None = None
    history_order: HistoryOrder | None = None
    outage: OutagePolicy | None = None
    retention: TierRetention | None = None
    retention_age_s: float | None = None
    retention_bytes: int | None = None

    def said(self) -> Mapping[str, Any]:
        """Return what it says, by name, in the order of the fields."""
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def offloads(self) -> bool:
        """Whether it asks for a way of offloading, so that a namespace's topics are to be offloaded."""
        return self.method is not None and self.method is not OffloadMethod.NONE


NAMES = tuple(field.name for field in fields(OffloadPolicies))

DEFAULTS = OffloadPolicies(
    method=OffloadMethod.STREAMING,
    segment_bytes_max=1024**3,
    segment_age_max_s=600.0,
    segment_age_min_s=0.0,
    threshold_bytes=OFF,
    threshold_s=float(OFF),
    deletion_lag_s=14_400.0,
    read_priority=ReadPriority.TIERED_STORAGE_FIRST,
    bucket="",
    prefix="",
    history_order=HistoryOrder.HISTORY_FIRST,
    outage=OutagePolicy.SOURCE,
    retention=TierRetention.KEEP,
)
"""What holds where nobody says anything. Thresholds are off as in Pulsar: closed ledgers go by hand alone."""
