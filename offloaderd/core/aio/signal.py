"""Events and signals: waits for a change without polling, and without missing one.

A waiter checks the condition and calls `signal.wait()` with no await in between: changes are made on the same loop.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from offloaderd.core.aio.groups import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import first_of


class Event:
    """A flag to wait for; all calls are made on the event loop.

    asyncio's Event always has a queue for waiters, 760 bytes, and each topic has several events. This one uses memory
    for waiters only while it has some, and then a tenth of that.
    """

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag, and wake all waiters."""
        self._set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Clear the flag."""
        self._set = False

    async def wait(self) -> None:
        """Return once the flag is set."""
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


class Signal:
    """A notification to all present waiters, without a state of its own."""

    def __init__(self) -> None:
        self._event = Event()

    def notify(self) -> None:
        """Wake all present waiters."""
        event, self._event = self._event, Event()
        event.set()

    def wait(self) -> Coroutine[Any, Any, object]:
        """Return at the next `notify` after this call, even if it comes before the result is first awaited."""
        return self._event.wait()

    async def wait_at_most(self, clock: Clock, seconds: float) -> None:
        """Return at the next `notify`, or after `seconds`, whichever comes first."""
        await race(self._event.wait(), clock.sleep(seconds))


async def finished(task: asyncio.Task[None]) -> None:
    """Wait for the end of a task, also by an error or a cancellation; its error belongs to its own group."""
    await asyncio.wait([task])


async def race(*runners: Coroutine[Any, Any, object]) -> None:
    """Run all until the first one ends, then cancel the others. An error of any of them is raised."""
    try:
        async with Group() as group:
            tasks = [group.create_task(runner) for runner in runners]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
