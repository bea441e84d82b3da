"""Parts on their way: halved when the store asks for fewer, one more after a window of successes, shared by all."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.errors import Denied, NoSpace, OutcomeUnknown, Throttled, Transient
from offloaderd.core.limits import Pace
from tests.unit.rigs.rig import turn


def good(pace: Pace, count: int) -> None:
    """Let so many parts work at the present pace."""
    for _ in range(count):
        pace.worked(pace.mark())


def test_a_refusal_halves_and_a_window_of_successes_adds_one() -> None:
    """16, refused: 8; after eight good parts 9, after nine more 10; never above the ceiling, never below one."""
    last_answer: list[int] = []
    pace = Pace(16, changed=last_answer.append)
    pace.failed(Throttled("slow down"), pace.mark())
    assert pace.limit == 8
    good(pace, 7)
    assert pace.limit == 8
    good(pace, 1)
    assert pace.limit == 9
    good(pace, 9)
    assert pace.limit == 10
    good(pace, 1000)
    assert pace.limit == 16
    for _ in range(10):
        pace.failed(Throttled("slow down"), pace.mark())
    assert pace.limit == 1
    good(pace, 1)
    assert pace.limit == 2
    assert last_answer[:4] == [16, 8, 9, 10]
    assert last_answer[-6:] == [16, 8, 4, 2, 1, 2]


def test_one_burst_of_refusals_halves_once() -> None:
    """Sixteen parts that were on their way together and were all refused are one piece of news."""
    pace = Pace(16)
    marks = [pace.mark() for _ in range(16)]
    for mark in marks:
        pace.failed(Throttled("slow down"), mark)
    assert pace.limit == 8
    for mark in marks * 10:
        pace.worked(mark)
    assert pace.limit == 8, "what was sent before the cut says nothing about the pace since"


@pytest.mark.parametrize(
    ("error", "limit"),
    [(Throttled("t"), 2), (OutcomeUnknown("t"), 2), (Transient("t"), 4), (Denied("d"), 4), (NoSpace("n"), 4)],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_only_what_is_a_matter_of_pace_slows_down(error: Exception, limit: int) -> None:
    """Refusals for other reasons, and a store that cannot be reached, say nothing about the pace."""
    pace = Pace(4)
    pace.failed(error, pace.mark())
    assert pace.limit == limit


async def test_places_are_given_in_the_order_of_asking_and_never_more_than_the_limit() -> None:
    """Whoever asked first goes first; a limit that has fallen below what is on its way waits for these to end."""
    pace, order, most = Pace(4), list[int](), 0
    over = asyncio.Event()

    async def part(number: int) -> None:
        nonlocal most
        async with pace.held():
            order.append(number)
            most = max(most, pace.used)
            await over.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(part(number))
            await turn()
        assert order == [0, 1, 2, 3]
        pace.failed(Throttled("slow down"), pace.mark())
        over.set()
        most = 0
    assert order == list(range(10))
    assert most == 2
    assert pace.used == 0


@pytest.mark.parametrize("granted_first", [False, True])
async def test_a_cancelled_part_keeps_no_place(granted_first: bool) -> None:
    """Cancelled before or just after its turn came, a part leaves its place to the next."""
    pace, entered = Pace(1), list[str]()

    async def part(name: str) -> None:
        async with pace.held():
            entered.append(name)

    async with asyncio.TaskGroup() as group:
        async with pace.held():
            cancelled = group.create_task(part("cancelled"))
            behind = group.create_task(part("behind"))
            await turn()
            if not granted_first:
                cancelled.cancel()
                await turn()
        if granted_first:
            cancelled.cancel()
        await behind
    assert entered == ["behind"]
    assert pace.used == 0
