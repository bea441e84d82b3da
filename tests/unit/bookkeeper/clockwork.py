"""Letting something run to its end on a FakeClock, whatever pauses it makes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from offloaderd.core.errors import first_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from offloaderd.testing import FakeClock

T = TypeVar("T")

ROUNDS = 6
"""How often everybody gets a chance to run before time is taken to be what they wait for."""


async def in_time(clock: FakeClock, work: Coroutine[Any, Any, T], *, seconds_max: float = 300) -> T:
    """Return what `work` does, moving the clock to the next sleeper whenever nothing else goes on.

    Raises what `work` raises, TimeoutError when it is not through after `seconds_max` of the clock.
    """
    end = clock.monotonic() + seconds_max
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            while True:
                for _ in range(ROUNDS):
                    await clock.settle()
                if task.done():
                    break
                step = clock.next_wake_s
                if step is None or clock.monotonic() + step > end:
                    raise TimeoutError(f"not through at {clock.monotonic()} s")
                await clock.advance(step)
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return task.result()
