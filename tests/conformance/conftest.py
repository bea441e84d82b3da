"""What the suites get: each adapter in turn, empty; those of the simulation on its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from offloaderd.metadata.zookeeper import client
from tests.conformance.metadata_stores import MemoryTrees, Tree, ZooKeeperTree
from tests.conformance.simulated import SIMULATED, SimulatedTree, simulated_world
from tests.simulation.loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.metadata.port import MetadataStore

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "real": asyncio.SelectorEventLoop,
    "virtual": VirtualLoop,
}


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give both loops to tests that run on the simulation as well, and to those that choose by their mark."""
    mark = item.get_closest_marker("asyncio")
    chooses = mark is not None and "loop_factories" in mark.kwargs
    return LOOPS if chooses or "adapter" in getattr(item, "fixturenames", ()) else {"real": LOOPS["real"]}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out an adapter on a loop that is not its own."""
    items[:] = [item for item in items if _fits(item)]


def _fits(item: pytest.Item) -> bool:
    chosen = getattr(item, "callspec", None)
    if chosen is None or "adapter" not in chosen.params:
        return True
    return (chosen.params["adapter"] == SIMULATED) is (VirtualLoop in chosen.params.values())


@pytest.fixture
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients come back as soon as the server does."""
    monkeypatch.setattr(client, "RECONNECT_PAUSE_MAX_S", 0.2)


@pytest.fixture(params=["memory", "zookeeper", SIMULATED])
def adapter(request: pytest.FixtureRequest) -> str:
    """The adapter under test."""
    return str(request.param)


@pytest.fixture
def servers(adapter: str, request: pytest.FixtureRequest) -> str:
    """Where the real server is, empty for stores without one."""
    return str(request.getfixturevalue("zookeeper")) if adapter == "zookeeper" else ""


@pytest.fixture
async def tree(adapter: str, servers: str) -> AsyncIterator[Tree]:
    """An empty tree of the adapter under test."""
    if adapter == "memory":
        yield MemoryTrees()
    elif adapter == SIMULATED:
        with simulated_world() as world:
            yield SimulatedTree(world)
    else:
        async with AsyncExitStack() as stack:
            yield ZooKeeperTree(servers, stack)


@pytest.fixture
async def store(tree: Tree) -> MetadataStore:
    """A store with a session on the tree."""
    return await tree.connect()
