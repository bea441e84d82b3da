"""Background tasks of a component, with one owner: reading ahead, watches and polls.

Rules: a task does not raise an OffloaderError, which would cancel its siblings: it keeps the error for its waiters. The
caller that started a task cancels it when it is not needed any more; the end of the owner cancels the rest.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import Closed

T = TypeVar("T")


class Tasks:
    """The tasks of one component. Its owner enters it once; leaving it cancels all tasks.

    `what` names the component in the error for work that is started before or after that.
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
        """Cancel all work and wait for its end. An error of the body is raised as it is, outside of any group."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task that runs `work`. Raises Closed."""
        if not self._open:
            work.close()
            raise Closed(f"{self._what} is closed", hint="the daemon is stopping; ask another one")
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
