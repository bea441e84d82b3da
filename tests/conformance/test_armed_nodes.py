"""Watches of nodes without a task each (`bookkeeper.ports.Znodes`), in memory, on real and on simulated servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Closed
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.testing.memory.metadata import MemoryMetadata
from tests.patience import PATIENCE_S
from tests.simulation.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore
    from tests.conformance.metadata_stores import Tree

QUIET_S = 0.3


class Armed:
    """One who is told of a node of a store."""

    def __init__(self, store: MetadataStore, path: str = "/a") -> None:
        assert isinstance(store, ZooKeeperStore | MemoryMetadata | ZooKeeper)
        self._store = store
        self._path = path
        self._fired = asyncio.Event()

    async def arm(self) -> None:
        """Be told from now on."""
        self._fired.clear()
        await self._store.arm(self._path, self.fire)

    def disarm(self) -> None:
        """Be told no more."""
        self._store.disarm(self._path, self.fire)

    def fire(self) -> None:
        """Be told."""
        self._fired.set()

    async def told(self) -> None:
        """Wait for it."""
        async with asyncio.timeout(PATIENCE_S):
            await self._fired.wait()

    async def is_quiet(self) -> None:
        """Make sure that nothing is told."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                await self._fired.wait()


async def test_who_is_armed_hears_of_every_kind_of_change(tree: Tree) -> None:
    """The node is made, replaced and deleted by another session; after each time it is armed anew."""
    store, other = await tree.connect(), await tree.connect()
    armed = Armed(store)
    await armed.arm()
    await armed.is_quiet()
    await other.create("/a", b"")
    await armed.told()
    await armed.arm()
    await other.create("/ab", b"")
    await armed.is_quiet()
    await other.replace("/a", b"x", 0)
    await armed.told()
    await armed.arm()
    await other.delete("/a")
    await armed.told()


async def test_who_is_armed_hears_of_a_new_session(tree: Tree) -> None:
    """What changed meanwhile may never be told of."""
    store = await tree.connect()
    armed = Armed(store)
    await armed.arm()
    await tree.expire(store)
    await armed.told()
    await armed.arm()
    await store.create("/a", b"")
    await armed.told()


async def test_who_is_disarmed_hears_nothing(tree: Tree) -> None:
    """Not of the node, not of a session; another one who is armed does."""
    store = await tree.connect()
    armed, other = Armed(store), Armed(store)
    armed.disarm()
    await armed.arm()
    await other.arm()
    armed.disarm()
    armed.disarm()
    await store.create("/a", b"")
    await other.told()
    await armed.is_quiet()


async def test_a_store_that_is_closed_arms_nobody(tree: Tree) -> None:
    """Who was armed is told, and finds out."""
    store = await tree.connect()
    armed = Armed(store)
    await armed.arm()
    await tree.disconnect(store)
    await armed.told()
    with pytest.raises(Closed):
        await armed.arm()
