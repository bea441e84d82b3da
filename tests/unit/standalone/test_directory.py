"""A directory is made, tried, and refused in one line."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Denied, InvalidConfig, NoSpace, OffloaderError
from offloaderd.standalone import state
from offloaderd.standalone.state import prepare_directory, write_private

if TYPE_CHECKING:
    from pathlib import Path


def test_made(tmp_path: Path) -> None:
    """Missing folders are made for this user only, and the probe leaves nothing; again is no error."""
    for _ in range(2):
        prepare_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_file_in_the_way(tmp_path: Path) -> None:
    """A file where the directory should be, or above it, is named."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidConfig, match="is not a directory"):
            prepare_directory(path)


def test_little_space(tmp_path: Path) -> None:
    """A disk that is nearly full is refused before anything starts."""
    with pytest.raises(NoSpace, match="MiB free at"):
        prepare_directory(tmp_path, free_bytes_min=1 << 60)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, NoSpace, "is full"),
        (errno.EROFS, Denied, "Read-only file system"),
        (errno.EACCES, Denied, "Permission denied"),
        (errno.EIO, OffloaderError, "Input/output error"),
    ],
)
def test_disk_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[OffloaderError], words: str
) -> None:
    """A disk that turns out full or read-only in the probe gives its own line."""

    def refuse(_probe: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(state, "_write_probe", refuse)
    with pytest.raises(kind, match=words) as caught:
        prepare_directory(tmp_path)
    assert type(caught.value) is kind
    assert str(tmp_path) in str(caught.value)


def test_private_file(tmp_path: Path) -> None:
    """A private file is nobody else's, also when it replaces one that was open to all."""
    path = tmp_path / "s3.json"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "secret")
    assert path.read_text() == "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
