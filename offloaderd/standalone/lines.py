"""Entries from lines of text: a file or standard input, one entry a line, in batches.

Only the line feed is taken off; a carriage return stays, since an entry is bytes. Empty lines are no entries; they
are counted. Reading happens in a thread that never waits longer than POLL_S, so that a task that is cancelled does
not wait for somebody's keyboard. What has arrived is handed on at once: `tail -f` works.
"""

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from offloaderd.core.errors import InvalidInput, OffloaderError
from offloaderd.core.model import ENTRY_BYTES_MAX

STDIN = "-"
CHUNK_BYTES = 1024 * 1024
POLL_S = 0.2
BATCH_BYTES = 512 * 1024
BATCH_ENTRIES = 2_000


@dataclass(slots=True)
class Lines:
    """A source of batches; `skipped` counts the empty lines met so far, `total_bytes` is None for a pipe."""

    path: str
    entry_bytes_max: int = ENTRY_BYTES_MAX
    skipped: int = 0
    total_bytes: int | None = None
    _number: int = 0

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield batches of entries. Raises InvalidInput for a line that is too long, OffloaderError if unreadable."""
        descriptor = 0 if self.path == STDIN else opened(self.path)
        try:
            kept = b""
            self.total_bytes = regular_bytes(descriptor)
            while (chunk := await asyncio.to_thread(read_some, descriptor, self.path)) != b"":
                if chunk is None:
                    continue
                *lines, kept = (kept + chunk).split(b"\n")
                for batch in grouped(self._checked(lines)):
                    yield batch
                if len(kept) > self.entry_bytes_max:
                    self._number += 1
                    raise self._too_long(len(kept), "at least ")
            for batch in grouped(self._checked([kept])):
                yield batch
            self.skipped -= not kept  # what follows the last line feed is no line
        finally:
            if self.path != STDIN:
                os.close(descriptor)

    def _checked(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._number += 1
            if len(line) > self.entry_bytes_max:
                raise self._too_long(len(line), "")
            if line:
                yield line
            else:
                self.skipped += 1

    def _too_long(self, count: int, qualifier: str) -> InvalidInput:
        where = "standard input" if self.path == STDIN else self.path
        return InvalidInput(
            f"{where}: line {self._number} has {qualifier}{count:,} bytes; an entry has at most "
            f"{self.entry_bytes_max:,}",
            hint="one entry a line; the entries before it have been appended",
        )


def grouped(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of at most BATCH_ENTRIES lines and about BATCH_BYTES."""
    batch: list[bytes] = []
    held = 0
    for line in lines:
        if batch and (held + len(line) > BATCH_BYTES or len(batch) == BATCH_ENTRIES):
            yield batch
            batch, held = [], 0
        batch.append(line)
        held += len(line)
    if batch:
        yield batch


def opened(path: str) -> int:
    """Open a file for reading; raises OffloaderError with the system's reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise OffloaderError(f"cannot read {path}: {error.strerror}") from None
    return descriptor


def regular_bytes(descriptor: int) -> int | None:
    """Return the size of a regular file, None for a pipe or a terminal."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read_some(descriptor: int, name: str) -> bytes | None:
    """Return bytes that have arrived, b"" at the end, None when nothing came within POLL_S."""
    try:
        ready, _, _ = select.select([descriptor], [], [], POLL_S)
        return os.read(descriptor, CHUNK_BYTES) if ready else None
    except OSError as error:
        where = "standard input" if name == STDIN else name
        raise OffloaderError(f"cannot read {where}: {error.strerror}") from None
