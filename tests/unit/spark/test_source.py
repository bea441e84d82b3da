"""The data source without Spark: even shares, only the blocks that are wanted, damage that is named or counted."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import datasource as spark

from offloaderd.core.errors import BucketMissing, Denied, OffloaderError
from offloaderd.core.model import Loss, OffloadMethod, Position
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.spark.scan.options import Mode
from offloaderd.spark.scan.plan import HoleInRange, shares
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.segments import segment_reader
from offloaderd.spark.scan.share import BrokenSegment, Piece
from offloaderd.spark.scan.snapshot import Snapshot, holes_of
from offloaderd.testing.builders import payloads
from offloaderd.testing.faults import Faults, FaultyStore
from tests.unit.broker_objects import BrokerLedger
from tests.unit.fleet.test_engine import appended
from tests.unit.read.build import PREFIX, TOPIC, put_segment
from tests.unit.read.build import Piece as LedgerPiece
from tests.unit.rigs import rig as offloading
from tests.unit.rigs.rig import Rig, enabled, memory_ledgers, until
from tests.unit.segment.test_ledger_based import LEDGER_BASED, STREAMING
from tests.unit.spark.lake import (
    BASE_MS,
    CountingStore,
    entries,
    options,
    planned,
    read_all,
    read_share,
    snapshot,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.committed import CommittedSegment

ONE, TWO, THREE = (uuid.UUID(int=number) for number in (1, 2, 3))


async def two_segments(store: CountingStore) -> tuple[Snapshot, list[tuple[int, int, bytes]]]:
    """Store two segments over three ledgers, ten entries a block; returns what is in them."""
    ledgers = {5: payloads(95, ledger_id=5), 6: payloads(40, ledger_id=6), 9: payloads(200, ledger_id=9)}
    first = await put_segment(
        store, [LedgerPiece(5, 0, ledgers[5], 95), LedgerPiece(6, 0, ledgers[6], 40)], segment_id=ONE, block_entries=10
    )
    second = await put_segment(store, [LedgerPiece(9, 0, ledgers[9])], segment_id=TWO, block_entries=10)
    store.asked.clear()
    every = [(ledger, entry, data) for ledger, held in ledgers.items() for entry, data in enumerate(held)]
    return snapshot([first, second]), every


@pytest.mark.parametrize("partition_bytes", [900, 5000, 10**9])
async def test_shares_hold_each_entry_once(partition_bytes: int) -> None:
    """Whatever the size of shares, all of them together have each entry once and in order, with its position."""
    store = CountingStore()
    found, every = await two_segments(store)
    assert entries(await read_all(store, found, options(partition_bytes=partition_bytes))) == every


async def test_shares_are_even() -> None:
    """Shares are cut by bytes, within segments and over them, and none is larger than was asked for."""
    store = CountingStore()
    found, _ = await two_segments(store)
    total = sum(one.object_bytes for one in found.map.segments)
    shares = await planned(store, found, options(partition_bytes=total // 4 - 1))
    sizes = [sum(one.object_bytes for one in share if isinstance(one, Piece)) for share in shares]
    assert len(sizes) == 5
    assert sum(sizes) == total
    entry = total // 335
    assert max(sizes) - min(sizes) <= 5 * entry, "but for parts of an entry"
    assert not store.asked, "a query for everything is planned without a request"


async def test_positions_cut_exactly() -> None:
    """A range of positions gives its entries alone; blocks and segments outside are never asked for."""
    store = CountingStore()
    found, every = await two_segments(store)
    wish = options(query=EntryQuery(first=Position(9, 35), last=Position(9, 64)))
    assert entries(await read_all(store, found, wish)) == [one for one in every if one[0] == 9 and 35 <= one[1] <= 64]
    assert not any(str(ONE) in key for key in store.by_key()), "the other segment is not looked at"
    asked = [(at, length) for key, at, length in store.asked if key == f"{PREFIX}{TWO}"]
    block = found.map.segments[1].object_bytes // 20
    assert sum(length or 0 for _, length in asked) <= 4 * (block + 20), "four blocks hold them"
    assert min(at for at, _ in asked) >= 2 * block


async def test_filters_leave_blocks_out() -> None:
    """Filters of a query on ledgers, entries and times say which blocks are read; those that say nothing are passed."""
    store = CountingStore()
    found, every = await two_segments(store)
    query = EntryQuery().narrowed([spark.EqualTo(("ledger_id",), 6), spark.GreaterThanOrEqual(("entry_id",), 20)])
    rows = await read_all(store, found, options(), query)
    assert entries(rows) == [one for one in every if one[0] == 6 and one[1] >= 20]
    assert not any(str(TWO) in key for key in store.by_key())
    either = EntryQuery().narrowed(
        [spark.In(("ledger_id",), (5, 9)), spark.IsNotNull(("payload",)), spark.LessThan(("entry_id",), 5)]
    )
    assert entries(await read_all(store, found, options(), either)) == [
        one for one in every if one[0] in {5, 9} and one[1] < 10
    ], "whole blocks; Spark sorts the rest out"
    assert EntryQuery().narrowed([spark.Not(spark.EqualTo(("ledger_id",), 6))]) == EntryQuery()
    assert (
        await planned(store, found, options(), EntryQuery().narrowed([spark.EqualTo(("topic",), "persistent://a/b/c")]))
        == []
    )


async def timed_segments(store: CountingStore) -> list[CommittedSegment]:
    """Store two segments whose entries are a second apart, and an entry without a time at the end of the first."""
    first = [timed(1, entry, BASE_MS + 1000 * entry) for entry in range(50)] + [b"no time"]
    second = [timed(2, entry, BASE_MS + 100_000 + 1000 * entry) for entry in range(50)]
    found = [
        await put_segment(store, [LedgerPiece(1, 0, first, 51)], segment_id=ONE, block_entries=5, surveyed=True),
        await put_segment(store, [LedgerPiece(2, 0, second)], segment_id=TWO, block_entries=5, surveyed=True),
    ]
    store.asked.clear()
    return found


async def test_times_cut_exactly() -> None:
    """A range of times by options gives its entries alone, out of the blocks that can hold any of them."""
    store = CountingStore()
    found = snapshot(await timed_segments(store))
    wish = options(query=EntryQuery(since_ms=BASE_MS + 12_500, until_ms=BASE_MS + 21_000))
    rows = await read_all(store, found, wish)
    assert [(row["ledger_id"], row["entry_id"]) for row in rows] == [(1, entry) for entry in range(13, 21)]
    assert rows[0]["time"] == datetime.fromtimestamp(BASE_MS // 1000 + 13, UTC) == rows[0]["broker_timestamp"]
    assert rows[0]["index"] == 13
    assert store.by_key()[f"{PREFIX}{TWO}"] == 0
    read = sum(length or 0 for key, _, length in store.asked if key == f"{PREFIX}{ONE}")
    assert read <= found.map.segments[0].object_bytes * 3 // 10


async def test_time_filters_leave_blocks_out() -> None:
    """Filters on times are rounded outwards, so that no entry is missed for its part of a millisecond."""
    store = CountingStore()
    found = snapshot(await timed_segments(store))
    edge = datetime.fromtimestamp((BASE_MS + 24_000) / 1000, UTC).replace(microsecond=1)
    query = EntryQuery().narrowed([spark.LessThan(("broker_timestamp",), edge)])
    rows = await read_all(store, found, options(), query)
    assert [row["entry_id"] for row in rows] == list(range(25)), "24 s is before it, and its block is read"
    assert [
        row["entry_id"]
        for row in await read_all(store, found, options(), EntryQuery().narrowed([spark.In(("time",), ())]))
    ] == []


@pytest.mark.parametrize("what", ["", "-index", "-manifest"])
async def test_damage_is_named(what: str) -> None:
    """By default a damaged or missing object ends the query, and the error names segment, object and entries."""
    store = CountingStore()
    found, _ = await two_segments(store)
    await store.delete([f"{PREFIX}{ONE}{what}"])
    with pytest.raises(BrokenSegment) as caught:
        await read_all(store, found, options())
    assert str(ONE) in caught.value.message
    assert str(TOPIC) in caught.value.message
    assert "5:0.." in caught.value.message
    assert "skip=damage" in caught.value.hint


@pytest.mark.parametrize("partition_bytes", [1500, 10**9])
async def test_damage_is_skipped_and_counted(partition_bytes: int) -> None:
    """With mode=skip one damaged block is a row that counts its entries; everything around it is read."""
    store = CountingStore()
    found, every = await two_segments(store)
    key = f"{PREFIX}{TWO}"
    data = bytearray(await store.get(key))
    size = len(data) // 20
    data[5 * size + size // 2] ^= 1
    await store.put(key, bytes(data))
    wish = options(mode=Mode.SKIP, partition_bytes=partition_bytes)
    rows = await read_all(store, found, wish)
    skips = [row for row in rows if row["skipped"] is not None]
    assert sum(row["skipped"] for row in skips) == 10, "each share tells of its own"
    assert skips[0]["payload"] is None
    assert (skips[0]["ledger_id"], skips[0]["entry_id"]) == (9, 50)
    assert key in skips[0]["reason"]
    kept = [one for one in every if not (one[0] == 9 and 50 <= one[1] < 60)]
    assert entries([row for row in rows if row["skipped"] is None]) == kept


async def test_lost_tables_are_counted_once() -> None:
    """A segment whose manifest is gone is counted entry by entry: each share tells of its own part of it."""
    store = CountingStore()
    found, every = await two_segments(store)
    await store.delete([f"{PREFIX}{ONE}-manifest"])
    rows = await read_all(store, found, options(mode=Mode.SKIP, partition_bytes=1000))
    assert counted(rows) == [one[:2] for one in every if one[0] != 9]
    assert entries([row for row in rows if row["skipped"] is None]) == [one for one in every if one[0] == 9]


def counted(rows: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the positions that rows count instead of giving them."""
    return [
        (row["ledger_id"], row["entry_id"] + more)
        for row in rows
        if row["skipped"] is not None
        for more in range(row["skipped"])
    ]


@pytest.mark.parametrize(("index_every", "partition_bytes"), [(0, 10**9), (0, 3000), (7, 900)])
async def test_ledger_of_a_broker(index_every: int, partition_bytes: int) -> None:
    """What a broker offloaded itself is read like the rest, shared out by the places that its index names."""
    store = CountingStore()
    held = payloads(150, ledger_id=3)
    ledger = BrokerLedger(topic=TOPIC, ledger_id=3, object_id=THREE, payloads=held, index_every=index_every)
    await ledger.put(store)
    segment = ledger.adopted
    assert segment.foreign
    store.asked.clear()
    every = [(3, entry, data) for entry, data in enumerate(held)]
    found = snapshot([segment])
    assert entries(await read_all(store, found, options(partition_bytes=partition_bytes))) == every
    wish = options(query=EntryQuery(first=Position(3, 77), last=Position(3, 80)), partition_bytes=partition_bytes)
    assert entries(await read_all(store, found, wish)) == every[77:81]


@pytest.mark.parametrize("partition_bytes", [10**9, 5000])
async def test_ledgers_that_the_daemon_wrote_whole(partition_bytes: int) -> None:
    """V1 objects of the daemon's own, then V2 segments of the same topic: read as one, whole or in parts."""
    rig = Rig(policy=LEDGER_BASED)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=300)
    everything = await appended(rig, payloads(1000))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.offloaded == everything[899][0])
    rig.policy = STREAMING
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until(lambda: topic.offloaded == everything[-1][0])
    topic_map = await catalog.load(rig.tree.connect(), offloading.TOPIC)
    assert [one.method for one in topic_map.segments][:3] == [OffloadMethod.LEDGER_BASED] * 3
    assert topic_map.segments[-1].method is OffloadMethod.STREAMING
    rows = await read_all(rig.store, Snapshot(topic_map, holes_of(topic_map)), options(partition_bytes=partition_bytes))
    assert entries(rows) == [(at.ledger_id, at.entry_id, payload) for at, payload in everything]


async def test_a_bucket_that_refuses_a_task_is_no_damage() -> None:
    """Nothing is skipped because somebody has no rights, or nobody answers: the error ends the query as it is."""
    store, faults = CountingStore(), Faults()
    found = snapshot([await put_segment(store, [LedgerPiece(1, 0, payloads(30, ledger_id=1))], segment_id=ONE)])
    for error in (Denied("no rights to read"), BucketMissing("no such bucket")):
        faults.fail("get", error, times=1_000_000)
        with pytest.raises(OffloaderError, match=error.message):
            await read_all(FaultyStore(store, faults), found, options(mode=Mode.SKIP))
        faults.heal()
    assert len(await read_all(FaultyStore(store, faults), found, options())) == 30


async def test_loss_in_the_range() -> None:
    """A range that is recorded as lost ends the query unless it begins behind it; with mode=skip it is counted."""
    store = CountingStore()
    found, every = await two_segments(store)
    loss = Loss(Position(6, 39), Position(9, 0), entries=17)
    found = snapshot(found.map.segments, [loss])
    with pytest.raises(HoleInRange, match="deleted before they were offloaded") as caught:
        await planned(store, found, options())
    assert "start=9:0" in caught.value.hint
    behind = options(query=EntryQuery(first=Position(9, 0)))
    assert entries(await read_all(store, found, behind)) == [one for one in every if one[0] == 9]
    elsewhere = EntryQuery().narrowed([spark.EqualTo(("ledger_id",), 5)])
    assert entries(await read_all(store, found, options(), elsewhere)) == [one for one in every if one[0] == 5]
    rows = await read_all(store, found, options(mode=Mode.SKIP))
    assert [row["skipped"] for row in rows if row["skipped"] is not None] == [17]
    assert sum(row["skipped"] is None for row in rows) == len(every)


async def test_empty_share() -> None:
    """A query of nothing has no share; Spark reads one that is empty all the same."""
    store = CountingStore()
    assert await planned(store, snapshot([]), options()) == []
    assert await read_share(store, (), options()) == []


async def test_steps_of_streams_are_exact() -> None:
    """A step that begins and ends in the middle of blocks has the entries between its offsets and no others."""
    store = CountingStore()
    found, every = await two_segments(store)
    places: dict[TopicName, tuple[Position | None, Position | None]] = {TOPIC: (Position(5, 93), Position(9, 4))}
    wish = options(partition_bytes=2000)
    async with segment_reader(store) as reader:
        made = await shares([found], wish, wish.query, reader, places=places)
    rows = [row for share in made for row in await read_share(store, share, wish)]
    assert entries(rows) == [one for one in every if (5, 93) <= one[:2] <= (9, 4)]
