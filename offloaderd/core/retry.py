"""Tries of what may pass: again after jittered, growing pauses, a bounded number of times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from offloaderd.core.errors import Transient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.core.clock import Clock

T = TypeVar("T")


def doubled(first_s: float, most_s: float, failures: int) -> float:
    """Return the pause after so many failures, at least one: twice as long each time, up to `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures - 1, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often to try, and how long to pause: `pause_s` doubles up to `pause_max_s`; each pause is jittered.

    No try begins later than `patience_s` after the first: a store may take long to answer that it fails, and whoever
    reads has a deadline before which he wants to hear of which object.
    """

    tries_max: int = 5
    pause_s: float = 0.1
    pause_max_s: float = 2.0
    patience_s: float = 15.0


USUAL = RetryPolicy()


async def retried(call: Callable[[], Awaitable[T]], *, clock: Clock, policy: RetryPolicy = USUAL) -> T:
    """Return what `call` returns, calling again after Transient. Raises the last error."""
    until_s = clock.monotonic() + policy.patience_s
    for tries in range(1, policy.tries_max + 1):
        try:
            return await call()
        except Transient:
            if tries == policy.tries_max or clock.monotonic() >= until_s:
                raise
        await clock.sleep(clock.jitter(doubled(policy.pause_s, policy.pause_max_s, tries)))
    raise AssertionError("tries_max must be at least 1")
