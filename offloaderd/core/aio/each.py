"""Concurrent calls for many items, with a limit."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from offloaderd.core.aio.groups import Group
from offloaderd.core.errors import first_of

A = TypeVar("A")
B = TypeVar("B")

IN_FLIGHT_MAX = 32


async def each(items: Sequence[A], ask: Callable[[A], Awaitable[B]], *, in_flight_max: int = IN_FLIGHT_MAX) -> list[B]:
    """Return the result of `ask` for every item, in order. At most `in_flight_max` calls run at a time.

    The first error cancels the others and is raised.
    """
    answers: dict[int, B] = {}
    todo = iter(enumerate(items))

    async def work() -> None:
        for index, item in todo:
            answers[index] = await ask(item)

    try:
        async with Group() as group:
            for _ in range(min(in_flight_max, len(items))):
                group.create_task(work(), name="one of each")
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return [answers[index] for index in range(len(items))]
