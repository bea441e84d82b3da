"""The disk cache when reads, deletions or fetches fail, when room is short, and when there are many files."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.read.disk import cache as disk_cache
from offloaderd.read.disk.cache import RESTORE_S, RETRY_S, DiskCache, DiskOptions, Dropped, Wanted
from offloaderd.read.disk.files import BlockFiles, file_bytes, place_of
from offloaderd.read.disk.sweep import purge
from offloaderd.read.disk.table import DiskTable
from tests.unit.read.build import TOPIC, sample, turns
from tests.unit.read.test_disk_cache import LIMIT, OWNER, Rig, error_of, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from offloaderd.read.disk.files import Stored
    from offloaderd.read.tables import SegmentTable


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    """A segment of three blocks, and no file yet."""
    return await Rig(tmp_path / "cache").begin()


class Refusing(BlockFiles):
    """A disk whose reads or deletions fail while there is an `error`, and that says how much is free."""

    read_error: Exception | None = None
    delete_error: OSError | None = None
    free: int | None = None

    def read(self, place: bytes, first: int, length: int, *, checked: bool = False) -> bytes:
        """Read, or fail."""
        if self.read_error is not None:
            raise self.read_error
        return super().read(place, first, length, checked=checked)

    def delete(self, place: bytes) -> None:
        """Delete, or fail."""
        if self.delete_error is not None:
            raise self.delete_error
        super().delete(place)

    def free_bytes(self) -> int:
        """Return what it was told."""
        return super().free_bytes() if self.free is None else self.free


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "too many"),
        OSError(errno.ENFILE, "too many"),
        OSError(errno.ENOMEM, "none"),
        MemoryError(),
    ],
)
async def test_what_the_process_lacks_costs_no_entry(rig: Rig, error: Exception) -> None:
    """Without a free file or memory the store is read, and later the disk again; nothing is deleted."""
    await rig.again()
    files = Refusing(rig.directory)
    async with rig.disk(files=files) as disk, rig.reader(disk) as reader:
        before, files.read_error = rig.gets, error
        await rig.read(reader)
        await written(disk)
        assert (rig.gets - before, len(rig.files)) == (5, 5)
        assert rig.failures("read") > 0
        before, files.read_error = rig.gets, None
        await rig.read(reader)
        assert rig.gets == before
        assert sample(rig.metrics, "offloaderd_disk_cache_declined_total", {"cause": "once"}) == 0


async def test_a_bad_sector_costs_its_entry(rig: Rig) -> None:
    """An error that says something of the file: the range is dropped, and the gauge follows."""
    await rig.again()
    files = Refusing(rig.directory)
    async with rig.disk(files=files) as disk, rig.reader(disk) as reader:
        async with reader.table(TOPIC, rig.segment) as table:
            files.read_error = OSError(errno.EIO, "bad sector")
            place = place_of(OWNER, "bucket", rig.segment.keys.data, *_extent(table, 1))
            assert await disk.get([Wanted(place, 1)]) == [None]
        assert not disk.holds(place)
        assert sample(rig.metrics, "offloaderd_cache_bytes", {"cache": "disk"}) == disk.table.used_bytes
        await written(disk)
        assert len(rig.files) == 4


def _extent(table: SegmentTable, number: int) -> tuple[int, int]:
    block = table.manifest.blocks[number]
    return block.offset, block.length


async def test_a_file_that_cannot_be_deleted_is_counted_and_takes_room(rig: Rig) -> None:
    """The failure is a metric, the file stays part of the budget, and goes once it can."""
    files = Refusing(rig.directory)
    async with rig.disk(files=files) as disk, rig.reader(disk) as reader:
        await rig.read(reader)
        await written(disk)
        used, files.delete_error = disk.table.used_bytes, OSError(errno.EACCES, "no")
        assert (await purge(disk, None, dry_run=False)).left == 5
        assert rig.failures("delete") == 5
        assert disk.table.used_bytes == used == sum(path.stat().st_size for path in rig.files)
        files.delete_error = None
        assert await purge(disk, None, dry_run=False) == Dropped(5, used)
        assert (disk.table.used_bytes, rig.files) == (0, [])


async def test_the_disk_keeps_what_is_to_stay_free(rig: Rig) -> None:
    """With less free nothing is written, and the cache becomes smaller; readers do not notice."""
    files = Refusing(rig.directory)
    options = DiskOptions(directory=rig.directory, limit_bytes=LIMIT, free_bytes=1 << 30)
    async with (
        DiskCache(options, clock=rig.clock, metrics=rig.metrics, files=files) as disk,
        rig.reader(disk) as reader,
    ):
        await turns(5)
        files.free = 1 << 30
        await rig.read(reader)
        await written(disk)
        assert (rig.files, rig.failures("write")) == ([], 1)
        assert disk.table.limit_bytes < LIMIT
        files.free = 2 << 30
        await rig.clock.sleep(RETRY_S + RESTORE_S)
        await rig.read(reader)
        await written(disk)
        assert len(rig.files) == 5


async def test_after_a_failed_fetch_one_reader_fetches_again_for_all(rig: Rig) -> None:
    """Those that wait for it send one GET together; once that fails too, they fail alike, and the next one is free."""
    async with rig.disk() as disk, AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(rig.reader(disk)) for _ in range(6)]
        async with readers[0].table(TOPIC, rig.segment) as table:
            await written(disk)
            for stumbles, failing, gets in ((2, 1, 3), (4, 6, 4)):
                before = rig.gets
                rig.counting.gate, rig.counting.stumbles = asyncio.Event(), stumbles
                number = int(failing > 1)
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(error_of(reader.block(table, number))) for reader in readers]
                    await turns(10)
                    rig.counting.gate.set()
                assert sum(isinstance(task.result(), Transient) for task in tasks) == failing
                assert rig.gets - before == gets
            await readers[0].block(table, 1)


async def test_a_dropped_range_that_is_being_fetched_is_not_written(rig: Rig) -> None:
    """A purge concerns what is on its way as well; its reader gets the bytes."""
    async with rig.disk() as disk:
        place = place_of(OWNER, "bucket", "key", 0, 3)
        flight = disk.begin(place, 3)
        assert (await purge(disk, TOPIC, dry_run=True)).ranges == 1
        assert (await purge(disk, TOPIC, dry_run=False)).ranges == 1
        disk.keep(flight, b"yes")
        await written(disk)
        assert flight.data == b"yes"
        assert (rig.files, disk.waiting_bytes, disk.table.used_bytes) == ([], 0, 0)


async def test_many_files_are_taken_over_beside_the_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is filled by a thread; what is beyond the budget is queued in slices, between which others run."""
    monkeypatch.setattr(disk_cache, "SLICE", 10)
    by_thread, filled, slices = False, list[bool](), list[int]()
    fill, delete, in_thread = DiskTable.fill, DiskCache._delete, DiskCache._in

    def noted_fill(table: DiskTable, stored: Iterable[Stored]) -> list[bytes]:
        filled.append(by_thread)
        return fill(table, stored)

    def noted_delete(disk: DiskCache, places: Sequence[bytes], cause: str) -> None:
        slices.append(len(places))
        delete(disk, places, cause)

    def noted_in(disk: DiskCache, executor: object, function: Callable[[], object]) -> object:
        def run() -> object:
            nonlocal by_thread
            by_thread = True
            try:
                return function()
            finally:
                by_thread = False

        return in_thread(disk, executor, run)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskTable, "fill", noted_fill)
    monkeypatch.setattr(DiskCache, "_delete", noted_delete)
    monkeypatch.setattr(DiskCache, "_in", noted_in)
    files = BlockFiles(rig.directory)
    files.open()
    for number in range(100):
        files.write(place_of(OWNER, "bucket", str(number)), b"data")
    files.close()
    async with rig.disk(limit_bytes=5 * file_bytes(4)) as disk:
        while not disk.is_open:
            await turns(1)
        await written(disk)
        assert len(rig.files) == len(disk.table) == 1
    assert filled == [True]
    assert slices == [10] * 9 + [9]
