"""Requests side by side under a limit."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.aio import IN_FLIGHT_MAX, each
from offloaderd.core.errors import NotFound


async def test_answers_come_in_the_order_of_the_items() -> None:
    """However long each takes; nothing for nothing."""

    async def late(number: int) -> int:
        for _ in range(number % 7):
            await asyncio.sleep(0)  # noqa: TID251 - takes a few turns
        return number * 2

    assert await each(range(100), late) == [number * 2 for number in range(100)]
    assert await each([], late) == []


async def test_no_more_than_the_limit_are_under_way() -> None:
    """The limit is reached and never passed."""
    running = most = 0

    async def count(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)  # noqa: TID251 - lets the others start
        running -= 1

    await each(range(200), count)
    assert most == IN_FLIGHT_MAX


async def test_the_first_error_ends_all() -> None:
    """It comes out as itself, not in a group, and nothing is asked afterwards."""
    asked = []

    async def fail(number: int) -> None:
        asked.append(number)
        await asyncio.sleep(0)  # noqa: TID251 - lets the others start
        if number == 3:
            raise NotFound("three")

    with pytest.raises(NotFound, match="three"):
        await each(range(1000), fail)
    assert len(asked) < 3 * IN_FLIGHT_MAX
