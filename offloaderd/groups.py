"""A task group whose own task can always be cancelled.

In Python 3.11 a group that is cancelled from outside while its tasks fail raises their errors and forgets the
cancellation (`asyncio/taskgroups.py`; mended in 3.13): whoever goes on after such an error never ends, and who waits
for its end waits for ever. It also leaves the task counted as being cancelled when a task of the group failed late.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

if sys.version_info >= (3, 13):
    Group = asyncio.TaskGroup
else:

    class Group(asyncio.TaskGroup):
        """A TaskGroup as of Python 3.13: a cancellation from outside comes at the next await after its errors."""

        async def __aenter__(self) -> Self:
            """Note how often the task is being cancelled already."""
            self._task = asyncio.current_task()
            self._before = self._task.cancelling() if self._task is not None else 0
            return await super().__aenter__()

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """End as a TaskGroup does, with the count of cancellations put right."""
            asked = self._asked
            try:
                await super().__aexit__(kind, error, trace)
            except BaseExceptionGroup:
                task = self._task
                assert task is not None  # noqa: S101 - a group is entered by a task
                if self._asked and not asked:
                    task.uncancel()
                if task.cancelling() > self._before:
                    task.uncancel()
                    task.cancel()
                raise

        @property
        def _asked(self) -> bool:
            """Whether the group has cancelled its own task, to have it wake up."""
            return bool(vars(self)["_parent_cancel_requested"])
