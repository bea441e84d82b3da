"""Retries of temporary failures after jittered, growing pauses: a limited number, or until success."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, Denied, Expired, NoSpace, NotFound, Throttled, Transient

T = TypeVar("T")


def doubled(first_s: float, most_s: float, failures: int) -> float:
    """Return the pause after this number of failures (at least one): doubled each time, at most `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures - 1, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Number of tries, and the pauses: `pause_s` doubles up to `pause_max_s`; each pause is jittered.

    No try begins later than `patience_s` after the first: a store may take long to report a failure, and a reader's
    deadline has to leave time for an error that names the object.
    """

    tries_max: int = 5
    pause_s: float = 0.1
    pause_max_s: float = 2.0
    patience_s: float = 15.0


USUAL = RetryPolicy()


async def retried(call: Callable[[], Awaitable[T]], *, clock: Clock, policy: RetryPolicy = USUAL) -> T:
    """Return the result of `call`, which is repeated after Transient. Raises the last error."""
    until_s = clock.monotonic() + policy.patience_s
    for tries in range(1, policy.tries_max + 1):
        try:
            return await call()
        except Transient:
            if tries == policy.tries_max or clock.monotonic() >= until_s:
                raise
        await clock.sleep(clock.jitter(doubled(policy.pause_s, policy.pause_max_s, tries)))
    raise AssertionError("tries_max must be at least 1")


class Pauses(NamedTuple):
    """Seconds before the second try, and the longest pause before any."""

    first_s: float
    most_s: float


PAUSES: dict[type[Exception], Pauses] = {
    Throttled: Pauses(0.5, 20.0),
    Transient: Pauses(0.1, 10.0),
    Expired: Pauses(0.2, 15.0),
    Denied: Pauses(1.0, 30.0),
    NoSpace: Pauses(2.0, 30.0),
    BucketMissing: Pauses(5.0, 30.0),
    NotFound: Pauses(1.0, 30.0),
    Exception: Pauses(0.1, 10.0),
}
"""By class of error; an error has those of its nearest ancestor here.

Failures that usually end soon are retried soon. Expired credentials are mostly replaced at the next try. Failures that
need an operator (rights, space, a missing bucket) have longer pauses, yet short enough to notice a repair.
"""


class Turn:
    """One holder's permit of a semaphore, which is released while the holder sleeps and acquired again afterwards.

    A holder that waits may wait for ever, so it does not block the others meanwhile.
    """

    def __init__(self, turns: asyncio.Semaphore, clock: Clock) -> None:
        self._turns = turns
        self._clock = clock
        self._held = False

    async def __aenter__(self) -> None:
        await self._turns.acquire()
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        """Release the permit, unless a cancelled sleep has done so."""
        self._leave()

    async def sleep(self, seconds: float) -> None:
        """See Clock; the permit is released meanwhile."""
        had_turn = self._held
        self._leave()
        await self._clock.sleep(seconds)
        if had_turn:
            await self.__aenter__()

    def jitter(self, seconds: float) -> float:
        """See Clock."""
        return self._clock.jitter(seconds)

    def _leave(self) -> None:
        if self._held:
            self._held = False
            self._turns.release()


class Backoff:
    """Growing, jittered pauses between tries, by a clock or a turn; each class of error has its own."""

    __slots__ = ("_pace", "_tries")

    def __init__(self, pace: Clock | Turn) -> None:
        self._pace = pace
        self._tries: dict[type[Exception], int] = {}

    @property
    def tries(self) -> int:
        """Number of failures since the start or the last `reset`."""
        return sum(self._tries.values())

    def pause_s(self, error: Exception) -> float:
        """Count this failure, and return the seconds before the next try."""
        kind = next(one for one in type(error).__mro__ if one in PAUSES)
        tries = self._tries[kind] = self._tries.get(kind, 0) + 1
        return self._pace.jitter(doubled(*PAUSES[kind], tries))

    async def wait(self, error: Exception) -> None:
        """Wait before the next try."""
        await self._pace.sleep(self.pause_s(error))

    def reset(self) -> None:
        """Reset the pauses after a success."""
        self._tries.clear()


async def until_answered(
    pace: Clock | Turn,
    ask: Callable[[], Awaitable[T]],
    *,
    passes: type[Exception] | tuple[type[Exception], ...] = Transient,
    on_error: Callable[..., None] | None = None,
) -> T:
    """Repeat `ask` until it succeeds or raises an error other than `passes`; each failure is given to `on_error`."""
    backoff = Backoff(pace)
    while True:
        try:
            return await ask()
        except passes as error:
            if on_error is not None:
                on_error(error)
            await backoff.wait(error)
