"""Time, ids and jitter, injected so that tests and simulations control them; lint forbids the global ones elsewhere."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that a clock will make."""

    def cancel(self) -> object:
        """Have it not made; nothing happens if it was."""


class Clock(Protocol):
    """The daemon's only source of time and randomness."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump, so it is only stored and shown, never subtracted."""

    def monotonic(self) -> float:
        """Seconds that never decrease; for ages and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call something after `seconds`, which takes no task; it must not raise."""

    def uuid(self) -> uuid.UUID:
        """Return a new random id (version 4)."""

    def jitter(self, seconds: float) -> float:
        """Return a duration drawn evenly from [seconds / 2, seconds] (equal jitter)."""


PASS_PART = 0.1
"""The part of the loop's time that one pass over all topics takes at most, unless it takes more than 6.7 s."""
PASS_PAUSE_S_MAX = 60.0
"""Longest pause on that account: gauges are looked at, and a process may have been stopped in a pass."""


def pause_after_pass(clock: Clock, begun_s: float, pause_s: float) -> float:
    """Return the pause (seconds) after a pass that began at a time (monotonic): longer than asked if it took long."""
    return max(pause_s, min(PASS_PAUSE_S_MAX, (clock.monotonic() - begun_s) * (1 / PASS_PART - 1)))


class SystemClock:
    """The machine's clock and random source."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed point."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call something by the running loop."""
        return asyncio.get_running_loop().call_later(seconds, call)

    def uuid(self) -> uuid.UUID:
        """Return a new random id."""
        return uuid.uuid4()

    def jitter(self, seconds: float) -> float:
        """Equal jitter: half fixed, half random."""
        return seconds / 2 + random.uniform(0, seconds / 2)  # noqa: S311 - spreading retries needs no secrecy
