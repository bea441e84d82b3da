"""The ledger source over a cluster in memory: what is listed, how far it may be read, and that reading is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import Closed, CorruptData, Denied, InvalidConfig, InvalidInput, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Edge, LedgerInfo, TopicName
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.testing import FakeClock, payloads
from tests.real.ledger_nodes import encode
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster, Shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

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
        cluster.znodes, cluster.bookies, clock=clock, metrics=Metrics(), options=BookkeeperSettings()
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
        LedgerInfo(ledger_id=10, closed=False, entries=0, size_bytes=0, previous=7),
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


async def test_a_ledger_that_was_closed_and_not_yet_listed_so(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """After an unload the list still says nothing: BookKeeper has the numbers, and the time is when we noticed."""
    ledger = await cluster.ledger()
    await ledger.write(payloads(5, 10))
    await ledger.close()
    first = await source.ledgers(TOPIC)
    assert [(info.closed, info.entries, info.size_bytes) for info in first] == [(True, 5, 50)]
    assert first[0].closed_at_ms > 0
    assert await source.ledgers(TOPIC) == first
    assert (await source.confirmed(TOPIC, 7))[:2] == (4, True)


async def test_a_ledger_in_the_middle_that_is_open_ends_the_list(
    source: BookKeeperLedgers, cluster: FakeCluster
) -> None:
    """A broker that crashed left it so: what comes behind it waits until somebody closes it."""
    first = await cluster.ledger()
    await first.write(payloads(5))
    second = await cluster.ledger()
    await second.write(payloads(5))
    assert [info.ledger_id for info in await source.ledgers(TOPIC)] == [7]
    await first.close()
    assert [(info.ledger_id, info.closed) for info in await source.ledgers(TOPIC)] == [(7, True), (10, False)]


async def test_a_ledger_that_the_list_alone_calls_closed(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Its broker failed to close it in BookKeeper and went on: the list is the writer's own word."""
    first = await cluster.ledger()
    await first.write(payloads(5), lac=-1)
    cluster.say_closed(first)
    await cluster.ledger()
    assert [(info.entries, info.closed) for info in await source.ledgers(TOPIC)] == [(5, True), (0, False)]
    assert (await source.confirmed(TOPIC, 7))[:2] == (4, True)
    assert await entries(source, 7, 0, 4) == first.payloads


@pytest.mark.parametrize("last", [2, 9])
async def test_a_list_that_disagrees_with_bookkeeper_stops_the_read(
    source: BookKeeperLedgers, cluster: FakeCluster, last: int
) -> None:
    """Fewer entries than the list says are a loss; more would go unread when readers go on to the next ledger."""
    first = await cluster.ledger()
    await first.write(payloads(10))
    await first.close(last_entry_id=last)
    await cluster.ledger()
    cluster.listed[0].entries = 6
    await cluster.publish()
    with pytest.raises(CorruptData, match="expected 6 entries"):
        await entries(source, 7, 0, 2)


async def test_ledgers_that_are_gone_are_left_out(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Offloaded and deleted by Pulsar itself, deleted with the list not caught up, and trimmed."""
    for _ in range(4):
        await (await cluster.ledger()).close()
    cluster.listed[0].offloadContext.bookkeeperDeleted = True
    cluster.listed[1].ClearField("timestamp")
    await cluster.publish()
    await cluster.ledgers[1].delete()
    assert [(info.ledger_id, info.previous) for info in await source.ledgers(TOPIC)] == [(13, 10), (16, 13)]
    for ledger_id in (7, 10, 99):
        with pytest.raises(NotFound):
            await source.confirmed(TOPIC, ledger_id)
        with pytest.raises(NotFound):
            await entries(source, ledger_id, 0, 0)
    cluster.ledgers = cluster.ledgers[2:]
    await cluster.trim()
    assert [info.ledger_id for info in await source.ledgers(TOPIC)] == [16]


async def test_what_brokers_have_offloaded(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Closed ledgers with a copy of their own, whether or not BookKeeper still has them; the others are not told of."""
    for _ in range(4):
        ledger = await cluster.ledger()
        await ledger.write(payloads(3))
        await ledger.close()
    for number in (0, 1, 3):
        context = cluster.listed[number].offloadContext
        context.complete, context.uidMsb, context.uidLsb = number != 3, 1, number
    cluster.listed[0].offloadContext.bookkeeperDeleted = True
    await cluster.publish()
    found = await source.offloaded(TOPIC)
    assert [(info.ledger_id, info.entries, info.closed) for info in found] == [(7, 3, True), (10, 3, True)]
    assert [info.offloaded.source_deleted for info in found if info.offloaded is not None] == [True, False]
    assert [info.ledger_id for info in await source.ledgers(TOPIC)] == [10, 13, 16]


async def test_an_empty_list_is_no_ledger(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """A topic that was made and never written to."""
    await cluster.publish()
    assert await source.ledgers(TOPIC) == []


@pytest.mark.parametrize(
    "custom",
    [
        {"component": b"schema"},
        {"component": b"managed-ledger", "pulsar/managed-ledger": b"public/default/persistent/other"},
        {"component": b"managed-ledger", "pulsar/cursor": b"sub"},
    ],
)
async def test_a_ledger_of_something_else_is_refused(
    source: BookKeeperLedgers, cluster: FakeCluster, custom: dict[str, bytes]
) -> None:
    """A list that names a ledger of another topic, a cursor or a schema is not believed."""
    ledger = await cluster.ledger()
    await ledger.write(payloads(3))
    await ledger.close()
    await ledger.change(custom=custom)
    with pytest.raises(CorruptData, match="expected a ledger of persistent://public/default/flights"):
        await source.ledgers(TOPIC)
    with pytest.raises(CorruptData):
        await entries(source, 7, 0, 1)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_every_version_of_metadata_is_read(source: BookKeeperLedgers, cluster: FakeCluster, version: int) -> None:
    """Version 1 names no digest: Pulsar's own is taken."""
    ledger = await cluster.ledger(Shape(version=version))
    await ledger.write(payloads(10))
    await ledger.close()
    assert await entries(source, 7, 0, 9) == ledger.payloads


async def test_ids_above_two_to_the_31(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """They live on another path."""
    ledger = await cluster.ledger(ledger_id=2**31 + 5)
    await ledger.write(payloads(10))
    await ledger.close()
    assert await entries(source, 2**31 + 5, 0, 9) == ledger.payloads


async def test_the_clusters_layout_is_kept_to(cluster: FakeCluster, source: BookKeeperLedgers) -> None:
    """It says where ledgers are; one that keeps them elsewhere is refused with what to do."""
    ledger = await cluster.ledger()
    await ledger.close()
    await cluster.znodes.delete(ledger.path)
    await cluster.znodes.create("/ledgers/L0000000007", encode(ledger.metadata))
    await cluster.znodes.create("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    assert [info.closed for info in await source.ledgers(TOPIC)] == [True]
    await cluster.znodes.replace("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1", 0)
    async with BookKeeperLedgers(cluster.znodes, cluster.bookies, clock=FakeClock(), metrics=Metrics()) as other:
        with pytest.raises(InvalidConfig, match="MSLedgerManagerFactory"):
            await other.ledgers(TOPIC)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3), (-2, -1)])
async def test_ranges_that_cannot_be_are_refused(
    source: BookKeeperLedgers, cluster: FakeCluster, first: int, last: int
) -> None:
    """Before anybody is asked."""
    await (await cluster.ledger()).close()
    with pytest.raises(InvalidInput, match="no range of entries"):
        await entries(source, 7, first, last)
    with pytest.raises(InvalidInput, match="batch_bytes"):
        await entries(source, 7, 0, 1, batch_bytes=0)
    assert not cluster.bookies.requests


async def test_what_is_not_confirmed_is_never_asked_for(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Neither at the end of a closed ledger, nor by a batch that a bookie would fill."""
    asked: list[int] = []
    cluster.bookies.on_request = lambda operation, _bookie, entry_id: asked.append(entry_id)
    ledger = await cluster.ledger()
    await ledger.write(payloads(20))
    assert len(await entries(source, 7, 0, 18)) == 19
    with pytest.raises(InvalidInput):
        await source.length_at(TOPIC, 7, 19)
    assert max(asked) <= 18


async def test_batches_hold_about_what_was_asked(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """No batch is above the limit unless it is a single entry, and none is needlessly small."""
    for shape in (Shape(), STRIPED):
        ledger = await cluster.ledger(shape)
        written = [*payloads(100, 1000), *payloads(1, 50_000), *payloads(100, 1000)]
        await ledger.write(written)
        await ledger.close()
        sizes = [
            (batch.payload_bytes(), len(batch.payloads))
            async for batch in source.read(TOPIC, ledger.ledger_id, 0, 200, batch_bytes=10_000)
        ]
        assert all(size <= 10_000 or count == 1 for size, count in sizes)
        assert shape is STRIPED or len(sizes) <= 26


async def test_a_window_of_single_reads_fits_large_entries(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Sixty-four small entries may be under way at a time, of large ones only a few."""
    small = await cluster.ledger(STRIPED)
    await small.write(payloads(500, 100))
    await small.close()
    await entries(source, 7, 0, 499)
    assert 30 < cluster.bookies.in_flight_max <= 64
    cluster.bookies.in_flight_max = 0
    large = await cluster.ledger(STRIPED)
    await large.write(payloads(60, 1 << 19))
    await large.close()
    await entries(source, 10, 0, 59)
    assert cluster.bookies.in_flight_max <= 8


async def test_answers_that_come_at_once_are_used_at_once(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """A request that ran ahead may be answered before the one before it has been looked at."""
    cluster.bookies.instant = True
    for shape in (Shape(), STRIPED):
        ledger = await cluster.ledger(shape)
        await ledger.write(payloads(50, 10))
        await ledger.close()
        for batch_bytes in (1, 100, 150, 1000):
            assert await entries(source, ledger.ledger_id, 0, 49, batch_bytes=batch_bytes) == ledger.payloads


async def test_the_length_at_an_entry_is_one_read(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Wherever it is, so that a boundary can be searched for."""
    ledger = await cluster.ledger()
    await ledger.write(payloads(100, 10))
    await ledger.close()
    for entry_id in (0, 57, 99, 12):
        cluster.bookies.requests.clear()
        assert await source.length_at(TOPIC, 7, entry_id) == (entry_id + 1) * 10
        assert sum(cluster.bookies.requests.values()) == 1


async def test_an_odd_length_of_a_closed_ledger_is_a_warning(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Recovery may write one that is wrong: the entry's own header is the truth."""
    ledger = await cluster.ledger()
    await ledger.write(payloads(5, 10))
    await ledger.close()
    await ledger.change(length_bytes=77)
    with capture_logs() as lines:
        assert len(await entries(source, 7, 0, 4)) == 5
    assert [line["event"] for line in lines] == ["source.ledger_length_differs"]


async def test_deleting_is_the_brokers_business(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """The daemon is told so, with who does it."""
    await (await cluster.ledger()).close()
    with pytest.raises(Denied, match="its broker deletes it"):
        await source.delete(TOPIC, 7)


async def test_topics_are_listed_by_tenant_and_namespace(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """In name order, decoded; what Pulsar would not write is left out with one warning."""
    names = ["acme/eu/b", "acme/eu/a b/ü", "acme/us/c", "public/default/d-partition-0"]
    for name in names:
        await cluster.publish(TopicName.parse(name))
    await cluster.znodes.create("/managed-ledgers/acme/eu/persistent/%FF", b"")
    await cluster.znodes.create("/managed-ledgers/old/cluster/namespace/persistent/x", b"")
    with capture_logs() as lines:
        everything = [str(topic).removeprefix("persistent://") for topic in await source.topics()]
        assert everything == sorted(names)
        assert [topic.local for topic in await source.topics(tenant="acme")] == ["a b/ü", "b", "c"]
        assert [topic.local for topic in await source.topics(tenant="acme", namespace="us")] == ["c"]
        assert await source.topics(tenant="nobody") == []
    assert [line["event"] for line in lines] == ["source.topic_skipped"]


async def test_topics_of_other_domains_are_listed_apart(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """`segment` is Pulsar's; what stands in a domain's place below a tenant of the first version is a namespace."""
    await cluster.publish(TopicName.parse("acme/eu/a"))
    for name in ("acme/eu/segment/b%2F0000-7fff-1", "acme/us/segment/c", "old/cluster/namespace/persistent"):
        await cluster.znodes.create(f"/managed-ledgers/{name}", b"")
    everything = ["segment://acme/eu/b/0000-7fff-1", "segment://acme/us/c"]
    assert await source.not_covered() == everything
    assert await source.not_covered(tenant="acme", namespace="us") == everything[1:]
    assert [topic.local for topic in await source.topics()] == ["a"]


async def test_reserved_topics_are_named_with_the_reason(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """Pulsar's own by their names, compacted ones by their cursor."""
    assert await source.reserved(TopicName("public", "default", "__change_events")) == "changes of topic policies"
    await cluster.ledger()
    assert await source.reserved(TOPIC) is None
    await cluster.znodes.create("/managed-ledgers/public/default/persistent/flights/__compaction", b"")
    assert "compacted" in (await source.reserved(TOPIC) or "")


async def test_watched_nodes_are_not_read_again(
    source: BookKeeperLedgers, cluster: FakeCluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody watches, looking at a topic costs ZooKeeper nothing; else every look reads."""
    ledger = await cluster.ledger()
    await ledger.write(payloads(3))
    reads: list[str] = []
    get = cluster.znodes.get

    async def counted(path: str) -> Any:  # noqa: ANN401 - whatever it is
        reads.append(path)
        return await get(path)

    monkeypatch.setattr(cluster.znodes, "get", counted)
    watch = source.watch(TOPIC)
    await anext(watch)
    await clock.advance(1)
    reads.clear()
    for _ in range(5):
        await source.ledgers(TOPIC)
        await source.confirmed(TOPIC, 7)
    assert reads == []
    await watch.aclose()
    await source.ledgers(TOPIC)
    assert len(reads) == 2


async def test_what_is_closed_refuses(cluster: FakeCluster) -> None:
    """Reading needs an open source."""
    await (await cluster.ledger()).close()
    source = BookKeeperLedgers(cluster.znodes, cluster.bookies, clock=FakeClock(), metrics=Metrics())
    async with source:
        pass
    await cluster.ledgers[0].write(payloads(1))
    with pytest.raises(InvalidInput):
        await entries(source, 7, 0, 0)
    with pytest.raises(Closed):
        await anext(source.watch(TOPIC))


async def test_the_list_has_the_word_on_what_was_deleted(source: BookKeeperLedgers, cluster: FakeCluster) -> None:
    """A ledger that BookKeeper lost is still listed; one that the broker trimmed is not."""
    for _ in range(3):
        ledger = await cluster.ledger()
        await ledger.write(payloads(2))
        await ledger.close()
    await cluster.ledgers[1].delete()
    with pytest.raises(NotFound):
        await entries(source, 10, 0, 1)
    assert [info.ledger_id for info in await source.ledgers(TOPIC)] == [7, 13]
    assert await source.listed(TOPIC) == [7, 10, 13]
    await cluster.trim()
    assert await source.listed(TOPIC) == [10, 13]
