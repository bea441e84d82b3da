"""Work that goes on beside the callers of the source, and waiting for the first of several things."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from offloaderd.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offloaderd.clock import Clock


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

    def __init__(self, background: Background, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self._rung = False
        self._sleeping: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the sleeper, or keep the next one from falling asleep."""
        self._rung = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    async def sleep(self, seconds: float | None) -> None:
        """Return at a ring, or after `seconds` if they are given. Raises Closed."""
        if not self._rung:
            if seconds is None:
                self._sleeping = asyncio.get_running_loop().create_future()
            else:
                self._sleeping = self._background.start(self._clock.sleep(seconds), name="pause")
            try:
                await asyncio.wait((self._sleeping,))
            finally:
                self._sleeping.cancel()
                self._sleeping = None
        self._rung = False
