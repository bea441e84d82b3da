"""Work that goes on beside the callers of the source: requests that run ahead, watches, polls; one owner for all of it.

Rules: what is started must not raise one of our errors (it would end everything beside it): it keeps them for whoever
waits. A task that nobody needs any more is cancelled by whoever started it; the end of the owner cancels the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from offloaderd.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import TracebackType

    from offloaderd.clock import Clock

T = TypeVar("T")


class Background:
    """The tasks of one source. Async context manager: leaving it cancels them all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = False

    async def __aenter__(self) -> Self:
        """Be ready to start tasks."""
        await self._group.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel all tasks and wait until they have ended."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `work` until it ends or is cancelled. Raises Closed."""
        if not self._open:
            work.close()
            raise Closed("the ledger source is closed")
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
