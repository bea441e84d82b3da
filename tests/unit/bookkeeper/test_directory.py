"""Nodes of ZooKeeper as the source sees them: caught up before an absence counts, remembered only under a watch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.aio import Tasks
from offloaderd.core.errors import Denied, NotFound, Transient
from offloaderd.core.model import TopicName
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo, ManagedLedgerInfo
from offloaderd.ledgers.pulsar.directory import REWATCH_S, Directory, Nodes
from offloaderd.testing import FakeClock
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.bookkeeper.fake_cluster import FakeBookies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from offloaderd.metadata.port import Versioned


class Follower(MemoryMetadata):
    """A server that lags behind its leader: what is in `unseen` shows only after a sync."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.unseen: set[str] = set()
        self.syncs = 0
        self.reads = 0
        self.denied = False
        self.held = asyncio.Event()
        """Answers are on their way for as long as this is not set."""
        self.held.set()

    async def get(self, path: str) -> Versioned:
        """Return a node as far as this server knows."""
        self.reads += 1
        if path in self.unseen:
            raise NotFound(f"no node {path} yet")
        found = await super().get(path)
        await self.held.wait()
        return found

    async def sync(self, path: str) -> None:
        """Catch up."""
        self.syncs += 1
        self.unseen.clear()
        await super().sync(path)

    async def arm(self, path: str, fired: Callable[[], None]) -> None:
        """Watch, unless that is denied."""
        await super().arm(path, fired)
        if self.denied:
            raise Denied("no rights")


class Bench:
    """Nodes over a lagging server."""

    def __init__(self, server: Follower, nodes: Nodes, clock: FakeClock) -> None:
        self.server = server
        self.nodes = nodes
        self.clock = clock
        self.changes = 0

    def changed(self) -> None:
        """Count a change."""
        self.changes += 1

    async def get(self, *, fresh: bool = False) -> bytes:
        """Read the node."""
        return await self.nodes.get("/a", lambda node: node.value, fresh=fresh)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Nodes over a lagging server that has one node."""
    clock, server = FakeClock(), Follower(MemoryTree())
    await server.create("/a", b"one")
    async with Tasks("the ledger source") as background:
        yield Bench(server, Nodes(server, background, clock), clock)


async def test_an_absence_counts_only_after_catching_up(bench: Bench) -> None:
    """A server that lags behind does not make a node vanish."""
    bench.server.unseen = {"/a"}
    assert await bench.get() == b"one"
    assert bench.server.syncs == 1
    await bench.server.delete("/a")
    with pytest.raises(NotFound):
        await bench.get()
    assert bench.server.syncs == 2


async def test_a_fresh_value_is_caught_up_with_first(bench: Bench) -> None:
    """Whatever is remembered."""
    bench.nodes.follow("/a", bench.changed)
    await bench.clock.settle()
    assert await bench.get() == b"one"
    bench.server.unseen = {"/a"}
    assert await bench.get(fresh=True) == b"one"
    assert bench.server.syncs == 1


async def test_a_followed_node_is_read_once_for_each_change(bench: Bench) -> None:
    """Its absence is remembered too."""
    bench.nodes.follow("/a", bench.changed)
    await bench.clock.settle()
    for _ in range(3):
        assert await bench.get() == b"one"
    assert (bench.server.reads, bench.changes) == (1, 1)
    await bench.server.replace("/a", b"two", 0)
    await bench.clock.settle()
    for _ in range(3):
        assert await bench.get() == b"two"
    assert (bench.server.reads, bench.changes) == (2, 2)
    await bench.server.delete("/a")
    await bench.clock.settle()
    for _ in range(3):
        with pytest.raises(NotFound):
            await bench.get()
    assert (bench.server.reads, bench.changes) == (4, 3)


async def test_nothing_is_remembered_before_the_watch_is_set(bench: Bench) -> None:
    """A change in between would go unnoticed."""
    bench.nodes.follow("/a", bench.changed)
    assert await bench.get() == b"one"
    reads = bench.server.reads
    await bench.clock.settle()
    await bench.server.replace("/a", b"two", 0)
    assert await bench.get() == b"two"
    assert bench.server.reads == reads + 1


async def test_a_change_while_reading_is_not_overlooked(bench: Bench) -> None:
    """What was read before it is not kept."""
    bench.nodes.follow("/a", bench.changed)
    await bench.clock.settle()
    bench.server.held.clear()
    async with asyncio.TaskGroup() as group:
        read = group.create_task(bench.get())
        await bench.clock.settle()
        await bench.server.replace("/a", b"two", 0)
        await bench.clock.settle()
        bench.server.held.set()
    assert read.result() == b"one"
    assert await bench.get() == b"two"


async def test_who_follows_no_more_remembers_nothing(bench: Bench) -> None:
    """Every look reads again, and the watch is gone."""
    bench.nodes.follow("/a", bench.changed)
    await bench.clock.settle()
    await bench.get()
    bench.nodes.unfollow("/a")
    bench.nodes.unfollow("/a")
    reads = bench.server.reads
    await bench.get()
    await bench.get()
    assert bench.server.reads == reads + 2


async def test_a_watch_that_fails_is_set_again(bench: Bench) -> None:
    """Meanwhile nothing is remembered."""
    bench.server.denied = True
    bench.nodes.follow("/a", bench.changed)
    await bench.clock.settle()
    await bench.get()
    await bench.get()
    assert (bench.server.reads, bench.changes) == (2, 0)
    bench.server.denied = False
    await bench.clock.advance(REWATCH_S)
    assert bench.changes == 1
    await bench.get()
    await bench.get()
    assert bench.server.reads == 3
    bench.server.denied = True
    bench.server.expire()
    await bench.clock.settle()
    await bench.get()
    await bench.get()
    assert bench.server.reads == 5


async def test_a_new_session_reads_anew(bench: Bench) -> None:
    """Watches are gone with a session: nothing from before is trusted."""
    bench.nodes.follow("/a", bench.changed)
    await bench.clock.settle()
    await bench.get()
    bench.server.expire()
    await bench.clock.settle()
    await bench.get()
    assert (bench.server.reads, bench.changes) == (2, 2)


async def test_the_list_shows_what_was_deleted_only_after_catching_up(bench: Bench) -> None:
    """Its ids are read fresh, those that BookKeeper lost included; a cluster without topics says nothing of any."""
    topic = TopicName("public", "default", "orders")
    directory = Directory(bench.server, bench.nodes, BookkeeperSettings(), FakeBookies())
    with pytest.raises(Transient, match="no topics at all"):
        await directory.listed(topic)
    path = directory.topic_path(topic)
    info = ManagedLedgerInfo(
        ledgerInfo=[LedgerInfo(ledgerId=3, entries=1, size=1, timestamp=1), LedgerInfo(ledgerId=7)]
    )
    await bench.server.create(path, info.SerializeToString())
    bench.server.unseen.add(path)
    syncs = bench.server.syncs
    assert await directory.listed(topic) == [3, 7]
    assert bench.server.syncs == syncs + 1
    with pytest.raises(NotFound):
        await directory.listed(TopicName("public", "default", "gone"))
