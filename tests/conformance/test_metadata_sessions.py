"""The MetadataStore port, against the memory store, a real and a simulated ZooKeeper: sessions and watches."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Closed, Conflict, NotFound
from offloaderd.metadata.port import Create, Delete, Replace
from tests.conformance.metadata_stores import Changes, Tree, eventually
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore


async def test_ephemeral_nodes_go_when_their_store_is_closed(tree: Tree) -> None:
    """Only the closed session's nodes vanish; what it wrote otherwise stays."""
    one, two = await tree.connect(), await tree.connect()
    await one.create("/d/one", b"", ephemeral=True)
    await two.create("/d/two", b"", ephemeral=True)
    await one.create("/d/kept", b"")
    session = await one.session()
    await tree.disconnect(one)
    assert session.lost.is_set()
    await eventually(lambda: _has(two, "/d", ["kept", "two"]))


async def test_an_expired_session_is_lost_and_followed_by_another(tree: Tree) -> None:
    """`lost` is set, ephemeral nodes vanish, and the store goes on with a session of another id."""
    store, other = await tree.connect(), await tree.connect()
    await store.create("/d/one", b"", ephemeral=True)
    await store.transact([Create("/d/also", b"", ephemeral=True)])
    await other.create("/d/other", b"", ephemeral=True)
    session = await store.session()
    assert not session.lost.is_set()
    assert await store.session() is session
    await tree.expire(store)
    async with asyncio.timeout(PATIENCE_S):
        await session.lost.wait()
        following = await store.session()
    assert following.session_id != session.session_id
    assert not following.lost.is_set()
    assert await other.children("/d") == ["other"]
    await store.create("/d/one", b"again", ephemeral=True)
    assert await store.children("/d") == ["one", "other"]
    assert not (await other.session()).lost.is_set()


async def test_sessions_of_one_tree_have_different_ids(tree: Tree) -> None:
    """A session's id names it among all."""
    ids = [(await (await tree.connect()).session()).session_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(ids)


async def test_an_ephemeral_node_has_no_children(store: MetadataStore) -> None:
    """Creating below one is Conflict, alone and in a transaction."""
    await store.create("/a", b"", ephemeral=True)
    with pytest.raises(Conflict):
        await store.create("/a/b", b"")
    with pytest.raises(Conflict):
        await store.create("/a/b/c", b"")
    with pytest.raises(Conflict):
        await store.transact([Create("/a/b", b"")])
    assert await store.children("/a") == []


async def test_an_ephemeral_node_is_replaced_and_deleted_like_any(tree: Tree) -> None:
    """Its versions count as others do, whoever writes; a replace does not change whose it is."""
    one, two = await tree.connect(), await tree.connect()
    await one.create("/a", b"", ephemeral=True)
    assert await two.replace("/a", b"x", 0) == 1
    await tree.disconnect(one)
    await eventually(lambda: _has(two, "/", []))


async def test_a_closed_store_says_so(tree: Tree) -> None:
    """Every call after the end raises Closed."""
    store = await tree.connect()
    await tree.disconnect(store)
    for call in (store.get("/a"), store.children("/a"), store.create("/a", b""), store.delete("/a"), store.session()):
        with pytest.raises(Closed):
            await call
    with pytest.raises(Closed):
        await store.replace("/a", b"", 0)
    with pytest.raises(Closed):
        await store.transact([Create("/a", b"")])
    with pytest.raises(Closed):
        await anext(store.watch("/a"))


async def _has(store: MetadataStore, path: str, names: list[str]) -> bool:
    return await store.children(path) == names


async def test_a_watch_sees_every_kind_of_change(tree: Tree) -> None:
    """At once, creation of the node, its value, children coming and going, and its deletion; by another session."""
    store, other = await tree.connect(), await tree.connect()
    changes = Changes(store.watch("/a"))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(changes.run())
        await changes.next()
        await other.create("/a", b"")
        await changes.next()
        await other.replace("/a", b"x", 0)
        await changes.next()
        await other.create("/a/b", b"", ephemeral=True)
        await changes.next()
        await other.delete("/a/b")
        await changes.next()
        await other.transact([Replace("/a", b"y", 1), Create("/a/c", b""), Delete("/a/c"), Delete("/a", 2)])
        await changes.next()
        await other.create("/a/d/e", b"")
        await changes.next()
        watching.cancel()


async def test_a_watch_sees_ephemeral_nodes_vanish(tree: Tree) -> None:
    """How a daemon learns that an owner is gone: on the node itself and on its parent."""
    store, owner = await tree.connect(), await tree.connect()
    await owner.create("/t/owner", b"", ephemeral=True)
    node, folder = Changes(store.watch("/t/owner")), Changes(store.watch("/t"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(changes.run()) for changes in (node, folder)]
        await node.next()
        await folder.next()
        await tree.disconnect(owner)
        await node.next()
        await folder.next()
        with pytest.raises(NotFound):
            await store.get("/t/owner")
        for task in tasks:
            task.cancel()


async def test_a_change_is_never_missed(tree: Tree) -> None:
    """Whoever looks after every yield has seen the last value in the end, however fast it changes."""
    store, other = await tree.connect(), await tree.connect()
    await other.create("/n", b"0")
    last = 200

    async def follow() -> list[int]:
        seen = []
        async with aclosing(store.watch("/n")) as changes:
            async for _ in changes:
                seen.append(int((await store.get("/n")).value))
                if seen[-1] == last:
                    return seen
        return seen

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        for number in range(last):
            await other.replace("/n", b"%d" % (number + 1), number)
    assert following.result() == sorted(following.result())
    assert following.result()[-1] == last


async def test_changes_are_coalesced(tree: Tree) -> None:
    """Many changes while nobody looks are one, or few; and none come without a change."""
    store, other = await tree.connect(), await tree.connect()
    await other.create("/n", b"")
    async with aclosing(store.watch("/n")) as changes:
        await anext(changes)
        for number in range(100):
            await other.replace("/n", b"", number)
        count = 0
        while True:
            try:
                async with asyncio.timeout(0.3):
                    await anext(changes)
            except TimeoutError:
                break
            count += 1
    assert 1 <= count <= 3


async def test_a_watch_is_quiet_about_other_nodes(tree: Tree) -> None:
    """Neither siblings, nor grandchildren, nor values of children wake it."""
    store, other = await tree.connect(), await tree.connect()
    await other.create("/a/b/c", b"")
    changes = Changes(store.watch("/a"))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(changes.run())
        await changes.next()
        await other.create("/ab", b"")
        await other.replace("/a/b", b"x", 0)
        await other.create("/a/b/d", b"")
        await other.delete("/a/b/c")
        await store.get("/a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await changes._wakes.wait()
        assert changes.count == 1
        watching.cancel()


async def test_several_watches_of_one_node_are_independent(tree: Tree) -> None:
    """Closing one leaves the other working."""
    store, other = await tree.connect(), await tree.connect()
    one, two = Changes(store.watch("/a")), Changes(store.watch("/a"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(changes.run()) for changes in (one, two)]
        await one.next()
        await two.next()
        tasks[0].cancel()
        await other.create("/a", b"")
        await two.next()
        await other.replace("/a", b"", 0)
        await two.next()
        assert one.count == 1
        tasks[1].cancel()


async def test_a_watch_outlives_its_session(tree: Tree) -> None:
    """A change of session counts as a change, and later changes still arrive."""
    store, other = await tree.connect(), await tree.connect()
    changes = Changes(store.watch("/a"))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(changes.run())
        await changes.next()
        session = await store.session()
        await tree.expire(store)
        async with asyncio.timeout(PATIENCE_S):
            await session.lost.wait()
        assert await store.session() is not session
        await changes.next()
        await other.create("/a", b"")
        for version in range(5):  # more than a connection that was cut while its session was ended can account for
            await changes.next()
            await other.replace("/a", b"", version)
        await changes.next()
        watching.cancel()


async def test_a_watch_ends_with_its_store(tree: Tree) -> None:
    """Closing the store ends an open watch with Closed instead of leaving it waiting for ever."""
    store = await tree.connect()
    changes = Changes(store.watch("/a"))

    async def run() -> None:
        with pytest.raises(Closed):
            await changes.run()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(run())
        await changes.next()
        await tree.disconnect(store)
