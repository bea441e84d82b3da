"""What the operating system says about a disk, in the words of the error tree."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offloaderd.errors import Denied, NoSpace, Transient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}
_FREE_BYTES_MIN = 1024 * 1024


def free_bytes(directory: Path) -> int:
    """Return the bytes that may still be written to the directory's disk. Raises OSError."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def file_bytes(path: Path) -> int:
    """Return the size of a file, 0 when it is not there. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def full_disk(directory: Path) -> bool:
    """Tell whether the disk has no room left worth mentioning; SQLite calls some of it an I/O error."""
    try:
        return free_bytes(directory) < _FREE_BYTES_MIN
    except OSError:
        return False


@contextmanager
def translated_os_errors(directory: Path) -> Iterator[None]:
    """Turn OSError into NoSpace, Denied or Transient, naming the directory."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise NoSpace(f"no space left in {directory}: {reason}", hint="free some") from error
        if error.errno in _DENIED:
            raise Denied(
                f"the ledger store in {directory} cannot be written: {reason}",
                hint="check that the disk is not mounted read-only and who owns the directory",
            ) from error
        raise Transient(f"the ledger store in {directory} failed: {reason}") from error
