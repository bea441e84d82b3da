"""The ledger source over a cluster in memory: what is listed, how far it may be read, and that reading is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.errors import InvalidInput, NotFound
from offloaderd.ledgers.bookkeeper.entry import DigestType
from offloaderd.ledgers.bookkeeper.options import SourceOptions
from offloaderd.ledgers.bookkeeper.source import BookKeeperLedgers
from offloaderd.metrics import Metrics
from offloaderd.model import Edge, LedgerInfo
from offloaderd.testing import FakeClock, payloads
from tests.unit.ledgers.bookkeeper.fake_cluster import TOPIC, FakeCluster, Shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STRIPED = Shape(ensemble=3)


@pytest.fixture
def clock() -> FakeClock:
    """The time of a test; only `advance` moves it."""
    return FakeClock()


@pytest.fixture
def cluster() -> FakeCluster:
    """An empty cluster."""
    return FakeCluster()


@pytest.fixture
async def source(cluster: FakeCluster, clock: FakeClock) -> AsyncIterator[BookKeeperLedgers]:
    """A source on the cluster."""
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=clock, metrics=Metrics(), options=SourceOptions()
    ) as opened:
        yield opened


async def entries(
    source: BookKeeperLedgers, ledger_id: int, first: int, last: int, *, batch_bytes: int = 1 << 20
) -> list[bytes]:
    """Read a range whole, checking that its batches follow each other."""
    found: list[bytes] = []
    async for batch in source.read(TOPIC, ledger_id, first, last, batch_bytes=batch_bytes):
        assert (batch.ledger_id, batch.first_entry_id) == (ledger_id, first + len(found))
        assert batch.payloads
        found += batch.payloads
    return found


async def test_ledgers_come_in_order_with_what_is_known_of_each(
    source: BookKeeperLedgers, cluster: FakeCluster
) -> None:
    """Closed ones as the list says, the open one as BookKeeper does."""
    with pytest.raises(NotFound, match="unknown topic"):
        await source.ledgers(TOPIC)
    first = await cluster.ledger()
    await first.write(payloads(5, 10))
    await first.close()
    second = await cluster.ledger()
    await second.write(payloads(3))
    assert await source.ledgers(TOPIC) == [
        LedgerInfo(ledger_id=7, closed=True, entries=5, size_bytes=50, closed_at_ms=1_700_000_000_123),
        LedgerInfo(ledger_id=10, closed=False, entries=0, size_bytes=0),
    ]


@pytest.mark.parametrize("shape", [Shape(), Shape(ensemble=3, write_quorum=3), STRIPED], ids=["2/2", "3/3", "3/2"])
@pytest.mark.parametrize("digest", DigestType)
async def test_every_entry_comes_once_and_in_order(
    source: BookKeeperLedgers, cluster: FakeCluster, shape: Shape, digest: DigestType
) -> None:
    """Whole, in parts, with small and large batches, however entries are spread and protected."""
    ledger = await cluster.ledger(Shape(ensemble=shape.ensemble, write_quorum=shape.write_quorum, digest=digest))
    written = payloads(200, 100)
    await ledger.write(written)
    await ledger.close()
    for batch_bytes in (1, 1000, 1 << 20):
        assert await entries(source, 7, 0, 199, batch_bytes=batch_bytes) == written
    assert await entries(source, 7, 17, 99) == written[17:100]
    assert await entries(source, 7, 199, 199) == written[199:]
    assert await source.length_at(TOPIC, 7, 9) == 1000


async def test_an_open_ledger_is_read_up_to_its_lac(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """The last stored entry is hidden until something says that it is confirmed."""
    ledger = await cluster.ledger()
    await ledger.write(payloads(10))
    confirmed = await source.confirmed(TOPIC, 7)
    assert (confirmed.last_entry_id, confirmed.closed, confirmed.hidden) == (8, False, 1)
    assert confirmed.edge is Edge.NEXT_WRITE
    assert await entries(source, 7, 0, 8) == ledger.payloads[:9]
    with pytest.raises(InvalidInput, match="not confirmed"):
        await entries(source, 7, 0, 9)
