"""Virtual time under unit tests: the simulation's loop, on which waiting costs nothing, and a clock on it.

Each callback takes `STEP_S`, so that what looks again at every turn of the loop sees time go on as well. What would run
in a thread runs on the loop at its next turn. Connections are of the virtual wire (tests/simulation/network.py), also
with TLS. A module that needs real ones, or threads, says so (`REAL_TIME`, tests/unit/conftest.py).
"""

from __future__ import annotations

import asyncio
import heapq
import random  # noqa: TID251 - its seed is the test's name
import uuid
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from offloaderd.core.clock import SystemClock
from offloaderd.testing.clock import START_MS
from tests.simulation.loop import Stuck, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor

T = TypeVar("T")

STEP_S = 20e-6
CHANCE = random.Random(0)  # noqa: S311
"""Ids and jitter of all clocks of a test; its seed is the test's name."""


class UnitLoop(VirtualLoop):
    """The loop of one test."""

    def __init__(self) -> None:
        super().__init__()
        self.set_exception_handler(self._keep_outcome)
        self._outcome: BaseException | None = None

    def run_in_executor(
        self, executor: Executor | None, function: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """Call a function at the next turn."""
        called: asyncio.Future[T] = self.create_future()
        self.call_soon(_call, called, function, args)
        return called

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("virtual time has neither files nor processes: the module has to say REAL_TIME")

    create_unix_server = subprocess_exec = add_reader = _refuse

    def _keep_outcome(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep what asyncio would only log: the outcome of a test, such as its time limit, raised in a callback."""
        error = context.get("exception")
        if error is None or isinstance(error, Exception):
            loop.default_exception_handler(context)
        else:
            self._outcome = error

    def _run_once(self) -> None:
        ready, timers = self.ready, self._timers
        while timers and (timers[0][0] <= self._now or timers[0][2].cancelled() or not ready):
            when, _, timer = heapq.heappop(timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                ready.append(timer)
        if not ready:
            raise Stuck("everybody waits for somebody else")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
                self._now += STEP_S
                if self._outcome is not None:
                    outcome, self._outcome = self._outcome, None
                    raise outcome


def _call(called: asyncio.Future[T], function: Callable[..., T], args: tuple[object, ...]) -> None:
    if called.cancelled():
        return
    try:
        result = function(*args)
    except Exception as error:  # noqa: BLE001 - it is whose who awaits the call
        called.set_exception(error)
    else:
        called.set_result(result)


class LoopClock(SystemClock):
    """The running loop's time, as what is built for the machine's clock takes it; ids and jitter of the test's seed."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return START_MS + round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        """Seconds of the running loop; 0 before it runs."""
        loop = asyncio._get_running_loop()
        return loop.time() if loop is not None else 0.0

    def uuid(self) -> uuid.UUID:
        """Return the next id of the seed, in the form of version 4."""
        return uuid.UUID(int=CHANCE.getrandbits(128), version=4)

    def jitter(self, seconds: float) -> float:
        """Return the next duration of the seed from [seconds / 2, seconds]."""
        return CHANCE.uniform(seconds / 2, seconds)


def virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run something on a virtual loop of its own, as `asyncio.run` does on a real one."""
    with asyncio.Runner(loop_factory=UnitLoop) as runner:
        return runner.run(work)
