"""A source says which cluster it is, and whether that cluster's lists of ledgers are still the present ones."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.ledger_tail import ADMIN_LOOK_S
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import Conflict, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.ledgers.pulsar.managed_ledger import flag_path, moved_reason
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.ledgers.pulsar.topic import STILL_S
from offloaderd.testing import FakeClock, payloads
from tests.unit.bookkeeper.bench import benched
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INSTANCE = "e34a5a6c-8b0a-4bd1-9a0e-3d1a6a3d8a51"
FLAG = "/pulsar/migration-coordinator/migration"


@pytest.fixture
def cluster() -> FakeCluster:
    """An empty cluster."""
    return FakeCluster()


@pytest.fixture
async def source(cluster: FakeCluster) -> AsyncIterator[BookKeeperLedgers]:
    """A source on the cluster."""
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=FakeClock(), metrics=Metrics(), options=BookkeeperSettings()
    ) as opened:
        yield opened


async def put(cluster: FakeCluster, path: str, content: bytes) -> None:
    """Make a node, and those above it."""
    for end in [index for index, char in enumerate(path) if char == "/" and index]:
        with suppress(Conflict):
            await cluster.znodes.create(path[:end], b"")
    try:
        await cluster.znodes.create(path, content)
    except Conflict:
        await cluster.znodes.replace(path, content, (await cluster.znodes.get(path)).version)


async def test_a_cluster_is_known_by_its_instance_id(cluster: FakeCluster, source: BookKeeperLedgers) -> None:
    """None before there is one; it is read again whenever it may be another one."""
    assert await source.identity() is None
    await put(cluster, "/ledgers/INSTANCEID", INSTANCE.encode())
    assert await source.identity() == INSTANCE
    await put(cluster, "/ledgers/INSTANCEID", b"another\n")
    assert await source.identity() == "another"


async def test_the_flag_of_a_moving_cluster_is_seen(cluster: FakeCluster, source: BookKeeperLedgers) -> None:
    """From its first phase on, and after it failed no more."""
    assert await source.moved(TOPIC) is None
    for phase, told in (
        ("PREPARATION", "moving"),
        ("COPYING", "moving"),
        ("FAILED", None),
        ("COMPLETED", "out of date"),
        ("NOT_STARTED", None),
    ):
        await put(cluster, FLAG, json.dumps({"phase": phase, "targetUrl": "oxia://oxia:6648"}).encode())
        reason = await source.moved(TOPIC)
        assert (told is None and reason is None) or (reason is not None and str(told) in reason and FLAG in reason)


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b'"COPYING"', b"\xff", b'{"phase": "LATER"}'])
def test_a_flag_that_nobody_can_read_counts(content: bytes) -> None:
    """What a later release writes there is no reason to believe a list."""
    assert moved_reason(content, path=FLAG) is not None


def test_the_flag_is_beside_the_topics() -> None:
    """A cluster's metadata may begin at a path of its own."""
    assert flag_path("/managed-ledgers") == FLAG
    assert flag_path("/eu/managed-ledgers/") == f"/eu{FLAG}"


async def test_when_a_ledger_was_made_is_said_by_its_metadata_or_by_its_node(
    cluster: FakeCluster, source: BookKeeperLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most writers leave it to the node; a closed ledger says it once BookKeeper was asked for it."""
    first = await cluster.ledger()
    await first.write(payloads(5))
    await first.change(ctime_ms=1_700_000_000_000)
    assert [one.created_ms for one in await source.ledgers(TOPIC)] == [1_700_000_000_000]
    await first.change(ctime_ms=None)
    node = cluster.tree.node
    monkeypatch.setattr(cluster.tree, "node", lambda path: replace(node(path), created_ms=5_000))
    assert [one.created_ms for one in await source.ledgers(TOPIC)] == [5_000]
    await first.close()
    await cluster.ledger()
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=FakeClock(), metrics=Metrics(), options=BookkeeperSettings()
    ) as fresh:
        assert (await fresh.ledgers(TOPIC))[0].created_ms is None
        found = await fresh.inspected(TOPIC, first.ledger_id)
        assert (found.closed, found.entries, found.created_ms) == (True, 5, 5_000)
        assert (await fresh.ledgers(TOPIC))[0].created_ms == 5_000
        with pytest.raises(NotFound):
            await fresh.inspected(TOPIC, 99)


async def test_a_list_that_stands_still_while_the_broker_names_a_later_ledger_is_told() -> None:
    """Also of a topic that hides nothing; not while the list may only be late, and not once it has the ledger."""
    async with benched() as bench:
        ledger = await bench.cluster.ledger()
        await ledger.write(payloads(10))
        await ledger.write(payloads(1, first_entry_id=10), lac=10)
        await bench.confirmed()
        bench.broker.position = Position(12, 3)
        for _ in range(2):
            await bench.clock.advance(ADMIN_LOOK_S / 2)
            await bench.confirmed()
        assert len(bench.broker.asked_s) == 1
        assert await bench.source.moved(TOPIC) is None
        await bench.clock.advance(STILL_S)
        reason = await bench.source.moved(TOPIC)
        assert reason is not None
        assert "writes ledger 12 and the list of its ledgers ends with 7" in reason
        await ledger.close()
        await bench.cluster.ledger(ledger_id=12)
        assert await bench.source.moved(TOPIC) is None


async def test_a_list_stands_still_since_the_broker_first_named_a_later_ledger() -> None:
    """It is asked time and again while entries are hidden: each answer that is the same begins no new wait."""
    async with benched() as bench:
        ledger = await bench.cluster.ledger()
        await ledger.write(payloads(5), lac=-1)
        bench.broker.position = Position(12, 3)
        for _ in range(70):
            await bench.clock.advance(1)
            await bench.confirmed()
        assert len(bench.broker.asked_s) > 3
        assert await bench.source.moved(TOPIC) is not None
