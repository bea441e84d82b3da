"""The work of the threads of the disk cache: parts of files are read, writes and deletions are applied in batches.

Functions here return errors instead of raising them: the event loop decides what they mean for the table.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offloaderd.read.disk.files import BlockFiles, Damaged, Place, Replaced

DAMAGE = frozenset({errno.EIO, errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.EBADMSG})
"""Errors of a read that say something of the file; all others are of the process or the machine, and pass."""


class Part(NamedTuple):
    """What is read of a file; `checked` as for `BlockFiles.read`."""

    place: Place
    first: int
    length: int
    checked: bool


@dataclass(frozen=True, slots=True)
class Write:
    """A file to write, or to delete without data."""

    place: Place
    data: bytes | None


class Applied(NamedTuple):
    """What came of a batch: the first error of a write, and the files that could not be deleted, with their sizes."""

    failure: OSError | None
    undeleted: Sequence[tuple[Place, int]] = ()
    error: OSError | None = None


def reason_of(error: OSError) -> str:
    """Return an error's words for the log, with its file."""
    return f"{error.strerror or error} ({error.filename})" if error.filename else error.strerror or str(error)


def tried(files: BlockFiles, part: Part) -> bytes | Exception:
    """Return a part of a file, or why it cannot be read."""
    try:
        return files.read(part.place, part.first, part.length, checked=part.checked)
    except (OSError, MemoryError, Damaged) as error:
        return error


def is_damage(error: Exception) -> bool:
    """Whether a read failed by its file, rather than by what the process or the machine lacks."""
    if isinstance(error, OSError):
        return isinstance(error, FileNotFoundError) or error.errno in DAMAGE
    return isinstance(error, Damaged)


def applied_batch(files: BlockFiles, batch: Sequence[Write], free_bytes: int) -> Applied:
    """Write and delete in order; after an error of a write nothing more is written.

    Nothing is written either where less than `free_bytes` would be left on the disk.
    """
    failure: OSError | None = None
    undeleted: list[tuple[Place, int]] = []
    refused: OSError | None = None
    try:
        files.check()
    except OSError as error:
        return Applied(error if isinstance(error, Replaced) else Replaced(error.errno, str(error)))
    try:
        size = sum(len(write.data) for write in batch if write.data is not None)
        if size and files.free_bytes() - size < free_bytes:
            failure = OSError(errno.ENOSPC, "less would be free than cache.free_bytes")
    except OSError as error:
        failure = error
    for write in batch:
        try:
            if write.data is None:
                files.delete(write.place)
            elif failure is None:
                files.write(write.place, write.data)
        except OSError as error:
            if write.data is not None:
                failure = error
            else:
                refused = error
                undeleted.append((write.place, files.size_bytes(write.place)))
    return Applied(failure, undeleted, refused)
