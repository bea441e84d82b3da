"""A clock that a test advances; ids and jitter come from a seed.

`advance` wakes sleepers in the order of their deadlines, each at its own time, and lets them run until they sleep
again: a loop that sleeps 1 s ten times runs ten times in `advance(10)`. It does not wait for tasks that wait for other
events (a thread, a socket).
"""

import asyncio
import heapq
import random
import uuid
from collections.abc import Callable
from itertools import count

START_MS = 1_700_000_000_000
TURNS = 50
"""Turns of the loop for each sleeper that wakes: enough for the work that it starts without a sleep."""


class FakeClock:
    """A Clock that a test controls. A sleep of 0 s or less gives the loop one turn."""

    def __init__(self, *, start_ms: int = START_MS, seed: int = 0) -> None:
        self._start_ms = start_ms
        self._now = 0.0
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._order = count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def wall_ms(self) -> int:
        """Milliseconds since 1970: the start, with all advances and jumps."""
        return self._start_ms + round(self._now * 1000)

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once the test has advanced the clock by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._now + seconds, next(self._order), woken))
        await woken

    def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.Future[None]:
        """Call something once the test has advanced the clock by `seconds`, in the turn behind that of the sleepers."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due.add_done_callback(lambda _: due.cancelled() or call())
        heapq.heappush(self._waiting, (self._now + max(0.0, seconds), next(self._order), due))
        return due

    def uuid(self) -> uuid.UUID:
        """Return the next id of the seed, in the form of version 4."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def jitter(self, seconds: float) -> float:
        """Return the next duration of the seed from [seconds / 2, seconds]."""
        return self._random.uniform(seconds / 2, seconds)

    def jump(self, milliseconds: int) -> None:
        """Move the wall clock alone, forwards or back, as an operator or NTP does."""
        self._start_ms += milliseconds

    @property
    def sleep_count(self) -> int:
        """Number of sleepers."""
        return sum(not woken.done() for _, _, woken in self._waiting)

    @property
    def next_wake_s(self) -> float | None:
        """Seconds until the first sleeper wakes, None without a sleeper."""
        self._forget_cancelled()
        return self._waiting[0][0] - self._now if self._waiting else None

    async def advance(self, seconds: float) -> None:
        """Advance the time and wake sleepers on the way; return when the last of them has had its turns."""
        end = self._now + seconds
        await self.settle()
        while True:
            self._forget_cancelled()
            if not self._waiting or self._waiting[0][0] > end:
                break
            deadline, _, woken = heapq.heappop(self._waiting)
            self._now = max(self._now, deadline)
            woken.set_result(None)
            await self.settle()
        self._now = end
        await self.settle()

    async def settle(self) -> None:
        """Let all ready tasks run, without advancing the clock."""
        ready = getattr(asyncio.get_running_loop(), "ready", None)
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if ready is not None and not ready:
                return  # a loop of virtual time, on which nothing else can come

    def _forget_cancelled(self) -> None:
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)
