"""The clock of tests does what simulations rely on."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.testing import FakeClock


async def test_waiting_tasks_wake_in_order_at_their_own_time() -> None:
    """Each sleeper sees the time of its deadline, whatever the step of the advance."""
    clock = FakeClock()
    seen: list[tuple[str, float]] = []

    async def nap(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("same", 1.0)):
            group.create_task(nap(name, seconds))
        await clock.advance(10)
    assert seen == [("early", 1.0), ("same", 1.0), ("late", 3.0)]
    assert clock.monotonic() == 10.0


async def test_a_loop_runs_as_often_as_its_period_fits() -> None:
    """A loop that sleeps again is woken again within the same advance."""
    clock = FakeClock()
    ticks = 0

    async def ticking() -> None:
        nonlocal ticks
        while ticks < 20:
            await clock.sleep(0.5)
            ticks += 1

    async with asyncio.TaskGroup() as group:
        task = group.create_task(ticking())
        await clock.advance(4)
        assert ticks == 8
        assert clock.next_wake_s == pytest.approx(0.5)
        task.cancel()


async def test_nobody_wakes_too_early() -> None:
    """A sleeper whose deadline is not reached stays asleep; one that was cancelled is forgotten."""
    clock = FakeClock()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(clock.sleep(2))
        await clock.advance(1.999)
        assert not task.done()
        assert clock.sleep_count == 1
        task.cancel()
    assert clock.sleep_count == 0
    assert clock.next_wake_s is None


async def test_sleeping_no_time_gives_a_turn() -> None:
    """A sleep of nothing returns without an advance."""
    await FakeClock().sleep(0)


def test_chance_comes_from_the_seed() -> None:
    """The same seed gives the same ids and durations, another one others."""
    one, same, other = FakeClock(seed=1), FakeClock(seed=1), FakeClock(seed=2)
    first = one.uuid()
    assert first == same.uuid()
    assert first != one.uuid()
    assert first != other.uuid()
    assert first.version == 4
    assert one.jitter(4.0) == (same.uuid(), same.jitter(4.0))[1]
    assert all(2.0 <= one.jitter(4.0) <= 4.0 for _ in range(100))


async def test_the_wall_clock_follows_and_may_jump() -> None:
    """Advancing moves both clocks, a jump only the wall's."""
    clock = FakeClock(start_ms=1000)
    await clock.advance(1.5)
    assert clock.wall_ms() == 2500
    clock.jump(-2000)
    assert clock.wall_ms() == 500
    assert clock.monotonic() == 1.5
