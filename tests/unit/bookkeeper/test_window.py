"""The window of one bookie: never more in flight than it has slots, first come first served, halved once for all."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.connections.connection import Window
from offloaderd.core.errors import InvalidInput
from tests.virtual import virtually

TURN_S = 0


async def turns(count: int = 5) -> None:
    """Let everybody run who can."""
    for _ in range(count):
        await asyncio.sleep(TURN_S)  # noqa: TID251 - only a turn of the loop


async def test_those_beyond_the_window_wait_in_turn() -> None:
    """With two slots the third waits until one is given back, and nobody overtakes."""
    window = Window(2)
    entered: list[int] = []

    async def one(number: int) -> None:
        await window.enter()
        entered.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(one(number))
        await turns()
        assert (entered, window.used) == ([0, 1], 2)
        window.release()
        await turns()
        assert (entered, window.used) == ([0, 1, 2], 2)
        for _ in range(2):
            window.release()
            await turns()
    assert entered == [0, 1, 2, 3, 4]


async def test_cancelled_waiters_leave_nothing_behind() -> None:
    """One who gives up waiting takes no slot, even if it was given one in the same turn."""
    window = Window(1)
    await window.enter()
    async with asyncio.TaskGroup() as group:
        waiters = [group.create_task(window.enter()) for _ in range(3)]
        await turns()
        waiters[0].cancel()
        await turns()
        window.release()  # gives the slot to the second, which is cancelled before it runs
        waiters[1].cancel()
        await turns()
        assert waiters[2].done()
        assert window.used == 1
        window.release()
    assert window.idle


async def test_a_window_halves_once_for_all_that_were_in_flight_together() -> None:
    """Eight requests turned away at once halve eight slots to four, not to none; the next one to two."""
    window = Window(8)
    tickets = [await window.enter() for _ in range(8)]
    for ticket in tickets:
        window.release()
        window.shrink(ticket)
    assert window.limit == 4
    later = await window.enter()
    window.shrink(later)
    assert window.limit == 2
    for _ in range(5):
        window.shrink(await window.enter() if window.used < window.limit else later + 100)
        window.release()
    assert window.limit == 1


async def test_good_answers_widen_it_again_up_to_its_size() -> None:
    """A slot is won for every window of good answers, and one who waits gets it."""
    window = Window(4)
    window.shrink(await window.enter())
    window.shrink(await window.enter())
    assert window.limit == 1
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(window.enter())
        await turns()
        window.release()
        assert not waiting.done()
        window.grow()
        window.release()
        await turns()
        assert waiting.done()
    for _ in range(20):
        window.grow()
    assert window.limit == 4


async def test_a_slot_that_it_grows_by_goes_to_the_first_who_waits() -> None:
    """Not only once another request is answered."""
    window = Window(2)
    window.shrink(await window.enter())
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(window.enter())
        await turns()
        assert not waiting.done()
        window.grow()
        await turns()
        assert (waiting.done(), window.used) == (True, 2)


def test_a_window_without_a_slot_is_refused() -> None:
    """It would let nothing through."""
    with pytest.raises(InvalidInput):
        Window(0)


@given(st.integers(1, 5), st.lists(st.sampled_from(["enter", "leave", "grow", "shrink", "cancel"]), max_size=60))
@settings(max_examples=60)
def test_it_never_admits_more_than_its_slots(slots_max: int, steps: list[str]) -> None:
    """Whatever happens, those in flight fit into the window as it was when they were admitted, and nobody starves."""

    async def run() -> None:
        window = Window(slots_max)
        waiting: list[asyncio.Task[int]] = []
        inside: list[int] = []
        async with asyncio.TaskGroup() as group:
            for step in steps:
                before = window.used
                match step:
                    case "enter":
                        waiting.append(group.create_task(window.enter()))
                    case "leave" if inside:
                        inside.pop(0)
                        window.release()
                    case "grow":
                        window.grow()
                    case "shrink" if inside:
                        window.shrink(inside[-1])
                    case "cancel" if waiting:
                        waiting.pop(0).cancel()
                await turns(3)
                assert window.used <= max(window.limit, before)
                inside += [task.result() for task in waiting if task.done() and not task.cancelled()]
                waiting = [task for task in waiting if not task.done()]
                assert window.used == len(inside)
                assert not waiting or window.used >= window.limit
            for task in waiting:
                task.cancel()

    virtually(run())
