"""An event loop on which time is a number: it jumps to the next timer as soon as nothing is left to do.

Everything that runs belongs to the world or to one simulated process, told by a context variable that tasks and
callbacks inherit. A process can be killed (none of its callbacks ever runs again, not even a `finally`), or stopped as
by SIGSTOP (its callbacks are kept until it goes on, while time passes for all others). There is no thread, no socket,
and no order that depends on addresses of objects: tasks are hashed by their number, timers of one moment fire in the
order in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.simulation.network import Server

T = TypeVar("T")

STEPS_AT_ONE_TIME_MAX = 200_000
"""More callbacks than that without time going on: something goes in circles."""


class Stuck(Exception):
    """Nothing can happen any more, or the same moment goes on for ever."""


class Process:
    """A simulated process: the owner of tasks and callbacks that live, stop and die together."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.backlog: deque[asyncio.Handle] = deque()
        self.queue = loop.ready
        self._loop = loop
        self.context = copy_context()
        self.context.run(_OWNER.set, self)

    def runs(self) -> bool:
        """Whether it is alive and not stopped."""
        return self.alive and not self.stopped

    def start(self, work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]:
        """Run something as a task of the process."""
        return self._loop.create_task(work, name=name or None, context=self.context.copy())

    def kill(self) -> None:
        """End it as SIGKILL does. What it had to do is kept for `reap`."""
        self.alive = False
        self._withhold()
        self.queue = self.backlog
        self._loop.network.killed(self)

    def stop(self) -> None:
        """Hold it as SIGSTOP does."""
        self.stopped = True
        self._withhold()
        self.queue = self.backlog

    def resume(self) -> None:
        """Let it run again as SIGCONT does."""
        self.stopped = False
        self.queue = self._loop.ready
        self.queue.extend(self.backlog)
        self.backlog.clear()

    def reap(self) -> None:
        """Cancel what a killed process left, when nobody looks at it any more; whatever it asks for fails."""
        self.alive = False
        for task in self.tasks:
            if not task.done():
                task.cancel()
        self.resume()

    def _withhold(self) -> None:
        """Take what is about to run out of the loop's queue."""
        ready = self._loop.ready
        kept = [handle for handle in ready if owner(handle) is not self]
        self.backlog.extend(handle for handle in ready if owner(handle) is self)
        ready.clear()
        ready.extend(kept)


_OWNER: ContextVar[Process | None] = ContextVar("simulated process", default=None)


def owner(handle: asyncio.Handle) -> Process | None:
    """Return the process that a callback belongs to, None for the world's."""
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(_OWNER)


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, number: int, work: Coroutine[Any, Any, Any], loop: VirtualLoop, context: Context | None) -> None:
        self._number = number
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        """Return the task's number."""
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one run. `fault` is the first error that nobody caught."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[asyncio.Handle] = deque()
        self.steps = 0
        self.network = Network(self)
        self.fault: BaseException | str | None = None
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._budget = STEPS_AT_ONE_TIME_MAX
        self._task_count = 0
        self._world = copy_context()
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Seconds since the begin of the run."""
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Queue a callback with those of its process."""
        handle = asyncio.Handle(callback, args, self, context)
        process = owner(handle)
        (self.ready if process is None else process.queue).append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Queue a callback for a later time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Queue a callback for a later time: a delay too small for the numbers that time is made of moves it too."""
        when = self._now + delay
        if delay > 0 and when == self._now:
            when = math.nextafter(when, math.inf)
        return self.call_at(when, callback, *args, context=context)

    def in_world(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        """Have the world do something later, whoever asked for it and whatever becomes of him."""
        self.call_at(self._now + delay, callback, *args, context=self._world)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Queue a callback: there is one thread only."""
        return self.call_soon(callback, *args, context=context)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> Server:
        """Take connections on the virtual wire."""
        return self.network.serve(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect over the virtual wire. Raises ConnectionRefusedError."""
        return await self.network.connect(protocol_factory, host, port, _OWNER.get())

    def _run_once(self) -> None:
        ready, timers = self.ready, self._timers
        if not ready:
            while True:
                if not timers:
                    raise Stuck("everybody waits for somebody else")
                when, _, timer = heapq.heappop(timers)
                if not timer.cancelled():
                    break
            if when > self._now:
                self._now, self._budget = when, STEPS_AT_ONE_TIME_MAX
            process = owner(timer)
            (ready if process is None else process.queue).append(timer)
        while ready and not self._stopping:  # type: ignore[attr-defined]
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
                self.steps += 1
                self._budget -= 1
                if not self._budget:
                    self._budget = STEPS_AT_ONE_TIME_MAX
                    raise Stuck(f"the time stands still at {self._now:.6f} s; last was {handle}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap: it is passed over when its time comes."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake the loop from."""

    def _make_task(
        self, _: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None
    ) -> SimTask:
        self._task_count += 1
        context = context if context is not None else copy_context()
        task = SimTask(self._task_count, work, self, context)
        process = context.get(_OWNER)
        if process is not None:
            if len(process.tasks) > 500:
                process.tasks = [one for one in process.tasks if not one.done()]
            process.tasks.append(task)
        return task

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self.fault is None:
            self.fault = context.get("exception") or str(context.get("message"))
