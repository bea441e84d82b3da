"""How many parts the daemon has on their way to the store at a time: additive increase, multiplicative decrease.

A store that asks for fewer requests gets half as many parts at once, and one more after as many have worked as may be
on their way; lost answers count as being asked, since a store or a line that is overrun often answers nothing. One
burst of refusals halves once: what was sent before the last cut says nothing about the pace since. Places are given
in the order of asking and held for one request only, never for the pause before the next try, so that a topic whose
requests fail leaves them to the others.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from offloaderd.core.errors import OutcomeUnknown, Throttled
from offloaderd.core.limits import Admission

CEILING = 16
"""Parts at a time where no setting says otherwise: as many as the default memory for uploads holds."""


class Pace(Admission):
    """The places for parts on their way, of all topics; `changed` hears of each new limit."""

    def __init__(self, ceiling: int = CEILING, *, changed: Callable[[int], None] | None = None) -> None:
        super().__init__(ceiling)
        self.ceiling = ceiling
        self._changed = changed
        self._cuts = 0
        self._worked = 0
        self._tell()

    @property
    def in_flight(self) -> int:
        """How many places are held."""
        return self.used

    @asynccontextmanager
    async def one_part(self) -> AsyncIterator[None]:
        """Hold a place for the request inside, waiting for one's turn."""
        async with self.held():
            yield

    def follow(self, limit: int) -> None:
        """Go on under another ceiling; a higher one is reached step by step, as after a refusal."""
        self.ceiling = limit
        if self.limit > limit:
            self.limit = limit
            self._tell()

    def mark(self) -> int:
        """Return what tells `failed` and `worked` at which pace a request was sent."""
        return self._cuts

    def failed(self, error: Exception, mark: int) -> None:
        """A request that was sent at `mark` failed: slow down if it is a matter of pace."""
        if mark == self._cuts and isinstance(error, Throttled | OutcomeUnknown):
            self._cuts += 1
            self._worked = 0
            if self.limit > 1:
                self.limit //= 2
                self._tell()

    def worked(self, mark: int) -> None:
        """A part that was sent at `mark` is stored: after a window of these, allow one more."""
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
