"""The stores that the metadata suites run against, and how a test gets sessions of one tree."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Protocol, TypeVar

from offloaderd.core.clock import SystemClock
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from offloaderd.metadata.port import MetadataStore

SESSION_S = 10.0
S = TypeVar("S", bound="MetadataStore")


class Tree(Protocol):
    """One empty tree, and sessions with it."""

    async def connect(self) -> MetadataStore:
        """Open a store with a session of its own; it lives until the test ends."""
        ...

    async def disconnect(self, store: MetadataStore) -> None:
        """Close a store."""
        ...

    async def expire(self, store: MetadataStore) -> None:
        """Have the server end the store's session; returns when the server has done it."""
        ...


class MemoryTrees:
    """A tree in memory."""

    def __init__(self) -> None:
        self._tree = MemoryTree()

    async def connect(self) -> MemoryMetadata:
        """Open a store."""
        return self._tree.connect()

    async def disconnect(self, store: MetadataStore) -> None:
        """Close a store."""
        assert isinstance(store, MemoryMetadata)
        store.close()

    async def expire(self, store: MetadataStore) -> None:
        """End its session."""
        assert isinstance(store, MemoryMetadata)
        store.expire()


class ZooKeeperTree:
    """A new root on a running ZooKeeper."""

    def __init__(self, servers: str, stack: AsyncExitStack) -> None:
        self._servers = servers
        self._root = f"/conformance/{SystemClock().uuid()}"
        self._stack = stack
        self._open: dict[int, AsyncExitStack] = {}

    async def connect(self) -> ZooKeeperStore:
        """Open a store."""
        own = await self._stack.enter_async_context(AsyncExitStack())
        store = await own.enter_async_context(zookeeper_store(self._servers, self._root))
        self._open[id(store)] = own
        return store

    async def disconnect(self, store: MetadataStore) -> None:
        """Close a store."""
        await self._open[id(store)].aclose()

    async def expire(self, store: MetadataStore) -> None:
        """End its session as a second client that knows its id and password can."""
        assert isinstance(store, ZooKeeperStore)
        await expire_session(store)


def zookeeper_store(
    servers: str, root: str, *, session_s: float = SESSION_S, call_s: float = 10.0, connect_s: float = 20.0
) -> ZooKeeperStore:
    """A store with the short sessions of tests."""
    return ZooKeeperStore(
        servers, root, MetadataSettings(session_timeout_s=session_s, connect_timeout_s=connect_s), call_timeout_s=call_s
    )


async def expire_session(store: ZooKeeperStore) -> None:
    """Take the session over with a second client and close it there; returns once the server knows it no more.

    The store's own client takes its session back as soon as it is cut off, and a close that it overtakes is not sent.
    So the session is taken until the server gives another one instead.
    """
    from kazoo.client import KazooClient  # noqa: PLC0415 - only this needs it
    from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415

    client = await store._connection.client()
    stolen = client.client_id
    assert stolen is not None

    def has_ended() -> bool:
        thief = KazooClient(hosts=store._servers, timeout=SESSION_S, client_id=stolen)
        try:
            thief.start(timeout=PATIENCE_S)
            assert thief.client_id is not None
            return bool(thief.client_id[0] != stolen[0])
        except KazooTimeoutError:  # cut off again before it could look
            return False
        finally:
            thief.stop()
            thief.close()

    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(has_ended):
            pass


class Changes:
    """A watch that a test asks for its next change; closing it closes the watch."""

    def __init__(self, iterator: AsyncGenerator[None, None]) -> None:
        self._iterator = iterator
        self._count = 0
        self._wakes = asyncio.Event()

    async def run(self) -> None:
        """Count changes until cancelled."""
        async with aclosing(self._iterator) as changes:
            async for _ in changes:
                self._count += 1
                self._wakes.set()

    @property
    def count(self) -> int:
        """How many changes there were so far."""
        return self._count

    async def next(self) -> None:
        """Return once there has been a change since the last call."""
        async with asyncio.timeout(PATIENCE_S):
            await self._wakes.wait()
        self._wakes.clear()


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_S) -> None:
    """Return once the condition holds; fails after `seconds`."""
    clock = SystemClock()
    async with asyncio.timeout(seconds):
        while not await condition():
            await clock.sleep(0.02)
