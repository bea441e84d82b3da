"""In which order bookies are asked: in the given one, those that failed or were slow lately last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.bookkeeper.ports import Bookies
    from offloaderd.core.clock import Clock

COOLDOWN_S = 10.0
"""How long a bookie that was too slow is asked last."""


class BookieOrder:
    """Orders bookies for all reads and polls of a source. Failing is the pool's to notice, being slow is ours."""

    def __init__(self, bookies: Bookies, clock: Clock) -> None:
        self._bookies = bookies
        self._clock = clock
        self._slow_until: dict[str, float] = {}

    def order(self, bookie_ids: Sequence[str]) -> list[str]:
        """Return the same bookies, best first."""
        ordered = self._bookies.ordered(bookie_ids)
        return sorted(ordered, key=self.is_slow) if self._slow_until else ordered

    def is_slow(self, bookie_id: str) -> bool:
        """Whether the bookie did not answer in time lately."""
        until = self._slow_until.get(bookie_id)
        if until is None:
            return False
        if until <= self._clock.monotonic():
            del self._slow_until[bookie_id]
            return False
        return True

    def was_slow(self, bookie_id: str) -> None:
        """Ask this bookie last for a while."""
        self._slow_until[bookie_id] = self._clock.monotonic() + COOLDOWN_S
