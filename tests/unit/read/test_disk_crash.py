"""The disk cache in threads of its own: a process that is killed while it writes, and a loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.read.disk import cache
from offloaderd.read.disk.cache import DiskCache, DiskOptions, Wanted
from offloaderd.read.disk.files import OWNER_BYTES, BlockFiles, Damaged, file_bytes, place_of

REAL_TIME = "threads and a process"
ROOT = Path(__file__).resolve().parents[3]
SIZE = 300_000
OWNER = bytes(OWNER_BYTES)
KILLED_AFTER = 20

WRITER = """
import sys
from pathlib import Path
from offloaderd.read.disk.files import OWNER_BYTES, BlockFiles, place_of
files = BlockFiles(Path(sys.argv[1]))
files.open()
number = 0
while True:
    files.write(place_of(bytes(OWNER_BYTES), "bucket", str(number)), bytes([number % 251]) * int(sys.argv[2]))
    number += 1
    print(number, flush=True)
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread may wait long for its turn."""
    monkeypatch.setattr(cache, "READ_S", 240.0)
    monkeypatch.setattr(cache, "CLOSE_S", 240.0)


def test_what_a_killed_process_wrote_is_right_or_not_there(tmp_path: Path) -> None:
    """After kill -9 in mid-write the lock is free, each file has its bytes, and nothing unfinished is left."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(SIZE)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == KILLED_AFTER:
                child.kill()
                break
    (tmp_path / f"{place_of(OWNER, 'bucket', 'half').hex()}.unfinished").write_bytes(b"OCBL")
    files = BlockFiles(tmp_path)
    stored = files.open()
    assert len(stored) >= KILLED_AFTER
    assert {one.file_bytes for one in stored} == {file_bytes(SIZE)}
    assert not list(tmp_path.glob("*.unfinished"))
    for number in range(KILLED_AFTER):
        assert files.read(place_of(OWNER, "bucket", str(number)), 0, 0) == bytes([number % 251]) * SIZE
    files.close()


class Gated(BlockFiles):
    """Files whose reads wait in their thread until they may go on."""

    started = threading.Event()
    gate = threading.Event()

    def read(self, place: bytes, first: int, length: int, *, checked: bool = False) -> bytes:
        """Wait, then read."""
        self.started.set()
        assert self.gate.wait(60)
        return super().read(place, first, length, checked=checked)


async def test_the_loop_goes_on_while_the_disk_reads(tmp_path: Path) -> None:
    """A read in a thread holds nobody up: others run, and one range is put on the disk, before it has ended."""
    files = Gated(tmp_path)
    options = DiskOptions(directory=tmp_path, limit_bytes=64 << 20)
    async with DiskCache(options, clock=SystemClock(), metrics=Metrics(), files=files) as disk:
        while not disk.is_open:
            await disk.changed.wait()
        one, other = place_of(OWNER, "bucket", "one"), place_of(OWNER, "bucket", "other")
        disk.put(one, b"1" * SIZE)
        while disk.waiting_bytes:
            await disk.changed.wait()
        async with asyncio.TaskGroup() as group:
            read = group.create_task(disk.get([Wanted(one, SIZE)]))
            await asyncio.to_thread(files.started.wait, 60)
            disk.put(other, b"2" * SIZE)
            while disk.waiting_bytes:
                await disk.changed.wait()
            assert not read.done()
            files.gate.set()
        assert read.result() == [b"1" * SIZE]
        assert await disk.get([Wanted(other, SIZE)]) == [b"2" * SIZE]


async def test_many_readers_and_a_small_disk(tmp_path: Path) -> None:
    """Reads, writes, deletions and damage all at once: what is returned is right, and the files stay in the budget."""
    limit_bytes = 10 * file_bytes(SIZE)
    async with DiskCache(
        DiskOptions(directory=tmp_path, limit_bytes=limit_bytes), clock=SystemClock(), metrics=Metrics()
    ) as disk:
        while not disk.is_open:
            await disk.changed.wait()

        async def reader(first: int) -> None:
            for turn in range(40):
                number = (first * 7 + turn * 3) % 20
                place, data = place_of(OWNER, "bucket", str(number)), bytes([number]) * SIZE
                (found,) = await disk.get([Wanted(place, SIZE)])
                assert found in {None, data}
                if found is None:
                    disk.put(place, data)
                if turn % 10 == 9:
                    for path in list(tmp_path.glob("*.block"))[:2]:
                        path.write_bytes(path.read_bytes()[:-1])

        async with asyncio.TaskGroup() as group:
            for first in range(5):
                group.create_task(reader(first))
        while disk.waiting_bytes or disk._queue or disk._is_writing:
            await disk.changed.wait()
        assert disk.table.used_bytes <= limit_bytes
    assert sum(path.stat().st_size for path in tmp_path.glob("*.block")) <= limit_bytes
    files = BlockFiles(tmp_path)
    for stored in files.open():
        try:
            data = files.read(stored.place, 0, 0)
        except Damaged:
            continue
        assert data == data[:1] * SIZE
    files.close()
