"""Budgets shared by all topics: bytes in transfer, and retries of what failed.

Both are handed out in the order of asking, so one hot topic cannot starve the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from offloaderd.errors import Denied, NoSpace, NotFound, Throttled, Transient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.clock import Clock

T = TypeVar("T")


class ByteBudget:
    """A limit on bytes held at once; asking for more than all of it is granted when nothing else is held."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    def _fits(self, wanted: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + wanted <= self.limit_bytes

    async def acquire(self, wanted: int) -> None:
        """Take `wanted` bytes, waiting for one's turn. Cancellation leaves nothing taken."""
        if not self._queue and self._fits(wanted):
            self.used_bytes += wanted
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((wanted, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(wanted)
            else:
                self._queue = deque(item for item in self._queue if item[1] is not turn)
                self._grant()
            raise

    def release(self, held: int) -> None:
        """Give back what was taken."""
        self.used_bytes -= held
        self._grant()

    def _grant(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            wanted, turn = self._queue.popleft()
            if not turn.cancelled():
                self.used_bytes += wanted
                turn.set_result(None)


class Backoff:
    """Growing, jittered pauses between tries; the class of the error sets the pace.

    What may pass soon (time-outs, 5xx) starts at 0.1 s and ends at 10 s; throttling starts at 0.5 s; what needs an
    operator (rights, space, a missing bucket) starts at 1 s and ends at 30 s, so that a repair is noticed soon.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tries = 0

    def pause_s(self, error: Exception) -> float:
        """Seconds to wait before the next try, counting this failure."""
        match error:
            case Denied() | NoSpace() | NotFound():
                first, most = 1.0, 30.0
            case Throttled():
                first, most = 0.5, 20.0
            case _:
                first, most = 0.1, 10.0
        pause = min(most, first * 2 ** min(self.tries, 16))
        self.tries += 1
        return self._clock.jitter(pause)

    async def wait(self, error: Exception) -> None:
        """Wait before the next try."""
        await self._clock.sleep(self.pause_s(error))

    def reset(self) -> None:
        """Something worked: the next failure starts from the beginning."""
        self.tries = 0


async def until_answered(
    clock: Clock, ask: Callable[[], Awaitable[T]], *, met: Callable[[Transient], None] | None = None
) -> T:
    """Ask until the answer is not Transient; `met` hears of every failure."""
    backoff = Backoff(clock)
    while True:
        try:
            return await ask()
        except Transient as error:
            if met is not None:
                met(error)
            await backoff.wait(error)
