"""The settings of the scrub; see sections.py."""

from __future__ import annotations

from pydantic import Field

from offloaderd.config.kinds import Bytes, Seconds
from offloaderd.config.section import Section


class ScrubSettings(Section):
    """Reading what is stored again and again, to hear of bit rot before a reader does."""

    enabled: bool = True
    """Whether each owner reads its topics' segments whole at an interval. Bits rot in any store; who looks only when an
    entry is needed looks too late, for the source has deleted it by then."""

    interval_s: Seconds = Field(default=7 * 86_400.0, ge=60, le=5 * 365 * 86_400)
    """How long after a segment was verified it is due again. What is damaged is looked at every hour."""

    first_s: Seconds = Field(default=3600.0, ge=0, le=365 * 86_400)
    """How long after its commit a segment is read whole for the first time; before the source may delete it
    (grants.deletion_lag_s), if the rate allows."""

    bytes_per_s: Bytes = Field(default=8 * 1024 * 1024, ge=1024)
    """The most that a daemon reads for it. 8 MiB/s are 4.6 TiB in a week; requests of up to 4 MiB, so two or three a
    second."""
