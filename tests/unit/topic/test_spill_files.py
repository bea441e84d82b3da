"""Spill files: what is written comes back in order and bit for bit or not at all, and nothing outlives its daemon."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from offloaderd.core import units as words
from offloaderd.core.errors import CorruptData, InvalidConfig
from offloaderd.core.model import EntryBatch
from offloaderd.topic import spill as spill_files
from offloaderd.topic.spill import HEADER, SpillArea, SpillQueue, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

batches = st.builds(
    EntryBatch,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**62),
    st.lists(st.binary(max_size=200), min_size=1, max_size=20),
)


def batch(number: int, size: int = 100) -> EntryBatch:
    """One of several batches of a ledger, ten entries each."""
    return EntryBatch(7, number * 10, [f"{number}/{entry}".encode().ljust(size, b".") for entry in range(10)])


async def drained(queue: SpillQueue, bytes_max: int = 1 << 20) -> list[EntryBatch]:
    """Everything that can be taken."""
    found: list[EntryBatch] = []
    while queue.unread:
        some = await queue.take(bytes_max)
        assert some
        found += some
    return found


def files(area: SpillArea) -> list[Path]:
    """The spill files that there are."""
    return sorted(area.directory.glob("*.spill"))


def test_the_table_says_what_the_header_is() -> None:
    """Offsets and sizes of the module's table are those of the struct."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", str(spill_files.__doc__), re.MULTILINE)
    assert [int(at) for at, _, _ in rows] == [0, 4, 6, 8, 16, 24, 28, 32]
    assert sum(int(size) for _, size, _ in rows) == HEADER.size
    assert [name for _, _, name in rows][-3:] == ["entry_count", "body_bytes", "crc32c"]


@given(batches, batches)
def test_a_record_reads_back(first: EntryBatch, second: EntryBatch) -> None:
    """Records stand one behind the other; what is cut short is not there yet."""
    data = encode(first) + encode(second)
    found = decode(data, 0, where="file", offset=0)
    assert found == (first, len(encode(first)))
    assert decode(data, found[1], where="file", offset=0) == (second, len(data))
    assert decode(data[:-1], found[1], where="file", offset=0) is None


@given(st.data(), batches)
def test_no_flipped_bit_of_a_record_passes(data: st.DataObject, value: EntryBatch) -> None:
    """Whatever bit is another, the record is refused, or seems longer than what is there."""
    record = bytearray(encode(value))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    with suppress(CorruptData):
        assert decode(bytes(record), 0, where="file", offset=0) is None


@pytest.mark.parametrize("chunk_bytes", [1, 1500, 1 << 20])
async def test_batches_come_back_in_order_over_many_files(tmp_path: Path, chunk_bytes: int) -> None:
    """However little is read at a time; files go as soon as they were taken, and in the end all bytes are free."""
    async with SpillArea(tmp_path / "spill", 1 << 20, file_bytes=4000) as area:
        queue = SpillQueue(area)
        for number in range(30):
            assert await queue.append(batch(number))
        assert len(files(area)) == 8
        assert area.used_bytes == sum(path.stat().st_size for path in files(area))
        first = await queue.take(1)
        await queue.append(batch(30))
        assert [*first, *await drained(queue, chunk_bytes)] == [batch(number) for number in range(31)]
        assert files(area) == []
        assert area.used_bytes == 0


async def test_the_limit_is_for_all_topics(tmp_path: Path) -> None:
    """What would go beyond it is not written; what another topic takes back makes room."""
    async with SpillArea(tmp_path, 2 * len(encode(batch(0)))) as area:
        one, other = SpillQueue(area), SpillQueue(area)
        assert await one.append(batch(0))
        assert await other.append(batch(0))
        with capture_logs() as logged:
            assert not await other.append(batch(1))
            assert not await other.append(batch(1))
        assert area.refused == f"spill.bytes_max ({words.size(area.bytes_max)}) is used up"
        assert [(one["event"], one["error"]) for one in logged] == [("spill.refused", area.refused)]
        assert "raise spill.bytes_max" in logged[0]["hint"]
        assert await drained(one) == [batch(0)]
        assert await other.append(batch(1))
        assert not area.refused
        assert await drained(other) == [batch(0), batch(1)]


@pytest.mark.parametrize("written", [0, 17, 500])
async def test_a_disk_that_is_full_refuses_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Half a record is no record: what was there before and what comes after read back, and nothing of it."""
    async with SpillArea(tmp_path, 1 << 20) as area:
        queue = SpillQueue(area)
        await queue.append(batch(0))
        used, real, full = area.used_bytes, os.pwrite, [True]

        def pwrite(descriptor: int, data: memoryview, at: int) -> int:
            if not full:
                return real(descriptor, data, at)
            if written and len(data) == len(encode(batch(1))):
                return real(descriptor, data[:written], at)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", pwrite)
        assert not await queue.append(batch(1))
        assert (area.used_bytes, area.refused) == (used, "No space left on device")
        full.clear()
        assert await queue.append(batch(2, size=3))
        assert not area.refused
        assert await drained(queue) == [batch(0), batch(2, size=3)]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def cut(path: Path, at: int) -> None:
    """Cut a file short."""
    os.truncate(path, at)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(share=st.floats(0, 1, exclude_max=True), damage=st.sampled_from([flip, cut]))
async def test_damage_on_disk_is_always_noticed(
    tmp_path: Path, share: float, damage: Callable[[Path, int], None]
) -> None:
    """A flipped bit or a cut file ends in CorruptData that names file and byte; what came before it was right."""
    async with SpillArea(tmp_path, 1 << 20) as area:
        queue, found = SpillQueue(area), list[EntryBatch]()
        for number in range(3):
            await queue.append(batch(number))
        [path] = files(area)
        damage(path, int(path.stat().st_size * share))

        async def drain() -> None:
            while queue.unread:
                found.extend(await queue.take(1500))

        with pytest.raises(CorruptData) as caught:
            await drain()
        assert caught.value.key == str(path)
        assert found == [batch(number) for number in range(len(found))]
        await queue.drop()
        assert files(area) == []
        assert area.used_bytes == 0


@pytest.mark.parametrize("record", ["first", "larger than one read"])
async def test_a_disk_that_fails_to_read_counts_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """It names the file and what the disk says; no other error leaves the queue, and so no error ends the daemon."""
    async with SpillArea(tmp_path, 1 << 20) as area:
        queue = SpillQueue(area)
        await queue.append(batch(0))
        [path] = files(area)
        real, reads = os.pread, list[int]()

        def pread(descriptor: int, size: int, at: int) -> bytes:
            reads.append(size)
            if record == "first" or len(reads) > 1:
                raise OSError(errno.EIO, "Input/output error")
            return real(descriptor, size, at)

        monkeypatch.setattr(os, "pread", pread)
        with pytest.raises(CorruptData, match="Input/output error") as caught:
            await queue.take(1 << 20 if record == "first" else 10)
        assert (caught.value.key, caught.value.offset, caught.value.hint) == (str(path), 0, spill_files.DAMAGED)
        await queue.drop()


async def test_a_file_that_cannot_be_deleted_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that became read-only keeps its files until the next start; what was read is handed out."""
    async with SpillArea(tmp_path, 1 << 20, file_bytes=1) as area:
        queue = SpillQueue(area)
        for number in range(2):
            await queue.append(batch(number))

        def unlink(path: Path, *, missing_ok: bool = False) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

        with monkeypatch.context() as patched, capture_logs() as logged:
            patched.setattr(type(tmp_path), "unlink", unlink)
            assert await queue.take(1 << 20) == [batch(0)]
            await queue.drop()
            await area.__aexit__()
        assert {one["event"] for one in logged} == {"spill.delete_failed"}
        assert "Read-only file system" in logged[0]["error"]
        assert len(files(area)) == 2
        assert area.used_bytes == 0
    async with SpillArea(tmp_path, 1 << 20) as area:
        assert files(area) == []


async def test_a_directory_has_one_daemon_and_nothing_outlives_it(tmp_path: Path) -> None:
    """A second daemon is refused with what to change; what a crash left is thrown away at the next start."""
    async with SpillArea(tmp_path, 1 << 20) as area:
        queue = SpillQueue(area)
        await queue.append(batch(0))
        assert len(files(area)) == 1
        with pytest.raises(InvalidConfig, match="in use by another daemon"):
            await SpillArea(tmp_path, 1 << 20).__aenter__()
        assert len(files(area)) == 1, "a refused daemon touches nothing"
        await queue.drop()
    assert files(area) == []
    (tmp_path / "00000007.spill").write_bytes(encode(batch(0)))
    (tmp_path / "somebody's file").write_text("kept")
    async with SpillArea(tmp_path, 1 << 20) as area:
        assert files(area) == []
        assert not await SpillQueue(area).take(1000)
    assert (tmp_path / "somebody's file").read_text() == "kept"


async def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    """The setting is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match=r"spill\.directory"):
        await SpillArea(tmp_path / "file" / "spill", 1 << 20).__aenter__()


async def test_what_was_dropped_takes_nothing_more(tmp_path: Path) -> None:
    """A thread that comes late finds the queue closed."""
    async with SpillArea(tmp_path, 1 << 20) as area:
        queue = SpillQueue(area)
        await queue.append(batch(0))
        await queue.drop()
        assert not await queue.append(batch(1))
        assert not await queue.take(1000)
        assert (files(area), area.used_bytes) == ([], 0)
