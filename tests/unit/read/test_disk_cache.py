"""The disk cache behind readers: warm after a restart, fetched once, and never an error, whatever the disk does."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import uuid
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import CorruptData, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.core.retry import RetryPolicy
from offloaderd.read import broker_ledgers
from offloaderd.read.disk.cache import CLOSE_S, RESTORE_S, RETRY_S, DiskCache, DiskOptions, Wanted
from offloaderd.read.disk.files import SUFFIX, BlockFiles, Replaced, owner_of, place_of
from offloaderd.read.segments import SegmentOptions, SegmentReader
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.broker_objects import BrokerLedger
from tests.unit.read.build import PREFIX, TOPIC, Piece, flat, put_segment, sample, turns
from tests.unit.read.test_segment import Counting
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from offloaderd.metadata.committed import CommittedSegment

ID = uuid.UUID(int=7)
OWNER = owner_of(TOPIC.managed_ledger, ID)
PAYLOADS = [bytes([number % 251]) * 88 for number in range(300)]
CHUNK = 1000
LIMIT = 64 << 20


class Rig:
    """A bucket with one segment of three blocks, and readers over one disk with no memory to speak of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.metrics = Metrics()
        self.counting = Counting(self)  # type: ignore[arg-type]
        self.segment: CommittedSegment

    async def begin(self, chunk_bytes: int = 0) -> Rig:
        """Store the segment."""
        piece = Piece(3, 0, PAYLOADS, len(PAYLOADS))
        self.segment = await put_segment(self.store, [piece], segment_id=ID, block_entries=100, chunk_bytes=chunk_bytes)
        return self

    @property
    def gets(self) -> int:
        """GETs that were sent."""
        return len(self.counting.gets)

    @property
    def files(self) -> list[Path]:
        """The files of blocks and tables."""
        return sorted(self.directory.glob(f"*{SUFFIX}"))

    def failures(self, cause: str) -> float:
        """Return the failures of a kind."""
        return sample(self.metrics, "offloaderd_disk_cache_failures_total", {"cause": cause})

    @asynccontextmanager
    async def disk(self, limit_bytes: int = LIMIT, files: BlockFiles | None = None) -> AsyncIterator[DiskCache]:
        """Open the disk, as a start of the daemon does."""
        options = DiskOptions(directory=self.directory, limit_bytes=limit_bytes, get_price=0.5)
        async with DiskCache(options, clock=self.clock, metrics=self.metrics, files=files) as made:
            await turns(5)
            yield made

    @asynccontextmanager
    async def reader(self, disk: DiskCache | None) -> AsyncIterator[SegmentReader]:
        """Return a reader without memory of its own."""
        options = SegmentOptions(cache_bytes=0, tables_bytes=0, retry=RetryPolicy(tries_max=2))
        async with SegmentReader(self.counting, clock=self.clock, metrics=self.metrics, options=options) as made:  # type: ignore[arg-type]
            made.fetcher.disk = disk
            yield made

    async def read(self, reader: SegmentReader, first: int = 0, last: int = 299) -> None:
        """Read entries; they are the right ones."""
        batches = [batch async for batch in reader.read(TOPIC, self.segment, Position(3, first), Position(3, last))]
        assert flat(batches) == [(3, entry, PAYLOADS[entry]) for entry in range(first, last + 1)]

    async def again(self, first: int = 0, last: int = 299) -> int:
        """Read after a restart; returns the GETs that it took."""
        before = self.gets
        async with self.disk() as disk, self.reader(disk) as reader:
            await self.read(reader, first, last)
            await written(disk)
        return self.gets - before


async def written(disk: DiskCache) -> None:
    """Wait until nothing waits to be written."""
    while disk.waiting_bytes or disk._queue or disk._is_writing:
        await turns()


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    """A segment of three blocks, and no file yet."""
    return await Rig(tmp_path / "cache").begin()


async def test_a_reader_who_comes_back_pays_no_get(rig: Rig) -> None:
    """Tables and blocks are on the disk after a restart: nothing is fetched, and what that saved is counted."""
    assert await rig.again() == 5
    assert len(rig.files) == 5
    assert await rig.again() == 0
    assert sample(rig.metrics, "offloaderd_disk_cache_gets_saved_total") == 5
    assert sample(rig.metrics, "offloaderd_disk_cache_money_saved_total") == 2.5
    assert sample(rig.metrics, "offloaderd_cache_requests_total", {"cache": "disk", "result": "hit"}) == 5
    assert sample(rig.metrics, "offloaderd_disk_cache_read_bytes_total") == sample(
        rig.metrics, "offloaderd_disk_cache_written_bytes_total"
    )


async def test_the_metrics_follow_the_files(rig: Rig) -> None:
    """What the gauge says is what the files take."""
    async with rig.disk() as disk, rig.reader(disk) as reader:
        await rig.read(reader)
        await written(disk)
        on_disk = sum(path.stat().st_size for path in rig.files)
        assert sample(rig.metrics, "offloaderd_cache_bytes", {"cache": "disk"}) == on_disk == disk.table.used_bytes


async def test_one_entry_comes_from_a_block_on_the_disk(tmp_path: Path) -> None:
    """A single entry is read by its chunk, from the file of its block; without the block, the chunk has a file."""
    rig = await Rig(tmp_path / "cache").begin(CHUNK)
    async with rig.disk() as disk, rig.reader(disk) as reader:
        await rig.read(reader, 150, 150)
        await written(disk)
        assert len(rig.files) == 3
        before = rig.gets
        await rig.read(reader, 150, 150)
        assert rig.gets == before
        await rig.read(reader)
        await written(disk)
        before, files = rig.gets, len(rig.files)
        for entry in (7, 120, 299):
            await rig.read(reader, entry, entry)
        assert (rig.gets, len(rig.files)) == (before, files)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: bytes(len(data))])
async def test_damaged_files_are_fetched_anew(rig: Rig, damage: Callable[[bytes], bytes]) -> None:
    """With all files cut off, empty or zeroed, every entry is right; the files are replaced by good ones."""
    await rig.again()
    for path in rig.files:
        path.write_bytes(damage(path.read_bytes()))
    assert await rig.again() == 5
    assert rig.failures("damaged") >= 4
    assert await rig.again() == 0


async def test_files_of_another_object_are_dropped(rig: Rig) -> None:
    """Files that are sound, and hold other bytes than the segment's, are found by the checks of its manifest."""
    await rig.again()
    files = BlockFiles(rig.directory)
    for path in rig.files:
        place = bytes.fromhex(path.stem)
        files.write(place, bytes(len(files.read(place, 0, 0))))
    assert await rig.again() == 5
    assert rig.failures("damaged") >= 4
    assert await rig.again() == 0


async def test_removed_files_are_fetched_anew(rig: Rig) -> None:
    """Files that somebody deletes while the daemon runs are missing, and no error."""
    async with rig.disk() as disk, rig.reader(disk) as reader:
        await rig.read(reader)
        await written(disk)
        for path in rig.files:
            path.unlink()
        await rig.read(reader)
        await written(disk)
        assert rig.failures("missing") == 5
        assert len(rig.files) == 5


async def test_damage_in_transit_is_not_kept(rig: Rig) -> None:
    """A block that arrives damaged once is read again by the reader, and the file has the right bytes."""
    good, spoiled = rig.counting.get, 0

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        nonlocal spoiled
        data = await good(key, first, length)
        if key.endswith(("index", "manifest")) or spoiled:
            return data
        spoiled += 1
        return data[:100] + bytes([data[100] ^ 1]) + data[101:]

    rig.counting.get = get  # type: ignore[method-assign]
    await rig.again()
    assert spoiled == 1
    assert await rig.again() == 0


async def test_a_block_is_fetched_once_by_readers_that_share_the_disk(rig: Rig) -> None:
    """Two readers, each with a memory of its own: the second waits for what the first one fetches."""
    rig.counting.gate = asyncio.Event()
    async with rig.disk() as disk, rig.reader(None) as warm:
        rig.counting.gate.set()
        async with warm.table(TOPIC, rig.segment) as table:
            rig.counting.gate.clear()
            before = rig.gets
            async with rig.reader(disk) as one, rig.reader(disk) as other, asyncio.TaskGroup() as group:
                tasks = [group.create_task(reader.block(table, 1)) for reader in (one, other)]
                await turns(10)
                assert rig.gets == before + 1
                rig.counting.gate.set()
            assert tasks[0].result()[0].payloads == tasks[1].result()[0].payloads
            assert rig.gets == before + 1
            assert sample(rig.metrics, "offloaderd_cache_requests_total", {"cache": "disk", "result": "joined"}) == 1


async def test_a_failed_or_cancelled_fetch_gives_its_room_back(rig: Rig) -> None:
    """Who waited for it fetches himself; in the end nothing is reserved."""
    async with rig.disk() as disk, rig.reader(disk) as one, rig.reader(disk) as other:  # noqa: SIM117 - too long
        async with one.table(TOPIC, rig.segment) as table:
            await written(disk)
            used = disk.table.used_bytes
            rig.counting.gate, rig.counting.stumbles = asyncio.Event(), 2
            async with asyncio.TaskGroup() as group:
                first = group.create_task(error_of(one.block(table, 0)))
                await turns(3)
                second = group.create_task(other.block(table, 0))
                await turns(3)
                rig.counting.gate.set()
            assert isinstance(first.result(), Transient)
            assert second.result()[0].count == 100
            await written(disk)
            assert disk.table.used_bytes > used
            used = disk.table.used_bytes
            rig.counting.gate = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                stopped = group.create_task(one.block(table, 1))
                await turns(5)
                assert disk.table.used_bytes > used
                stopped.cancel()
            assert (disk.table.used_bytes, disk.waiting_bytes) == (used, 0)


async def error_of(work: object) -> Exception | None:
    """Return how work fails, None if it does not."""
    try:
        await work  # type: ignore[misc]
    except Transient as error:
        return error
    return None


async def test_what_is_missing_takes_one_get(rig: Rig) -> None:
    """Of three neighbours, the middle one is on the disk: the others are fetched with one GET, never with two."""
    fetcher_key = rig.segment.keys.data
    async with rig.disk() as disk, rig.reader(disk) as reader, reader.table(TOPIC, rig.segment) as table:
        await reader.block(table, 1)
        blocks = table.manifest.blocks
        claims = [reader.claim(table, number)[0] for number in range(3)]
        before = rig.gets
        reader.fetch(table, 0, claims, ahead=False)
        for slot in claims:
            await slot.get()
            reader._blocks.release(slot)
        assert rig.gets == before + 1
        assert rig.counting.gets[-1] == (fetcher_key, blocks[0].offset, sum(block.length for block in blocks))
        await written(disk)
        rig.files[0].unlink()
        assert all(disk.holds(place_of(OWNER, "bucket", fetcher_key, one.offset, one.length)) for one in blocks)


class FullFiles(BlockFiles):
    """A disk without room."""

    full = False

    def write(self, place: bytes, data: bytes) -> None:
        """Refuse while it is full."""
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(place, data)


async def test_a_full_disk_makes_the_cache_smaller(rig: Rig) -> None:
    """Readers do not notice; nothing is written for a while, then again; the budget grows back later."""
    files = FullFiles(rig.directory)
    async with rig.disk(files=files) as disk, rig.reader(disk) as reader:
        await rig.read(reader, 0, 50)
        await written(disk)
        assert len(rig.files) == 3
        files.full = True
        await rig.read(reader)
        await written(disk)
        assert rig.failures("write") == 1
        assert disk.table.limit_bytes < LIMIT
        assert sample(rig.metrics, "offloaderd_cache_limit_bytes", {"cache": "disk"}) == disk.table.limit_bytes
        await rig.read(reader)
        assert sample(rig.metrics, "offloaderd_disk_cache_declined_total", {"cause": "off"}) > 0
        files.full = False
        await rig.clock.sleep(RETRY_S + RESTORE_S)
        await rig.read(reader)
        await written(disk)
        assert disk.table.limit_bytes == LIMIT
    assert len(rig.files) == 5


async def test_a_removed_directory_is_no_error(rig: Rig) -> None:
    """Readers go on from the store; the directory is made again after a while, and fills."""
    async with rig.disk() as disk, rig.reader(disk) as reader:
        await rig.read(reader)
        await written(disk)
        shutil.rmtree(rig.directory)
        await rig.read(reader)
        await written(disk)
        assert "removed" in disk.state
        assert sample(rig.metrics, "offloaderd_disk_cache_open") == 0
        await rig.read(reader)
        assert disk.table.used_bytes == disk.waiting_bytes == 0
        await rig.clock.sleep(RETRY_S + 1)
        assert disk.is_open
        await rig.read(reader)
        await written(disk)
        assert len(rig.files) == 5


async def test_a_directory_in_use_is_waited_for(rig: Rig) -> None:
    """A second daemon reads from the store until the first has ended, and says why; its start does not fail."""
    async with rig.disk():
        with capture_logs() as logged:
            async with rig.disk() as second, rig.reader(second) as reader:
                await rig.read(reader)
                await rig.read(reader)
                assert "another daemon" in second.state
        assert [one["event"] for one in logged] == ["disk_cache.off"]
    async with rig.disk() as third:
        assert third.is_open


async def test_a_directory_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    """A file in its place: the cache is off, with the reason."""
    (tmp_path / "file").touch()
    rig = await Rig(tmp_path / "file" / "cache").begin()
    async with rig.disk() as disk, rig.reader(disk) as reader:
        await rig.read(reader)
        assert "Not a directory" in disk.state
    assert rig.failures("directory") == 1


async def test_a_disk_that_hangs_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that takes too long comes from the store, and for a while none is tried."""
    await rig.again()
    async with rig.disk() as disk, rig.reader(disk) as reader:
        started: list[asyncio.Future[object]] = []

        def hang(*_: object) -> asyncio.Future[object]:
            started.append(asyncio.get_running_loop().create_future())
            return started[-1]

        with monkeypatch.context() as patch:
            patch.setattr(disk, "_in", hang)
            await rig.read(reader)
            await rig.read(reader)
        assert len(started) == 1
        assert rig.failures("slow") == 1
        before = rig.gets
        await rig.clock.sleep(RETRY_S)
        await rig.read(reader)
        assert rig.gets == before
        started[0].set_result([])


async def test_ranges_that_wait_for_a_slow_writer_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk takes less than is fetched, the rest is not written: memory does not grow."""
    options = DiskOptions(directory=rig.directory, limit_bytes=LIMIT, waiting_bytes=10_000)
    async with DiskCache(options, clock=rig.clock, metrics=rig.metrics) as disk, rig.reader(disk) as reader:
        await turns(5)
        monkeypatch.setattr(disk, "_wrote", lambda *_: None)
        await rig.read(reader)
        assert disk.waiting_bytes <= 10_000
        assert sample(rig.metrics, "offloaderd_disk_cache_declined_total", {"cause": "writes"}) >= 2


async def test_a_broker_s_ledger_comes_from_the_disk(rig: Rig) -> None:
    """Objects without checksums are cached by pieces; what their framing shows as damaged is dropped from the disk."""
    payloads = [bytes([number % 7]) * 300 for number in range(40)]
    one = BrokerLedger(topic=TOPIC, ledger_id=9, object_id=uuid.UUID(int=77), payloads=payloads)
    await one.put(rig.store)
    whole = Position(9, 0), Position(9, 39)

    async def entries() -> list[bytes]:
        async with rig.disk() as disk, rig.reader(disk) as reader:
            found = [batch async for batch in reader.read(TOPIC, one.adopted, *whole)]
            await written(disk)
        return [payload for batch in found for payload in batch.payloads]

    assert await entries() == payloads
    before = rig.gets
    assert await entries() == payloads
    assert rig.gets == before
    files, data = BlockFiles(rig.directory), max(rig.files, key=lambda path: path.stat().st_size)
    place = bytes.fromhex(data.stem)
    files.write(place, bytes(len(files.read(place, 0, 0))))
    with pytest.raises(CorruptData):
        await entries()
    assert await entries() == payloads


async def test_damage_where_an_entry_begins_drops_that_piece_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry lies in two pieces: a wrong length in the first is noticed in the second, and the next read is right."""
    monkeypatch.setattr(broker_ledgers, "PIECE_BYTES", 1000)
    payloads = [bytes([number % 7]) * 300 for number in range(40)]
    one = BrokerLedger(topic=TOPIC, ledger_id=9, object_id=uuid.UUID(int=77), payloads=payloads)
    one.block_bytes_max = 1 << 20
    await one.put(rig.store)
    data = await rig.store.get(one.adopted.keys.data)

    async def entries() -> list[bytes]:
        async with rig.disk() as disk, rig.reader(disk) as reader:
            found = [batch async for batch in reader.read(TOPIC, one.adopted, Position(9, 0), Position(9, 39))]
            await written(disk)
        return [payload for batch in found for payload in batch.payloads]

    assert await entries() == payloads
    files = BlockFiles(rig.directory)
    [place] = [it for it in (bytes.fromhex(path.stem) for path in rig.files) if files.read(it, 0, 0) == data[:1000]]
    begin = data.rindex((300).to_bytes(4, "big"), 0, 1000)
    assert begin + ENTRY_OVERHEAD_BYTES + 300 > 1000, "it ends in the next piece"
    files.write(place, data[:begin] + (301).to_bytes(4, "big") + data[begin + 4 : 1000])
    with pytest.raises(CorruptData):
        await entries()
    assert await entries() == payloads


async def test_no_key_is_in_a_name(rig: Rig) -> None:
    """Names of files show neither topics nor keys."""
    await rig.again()
    assert not any(PREFIX.strip("/") + "/" in path.name or str(ID) in path.name for path in rig.files)


async def test_what_waits_to_be_written_is_part_of_the_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is slow, the cache in memory is smaller by what waits for it."""
    async with rig.disk() as disk, rig.reader(disk) as reader:
        reader._blocks.limit_bytes = 1 << 20
        monkeypatch.setattr(disk, "_wrote", lambda *_: None)
        await rig.read(reader)
        assert disk.waiting_bytes > 0
        assert reader._blocks.room_bytes == (1 << 20) - disk.waiting_bytes
        reader._blocks.limit_bytes = disk.waiting_bytes + 15_000
        await rig.read(reader, 0, 0)
        assert reader._blocks.used_bytes <= 15_000


class LostFiles(BlockFiles):
    """A directory that may be lost."""

    lost = False

    def check(self) -> None:
        """Say so."""
        if self.lost:
            raise Replaced("it was removed")


@contextmanager
def held(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have all that threads are asked for meanwhile done at the end."""
    asked: list[tuple[asyncio.Future[object], Callable[[], object]]] = []

    def later(_: object, function: Callable[[], object]) -> asyncio.Future[object]:
        asked.append((asyncio.get_running_loop().create_future(), function))
        return asked[-1][0]

    with monkeypatch.context() as patch:
        patch.setattr(disk, "_in", later)
        yield
    for future, function in asked:
        if not future.done():
            future.set_result(function())


def keep(disk: DiskCache, place: bytes, data: bytes) -> None:
    """Have a range written."""
    flight = disk.begin(place, len(data))
    assert flight.room is not None
    disk.keep(flight, data)


async def test_a_range_that_is_forgotten_before_it_is_written_is_not_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged bytes that wait for the disk are not handed out again, and do not take the place of the right ones."""
    place = place_of(OWNER, "bucket", "key", 0, 3)
    async with rig.disk() as disk:
        with held(disk, monkeypatch):
            keep(disk, place, b"bad")
            await turns(3)
            disk.discard(place)
            assert await disk.get([Wanted(place, 3)]) == [None]
            keep(disk, place, b"yes")
        await written(disk)
        assert disk.waiting_bytes == 0
        assert await disk.get([Wanted(place, 3)]) == [b"yes"]


async def test_a_lost_directory_leaves_nothing_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is queued twice counts twice until the directory is gone; what stays counted is never free again."""
    files, place = LostFiles(rig.directory), place_of(OWNER, "bucket", "key", 0, 3)
    async with rig.disk(files=files) as disk:
        with held(disk, monkeypatch):
            keep(disk, place, b"bad")
            await turns(3)
            disk.discard(place)
            keep(disk, place, b"yes")
            assert disk.waiting_bytes == 6
            files.lost = True
        while disk.is_open:
            await turns()
        assert disk.waiting_bytes == 0


async def test_a_fetch_that_outlives_the_directory_takes_no_room_of_others(rig: Rig) -> None:
    """Its range was reserved before the directory was lost: it ends without touching what was reserved since."""
    files, place = LostFiles(rig.directory), place_of(OWNER, "bucket", "key", 0, 3)
    async with rig.disk(files=files) as disk:
        old = disk.begin(place, 3)
        files.lost = True
        keep(disk, place_of(OWNER, "bucket", "other", 0, 3), b"any")
        while disk.is_open:
            await turns()
        files.lost = False
        await rig.clock.sleep(RETRY_S + 1)
        assert disk.is_open
        new = disk.begin(place, 3)
        assert new.room is not None
        disk.abandon(old)
        assert disk.holds(place)
        disk.keep(new, b"yes")
        await written(disk)
        assert disk.waiting_bytes == 0
        assert await disk.get([Wanted(place, 3)]) == [b"yes"]


async def test_a_block_with_other_bytes_is_dropped_by_a_read_of_one_entry(tmp_path: Path) -> None:
    """A sound file of a block that holds something else is found by a chunk's check, and does not stay."""
    rig = await Rig(tmp_path / "cache").begin(CHUNK)
    await rig.again()
    async with rig.disk() as disk, rig.reader(disk) as reader:
        async with reader.table(TOPIC, rig.segment) as table:
            block = table.manifest.blocks[1]
        place = place_of(OWNER, "bucket", rig.segment.keys.data, block.offset, block.length)
        BlockFiles(rig.directory).write(place, bytes(block.length))
        await rig.read(reader, 150, 150)
        assert not disk.holds(place)


async def test_an_end_does_not_wait_for_a_listing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is stopped while a slow disk lists its directory ends all the same."""
    options = DiskOptions(directory=rig.directory, limit_bytes=LIMIT)
    disk = DiskCache(options, clock=rig.clock, metrics=rig.metrics)
    with held(disk, monkeypatch):
        async with asyncio.timeout(3 * CLOSE_S), disk:
            await turns(3)
    assert disk.state == "closed"
