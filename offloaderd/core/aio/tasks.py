"""An owner for work that goes on beside its callers: what runs ahead, watches and polls.

Rules: what is started must not raise one of our errors (it would end everything beside it): it keeps them for whoever
waits. A task that nobody needs any more is cancelled by whoever started it; the end of the owner cancels the rest.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import Closed

T = TypeVar("T")


class Tasks:
    """The tasks of one component, entered once by its owner. Leaving it cancels them all.

    `what` is what is said to be closed when work comes before or after that.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._group = Group()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = False

    async def __aenter__(self) -> Self:
        """Accept work from now on."""
        await self._group.__aenter__()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel all work and wait until it has ended. An error of the body stays what it is, outside any group."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `work` until it ends or is cancelled. Raises Closed."""
        if not self._open:
            work.close()
            raise Closed(f"{self._what} is closed", hint="the daemon is stopping; ask another one")
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
