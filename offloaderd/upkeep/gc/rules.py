"""How one collection goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.upkeep.stored import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How one collection goes; `now_ms` is the service's time, `also` what goes though it would raise an alarm.

    What has left a topic stays for its readers for `readers_s` as well, if that is longer than the grace age.
    `source` is where entries can be read that are not offloaded yet.
    """

    sites: Sequence[Site]
    grace_s: float
    apply: bool
    now_ms: int
    also: AbstractSet[UUID] = frozenset()
    source: LedgerSource | None = None
    readers_s: float = 0.0

    def age_s(self, stored_ms: int) -> float:
        """Return how old something is by the store's clock."""
        return max(0, self.now_ms - stored_ms) / 1000
