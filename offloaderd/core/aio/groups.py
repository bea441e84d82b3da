"""A task group whose own task can always be cancelled.

In Python 3.11 a group that is cancelled from outside while its tasks fail raises their errors and forgets the
cancellation (`asyncio/taskgroups.py`; fixed in 3.13). A task that continues after such an error never ends, and a task
that waits for its end waits for ever. The group also leaves its own task counted as being cancelled when one of its
tasks failed late.

The exception group that it raises refers to the frame that raised it, and that frame to the exception group (fixed in
3.14). So all that the tasks held stays in memory until the collector of cycles runs, hours later in an idle daemon.
"""

import asyncio
import sys
from types import TracebackType
from typing import Self

if sys.version_info >= (3, 13):
    Group = asyncio.TaskGroup
else:

    class Group(asyncio.TaskGroup):
        """A TaskGroup that keeps a cancellation from outside: it is raised at the next await after the group's errors.

        A loop whose only awaits are such groups ends as well: a cancellation is postponed once only.
        """

        async def __aenter__(self) -> Self:
            """Note how often the task is being cancelled already, and whether that is still to be raised in it."""
            self._task = asyncio.current_task()
            self._pending = bool(getattr(self._task, "_must_cancel", False))
            self._before = self._task.cancelling() - self._pending if self._task is not None else 0
            return await super().__aenter__()

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """End as a TaskGroup does, and correct the count of cancellations."""
            asked = self._asked
            try:
                await super().__aexit__(kind, error, trace)
            except BaseExceptionGroup as errors:
                task = self._task
                assert task is not None  # noqa: S101 - a group is entered by a task
                if self._asked and not asked:
                    task.uncancel()
                if task.cancelling() > self._before:
                    if self._pending:
                        raise asyncio.CancelledError from errors
                    task.uncancel()
                    task.cancel()
                errors.__traceback__ = None
                raise
            except asyncio.CancelledError as cancelled:
                cancelled.__traceback__ = trace if cancelled is error else None
                raise
            finally:
                error = trace = None
                self._task = vars(self)["_parent_task"] = None

        @property
        def _asked(self) -> bool:
            """Whether the group has cancelled its own task to wake it."""
            return bool(vars(self)["_parent_cancel_requested"])
