"""Background tasks of a ledger source, and a sleep that a signal ends."""

import asyncio
from collections.abc import Iterable
from typing import Any

from offloaderd.core.aio.tasks import Tasks
from offloaderd.core.clock import Clock


class Background(Tasks):
    """The tasks of one source."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("the ledger source")
        self._clock = clock

    async def first_of(self, tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
        """Return when one of the tasks has ended, or after `seconds`; it cancels none of them."""
        timer = self.start(self._clock.sleep(seconds), name="timer")
        try:
            await asyncio.wait({*tasks, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()


class Alarm:
    """A sleep that a signal ends; a signal without a sleeper ends the next sleep."""

    __slots__ = ("_background", "_clock", "_sleeping", "woken")

    def __init__(self, background: Background, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self.woken = False
        """Whether there was a signal since the last sleep or `forget`."""
        self._sleeping: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """End the sleep, or the next one."""
        self.woken = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    def forget(self) -> None:
        """Drop the signal."""
        self.woken = False

    async def sleep(self, seconds: float) -> None:
        """Return at a signal, or after `seconds`. Raises Closed."""
        if not self.woken:
            self._sleeping = self._background.start(self._clock.sleep(seconds), name="pause")
            try:
                await asyncio.wait((self._sleeping,))
            finally:
                self._sleeping.cancel()
                self._sleeping = None
        self.woken = False
