"""Indexes and manifests read whole: short ones at once, long ones one after the other."""

from __future__ import annotations

import asyncio

from offloaderd.clock import SystemClock
from offloaderd.objects.memory import MemoryStore
from offloaderd.objects.whole import AT_ONCE_BYTES, Wholes


async def store() -> MemoryStore:
    """Return a bucket with objects of several lengths."""
    made = MemoryStore(SystemClock())
    for key, size in (("empty", 0), ("short", 100), ("edge", AT_ONCE_BYTES), ("long", 3 * AT_ONCE_BYTES)):
        await made.put(key, bytes(size))
    return made


async def test_objects_come_whole_whatever_their_length() -> None:
    """Also those that are looked at together, of which both may be long."""
    bucket, wholes = await store(), Wholes()

    def of(key: str):  # type: ignore[no-untyped-def] # noqa: ANN202
        return lambda length: bucket.get(key, 0, length)

    for keys in (["empty"], ["short"], ["edge"], ["long"], ["short", "long"], ["long", "edge"]):
        async with wholes.read(*map(of, keys)) as found:
            assert [len(data) for data in found] == [len(await bucket.get(key)) for key in keys]


async def test_long_objects_are_held_one_at_a_time() -> None:
    """However many are asked for at once; short ones do not wait for them."""
    bucket, wholes = await store(), Wholes()
    held = most = short = 0

    async def look(key: str) -> None:
        nonlocal held, most, short
        async with wholes.read(lambda length: bucket.get(key, 0, length)) as (data,):
            if len(data) < AT_ONCE_BYTES:
                short += 1
                return
            held += 1
            most = max(most, held)
            for _ in range(20):
                await asyncio.sleep(0)  # noqa: TID251 - gives the others their turn
            held -= 1

    async with asyncio.TaskGroup() as group:
        for key in ["long"] * 8 + ["short"] * 8:
            group.create_task(look(key))
    assert (most, short) == (1, 8)
