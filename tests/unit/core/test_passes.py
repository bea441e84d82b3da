"""Passes over thousands of things: other tasks run in between, and what is looked at is as it is then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.core.aio import TURN_ITEMS, in_turns

if TYPE_CHECKING:
    from collections.abc import Iterator


async def test_other_tasks_run_between_two_turns() -> None:
    """All items come, in order and a few hundred at a time, and another task runs after each turn."""
    turns, ran = list[list[int]](), list[int]()

    async def other() -> None:
        while True:
            ran.append(len(turns))
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop

    async with asyncio.TaskGroup() as group:
        task = group.create_task(other())
        async for items in in_turns(range(3 * TURN_ITEMS + 7)):
            turns.append(items)
        task.cancel()
    assert [len(one) for one in turns] == [TURN_ITEMS, TURN_ITEMS, TURN_ITEMS, 7]
    assert [item for one in turns for item in one] == list(range(3 * TURN_ITEMS + 7))
    assert set(ran) >= {1, 2, 3}


async def test_items_are_made_in_their_turn() -> None:
    """A generator's later items follow what has changed meanwhile."""
    here = set(range(2 * TURN_ITEMS))

    def present() -> Iterator[int]:
        return (one for one in range(2 * TURN_ITEMS) if one in here)

    found = list[int]()
    async for items in in_turns(present()):
        found += items
        here.difference_update(range(TURN_ITEMS, 2 * TURN_ITEMS - 1))
    assert found == [*range(TURN_ITEMS), 2 * TURN_ITEMS - 1]
