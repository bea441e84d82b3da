"""Data directories of servers: created and checked for writing, with one clear error; private files in them."""

import errno
import os
import shutil
from pathlib import Path

from offloaderd.core.errors import Denied, InvalidConfig, NoSpace, OffloaderError

FREE_BYTES_MIN = 64 * 1024 * 1024
"""With less free space a server would start and then fail."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def prepare_directory(directory: Path, free_bytes_min: int = FREE_BYTES_MIN) -> None:
    """Create `directory` (for this user only) and write a probe file into it.

    Raises NoSpace on a full disk, Denied on a read-only one or missing rights, InvalidConfig when the path is taken
    by a file.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_probe(directory / ".probe")
        free_bytes = shutil.disk_usage(directory).free
    except OSError as error:
        raise directory_error(error, directory) from error
    if free_bytes < free_bytes_min:
        raise NoSpace(
            f"only {free_bytes >> 20} MiB free at {directory}",
            hint=f"at least {free_bytes_min >> 20} MiB are needed: free some, or choose another directory",
        )


def directory_error(error: OSError, directory: Path) -> OffloaderError:
    """Return an error of the system about `directory` as ours, with a hint."""
    if error.errno in _FULL:
        return NoSpace(f"the disk at {directory} is full", hint="free some space, or choose another directory")
    if error.errno in _DENIED:
        return Denied(
            f"cannot write to {directory}: {error.strerror}",
            hint="give this user the right to write there, or choose another directory",
        )
    if error.errno in {errno.EEXIST, errno.ENOTDIR}:
        return InvalidConfig(f"{directory} is not a directory", hint="choose another directory")
    return OffloaderError(f"cannot use {directory}: {error.strerror or error}")


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read, whole or not at all (temporary name, then rename).

    Raises OSError.
    """
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _write_probe(probe: Path) -> None:
    """Write and remove a small file, through to the disk."""
    with probe.open("wb") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()
