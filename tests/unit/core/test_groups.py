"""Groups of tasks: errors and cancellations that come together are both heard of."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from offloaderd.core.aio import Group
from offloaderd.core.errors import Transient, first_of
from tests.patience import PATIENCE_S


async def failing_when_cancelled() -> None:
    """Answer a cancellation with an error, as a request does whose connection is closed under it."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise Transient("closed") from None


async def failing() -> None:
    """Fail at once."""
    raise Transient("closed")


async def grouped(*work: str) -> None:
    """Run a group of these."""
    try:
        async with Group() as group:
            for one in work:
                group.create_task(failing() if one == "fails" else failing_when_cancelled())
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None


async def test_a_loop_that_goes_on_after_errors_ends_when_it_is_cancelled() -> None:
    """The error that a cancellation brings about does not hide it."""
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            try:
                await grouped("waits")
            except Transient:
                continue

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        task = group.create_task(loop())
        await turns(3)
        task.cancel()
    assert task.cancelled()
    assert rounds == 2  # the second begins, and is cancelled at its first await


@pytest.mark.parametrize("work", [("fails",), ("waits",), ("fails", "waits")])
async def test_a_cancellation_that_is_on_its_way_when_a_group_begins_is_not_lost(work: tuple[str, ...]) -> None:
    """It comes at the group's first await, together with the error of a task, which is the lesser of the two."""

    async def loop() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        for _ in range(3):
            with suppress(Transient):
                await grouped(*work)
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        ended = group.create_task(loop())
    assert ended.cancelled()


@pytest.mark.parametrize("work", [("fails",), ("fails", "waits")])
async def test_errors_leave_no_trace_of_a_cancellation(work: tuple[str, ...]) -> None:
    """Who handles the error of a group is not being cancelled."""
    with pytest.raises(Transient):
        await grouped(*work)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await turns(1)


async def test_a_time_limit_around_a_group_is_kept() -> None:
    """It cancels from outside as well, and takes that back."""

    async def again_and_again() -> None:
        while True:
            with suppress(Transient):
                await grouped("waits")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(again_and_again(), 0.01)


async def turns(count: int) -> None:
    """Let everything that is ready run a few times."""
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time


class Held:
    """Something that a task holds."""


async def holding(held: Held) -> Held:
    """Wait in a group, and in one below it, until cancelled."""
    async with Group() as outer, Group() as inner:
        outer.create_task(asyncio.Event().wait())
        await inner.create_task(asyncio.Event().wait())
    return held


@pytest.mark.parametrize("end", ["cancelled", "fails"])
async def test_what_the_tasks_of_a_group_held_goes_with_it(end: str) -> None:
    """However it ended, nothing has to wait for the collector of cycles."""

    async def run(held: Held) -> None:
        async with Group() as group:
            task = group.create_task(holding(held))
            await turns(3)
            if end == "cancelled":
                task.cancel()
            else:
                group.create_task(failing())

    held = Held()
    kept = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        with suppress(BaseExceptionGroup):
            await run(held)
        del held
        await turns(3)
        assert kept() is None
    finally:
        gc.enable()
