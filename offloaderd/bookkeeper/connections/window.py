"""The requests of one bookie at a time: a number that halves at the answer "too many requests" and grows again.

    ticket = await window.enter()      # first come, first served
    ...                                # send; call leave() at the end of the request
    window.leave()
    window.grow()                      # it was answered well
    window.shrink(ticket)              # it was refused

Requests that were in flight when the window halved are refused for the same reason: they do not halve it again.
"""

from offloaderd.core.errors import InvalidInput
from offloaderd.core.limits import Admission


class Window(Admission):
    """Slots of one bookie for one kind of request; between 1 and `slots_max`."""

    def __init__(self, slots_max: int) -> None:
        if slots_max < 1:
            raise InvalidInput(f"a window of {slots_max} requests lets none through")
        super().__init__(slots_max)
        self._slots_max = slots_max
        self._slots = float(slots_max)
        self._last_ticket = 0
        self._shrunk_at = 0

    @property
    def slots(self) -> int:
        """How many requests may be in flight now."""
        return self.limit

    async def enter(self) -> int:
        """Take a slot, waiting for it in turn; returns a ticket for `shrink`. Cancelled, it takes none."""
        await self.acquire()
        self._last_ticket += 1
        return self._last_ticket

    def leave(self) -> None:
        """Give a slot back: to the next in turn."""
        self.release()

    def grow(self) -> None:
        """Widen it by one slot for every window of good answers."""
        if self._slots < self._slots_max:
            self._resize(min(self._slots_max, self._slots + 1 / self._slots))

    def shrink(self, ticket: int) -> None:
        """Halve it, once for all that were in flight together."""
        if ticket > self._shrunk_at:
            self._resize(max(1.0, self._slots / 2))
            self._shrunk_at = self._last_ticket

    def _resize(self, slots: float) -> None:
        self._slots = slots
        self.follow(int(slots))
