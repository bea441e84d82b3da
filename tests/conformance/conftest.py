"""The metadata store that its tests get: each adapter in turn, with an empty tree."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.conformance.metadata_stores import MemoryTrees, Tree, ZooKeeperTree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.metadata.port import MetadataStore


@pytest.fixture(params=["memory", "zookeeper"])
def servers(request: pytest.FixtureRequest) -> str:
    """Where the real server is, empty for the memory store."""
    return str(request.getfixturevalue("zookeeper")) if request.param == "zookeeper" else ""


@pytest.fixture
async def tree(servers: str) -> AsyncIterator[Tree]:
    """An empty tree of the adapter under test."""
    async with AsyncExitStack() as stack:
        yield ZooKeeperTree(servers, stack) if servers else MemoryTrees()


@pytest.fixture
async def store(tree: Tree) -> MetadataStore:
    """A store with a session on the tree."""
    return await tree.connect()
