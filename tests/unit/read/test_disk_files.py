"""Files of the disk cache: what was written is read bit for bit or not at all, and one daemon owns a directory."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.read.disk import files as disk_files
from offloaderd.read.disk.files import (
    HEAD,
    LOCK,
    OWNER_BYTES,
    PAGE_BYTES,
    BlockFiles,
    Damaged,
    Replaced,
    file_bytes,
    owner_of,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWNER, OTHER, ELSE = (
    owner_of("a/b/persistent/t", UUID(int=1)),
    owner_of("a/b/persistent/t", UUID(int=2)),
    owner_of("a/b/persistent/u", UUID(int=1)),
)
PLACE = place_of(OWNER, "bucket", "key", 3, 4)
PATTERN = bytes(range(251))
SIZES = (1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES + 7)


def data_of(size: int) -> bytes:
    """Return bytes that are different in each page."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    """An opened directory."""
    made = BlockFiles(tmp_path / "cache")
    made.open()
    yield made
    made.close()


def test_the_table_says_what_the_head_is() -> None:
    """Offsets and sizes of the module's table are those of the struct."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", str(disk_files.__doc__), re.MULTILINE)
    fields = [(int(at), int(size)) for at, size, _ in rows]
    assert all(at + size == following for (at, size), (following, _) in pairwise(fields))
    assert sum(fields[-1]) == HEAD.size


def test_places_differ_by_each_part() -> None:
    """Topic, segment, bucket, key, offset and length each make another place; the first two are its begin."""
    ranges = [
        ("b", "k", 1, 2),
        ("a", "k", 1, 2),
        ("b", "l", 1, 2),
        ("b", "k", 2, 2),
        ("b", "k", 1, 3),
        ("b", "k", 0, 0),
    ]
    places = {place_of(owner, *one) for owner in (OWNER, OTHER, ELSE) for one in ranges}
    assert len(places) == 3 * len(ranges)
    assert {place[:OWNER_BYTES] for place in places} == {OWNER, OTHER, ELSE}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.sampled_from(SIZES), st.data())
def test_any_part_reads_back(files: BlockFiles, size: int, draw: st.DataObject) -> None:
    """A range is read whole, or any part of it, wherever its pages begin."""
    data = data_of(size)
    files.write(PLACE, data)
    first = draw.draw(st.integers(0, size - 1))
    length = draw.draw(st.integers(1, size - first))
    assert files.path(PLACE).stat().st_size == file_bytes(size)
    assert files.read(PLACE, 0, 0) == data
    assert files.read(PLACE, first, length) == data[first : first + length]
    with pytest.raises(Damaged):
        files.read(PLACE, first, size - first + 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.sampled_from(SIZES), st.data())
def test_no_other_byte_is_returned(files: BlockFiles, size: int, draw: st.DataObject) -> None:
    """With any bit flipped, or any part of its end cut off, a file is damaged."""
    files.write(PLACE, data_of(size))
    content = bytearray(files.path(PLACE).read_bytes())
    if draw.draw(st.booleans()):
        content = content[: draw.draw(st.integers(0, len(content) - 1))]
    else:
        bit = draw.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
    files.path(PLACE).write_bytes(content)
    with pytest.raises(Damaged):
        files.read(PLACE, 0, 0)


def test_damage_elsewhere_does_not_matter(files: BlockFiles) -> None:
    """A part is read while another page of its block is damaged: each page has a checksum."""
    data = data_of(3 * PAGE_BYTES)
    files.write(PLACE, data)
    content = bytearray(files.path(PLACE).read_bytes())
    content[-1] ^= 1
    files.path(PLACE).write_bytes(content)
    assert files.read(PLACE, 100, PAGE_BYTES) == data[100 : 100 + PAGE_BYTES]
    with pytest.raises(Damaged):
        files.read(PLACE, 2 * PAGE_BYTES, 10)


def test_a_file_under_another_name_is_damaged(files: BlockFiles) -> None:
    """What a file system shows under a wrong name is not taken for the range of that name."""
    other = place_of(OWNER, "bucket", "other")
    files.write(PLACE, b"data")
    files.path(PLACE).rename(files.path(other))
    with pytest.raises(Damaged):
        files.read(other, 0, 0)


def test_a_start_finds_complete_files_only(tmp_path: Path, files: BlockFiles) -> None:
    """Files are listed, the oldest first; what a crash left unfinished is deleted, and what is not ours stays."""
    places = [place_of(OWNER, "bucket", str(number)) for number in range(3)]
    for place in places:
        files.write(place, b"some data")
    (tmp_path / "cache" / f"{PLACE.hex()}.unfinished").write_bytes(b"half")
    (tmp_path / "cache" / "notes.txt").write_bytes(b"mine")
    files.close()
    again = BlockFiles(tmp_path / "cache")
    assert [stored.place for stored in again.open()] == places
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(
        [LOCK, "notes.txt", *(files.path(place).name for place in places)]
    )
    again.close()


def test_one_daemon_has_a_directory(tmp_path: Path, files: BlockFiles) -> None:
    """A second one is refused until the first has ended."""
    with pytest.raises(BlockingIOError, match="another daemon"):
        BlockFiles(tmp_path / "cache").open()
    files.close()
    second = BlockFiles(tmp_path / "cache")
    assert second.open() == []
    second.close()


def test_a_listing_that_fails_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try opens the directory."""
    files = BlockFiles(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(BlockFiles, "_listed", lambda _: (tmp_path / "nothing").iterdir())
        with pytest.raises(OSError, match="nothing"):
            files.open()
    assert files.open() == []
    files.close()


def test_a_removed_or_replaced_directory_is_noticed(tmp_path: Path, files: BlockFiles) -> None:
    """Nothing is written to what is there instead; opened again, the directory is made anew."""
    files.check()
    (tmp_path / "cache").rename(tmp_path / "moved")
    with pytest.raises(Replaced, match="removed"):
        files.check()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / LOCK).touch()
    with pytest.raises(Replaced, match="replaced"):
        files.check()
    files.close()
    (tmp_path / "cache" / LOCK).unlink()
    (tmp_path / "cache").rmdir()
    assert files.open() == []
    files.check()


def test_another_file_system_is_not_used_instead(tmp_path: Path, files: BlockFiles) -> None:
    """A directory that is now on another disk (that of the mount point, say) is refused."""
    files.close()
    files._device = (files._device or 0) + 1
    with pytest.raises(Replaced, match="another file system"):
        files.open()
    (tmp_path / "cache" / LOCK).unlink()
    (tmp_path / "cache").rmdir()
    with pytest.raises(FileNotFoundError):
        files.open()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, files: BlockFiles) -> None:
    """The file exists completely or not at all."""
    files.path(PLACE).mkdir()
    with pytest.raises(OSError, match="directory"):
        files.write(PLACE, b"data")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted([files.path(PLACE).name, LOCK])


def test_only_the_owner_may_read_a_file(tmp_path: Path) -> None:
    """In a directory that is open to all, and with any umask, the content of a bucket is not."""
    (tmp_path / "cache").mkdir(mode=0o755)
    files = BlockFiles(tmp_path / "cache")
    files.open()
    files.write(PLACE, b"data")
    assert files.path(PLACE).stat().st_mode & 0o777 == 0o600
    files.close()


def test_a_link_is_not_written_through(tmp_path: Path, files: BlockFiles) -> None:
    """Who may write to the directory cannot have the daemon overwrite a file elsewhere."""
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "cache" / f"{PLACE.hex()}.unfinished").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        files.write(PLACE, b"data")
    files.write(PLACE, b"data")
    assert files.read(PLACE, 0, 0) == b"data"
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_what_others_left_unfinished_stays(tmp_path: Path, files: BlockFiles) -> None:
    """A start deletes what a cache did not finish, and nothing else; directories and links are no ranges."""
    files.close()
    (tmp_path / "cache" / "report.unfinished").write_bytes(b"mine")
    (tmp_path / "cache" / f"{PLACE.hex()}.block").mkdir()
    (tmp_path / "cache" / f"{place_of(OWNER, 'b', 'other').hex()}.unfinished").write_bytes(b"half")
    again = BlockFiles(tmp_path / "cache")
    assert again.open() == []
    again.close()
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(
        [LOCK, "report.unfinished", f"{PLACE.hex()}.block"]
    )
