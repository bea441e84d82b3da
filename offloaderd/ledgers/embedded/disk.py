"""The disk of a ledger store: free bytes, its errors as errors of our tree, and the lock on a directory."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offloaderd.core.errors import Conflict, Denied, NoSpace, Transient

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}
_FREE_BYTES_MIN = 1024 * 1024


def free_bytes(directory: Path) -> int:
    """Return the bytes that may still be written to the directory's disk. Raises OSError."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def file_bytes(path: Path) -> int:
    """Return the size of a file, 0 for a missing one. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def full_disk(directory: Path) -> bool:
    """Whether the disk is nearly full, which SQLite may report as an I/O error."""
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


def lock_directory(directory: Path) -> int:
    """Create the directory if need be and lock it for this process; returns the lock's file descriptor.

    Raises Conflict when it is locked, and OSError.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise Conflict(
            f"the ledger store in {directory} is in use by another process (pid {holder or 'unknown'})",
            hint="stop that one, or choose another directory",
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock
