"""The number of parts in flight to the store: additive increase, multiplicative decrease.

A refusal of the store (503, 429) halves the limit; a window of successes raises it by one. A lost answer counts as a
refusal, since an overloaded store or line often does not answer. A burst of refusals halves once: requests that were
sent before the last cut do not count. Slots are given in the order of the calls and held for one request only, never
for the pause before the next try, so a topic whose requests fail leaves them to the others.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from offloaderd.core.errors import OutcomeUnknown, Throttled
from offloaderd.core.limits import Admission

CEILING = 16
"""Most parts at a time without a setting: as many as the default memory for uploads holds."""


class Pace(Admission):
    """The slots for parts in flight, of all topics; `changed` is called with each new limit."""

    def __init__(self, ceiling: int = CEILING, *, changed: Callable[[int], None] | None = None) -> None:
        super().__init__(ceiling)
        self.ceiling = ceiling
        self._changed = changed
        self._cuts = 0
        self._worked = 0
        self._tell()

    @property
    def in_flight(self) -> int:
        """Number of slots that are held."""
        return self.used

    @asynccontextmanager
    async def one_part(self) -> AsyncIterator[None]:
        """Hold a slot for the request inside; waits for one."""
        async with self.held():
            yield

    def follow(self, limit: int) -> None:
        """Change the ceiling; a higher one is reached step by step, as after a refusal."""
        self.ceiling = limit
        if self.limit > limit:
            self.limit = limit
            self._tell()

    def mark(self) -> int:
        """Return the present state of the limit, for `failed` and `worked`."""
        return self._cuts

    def failed(self, error: Exception, mark: int) -> None:
        """Handle the failure of a request that was sent at `mark`: lower the limit after a refusal."""
        if mark == self._cuts and isinstance(error, Throttled | OutcomeUnknown):
            self._cuts += 1
            self._worked = 0
            if self.limit > 1:
                self.limit //= 2
                self._tell()

    def worked(self, mark: int) -> None:
        """Handle the success of a request that was sent at `mark`: raise the limit after a window of successes."""
        if mark != self._cuts or self.limit >= self.ceiling:
            return
        self._worked += 1
        if self._worked >= self.limit:
            self._worked = 0
            self.limit += 1
            self._tell()
            self._grant()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(self.limit)
