"""Work that goes on beside the callers of the source, and waiting for the first of several things."""

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
    """A sleep that can be cut short; a ring while nobody sleeps is not lost."""

    __slots__ = ("_background", "_clock", "_sleeping", "rung")

    def __init__(self, background: Background, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self.rung = False
        """Whether somebody rang whom nobody has heeded."""
        self._sleeping: asyncio.Task[None] | None = None

    def ring(self) -> None:
        """Wake the sleeper, or keep the next one from falling asleep."""
        self.rung = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    def forget(self) -> None:
        """Whatever has rung has been heeded."""
        self.rung = False

    async def sleep(self, seconds: float) -> None:
        """Return at a ring, or after `seconds`. Raises Closed."""
        if not self.rung:
            self._sleeping = self._background.start(self._clock.sleep(seconds), name="pause")
            try:
                await asyncio.wait((self._sleeping,))
            finally:
                self._sleeping.cancel()
                self._sleeping = None
        self.rung = False
