"""An `asyncio.Event` for what every topic has several of.

asyncio's holds a queue for those who wait from its beginning, 760 bytes; this one takes nothing for them until somebody
waits, and a tenth of that then.
"""

from __future__ import annotations

import asyncio


class Event:
    """A flag to wait for; all calls are made on the event loop."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether it has been set, and not cleared since."""
        return self._set

    def set(self) -> None:
        """Wake all who wait; who comes later does not wait, until it is cleared."""
        self._set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Have those wait who come from now on."""
        self._set = False

    async def wait(self) -> None:
        """Return once it is set."""
        if self._set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        waiters = self._waiters
        waiters.append(waiter)
        try:
            await waiter
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiters = None
