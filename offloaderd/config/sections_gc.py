"""The settings of the collection of garbage; see sections.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from offloaderd.config.kinds import Seconds
from offloaderd.config.section import Section


class GcSettings(Section):
    """Deleting what nobody refers to: bucket and open uploads against the metadata of all topics."""

    mode: Literal["delete", "report", "off"] = "delete"
    """What the daemon does by itself. delete: collect. report: say in log and metrics what would be deleted. off:
    nothing; offloadctl gc works in any mode. A failure in the middle of an upload or a delete is the only source of
    garbage, so there is little of it, but it is paid for until it is deleted."""

    interval_s: Seconds = Field(default=21_600.0, ge=60, le=30 * 86_400)
    """How often. Each time lists the whole prefix and reads the metadata of all topics three times or more; one daemon
    does it for the cluster."""

    grace_s: Seconds = Field(default=86_400.0, ge=0, le=365 * 86_400)
    """What is younger stays, by the store's own clock. What is safe to delete does not depend on it; it is the time in
    which an operator who sees something wrong can set gc.mode to off."""
