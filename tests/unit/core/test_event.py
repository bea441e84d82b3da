"""Events: who waits is woken, once, and whoever gives up leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.aio import Event, Signal
from offloaderd.testing.clock import FakeClock
from tests.patience import PATIENCE_S
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Callable


async def turns() -> None:
    """Let everybody go as far as he can."""
    for _ in range(3):
        await asyncio.sleep(0)  # noqa: TID251 - turns of the loop


async def test_all_who_wait_are_woken() -> None:
    """And whoever comes later does not wait, until it is cleared."""
    event = Event()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = [group.create_task(event.wait()) for _ in range(3)]
        await turns()
        assert not event.is_set()
        assert not any(task.done() for task in waiting)
        event.set()
        event.clear()
        await turns()
        assert all(task.done() for task in waiting)
        late = group.create_task(event.wait())
        await turns()
        assert not late.done()
        event.set()
        event.set()
        await event.wait()


async def test_a_wait_that_was_begun_before_hears_of_a_change_before_its_first_turn() -> None:
    """Whoever has called `wait` has not missed it."""
    event = Event()
    wait = event.wait()
    event.set()
    await wait


async def test_who_gives_up_is_forgotten() -> None:
    """The others are woken all the same, also when one gives up in the same moment."""
    event = Event()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        impatient, patient = (group.create_task(event.wait()) for _ in range(2))
        await turns()
        impatient.cancel()
        event.set()
        await patient
        with pytest.raises(asyncio.CancelledError):
            await impatient
    event.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await event.wait()


async def test_a_wait_with_a_limit_ends_by_the_event_or_by_the_clock() -> None:
    """It takes no task, and its timer ends with it."""
    clock, signal = FakeClock(), Signal()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = len(asyncio.all_tasks())
        by_signal, by_time = (group.create_task(signal.wait_at_most(clock, seconds)) for seconds in (60.0, 5.0))
        await turns()
        assert len(asyncio.all_tasks()) == tasks + 2
        await clock.advance(5.0)
        assert (by_signal.done(), by_time.done()) == (False, True)
        signal.notify()
        await by_signal
    assert clock.sleep_count == 0


async def test_a_wait_with_a_limit_that_is_cancelled_leaves_neither_waiter_nor_timer() -> None:
    """And one for what has happened already does not begin."""
    clock, event = FakeClock(), Event()
    waiting = asyncio.ensure_future(event.wait_at_most(clock, 5.0))  # noqa: TID251 - ends before the test does
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock.sleep_count == 0
    assert event._waiters is None
    event.set()
    await event.wait_at_most(clock, 5.0)
    assert clock.sleep_count == 0


async def test_a_limit_that_is_over_in_the_moment_of_the_event_changes_nothing() -> None:
    """Nor does one that is over before it begins; no waiter is left."""
    event = Event()
    calls: list[Callable[[], object]] = []

    class Timers(FakeClock):
        def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.Future[None]:
            calls.append(call)
            return super().call_later(seconds, call)

    waiting = asyncio.ensure_future(event.wait_at_most(Timers(), 5.0))  # noqa: TID251 - ends before the test does
    await turns()
    event.set()
    calls[0]()
    await waiting
    calls[0]()
    event.clear()
    for seconds in (0.0, -1.0):
        async with asyncio.timeout(PATIENCE_S):
            await event.wait_at_most(LoopClock(), seconds)
    assert event._waiters is None
