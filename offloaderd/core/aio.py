"""Task groups, background tasks, events, signals, concurrent calls and long passes on asyncio.

In Python 3.11 a group that is cancelled from outside while its tasks fail raises their errors and forgets the
cancellation (`asyncio/taskgroups.py`; fixed in 3.13). A task that continues after such an error never ends, and a task
that waits for its end waits for ever. The group also leaves its own task counted as being cancelled when one of its
tasks failed late.

The exception group that it raises refers to the frame that raised it, and that frame to the exception group (fixed in
3.14). So all that the tasks held stays in memory until the collector of cycles runs, hours later in an idle daemon.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, first_of

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


T = TypeVar("T")


class Tasks:
    """Background tasks of one component: reading ahead, watches and polls. Leaving it cancels all; it is entered once.

    A task does not raise an OffloaderError, which would cancel its siblings: it keeps the error for its waiters. The
    caller that started a task cancels it when it is not needed any more. `what` names the component in the error for
    work that is started before entering or after leaving.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._group = Group()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = False

    async def __aenter__(self) -> Self:
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
        if not self._set:
            waiter = self._join()
            try:
                await waiter
            finally:
                self._leave(waiter)

    async def wait_at_most(self, clock: Clock, seconds: float) -> None:
        """Return once the flag is set, or after `seconds`, whichever comes first. It takes no task."""
        if self._set:
            return
        waiter = self._join()

        def due() -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = clock.call_later(seconds, due)
        try:
            await waiter
        finally:
            timer.cancel()
            self._leave(waiter)

    def _join(self) -> asyncio.Future[None]:
        """Return the future of one more waiter: a coroutine for it would be a fourth of what a waiting task takes."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        return waiter

    def _leave(self, waiter: asyncio.Future[None]) -> None:
        assert self._waiters is not None  # noqa: S101 - it has joined
        self._waiters.remove(waiter)
        if not self._waiters:
            self._waiters = None


class Signal:
    """A notification to all present waiters, without a state of its own.

    A waiter checks the condition and calls `wait` with no await in between: changes are made on the same loop.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = Event()

    def notify(self) -> None:
        """Wake all present waiters."""
        event, self._event = self._event, Event()
        event.set()

    def wait(self) -> Coroutine[Any, Any, object]:
        """Return at the next `notify` after this call, even if it comes before the result is first awaited."""
        return self._event.wait()

    def wait_at_most(self, clock: Clock, seconds: float) -> Coroutine[Any, Any, object]:
        """Return at the next `notify` after this call, or `seconds` after it is awaited, whichever comes first."""
        return self._event.wait_at_most(clock, seconds)


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


A = TypeVar("A")
B = TypeVar("B")

IN_FLIGHT_MAX = 32


async def both(one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Return the results of two calls that run at the same time. The first error cancels the other and is raised."""
    try:
        async with Group() as group:
            task = group.create_task(other, name="one of both")
            first = await one
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return first, task.result()


async def each(items: Sequence[A], ask: Callable[[A], Awaitable[B]], *, in_flight_max: int = IN_FLIGHT_MAX) -> list[B]:
    """Return the result of `ask` for every item, in order. At most `in_flight_max` calls run at a time.

    The first error cancels the others and is raised.
    """
    answers: dict[int, B] = {}
    todo = iter(enumerate(items))

    async def work() -> None:
        for index, item in todo:
            answers[index] = await ask(item)

    try:
        async with Group() as group:
            for _ in range(min(in_flight_max, len(items))):
                group.create_task(work(), name="one of each")
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return [answers[index] for index in range(len(items))]


TURN_ITEMS = 200
"""Items of a pass before other tasks may run: some milliseconds."""


async def in_turns(items: Iterable[A]) -> AsyncGenerator[list[A], None]:
    """Yield items, a few hundred at a time, and let other tasks run in between.

    The items of each turn are taken from `items` after the turn before, so they may be made by a generator: what one
    that looks at changing state yields is true for as long as its turn is processed without an await.
    """
    todo = iter(items)
    while turn := list(islice(todo, TURN_ITEMS)):
        yield turn
        await asyncio.sleep(0)  # noqa: TID251 - gives others a turn, measures no time
