"""How many requests one bookie is given at a time: a number that halves when it says "too many" and grows again.

    ticket = await window.enter()      # first come, first served
    ...                                # send; whoever sees the request end calls leave()
    window.leave()
    window.grow()                      # it was answered well
    window.shrink(ticket)              # it was turned away

Requests that were in flight when the window halved are turned away for the same reason: they do not halve it again.
"""

from __future__ import annotations

import asyncio
from collections import deque

from offloaderd.errors import InvalidInput


class Window:
    """Slots of one bookie for one kind of request; between 1 and `slots_max`."""

    def __init__(self, slots_max: int) -> None:
        if slots_max < 1:
            raise InvalidInput(f"a window of {slots_max} requests lets none through")
        self._slots_max = slots_max
        self._slots = float(slots_max)
        self._used = 0
        self._last_ticket = 0
        self._shrunk_at = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def slots(self) -> int:
        """How many requests may be in flight now."""
        return int(self._slots)

    @property
    def used(self) -> int:
        """How many are."""
        return self._used

    @property
    def idle(self) -> bool:
        """Whether nobody has or wants a slot."""
        return not self._used and not self._waiting

    async def enter(self) -> int:
        """Take a slot, waiting for it in turn; returns a ticket for `shrink`. Cancelled, it takes none."""
        if self._used >= self.slots:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.leave()
                raise
        else:
            self._used += 1
        self._last_ticket += 1
        return self._last_ticket

    def leave(self) -> None:
        """Give a slot back: to the next in turn."""
        self._used -= 1
        self._admit()

    def grow(self) -> None:
        """Widen it by one slot for every window of good answers."""
        if self._slots < self._slots_max:
            self._slots = min(self._slots_max, self._slots + 1 / self._slots)
            self._admit()

    def shrink(self, ticket: int) -> None:
        """Halve it, once for all that were in flight together."""
        if ticket > self._shrunk_at:
            self._slots = max(1.0, self._slots / 2)
            self._shrunk_at = self._last_ticket

    def _admit(self) -> None:
        while self._waiting and self._used < self.slots:
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)
