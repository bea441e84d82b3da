"""Warming the disk cache: what readers then find there, what is not fetched twice, and where it ends."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, TopicNotFound, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.core.retry import RetryPolicy
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read import warming
from offloaderd.read.disk.cache import DiskCache, DiskOptions
from offloaderd.read.warming import Warmed, warm
from offloaderd.testing.faults import FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.broker_objects import BrokerLedger
from tests.unit.read.build import TOPIC, Piece, make_read_rig, put_segment, turns
from tests.unit.read.test_disk_cache import written
from tests.unit.read.test_segment import counted

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.read.build import ReadRig

BLOCKS, ENTRIES = 4, 50
PAYLOADS = [bytes([number]) * 200 for number in range(BLOCKS * ENTRIES)]


async def stored(count: int = 2) -> ReadRig:
    """Store a topic of some ledgers, a segment each; memory has no room."""
    rig = make_read_rig(cache_bytes=0)
    rig.map.enabled = True
    for ledger_id in range(count):
        piece = Piece(ledger_id, 0, PAYLOADS, len(PAYLOADS))
        rig.map.segments.append(
            await put_segment(rig.store, [piece], segment_id=uuid.UUID(int=ledger_id + 1), block_entries=ENTRIES)
        )
    return rig


def disk_of(rig: ReadRig, directory: Path, limit_bytes: int = 64 << 20) -> DiskCache:
    """Give the reader a disk."""
    disk = DiskCache(DiskOptions(directory=directory, limit_bytes=limit_bytes), clock=rig.clock, metrics=rig.metrics)
    rig.reader.segments.fetcher.disk = disk
    return disk


async def last(rig: ReadRig, goal: Goal | None = None, topic: TopicName = TOPIC) -> Warmed:
    """Warm to the end."""
    progress = [one async for one in warm(rig.reader, topic, goal)]
    assert [one.done for one in progress] == [False] * (len(progress) - 1) + [True]
    return progress[-1]


async def read(rig: ReadRig) -> int:
    """Read everything from the bucket; returns the number of entries."""
    return sum([batch.count async for batch, _ in rig.reader.read(TOPIC)])


async def test_a_warm_topic_is_read_without_a_get(tmp_path: Path) -> None:
    """After it, a first reader finds all of it on the disk; a second warming fetches nothing."""
    rig = await stored()
    async with rig.reader, disk_of(rig, tmp_path) as disk:
        await turns(5)
        found = await last(rig)
        await written(disk)
        size = sum(one.object_bytes for one in rig.map.segments)
        assert found == Warmed(segments=2, segments_total=2, fetched_bytes=size, gets=2, done=True)
        counting = counted(rig)
        assert await read(rig) == 2 * len(PAYLOADS)
        assert counting.gets == []
        assert await last(rig) == Warmed(segments=2, segments_total=2, present_bytes=size, done=True)
        assert counting.gets == []


async def test_it_begins_where_a_seek_finds_the_first_entry(tmp_path: Path) -> None:
    """Blocks before the entry are left out, as are whole segments."""
    rig = await stored()
    async with rig.reader, disk_of(rig, tmp_path) as disk:
        await turns(5)
        found = await last(rig, Goal(SeekKind.SEQUENCE, len(PAYLOADS) + 2 * ENTRIES + 3))
        await written(disk)
        assert (found.segments, found.segments_total) == (1, 1)
        assert 0 < found.fetched_bytes < rig.map.segments[1].object_bytes * 0.6


async def test_it_ends_when_the_disk_may_hold_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched first is still there: it is where a reader begins."""
    monkeypatch.setattr(warming, "RUN_BYTES", 12_000)
    rig = await stored(4)
    one = rig.map.segments[0].object_bytes
    monkeypatch.setattr(warming, "SPARE", 4)  # tables and heads are large beside such small blocks
    async with rig.reader, disk_of(rig, tmp_path, 3 * one) as disk:
        monkeypatch.setattr("offloaderd.read.disk.table.RANGE_BYTES_MIN", 1)
        await turns(5)
        found = await last(rig)
        await written(disk)
        assert found.full
        assert (found.segments, found.segments_total, found.declined_bytes) == (2, 4, 0)
        again = await last(rig)
        assert (again.present_bytes, again.fetched_bytes) == (found.fetched_bytes, 0)


async def test_a_broker_s_ledger_is_warmed_by_pieces(tmp_path: Path) -> None:
    """An object without a manifest is fetched in the pieces in which it is read."""
    rig = make_read_rig(cache_bytes=0)
    rig.map.enabled = True
    ledger = BrokerLedger(topic=TOPIC, ledger_id=9, object_id=uuid.UUID(int=77), payloads=PAYLOADS)
    await ledger.put(rig.store)
    rig.map.segments.append(ledger.adopted)
    async with rig.reader, disk_of(rig, tmp_path) as disk:
        await turns(5)
        assert (await last(rig)).fetched_bytes == ledger.adopted.object_bytes
        await written(disk)
        counting = counted(rig)
        assert await read(rig) == len(PAYLOADS)
        assert [key for key, _, _ in counting.gets if key == ledger.adopted.keys.data] == []


async def test_without_a_disk_it_says_so(tmp_path: Path) -> None:
    """No disk cache, one that cannot be opened, and an unknown topic are errors that say what to do."""
    rig = await stored()
    async with rig.reader:
        with pytest.raises(Conflict, match="no disk cache"):
            await last(rig)
        (tmp_path / "file").touch()
        async with disk_of(rig, tmp_path / "file"):
            await turns(5)
            with pytest.raises(Conflict, match="off"):
                await last(rig)
            rig.map.enabled = False
            rig.map.segments.clear()
            with pytest.raises(TopicNotFound):
                await last(rig)


async def test_a_disk_that_takes_nothing_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declined counts against the budget: a topic of any size is not fetched for nothing."""
    monkeypatch.setattr(warming, "RUN_BYTES", 12_000)
    monkeypatch.setattr(warming, "SPARE", 4)
    rig = await stored(8)
    one = rig.map.segments[0].object_bytes
    async with rig.reader, disk_of(rig, tmp_path, 3 * one) as disk:
        await turns(5)
        monkeypatch.setattr(disk.table, "reserve", lambda *_, **__: None)
        found = await last(rig)
        assert found.full
        assert 0 < found.declined_bytes <= 3 * one
        assert found.segments < 4


async def test_a_disk_that_failed_to_write_ends_it(tmp_path: Path) -> None:
    """Nothing is fetched while the disk takes nothing; the error says so."""
    rig = await stored()
    async with rig.reader, disk_of(rig, tmp_path) as disk:
        await turns(5)
        disk._no_writes_until_s = rig.clock.monotonic() + 30
        counting = counted(rig)
        with pytest.raises(Conflict, match="a write failed"):
            await last(rig)
        assert [get for get in counting.gets if not get[0].endswith(("index", "manifest"))] == []


async def test_what_a_place_does_not_give_is_warmed_from_the_mirror(tmp_path: Path) -> None:
    """As readers get it, who find it on the disk; the place that does not answer is asked once, not for every run."""
    rig = await stored(1)
    [segment] = rig.map.segments
    mirror = MemoryStore(rig.clock)
    for key in segment.keys.all:
        await mirror.put(f"copies/{key.removeprefix(segment.prefix)}", await rig.store.get(key))
    asked: list[str] = []

    def plan(operation: str, key: str, when: str) -> None:
        asked.append(key)
        raise Transient("gone")

    home = FaultyStore(rig.store, plan)
    objects = SimpleNamespace(at={segment.bucket: home, "mirror": mirror}.__getitem__)
    once = RetryPolicy(tries_max=1)
    rig.reader.segments.fetcher.reader = RetryingReader(objects, clock=rig.clock, retry=once)
    rig.map.segments[:] = [replace(segment, mirror=("mirror", "copies/"))]
    async with rig.reader, disk_of(rig, tmp_path) as disk:
        await turns(5)
        found = await last(rig)
        await written(disk)
        assert found.fetched_bytes == segment.object_bytes
        assert len(set(asked)) <= 2
        assert (await last(rig)).present_bytes == segment.object_bytes
        assert await read(rig) == len(PAYLOADS)
