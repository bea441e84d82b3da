"""What the checks share: the settings, the clock, and what was seen on the way that later checks need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.doctor.finding import CheckResult, Finding, Reading, examined

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from offloaderd.clock import Clock
    from offloaderd.config import Settings
    from offloaderd.model import TopicName


@dataclass(slots=True)
class Case:
    """One examination. `serving`: the daemon itself asks, so that its ports and locks are taken by right."""

    settings: Settings
    clock: Clock
    serving: bool = False
    readings: dict[str, Reading] = field(default_factory=dict)
    knows_topics: bool | None = None
    """Whether the daemon's own metadata knows any topic; None: nobody could look."""
    deployment_id: str = ""
    """Which deployment the metadata are of; empty: none yet, or nobody could look."""
    topic: TopicName | None = None
    """Some topic of the cluster, to ask its broker about."""

    async def check(self, name: str, work: Awaitable[Finding]) -> CheckResult:
        """Run one check."""
        return await examined(name, work, self.clock)

    def probe_name(self) -> str:
        """Return a name that nobody else uses."""
        return f"doctor-{self.clock.uuid()}"
