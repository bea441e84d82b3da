"""Indexes and manifests, which are read whole: what is long is read one at a time, so that many do not fill the memory.

Nearly all are below `AT_ONCE_BYTES`, and need one request as ever. One that is not is asked for again, as a whole, when
it has its turn, and keeps it for as long as its bytes are looked at.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.errors import InvalidInput, first_of
from offloaderd.groups import Group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Get = Callable[[int | None], Awaitable[bytes]]
    """Returns the first n bytes of an object, or with None all of them."""

AT_ONCE_BYTES = 512 * 1024
"""As many as a manifest has of a segment of 3 GiB in blocks of 1 MiB."""


class Wholes:
    """Gives objects whole, the long ones one after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def read(self, *gets: Get) -> AsyncIterator[Sequence[bytes]]:
        """Give the bytes of objects that are looked at together, to be forgotten at the end.

        Raises what `get` raises; an empty object is no error.
        """
        found = await _side_by_side([_begun(get) for get in gets])
        long = [number for number, data in enumerate(found) if len(data) >= AT_ONCE_BYTES]
        if not long:
            yield found
            return
        async with self._turn:
            for number in long:
                found[number] = await gets[number](None)
            yield found


async def _begun(get: Get) -> bytes:
    try:
        return await get(AT_ONCE_BYTES)
    except InvalidInput:
        return b""  # an object without a first byte


async def _side_by_side(asked: Sequence[Awaitable[bytes]]) -> list[bytes]:
    if len(asked) == 1:
        return [await asked[0]]

    async def answer(one: Awaitable[bytes]) -> bytes:
        return await one

    try:
        async with Group() as group:
            tasks = [group.create_task(answer(one), name="beginning of an object") for one in asked]
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return [task.result() for task in tasks]
