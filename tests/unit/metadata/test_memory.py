"""What the memory store has beyond the port: several sessions on one tree, and tests that hold it in their hands."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from offloaderd.testing.memory.metadata import MemoryTree


async def test_a_closed_watch_is_forgotten() -> None:
    """Closing, and cancelling the task that waits, both remove the watch from the tree."""
    tree = MemoryTree()
    store = tree.connect()
    async with aclosing(store.watch("/a")) as changes:
        await anext(changes)
        assert tree.watcher_count == 1
    assert tree.watcher_count == 0

    async def follow() -> None:
        async for _ in store.watch("/a"):
            pass

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        while not tree.watcher_count:
            await asyncio.sleep(0)  # noqa: TID251 - lets it start
        following.cancel()
    assert tree.watcher_count == 0


async def test_expiring_takes_the_ephemeral_nodes_of_that_session_only() -> None:
    """Another session's nodes and plain ones stay; the expired store goes on."""
    tree = MemoryTree()
    async with tree.connect() as one, tree.connect() as two:
        await one.create("/one", b"", ephemeral=True)
        await one.create("/plain", b"")
        await two.create("/two", b"", ephemeral=True)
        first = await one.session()
        one.expire()
        assert first.lost.is_set()
        assert await two.children("/") == ["plain", "two"]
        await one.create("/one", b"", ephemeral=True)
    async with tree.connect() as three:
        assert await three.children("/") == ["plain"]
